from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured

from meshsite.options import OPTIONS, read_options


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for option in OPTIONS:
        monkeypatch.delenv(option.name, raising=False)
        monkeypatch.delenv(f"{option.name}_FILE", raising=False)


def test_without_an_environment_every_option_has_its_default() -> None:
    assert read_options() == {option.name: option.default for option in OPTIONS}


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("MESHNET_KV_TTL_SECONDS", "2.5", 2.5),
        ("MESHNET_KV_MAX_SESSIONS", "3", 3),
        ("MESHNET_KV_ENABLED", "off", False),
        ("MESHNET_ROLE", "node", "node"),
        ("MESHNET_NODES", "http://a:1, http://b:2,", ["http://a:1", "http://b:2"]),
        ("MESHNET_NODES", "", []),
        ("DATABASE_URL", "postgres://x", "postgres://x"),
    ],
)
def test_a_value_is_read_in_its_type(monkeypatch: pytest.MonkeyPatch, name: str, text: str, value: Any) -> None:
    monkeypatch.setenv(name, text)
    assert read_options()[name] == value


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("MESHNET_KV_MAX_SESSIONS", "many"),
        ("MESHNET_KV_MAX_SESSIONS", "0"),
        ("MESHNET_KV_MAX_SESSIONS", "1.5"),
        ("MESHNET_KV_TTL_SECONDS", "-1"),
        ("MESHNET_KV_TTL_SECONDS", "nan"),
        ("MESHNET_KV_ENABLED", "perhaps"),
        ("MESHNET_ROLE", "boss"),
        ("MESHNET_DTYPE", "int3"),
        ("MESHNET_THREADS", "-2"),
    ],
)
def test_a_bad_value_stops_with_the_options_name(monkeypatch: pytest.MonkeyPatch, name: str, text: str) -> None:
    monkeypatch.setenv(name, text)
    with pytest.raises(ImproperlyConfigured, match=f"^{name}"):
        read_options()


def test_a_secret_can_come_from_a_file_without_its_line_end(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_text("from the file\n")
    monkeypatch.setenv("MESHNET_SECRET_FILE", str(path))
    assert read_options()["MESHNET_SECRET"] == "from the file"


def test_a_secret_file_that_is_not_there_stops_with_the_options_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MESHNET_SECRET_FILE", "/nowhere/secret")
    with pytest.raises(ImproperlyConfigured, match=r"^MESHNET_SECRET"):
        read_options()


def test_every_option_has_a_name_of_ours_and_a_sentence_of_help() -> None:
    names = [option.name for option in OPTIONS]
    assert len(names) == len(set(names))
    for option in OPTIONS:
        assert re.fullmatch(r"MESHNET_[A-Z_]+|DATABASE_URL|FORWARDED_ALLOW_IPS", option.name)
        assert option.help.endswith(".")
