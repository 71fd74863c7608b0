"""Django settings of every role. Values come from `options.py`, never from the environment directly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dj_database_url

from meshsite.options import read_options

BASE_DIR = Path(__file__).resolve().parent.parent

_options = read_options()
# One line each, so that the type checker knows them; a test compares this list with the table of options.
MESHNET_SECRET: str = _options["MESHNET_SECRET"]
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
MESHNET_NODES: list[str] = _options["MESHNET_NODES"]
MESHNET_PREFILL_PIECE_TOKENS: int = _options["MESHNET_PREFILL_PIECE_TOKENS"]
MESHNET_MAX_NEW_TOKENS: int = _options["MESHNET_MAX_NEW_TOKENS"]
MESHNET_MAX_ANSWERS: int = _options["MESHNET_MAX_ANSWERS"]
MESHNET_CONNECT_TIMEOUT_SECONDS: float = _options["MESHNET_CONNECT_TIMEOUT_SECONDS"]
MESHNET_STEP_TIMEOUT_SECONDS: float = _options["MESHNET_STEP_TIMEOUT_SECONDS"]
MESHNET_BUSY_WAIT_SECONDS: float = _options["MESHNET_BUSY_WAIT_SECONDS"]
MESHNET_SAMPLE_SECONDS: float = _options["MESHNET_SAMPLE_SECONDS"]
MESHNET_SAMPLE_RETENTION_SECONDS: float = _options["MESHNET_SAMPLE_RETENTION_SECONDS"]
MESHNET_DJANGO_SECRET_KEY: str = _options["MESHNET_DJANGO_SECRET_KEY"]
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
        "django.contrib.admin",
        "django.contrib.auth",
        "django.contrib.contenttypes",
        "django.contrib.sessions",
        "django.contrib.messages",
        "whitenoise.runserver_nostatic",
        "django.contrib.staticfiles",
    ]
    MIDDLEWARE = [
        "meshsite.probes.ProbesFirst",
        # Outermost: under /v1 every answer is JSON and has a request id, whichever layer below gave it.
        "generation.openai.middleware.OpenAIMiddleware",
        "django.middleware.security.SecurityMiddleware",
        "whitenoise.middleware.WhiteNoiseMiddleware",
        "django.contrib.sessions.middleware.SessionMiddleware",
        "django.middleware.common.CommonMiddleware",
        "django.middleware.csrf.CsrfViewMiddleware",
        "django.contrib.auth.middleware.AuthenticationMiddleware",
        "django.contrib.messages.middleware.MessageMiddleware",
        "django.middleware.clickjacking.XFrameOptionsMiddleware",
    ]
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
    DATABASES = {"default": dict(_database)}

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
    },
}
