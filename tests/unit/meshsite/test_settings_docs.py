"""The table of options is what the documentation says and what the settings give."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import Any

import pytest

from meshsite.options import OPTIONS, Option

ROOT = Path(__file__).resolve().parents[3]
ROW = re.compile(r"^\| `([A-Z_]+)` \| (\w+) \| `(.*?)` \| (.+) \|$", re.MULTILINE)

#: Another value than the default for each option, as text and as it is read.
OTHER: dict[str, tuple[str, Any]] = {
    "MESHNET_ROLE": ("all", "all"),
    "MESHNET_VAR_DIR": ("/elsewhere/var", Path("/elsewhere/var")),
    "MESHNET_SECRET": ("quite another secret", "quite another secret"),
    "FORWARDED_ALLOW_IPS": ("10.0.0.7, 10.1.0.0/16", ["10.0.0.7", "10.1.0.0/16"]),
    "MESHNET_SECRET_ALSO": ("the-other-secret-of-the-mesh", "the-other-secret-of-the-mesh"),
    "MESHNET_TLS_CERT": ("/etc/meshnet/node.pem", "/etc/meshnet/node.pem"),
    "MESHNET_TLS_KEY": ("/etc/meshnet/node.key", "/etc/meshnet/node.key"),
    "MESHNET_TLS_CLIENT_CA": ("/etc/meshnet/heads.pem", "/etc/meshnet/heads.pem"),
    "MESHNET_NODE_CA": ("/etc/meshnet/nodes.pem", "/etc/meshnet/nodes.pem"),
    "MESHNET_NODE_CERT": ("/etc/meshnet/head.pem", "/etc/meshnet/head.pem"),
    "MESHNET_NODE_KEY": ("/etc/meshnet/head.key", "/etc/meshnet/head.key"),
    "MESHNET_HTTPS": ("true", True),
    "MESHNET_METRICS_TOKEN": ("quite another token", "quite another token"),
    "MESHNET_BIND": ("0.0.0.0:9000", "0.0.0.0:9000"),
    "MESHNET_DEBUG": ("on", True),
    "MESHNET_LOG_LEVEL": ("WARNING", "WARNING"),
    "MESHNET_MODEL": ("owner/name", "owner/name"),
    "MESHNET_ALLOW_UNTESTED_MODELS": ("on", True),
    "MESHNET_LAYERS": ("3:7", "3:7"),
    "MESHNET_DTYPE": ("bfloat16", "bfloat16"),
    "MESHNET_DEVICE": ("cuda:1", "cuda:1"),
    "MESHNET_THREADS": ("3", 3),
    "MESHNET_KV_ENABLED": ("off", False),
    "MESHNET_KV_TTL_SECONDS": ("12.5", 12.5),
    "MESHNET_KV_MAX_SESSIONS": ("5", 5),
    "MESHNET_KV_MAX_BYTES": ("1000", 1000),
    "MESHNET_KV_ACTIVE_SECONDS": ("2.5", 2.5),
    "MESHNET_KV_SWEEP_SECONDS": ("0.5", 0.5),
    "MESHNET_CONTEXT_LENGTH": ("2048", 2048),
    "MESHNET_HEADS": ("https://one,https://two", ["https://one", "https://two"]),
    "MESHNET_URL": ("https://node.example.org", "https://node.example.org"),
    "MESHNET_ANNOUNCE_SECONDS": ("2.5", 2.5),
    "MESHNET_NODE_NETWORKS": ("10.0.0.0/8,fd00::/8", ["10.0.0.0/8", "fd00::/8"]),
    "MESHNET_PLAIN_HTTP": ("on", True),
    "MESHNET_NODES": ("http://one:1,http://two:2", ["http://one:1", "http://two:2"]),
    "MESHNET_PREFILL_PIECE_TOKENS": ("32", 32),
    "MESHNET_MAX_NEW_TOKENS": ("99", 99),
    "MESHNET_MAX_ANSWERS": ("17", 17),
    "MESHNET_MAX_CHOICES": ("3", 3),
    "MESHNET_CONNECT_TIMEOUT_SECONDS": ("1.5", 1.5),
    "MESHNET_STEP_TIMEOUT_SECONDS": ("7.5", 7.5),
    "MESHNET_BUSY_WAIT_SECONDS": ("4.5", 4.5),
    "MESHNET_STEP_PATIENCE_SECONDS": ("3", 3.0),
    "MESHNET_HANDOVER": ("on", True),
    "MESHNET_ROUTE_WAIT_SECONDS": ("40", 40.0),
    "MESHNET_GENERATION_SECONDS": ("600", 600.0),
    "MESHNET_SAMPLE_SECONDS": ("20", 20.0),
    "MESHNET_SAMPLE_RETENTION_SECONDS": ("900", 900.0),
    "MESHNET_DJANGO_SECRET_KEY": ("a key of Django's", "a key of Django's"),
    "MESHNET_ALLOWED_HOSTS": ("mesh.example.org", ["mesh.example.org"]),
    "MESHNET_API_AUTH": ("off", "off"),
    "MESHNET_CORS_ORIGINS": ("https://one.example,http://two:3000", ["https://one.example", "http://two:3000"]),
    "MESHNET_CACHE_URL": ("redis://:word@cache.example.org/1", "redis://:word@cache.example.org/1"),
    "DATABASE_URL": ("postgres://user:word@db.example.org/mesh", "mesh"),
}
#: Options that become a setting of another name.
NAMES = {
    "MESHNET_ROLE": "ROLE",
    "MESHNET_DEBUG": "DEBUG",
    "MESHNET_ALLOWED_HOSTS": "ALLOWED_HOSTS",
}


def documented(option: Option) -> tuple[str, str, str]:
    """Name, type and default as docs/settings.md writes them."""
    default = option.default
    text = ",".join(default) if isinstance(default, list) else str(default)
    return option.name, option.kind, text or "—"


def rows() -> list[tuple[str, ...]]:
    return [match.groups() for match in ROW.finditer((ROOT / "docs" / "settings.md").read_text())]


@pytest.fixture
def loaded_settings(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """meshsite/settings.py, run anew with another value for every option."""
    for option in OPTIONS:
        monkeypatch.delenv(f"{option.name}_FILE", raising=False)
        monkeypatch.setenv(option.name, OTHER[option.name][0])
    return runpy.run_path(str(ROOT / "meshsite" / "settings.py"))


def test_the_page_lists_every_option_once_in_the_tables_order() -> None:
    assert [row[:3] for row in rows()] == [documented(option) for option in OPTIONS]


def test_the_page_says_what_an_option_means_and_what_it_may_be() -> None:
    for option, row in zip(OPTIONS, rows(), strict=True):
        assert row[3].startswith(option.help)
        for choice in option.choices or ():
            assert f"`{choice}`" in row[3]
        if option.minimum:
            assert f"At least {option.minimum:g}." in row[3]


def test_every_value_that_is_tried_here_is_another_than_the_default() -> None:
    assert set(OTHER) == {option.name for option in OPTIONS}
    for option in OPTIONS:
        assert OTHER[option.name][1] != option.default


def test_the_settings_give_every_option_its_value(loaded_settings: dict[str, Any]) -> None:
    databases = loaded_settings["DATABASES"]
    given = {name: loaded_settings.get(NAMES.get(name, name), "no such setting") for name in OTHER}
    given["DATABASE_URL"] = databases["default"]["NAME"]
    assert given == {name: value for name, (_, value) in OTHER.items()}
    assert loaded_settings["SECRET_KEY"] == OTHER["MESHNET_DJANGO_SECRET_KEY"][1]
    assert loaded_settings["LOGGING"]["root"]["level"] == OTHER["MESHNET_LOG_LEVEL"][1]


def test_pages_of_named_origins_are_told_so_outside_of_the_layer_that_replaces_errors(
    loaded_settings: dict[str, Any],
) -> None:
    middleware = loaded_settings["MIDDLEWARE"]
    place = middleware.index("corsheaders.middleware.CorsMiddleware")
    assert middleware[place + 1] == "generation.openai.middleware.OpenAIMiddleware"
    assert loaded_settings["CORS_ALLOWED_ORIGINS"] == OTHER["MESHNET_CORS_ORIGINS"][1]
