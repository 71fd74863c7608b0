"""Every setting of meshnet, read in one place.

Each option has a name, a type, a default and one sentence of help; `docs/settings.md` is compared with this
table by a test. A value that cannot be read stops the process with a message that names the option.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from environs import FileAwareEnv
from environs.exceptions import EnvError


@dataclass(frozen=True)
class Option:
    """One environment variable. `kind` is the name of an environs parser."""

    name: str
    kind: str
    default: Any
    help: str
    minimum: float | None = None
    choices: tuple[str, ...] | None = None


OPTIONS = (
    # -- every role
    Option("MESHNET_ROLE", "str", "head", "What this process serves.", choices=("head", "node", "all")),
    Option("MESHNET_VAR_DIR", "str", "var", "Folder for models, database, logs and `mesh.json`."),
    Option("MESHNET_SECRET", "str", "", "The mesh's shared secret, 16 characters or more. Always required to serve."),
    Option(
        "MESHNET_SECRET_ALSO",
        "str",
        "",
        "A second secret that is accepted and never sent, 16 characters or more: the old or new one while they change.",
    ),
    Option("MESHNET_TLS_CERT", "str", "", "Certificate file (PEM, with its chain) to serve HTTPS; empty for HTTP."),
    Option("MESHNET_TLS_KEY", "str", "", "Key file (PEM, without a password) of that certificate."),
    Option(
        "MESHNET_TLS_CLIENT_CA",
        "str",
        "",
        "File of authorities (PEM); every client of this process must then show a certificate of one of them.",
    ),
    Option(
        "MESHNET_NODE_CA",
        "str",
        "",
        "File of authorities (PEM) that `https://` nodes and heads are checked against; empty for the system's.",
    ),
    Option("MESHNET_NODE_CERT", "str", "", "Certificate file (PEM) to show when connecting to nodes and heads."),
    Option("MESHNET_NODE_KEY", "str", "", "Key file (PEM, without a password) of that certificate."),
    Option(
        "MESHNET_METRICS_TOKEN",
        "str",
        "",
        "Bearer token that opens `/metrics` to other machines, 16 characters or more; empty for this machine only.",
    ),
    Option("MESHNET_BIND", "str", "127.0.0.1:8000", "Address and port that gunicorn listens on."),
    Option("MESHNET_DEBUG", "bool", False, "Django's debug mode. Never in production."),
    Option(
        "MESHNET_LOG_LEVEL",
        "str",
        "INFO",
        "Level of the log on standard error.",
        choices=("DEBUG", "INFO", "WARNING", "ERROR"),
    ),
    Option(
        "MESHNET_MODEL",
        "str",
        "SmolLM2-135M-Instruct",
        "The model: the default model's name, a local folder, or a hub id.",
    ),
    Option(
        "MESHNET_ALLOW_UNTESTED_MODELS",
        "bool",
        False,
        "Whether a model type that was not tested may be served, if its shards pass the proof.",
    ),
    # -- nodes
    Option("MESHNET_LAYERS", "str", "", "Layers that this node holds, `start:end` without the end; empty for all."),
    Option(
        "MESHNET_DTYPE",
        "str",
        "float32",
        "Number format of weights, caches and the wire.",
        choices=("float32", "bfloat16", "float16"),
    ),
    Option("MESHNET_DEVICE", "str", "cpu", "Torch device that computes."),
    Option("MESHNET_THREADS", "int", 0, "Threads of the node's compute pool; 0 leaves the choice to torch.", minimum=0),
    Option("MESHNET_KV_ENABLED", "bool", True, "Whether this node keeps caches between steps."),
    Option("MESHNET_KV_TTL_SECONDS", "float", 600.0, "A session unused for this long is dropped.", minimum=0.1),
    Option("MESHNET_KV_MAX_SESSIONS", "int", 8, "How many sessions a node holds at once.", minimum=1),
    Option("MESHNET_KV_MAX_BYTES", "int", 2 * 1024**3, "How many bytes of cache a node holds at once.", minimum=1),
    Option(
        "MESHNET_KV_ACTIVE_SECONDS",
        "float",
        10.0,
        "A session stepped within this time is not taken away to make room.",
        minimum=0,
    ),
    Option("MESHNET_KV_SWEEP_SECONDS", "float", 1.0, "How often expired sessions are looked for.", minimum=0.01),
    Option("MESHNET_CONTEXT_LENGTH", "int", 0, "Longest text in tokens; 0 takes the model's own limit.", minimum=0),
    Option("MESHNET_HEADS", "list", [], "URLs of the heads that this node announces itself to, separated by commas."),
    Option(
        "MESHNET_URL",
        "str",
        "",
        "The URL under which heads reach this node; empty: the address that they see it come from, and its port.",
    ),
    # -- nodes and heads
    Option(
        "MESHNET_ANNOUNCE_SECONDS",
        "float",
        5.0,
        "How often a node announces itself; a head takes it for gone after three missed beats, 15 s or more.",
        minimum=0.5,
    ),
    Option(
        "MESHNET_NODE_NETWORKS",
        "list",
        ["127.0.0.0/8", "::1/128"],
        "Networks in which nodes may be: heads, and nodes that hand over, send the mesh secret nowhere else.",
    ),
    Option(
        "MESHNET_PLAIN_HTTP",
        "bool",
        False,
        "Whether nodes and heads on other machines may be spoken to without TLS, in a network that you trust.",
    ),
    # -- head
    Option("MESHNET_NODES", "list", [], "URLs of the nodes, separated by commas."),
    Option("MESHNET_PREFILL_PIECE_TOKENS", "int", 64, "A longer prompt is sent in pieces of this size.", minimum=1),
    Option(
        "MESHNET_MAX_NEW_TOKENS", "int", 1024, "Most tokens of an answer when the request names no limit.", minimum=1
    ),
    Option(
        "MESHNET_MAX_ANSWERS", "int", 56, "Answers that one head worker has under way or waiting at once.", minimum=1
    ),
    Option("MESHNET_MAX_CHOICES", "int", 8, "Most answers of one request: its prompts, each `n` times.", minimum=1),
    Option("MESHNET_CONNECT_TIMEOUT_SECONDS", "float", 3.0, "Longest wait for a connection to a node.", minimum=0.1),
    Option("MESHNET_STEP_TIMEOUT_SECONDS", "float", 60.0, "Longest wait for the answer to one step.", minimum=0.1),
    Option(
        "MESHNET_STEP_PATIENCE_SECONDS",
        "float",
        2.0,
        "A node that is silent on a step for so long is asked whether it lives, and left if it is silent then too.",
        minimum=0.05,
    ),
    Option(
        "MESHNET_HANDOVER",
        "bool",
        False,
        "Whether nodes hand the tokens of a running answer over to each other, where they reach each other.",
    ),
    Option(
        "MESHNET_ROUTE_WAIT_SECONDS",
        "float",
        30.0,
        "How long a generation under way waits for layers that no node holds any more.",
        minimum=0,
    ),
    Option("MESHNET_GENERATION_SECONDS", "float", 3600.0, "How long one generation may take in all.", minimum=1),
    Option(
        "MESHNET_BUSY_WAIT_SECONDS",
        "float",
        30.0,
        "How long a generation waits for a free session slot before it is refused.",
        minimum=0,
    ),
    Option(
        "MESHNET_SAMPLE_SECONDS",
        "float",
        15.0,
        "How often the keeper writes down each node's numbers for the curves.",
        minimum=5,
    ),
    Option(
        "MESHNET_SAMPLE_RETENTION_SECONDS",
        "float",
        7200.0,
        "How long these numbers are kept; the curves show the last hour.",
        minimum=60,
    ),
    Option("MESHNET_DJANGO_SECRET_KEY", "str", "", "Django's secret key. Required for the head."),
    Option(
        "MESHNET_HTTPS",
        "bool",
        False,
        "The head is reached over HTTPS only: secure cookies, HSTS, and plain HTTP is sent there.",
    ),
    Option(
        "MESHNET_ALLOWED_HOSTS", "list", ["localhost", "127.0.0.1", "[::1]"], "Host names that the head answers to."
    ),
    Option(
        "MESHNET_API_AUTH",
        "str",
        "keys",
        "Whether `/v1` asks for API keys. `off` only while the bind and all allowed hosts are loopback.",
        choices=("keys", "off"),
    ),
    Option(
        "MESHNET_CORS_ORIGINS",
        "list",
        [],
        "Origins whose pages may use `/v1` from a browser, such as `https://chat.example.org`; none by default.",
    ),
    Option(
        "FORWARDED_ALLOW_IPS",
        "list",
        ["127.0.0.1", "::1"],
        "Addresses or networks of proxies whose `X-Forwarded-Proto` and `X-Forwarded-For` are believed.",
    ),
    Option("DATABASE_URL", "str", "", "The head's database; empty for SQLite in the var folder."),
    Option(
        "MESHNET_CACHE_URL",
        "str",
        "",
        "A Redis that all heads share, `redis://` or `rediss://`, for limits of API keys and what nodes said last.",
    ),
)


def read_options() -> dict[str, Any]:
    """All options by name, typed; `NAME_FILE` names a file that holds the value of NAME (for secrets).

    Raises ImproperlyConfigured that names the option and what is wrong with it.
    """
    env = FileAwareEnv(strip_whitespace=True)  # editors and echo end a file with a line end
    values: dict[str, Any] = {}
    for option in OPTIONS:
        parse: Callable[..., Any] = getattr(env, option.kind)
        try:
            value = parse(option.name, option.default)
        except (EnvError, ValueError) as error:  # ValueError: NAME_FILE cannot be read
            raise ImproperlyConfigured(f"{option.name}: {error}") from error
        if option.kind == "list":
            value = [item.strip() for item in value if item.strip()]
        if option.minimum is not None and not value >= option.minimum:
            raise ImproperlyConfigured(f"{option.name} must be at least {option.minimum}, not {value}.")
        if option.choices is not None and value not in option.choices:
            raise ImproperlyConfigured(f"{option.name} must be one of {', '.join(option.choices)}, not {value!r}.")
        values[option.name] = value
    return values
