from __future__ import annotations

import ssl
import subprocess
from pathlib import Path
from typing import Any

import pytest
from django.core.checks import run_checks
from django.core.exceptions import ImproperlyConfigured

from nodes import tls
from tests.certificates import Authority


@pytest.fixture
def ours(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "ours")


def found() -> list[str | None]:
    return [message.id for message in run_checks() if str(message.id).startswith("meshnet.E01")]


def configure(settings: Any, environ: dict[str, Any]) -> None:
    for name, value in environ.items():
        setattr(settings, name, str(value))


def test_without_files_gunicorn_serves_plain_http(settings: Any) -> None:
    assert tls.server_options(settings) == {
        "certfile": None,
        "keyfile": None,
        "ca_certs": None,
        "cert_reqs": ssl.CERT_NONE,
    }


def test_with_an_authority_for_clients_a_certificate_is_demanded(settings: Any, ours: Authority) -> None:
    configure(settings, {**ours.serves(), "MESHNET_TLS_CLIENT_CA": ours.file})
    options = tls.server_options(settings)
    assert (options["ca_certs"], options["cert_reqs"]) == (str(ours.file), ssl.CERT_REQUIRED)
    assert (options["certfile"], options["keyfile"]) == (settings.MESHNET_TLS_CERT, settings.MESHNET_TLS_KEY)
    assert found() == []


def test_who_connects_checks_certificate_and_name_against_the_one_authority(settings: Any, ours: Authority) -> None:
    configure(settings, {"MESHNET_NODE_CA": ours.file, **ours.shows()})
    context = tls.client_context()
    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_REQUIRED, True)
    assert context.minimum_version == ssl.TLSVersion.TLSv1_2
    assert len(context.get_ca_certs()) == 1
    assert found() == []


def test_without_an_authority_of_ones_own_the_systems_are_trusted(settings: Any) -> None:
    context = tls.client_context()
    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_REQUIRED, True)


def test_each_mistake_is_found_by_its_check(settings: Any, ours: Authority, tmp_path: Path) -> None:
    certificate, key = ours.certificate("one.example")
    _, other_key = ours.certificate("two.example")
    nonsense, locked, missing = tmp_path / "nonsense", tmp_path / "locked", tmp_path / "missing"
    nonsense.write_text("nothing")
    subprocess.run(
        ["openssl", "pkey", "-in", key, "-aes256", "-passout", "pass:x", "-out", locked], check=True, timeout=30
    )
    mistakes: list[tuple[str, dict[str, Path]]] = [
        ("meshnet.E010", {"MESHNET_TLS_CERT": certificate}),
        ("meshnet.E010", {"MESHNET_TLS_KEY": key}),
        ("meshnet.E010", {"MESHNET_TLS_CERT": certificate, "MESHNET_TLS_KEY": other_key}),
        ("meshnet.E010", {"MESHNET_TLS_CERT": certificate, "MESHNET_TLS_KEY": locked}),
        ("meshnet.E010", {"MESHNET_TLS_CERT": nonsense, "MESHNET_TLS_KEY": key}),
        ("meshnet.E010", {"MESHNET_TLS_CERT": missing, "MESHNET_TLS_KEY": key}),
        ("meshnet.E010", {"MESHNET_TLS_CERT": tmp_path, "MESHNET_TLS_KEY": key}),
        ("meshnet.E011", {**good(certificate, key), "MESHNET_TLS_CLIENT_CA": nonsense}),
        ("meshnet.E011", {**good(certificate, key), "MESHNET_TLS_CLIENT_CA": missing}),
        ("meshnet.E012", {"MESHNET_TLS_CLIENT_CA": ours.file}),
        ("meshnet.E013", {"MESHNET_NODE_CA": nonsense}),
        ("meshnet.E013", {"MESHNET_NODE_CA": missing}),
        ("meshnet.E013", {"MESHNET_NODE_CERT": certificate}),
        ("meshnet.E013", {"MESHNET_NODE_CERT": certificate, "MESHNET_NODE_KEY": other_key}),
    ]
    names = {name for _, mistake in mistakes for name in mistake}
    for check, mistake in mistakes:
        configure(settings, {**dict.fromkeys(names, ""), **mistake})
        assert found() == [check], mistake


def good(certificate: Path, key: Path) -> dict[str, Path]:
    return {"MESHNET_TLS_CERT": certificate, "MESHNET_TLS_KEY": key}


def test_a_context_is_refused_with_the_settings_name(settings: Any, tmp_path: Path) -> None:
    settings.MESHNET_NODE_CA = str(tmp_path / "missing")
    with pytest.raises(ImproperlyConfigured, match=r"MESHNET_NODE_CA names .* cannot be read"):
        tls.client_context()
