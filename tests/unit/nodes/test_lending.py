from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest

from nodes.errors import (
    MeshnetError,
    ModelUnavailable,
    NodeProtocolError,
    NodeUnreachable,
    NoRoom,
    OutsideNetworks,
    Unauthorized,
    WrongLayers,
)
from nodes.joining import JoinRequest
from nodes.layers import LayerRange
from nodes.lending import (
    LendingRefused,
    Loan,
    Shelf,
    address_for,
    ask_heads,
    check_port,
    node_environment,
    read_secret,
)
from nodes.model_files import DEFAULT_MODEL, ModelFiles

OFFER = {
    "url": "http://127.0.0.1:8001",
    "model": "toy",
    "fingerprint": "sha256:toy",
    "dtype": "float32",
    "context_length": 512,
    "n_layers": 4,
    "layers": "2:4",
    "cache_bytes": 5_000_000,
    "reserved_seconds": 60,
}
WANTED = JoinRequest(1024, port=8001)


class FakeHead:
    def __init__(self, answer: dict[str, Any] | MeshnetError, url: str = "http://head:1") -> None:
        self.url = url
        self.answer = answer
        self.bodies: list[dict[str, Any]] = []

    def join(self, body: dict[str, Any], *, timeout: float) -> dict[str, Any]:
        self.bodies.append(body)
        if isinstance(self.answer, MeshnetError):
            raise self.answer
        return self.answer


def loan(**changes: Any) -> Loan:
    return Loan.from_json("http://head:1", {**OFFER, **changes})


def test_a_head_says_what_to_hold() -> None:
    head = FakeHead(OFFER)
    asked = ask_heads([head], WANTED)
    assert (asked.head, asked.model, asked.layers, asked.cache_bytes) == (
        "http://head:1",
        "toy",
        LayerRange(2, 4),
        5_000_000,
    )
    assert head.bodies == [{"scheme": "http", "port": 8001, "memory_bytes": 1024}]


def test_the_next_head_is_asked_when_one_cannot_be_reached() -> None:
    silent, other = FakeHead(NodeUnreachable("silent"), "http://silent:1"), FakeHead(OFFER)
    assert ask_heads([silent, other], WANTED).head == other.url
    with pytest.raises(LendingRefused, match=r"No head can be reached: silent silent"):
        ask_heads([silent, silent], WANTED)


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (Unauthorized("http://head:1: no"), "does not know this secret"),
        (NoRoom("http://head:1: this machine lacks 3 GiB."), "lacks 3 GiB"),
        (WrongLayers("layers 0:30"), "0:30"),
        (OutsideNetworks("Set MESHNET_NODE_NETWORKS."), "setting of the head"),
        (NodeProtocolError("http://head:1 answered 404."), "head of this version"),
        ({}, "cannot be understood"),
        ({**OFFER, "layers": "4:2"}, "cannot be understood"),
    ],
)
def test_what_a_head_refuses_is_one_line(answer: Any, says: str) -> None:
    other = FakeHead(OFFER)
    with pytest.raises(LendingRefused, match=says) as caught:
        ask_heads([FakeHead(answer), other], WANTED)
    assert "\n" not in str(caught.value)
    assert other.bodies == [], "another head of the mesh would say the same"


def test_the_secret_is_read_from_its_file(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    with pytest.raises(LendingRefused, match="No such file"):
        read_secret(path)
    path.write_bytes(b"\xff\xfe\xfd")
    with pytest.raises(LendingRefused, match="not text"):
        read_secret(path)
    path.write_text("  fifteen letters\n")
    with pytest.raises(LendingRefused, match="shorter than 16"):
        read_secret(path)
    path.write_text("sixteen letters!\n")
    assert read_secret(path) == "sixteen letters!"


class FakeShelf:
    """Models by name; what was looked for and fetched."""

    def __init__(self, var_dir: Path, **fingerprints: str) -> None:
        self.fingerprints = fingerprints
        self.found: list[tuple[str, str]] = []
        self.fetched = 0
        self.shelf = Shelf(var_dir, self._find, self._fetch)

    def _find(self, model: str, layers: LayerRange) -> ModelFiles:
        self.found.append((model, str(layers)))
        if model not in self.fingerprints:
            raise ModelUnavailable(f"There is no model {model}.")
        return ModelFiles(model, Path("/models") / model, self.fingerprints[model])

    def _fetch(self) -> None:
        self.fetched += 1


def test_a_folder_of_the_same_name_is_taken_when_it_is_the_same_model(tmp_path: Path) -> None:
    (tmp_path / "models" / "toy").mkdir(parents=True)
    shelf = FakeShelf(tmp_path, toy="sha256:toy")
    assert shelf.shelf.take(loan())[0] == "toy"
    assert shelf.found == [("toy", "2:4")]
    with pytest.raises(LendingRefused, match=r"another model.*sha256:toy.*sha256:other"):
        shelf.shelf.take(loan(fingerprint="sha256:other"))


def test_a_folder_that_is_not_here_must_be_copied(tmp_path: Path) -> None:
    shelf = FakeShelf(tmp_path)
    with pytest.raises(LendingRefused, match=r"Copy it, meshnet_manifest.json included, to .*/models/toy"):
        shelf.shelf.take(loan())
    assert shelf.found == []


def test_the_user_says_where_it_is(tmp_path: Path) -> None:
    shelf = FakeShelf(tmp_path, **{"/elsewhere": "sha256:toy"})
    assert shelf.shelf.take(loan(), "/elsewhere")[0] == "/elsewhere"


def test_the_default_model_and_hub_models_are_fetched(tmp_path: Path) -> None:
    shelf = FakeShelf(tmp_path, **{DEFAULT_MODEL: "sha256:toy", "owner/name": "owner/name@1"})
    assert shelf.shelf.take(loan(model=DEFAULT_MODEL))[0] == DEFAULT_MODEL
    assert shelf.fetched == 1
    assert shelf.shelf.take(loan(model="owner/name", fingerprint="owner/name@1"))[0] == "owner/name"
    assert shelf.fetched == 1


def test_what_cannot_be_fetched_says_why(tmp_path: Path) -> None:
    with pytest.raises(LendingRefused, match="There is no model owner/name"):
        FakeShelf(tmp_path).shelf.take(loan(model="owner/name"))


@pytest.mark.parametrize(
    ("heads", "url", "address"),
    [
        (["http://127.0.0.1:8000"], "", "127.0.0.1"),
        (["http://localhost:8000"], "http://127.0.0.1:8001", "127.0.0.1"),
        (["http://[::1]:8000"], "", "[::1]"),
        (["http://[::1]:8000", "http://127.0.0.1:8000"], "", "127.0.0.1"),
        (["https://mesh.example.org"], "", "0.0.0.0"),  # noqa: S104
        (["http://127.0.0.1:8000", "https://10.0.0.1"], "", "0.0.0.0"),  # noqa: S104
        (["http://127.0.0.1:8000"], "https://node.example.org", "0.0.0.0"),  # noqa: S104
    ],
)
def test_a_node_listens_no_wider_than_its_heads_need(heads: list[str], url: str, address: str) -> None:
    assert address_for(heads, url) == address


def test_a_port_that_is_taken_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(LendingRefused, match=f"Port {port} .*PORT="):
            check_port("127.0.0.1", port)
    check_port("127.0.0.1", port)


def test_an_address_that_is_not_here_is_named() -> None:
    with pytest.raises(LendingRefused, match=r"203.0.113.7"):
        check_port("203.0.113.7", 8001)


def test_the_environment_is_the_users_with_what_the_loan_demands(tmp_path: Path) -> None:
    user = {
        "PATH": "/bin",
        "MESHNET_THREADS": "3",
        "MESHNET_SECRET": "old",
        "MESHNET_NODES": "http://x",
        "MESHNET_MODEL_FILE": "/x",
        "DATABASE_URL": "postgres://x",
        "GUNICORN_CMD_ARGS": "--workers 9",
    }
    made = node_environment(
        user,
        loan(),
        model="toy",
        heads=["http://a:1", "http://b:1"],
        bind="127.0.0.1:8001",
        url="",
        secret=tmp_path / "s",
    )
    assert made == {
        "PATH": "/bin",
        "MESHNET_THREADS": "3",
        "DJANGO_SETTINGS_MODULE": "meshsite.settings",
        "MESHNET_ROLE": "node",
        "MESHNET_HEADS": "http://a:1,http://b:1",
        "MESHNET_BIND": "127.0.0.1:8001",
        "MESHNET_URL": "",
        "MESHNET_MODEL": "toy",
        "MESHNET_LAYERS": "2:4",
        "MESHNET_DTYPE": "float32",
        "MESHNET_CONTEXT_LENGTH": "512",
        "MESHNET_KV_MAX_BYTES": "5000000",
        "MESHNET_SECRET_FILE": str(tmp_path / "s"),
    }


def test_the_users_own_limit_of_the_caches_stands_and_plenty_is_no_reason_for_more() -> None:
    common: dict[str, Any] = {"model": "toy", "heads": ["http://a:1"], "bind": "x:1", "url": "", "secret": None}
    made = node_environment({"MESHNET_KV_MAX_BYTES": "7", "MESHNET_SECRET": "s"}, loan(), **common)
    assert (made["MESHNET_KV_MAX_BYTES"], made["MESHNET_SECRET"]) == ("7", "s")
    assert node_environment({}, loan(cache_bytes=10**12), **common)["MESHNET_KV_MAX_BYTES"] == str(2 * 1024**3)
    assert node_environment({}, loan(cache_bytes=0), **common)["MESHNET_KV_MAX_BYTES"] == "1"
