"""Django settings of every role. Values come from `options.py`, never from the environment directly."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import dj_database_url

from meshsite.cache_url import check_cache_url
from meshsite.options import read_options

BASE_DIR = Path(__file__).resolve().parent.parent

_options = read_options()
# One line each, so that the type checker knows them; a test compares this list with the table of options.
MESHNET_SECRET: str = _options["MESHNET_SECRET"]
MESHNET_SECRET_ALSO: str = _options["MESHNET_SECRET_ALSO"]
MESHNET_TLS_CERT: str = _options["MESHNET_TLS_CERT"]
MESHNET_TLS_KEY: str = _options["MESHNET_TLS_KEY"]
MESHNET_TLS_CLIENT_CA: str = _options["MESHNET_TLS_CLIENT_CA"]
MESHNET_NODE_CA: str = _options["MESHNET_NODE_CA"]
MESHNET_NODE_CERT: str = _options["MESHNET_NODE_CERT"]
MESHNET_NODE_KEY: str = _options["MESHNET_NODE_KEY"]
MESHNET_METRICS_TOKEN: str = _options["MESHNET_METRICS_TOKEN"]
MESHNET_BIND: str = _options["MESHNET_BIND"]
MESHNET_MODEL: str = _options["MESHNET_MODEL"]
MESHNET_ALLOW_UNTESTED_MODELS: bool = _options["MESHNET_ALLOW_UNTESTED_MODELS"]
MESHNET_LAYERS: str = _options["MESHNET_LAYERS"]
MESHNET_DTYPE: str = _options["MESHNET_DTYPE"]
MESHNET_DEVICE: str = _options["MESHNET_DEVICE"]
MESHNET_THREADS: int = _options["MESHNET_THREADS"]
MESHNET_KV_ENABLED: bool = _options["MESHNET_KV_ENABLED"]
MESHNET_KV_TTL_SECONDS: float = _options["MESHNET_KV_TTL_SECONDS"]
MESHNET_KV_MAX_SESSIONS: int = _options["MESHNET_KV_MAX_SESSIONS"]
MESHNET_KV_MAX_BYTES: int = _options["MESHNET_KV_MAX_BYTES"]
MESHNET_KV_ACTIVE_SECONDS: float = _options["MESHNET_KV_ACTIVE_SECONDS"]
MESHNET_KV_SWEEP_SECONDS: float = _options["MESHNET_KV_SWEEP_SECONDS"]
MESHNET_CONTEXT_LENGTH: int = _options["MESHNET_CONTEXT_LENGTH"]
MESHNET_HEADS: list[str] = _options["MESHNET_HEADS"]
MESHNET_URL: str = _options["MESHNET_URL"]
MESHNET_ANNOUNCE_SECONDS: float = _options["MESHNET_ANNOUNCE_SECONDS"]
MESHNET_NODE_NETWORKS: list[str] = _options["MESHNET_NODE_NETWORKS"]
MESHNET_PLAIN_HTTP: bool = _options["MESHNET_PLAIN_HTTP"]
MESHNET_NODES: list[str] = _options["MESHNET_NODES"]
MESHNET_PREFILL_PIECE_TOKENS: int = _options["MESHNET_PREFILL_PIECE_TOKENS"]
MESHNET_MAX_NEW_TOKENS: int = _options["MESHNET_MAX_NEW_TOKENS"]
MESHNET_MAX_ANSWERS: int = _options["MESHNET_MAX_ANSWERS"]
MESHNET_MAX_CHOICES: int = _options["MESHNET_MAX_CHOICES"]
MESHNET_CONNECT_TIMEOUT_SECONDS: float = _options["MESHNET_CONNECT_TIMEOUT_SECONDS"]
MESHNET_STEP_TIMEOUT_SECONDS: float = _options["MESHNET_STEP_TIMEOUT_SECONDS"]
MESHNET_STEP_PATIENCE_SECONDS: float = _options["MESHNET_STEP_PATIENCE_SECONDS"]
MESHNET_HANDOVER: bool = _options["MESHNET_HANDOVER"]
MESHNET_ROUTE_WAIT_SECONDS: float = _options["MESHNET_ROUTE_WAIT_SECONDS"]
MESHNET_GENERATION_SECONDS: float = _options["MESHNET_GENERATION_SECONDS"]
MESHNET_BUSY_WAIT_SECONDS: float = _options["MESHNET_BUSY_WAIT_SECONDS"]
MESHNET_SAMPLE_SECONDS: float = _options["MESHNET_SAMPLE_SECONDS"]
MESHNET_SAMPLE_RETENTION_SECONDS: float = _options["MESHNET_SAMPLE_RETENTION_SECONDS"]
MESHNET_DJANGO_SECRET_KEY: str = _options["MESHNET_DJANGO_SECRET_KEY"]
MESHNET_HTTPS: bool = _options["MESHNET_HTTPS"]
MESHNET_API_AUTH: str = _options["MESHNET_API_AUTH"]
MESHNET_CORS_ORIGINS: list[str] = _options["MESHNET_CORS_ORIGINS"]
FORWARDED_ALLOW_IPS: list[str] = _options["FORWARDED_ALLOW_IPS"]
MESHNET_CACHE_URL: str = _options["MESHNET_CACHE_URL"]
MESHNET_LOG_LEVEL: str = _options["MESHNET_LOG_LEVEL"]

ROLE: str = _options["MESHNET_ROLE"]
MESHNET_VAR_DIR = Path(_options["MESHNET_VAR_DIR"])
if not MESHNET_VAR_DIR.is_absolute():
    MESHNET_VAR_DIR = BASE_DIR / MESHNET_VAR_DIR

SERVES_HEAD = ROLE in ("head", "all")

DEBUG: bool = _options["MESHNET_DEBUG"]
# Commands and tests work without a key; the system check and the gunicorn hooks refuse to *serve* without one.
SECRET_KEY: str = _options["MESHNET_DJANGO_SECRET_KEY"] or "not-a-secret-only-for-commands"
ALLOWED_HOSTS: list[str] = _options["MESHNET_ALLOWED_HOSTS"] if SERVES_HEAD else ["*"]

ROOT_URLCONF = f"meshsite.urls_{ROLE}"
WSGI_APPLICATION = "meshsite.wsgi.application"
APPEND_SLASH = False
USE_TZ = True
TIME_ZONE = "UTC"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

INSTALLED_APPS = ["meshsite", "nodes"]
MIDDLEWARE: list[str] = []
DATABASES: dict[str, dict[str, Any]] = {}

if SERVES_HEAD:
    INSTALLED_APPS = [
        "meshsite",
        "generation",
        "nodes",
        "rest_framework",
        "rest_framework_api_key",
        "drf_spectacular",
        "drf_spectacular_sidecar",
        "django.contrib.admin",
        "django.contrib.auth",
        "django.contrib.contenttypes",
        "django.contrib.sessions",
        "django.contrib.messages",
        "axes",
        "csp",
        "whitenoise.runserver_nostatic",
        "django.contrib.staticfiles",
    ]
    MIDDLEWARE = [
        "meshsite.probes.ProbesFirst",
        "meshsite.mesh_paths.MeshPathsFirst",
        # Outermost: under /v1 every answer is JSON and has a request id, whichever layer below gave it.
        "generation.openai.middleware.OpenAIMiddleware",
        "generation.openai.local_only.LocalOnly",
        "django.middleware.security.SecurityMiddleware",
        "csp.middleware.CSPMiddleware",
        "meshsite.security_headers.SecurityHeaders",
        "whitenoise.middleware.WhiteNoiseMiddleware",
        "django.contrib.sessions.middleware.SessionMiddleware",
        "django.middleware.common.CommonMiddleware",
        "django.middleware.csrf.CsrfViewMiddleware",
        "django.contrib.auth.middleware.AuthenticationMiddleware",
        "django.contrib.messages.middleware.MessageMiddleware",
        "django.middleware.clickjacking.XFrameOptionsMiddleware",
        "axes.middleware.AxesMiddleware",
    ]
    if MESHNET_CORS_ORIGINS:
        # Outside of the layer that replaces errors, so that a page can read those too. Its app would only check its
        # settings under other names than ours.
        MIDDLEWARE.insert(
            MIDDLEWARE.index("generation.openai.middleware.OpenAIMiddleware"), "corsheaders.middleware.CorsMiddleware"
        )
    if ROLE == "all":
        MIDDLEWARE.insert(0, "meshsite.node_paths.NodePathsFirst")
    _database = dj_database_url.parse(_options["DATABASE_URL"] or f"sqlite:///{MESHNET_VAR_DIR / 'meshnet.sqlite3'}")
    if _database["ENGINE"] == "django.db.backends.sqlite3":
        # Deferred transactions fail at once when two writers meet, whatever the timeout (DESIGN fact 20).
        _database["OPTIONS"] = {
            "timeout": 20,
            "transaction_mode": "IMMEDIATE",
            "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;",
        }
    elif _database["ENGINE"] == "django.db.backends.postgresql":
        # docs/decisions/0013-postgresql.md. What the URL says of these (`?sslmode=require`) counts.
        _database["OPTIONS"] = {
            "application_name": "meshnet",
            "connect_timeout": 5,
            # A database whose machine is gone without a word is noticed, not waited for.
            "tcp_user_timeout": 20_000,
            # As long as SQLite's: a head that stands still must not hold up the others for good.
            "options": "-c lock_timeout=20s -c idle_in_transaction_session_timeout=60s",
            **_database.get("OPTIONS", {}),
        }
    DATABASES = {"default": dict(_database)}

#: How long a head waits for its Redis, which answers in a millisecond or has a problem. Nothing is sent twice: what
#: came through without an answer would count twice. A pool refuses what is over its connections (redis-py: 100): each
#: request's thread may want one, each answer's that has ended, and some others.
CACHE_CONNECTION: dict[str, Any] = {
    "socket_connect_timeout": 0.5,
    "socket_timeout": 1.0,
    "max_connections": 2 * MESHNET_MAX_ANSWERS + 64,
    # With probes after half a minute of silence, as redis-py sets them: one that was cut off unseen is noticed.
    "socket_keepalive": True,
}
CACHES: dict[str, dict[str, Any]] = {"default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}}
check_cache_url(MESHNET_CACHE_URL)
if SERVES_HEAD and MESHNET_CACHE_URL:
    from redis.backoff import NoBackoff
    from redis.retry import Retry

    CACHE_CONNECTION["retry"] = Retry(NoBackoff(), 0)
    # Not the default one: what else of Django looks for a cache shall not depend on it.
    CACHES["shared"] = {
        "BACKEND": "django.core.cache.backends.redis.RedisCache",
        "LOCATION": MESHNET_CACHE_URL,
        "KEY_PREFIX": "meshnet",
        # JSON: Django's own pickles would let whoever writes into that Redis run code in a head.
        "OPTIONS": {**CACHE_CONNECTION, "serializer": "nodes.shared_snapshots.JsonSerializer"},
    }

DEFAULT_EXCEPTION_REPORTER_FILTER = "meshsite.debug_pages.HidesCacheURL"

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ],
        },
    },
]

if SERVES_HEAD and MESHNET_HTTPS:
    # Whether a request came over TLS is gunicorn's to say, by its own TLS or by X-Forwarded-Proto from a proxy among
    # FORWARDED_ALLOW_IPS. Django's SECURE_PROXY_SSL_HEADER would believe that header from anybody.
    SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = True
    SECURE_HSTS_SECONDS = 365 * 24 * 3600
    SECURE_SSL_REDIRECT = True
    # What programs ask must not be sent on: a redirect loses a POST's body, and their key has gone over plain HTTP
    # already. The page of /v1 is for people. Probes and the mesh's own paths are answered before.
    SECURE_REDIRECT_EXEMPT = [r"^v1/(?!docs(/|$))", r"^metrics$"]
# Whether all hosts under this one's name use HTTPS, and whether browsers come to know so beforehand, is not for a head
# to decide.
SILENCED_SYSTEM_CHECKS = ["security.W005", "security.W021"]

# The pages load scripts, styles and pictures of their own only, and no inline ones.
CONTENT_SECURITY_POLICY = {
    "EXCLUDE_URL_PREFIXES": ["/v1/"],
    "DIRECTIVES": {
        "default-src": ["'none'"],
        "script-src": ["'self'"],
        "style-src": ["'self'"],
        "img-src": ["'self'"],
        "connect-src": ["'self'"],
        "form-action": ["'self'"],
        "base-uri": ["'none'"],
        "frame-ancestors": ["'none'"],
    },
}

# django-cors-headers, in MIDDLEWARE only when origins are named. Never with cookies: keys are sent by the page itself.
CORS_ALLOWED_ORIGINS = MESHNET_CORS_ORIGINS
CORS_URLS_REGEX = r"^/v1(/|$)"
CORS_ALLOW_METHODS = ["GET", "POST", "OPTIONS"]
# The clients send headers of their own (x-stainless-…). `*` stands for all but Authorization.
CORS_ALLOW_HEADERS = ["*", "authorization", "content-type", "x-request-id"]
CORS_EXPOSE_HEADERS = ["retry-after", "x-request-id", "x-should-retry"] + [
    f"x-ratelimit-{word}-{what}" for what in ("requests", "tokens") for word in ("limit", "remaining", "reset")
]

# Tries at the admin's login. By address only: a limit for each user would let anybody lock out an operator.
AUTHENTICATION_BACKENDS = ["axes.backends.AxesStandaloneBackend", "django.contrib.auth.backends.ModelBackend"]
AXES_FAILURE_LIMIT = 10
AXES_COOLOFF_TIME = timedelta(minutes=15)
AXES_LOCKOUT_PARAMETERS = ["ip_address"]
AXES_CLIENT_IP_CALLABLE = "meshsite.client_address.client_address"
AXES_RESET_ON_SUCCESS = True
AXES_RESET_COOL_OFF_ON_FAILURE_DURING_LOCKOUT = False
AXES_SENSITIVE_PARAMETERS = ["username"]  # where a password is typed by mistake
AXES_DISABLE_ACCESS_LOG = True
AXES_VERBOSE = False

LOGIN_REDIRECT_URL = "/admin/"
STATIC_URL = "static/"
# Static files are served straight from the apps, so that no collectstatic step stands before the first start.
# There is no STATIC_ROOT: whitenoise would warn at every start that the folder is not there.
WHITENOISE_USE_FINDERS = True

AUTH_PASSWORD_VALIDATORS = [
    {"NAME": "django.contrib.auth.password_validation.MinimumLengthValidator"},
    {"NAME": "django.contrib.auth.password_validation.CommonPasswordValidator"},
]

REST_FRAMEWORK: dict[str, Any] = {
    # /v1 views name their own authentication; nothing else uses REST framework.
    "DEFAULT_AUTHENTICATION_CLASSES": [],
    "DEFAULT_PERMISSION_CLASSES": [],
    "UNAUTHENTICATED_USER": None,
    "DEFAULT_SCHEMA_CLASS": "drf_spectacular.openapi.AutoSchema",
}

SPECTACULAR_SETTINGS: dict[str, Any] = {
    "TITLE": "meshnet",
    "DESCRIPTION": "Text generation on this mesh, in the shapes of OpenAI's API.",
    "VERSION": "1",
    "OAS_VERSION": "3.1.1",
    "PREPROCESSING_HOOKS": ["generation.openai.schema.without_slashes"],
    "POSTPROCESSING_HOOKS": ["generation.openai.schema.complete"],
}

LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"line": {"format": "%(asctime)s %(levelname)s %(name)s: %(message)s"}},
    "handlers": {"console": {"class": "logging.StreamHandler", "formatter": "line"}},
    "root": {"handlers": ["console"], "level": _options["MESHNET_LOG_LEVEL"]},
    "loggers": {
        # One line per 4xx says nothing that the access log does not.
        "django.request": {"level": "ERROR"},
        # Connection-level debug lines would print request headers, the mesh secret among them.
        "urllib3": {"level": "WARNING"},
        # Whoever sends a strange Host header could fill the log and the terminal.
        "django.security.DisallowedHost": {"level": "CRITICAL"},
        # Below are its own steps.
        "axes": {"level": "WARNING"},
    },
}
