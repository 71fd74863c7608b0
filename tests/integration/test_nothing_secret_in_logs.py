"""Case E06: whatever happens, no log of any process holds a key, a secret or a user's text."""

from __future__ import annotations

import json
import os
import signal
import socket
from pathlib import Path
from typing import Any

import openai
import pytest

from tests import processes
from tests.processes import call, wait_until

SECRET, ALSO = "mesh-secret-4PZq81xKw0sLmN7t", "also-secret-9VbC3yRu6HdJ2eQa"
MARKER = "aardvarks-in-armour"
#: Runs in the head: what a prompt is turned into fails once, as a bug would, while the file is there.
BROKEN = """
import pathlib
import generation.text as text
whole = text.Detokenizer.__init__
def broken(self, *args, **options):
    if pathlib.Path({flag!r}).exists():
        raise RuntimeError("a bug of the test's own")
    whole(self, *args, **options)
text.Detokenizer.__init__ = broken
"""


def test_e06_no_log_holds_a_key_a_secret_or_a_text(toy_folder: Any, tmp_path: Path) -> None:
    model, flag = toy_folder("llama"), tmp_path / "broken"
    common = {
        "MESHNET_SECRET": SECRET,
        "MESHNET_SECRET_ALSO": ALSO,
        "MESHNET_LOG_LEVEL": "DEBUG",
        "MESHNET_BUSY_WAIT_SECONDS": "1",
        "MESHNET_ROUTE_WAIT_SECONDS": "1",
    }
    head = processes.head(tmp_path / "head", model, [], **common)
    head.preload = BROKEN.format(flag=str(flag))
    nodes = [
        processes.node(tmp_path / layers, model, layers, **common, MESHNET_HEADS=head.url) for layers in ("0:2", "2:4")
    ]
    head.environ["MESHNET_NODES"] = nodes[0].url
    with processes.serving(*nodes):
        key = processes.prepare_head(head)
        with (
            processes.serving(head),
            openai.OpenAI(base_url=f"{head.url}/v1", api_key=key, max_retries=0) as client,
        ):

            def chat() -> str | None:
                messages: list[Any] = [{"role": "user", "content": MARKER}]
                answer = client.chat.completions.create(model=model.name, messages=messages, max_tokens=5)
                return answer.choices[0].message.content

            assert chat() is not None
            refused(head.url, nodes[0].url, key)
            flag.touch()
            with pytest.raises(openai.InternalServerError):
                chat()
            flag.unlink()
            chat()
            os.kill(nodes[1].process.pid, signal.SIGTERM)  # says good-bye
            nodes[1].process.join(20)
            with pytest.raises(openai.InternalServerError):
                chat()
            nodes[0].kill()
            with pytest.raises(openai.InternalServerError):
                chat()
    logs = {str(path): path.read_text() for path in tmp_path.rglob("*.log")}
    assert len(logs) == 3
    assert "a bug of the test's own" in logs[str(head.log)]  # so the crash was logged, with what it came with
    assert "DEBUG" in logs[str(head.log)]
    sought = {"secret": SECRET, "second secret": ALSO, "key": key, "text": MARKER}
    hits = [
        (name, path, line)
        for path, log in logs.items()
        for line in log.splitlines()
        for name, value in sought.items()
        if value in line or value[:12] in line
    ]
    assert hits == []


def refused(head: str, node: str, key: str) -> None:
    """Every way to hold out the wrong thing, and the right one in the wrong place."""
    body = {"model": "x", "messages": [{"role": "user", "content": MARKER}]}
    for url in (f"{head}/v1/chat/completions", f"{node}/forward", f"{head}/mesh/announce"):
        for token in (SECRET, ALSO, key, SECRET[:-1], key[:-1]):
            if (url.endswith("completions") and token == key) or (url.endswith("announce") and token in (SECRET, ALSO)):
                continue
            status = call(url, "POST", body, {"Authorization": f"Bearer {token}"})[0]
            assert status in (401, 415) and (status == 401 or token in (SECRET, ALSO)), (url, status)
    assert call(f"{node}/status", headers={"Authorization": f"Bearer {ALSO}"})[0] == 200
    assert call(f"{head}/admin/login/", "POST", json.dumps(body).encode(), {"Authorization": f"Bearer {key}"})[0] == 403
    for port in (head.rpartition(":")[2], node.rpartition(":")[2]):
        for header in (f"Authorization Bearer {key}", f"Authorization: Bearer {SECRET}\x00", f"{SECRET}: x y\x01"):
            with socket.create_connection(("127.0.0.1", int(port)), timeout=10) as sock:
                sock.sendall(f"GET /status HTTP/1.1\r\nHost: x\r\n{header}\r\n\r\n".encode())
                assert wait_until(lambda: sock.recv(100)).startswith(b"HTTP/1.1 400")
        with socket.create_connection(("127.0.0.1", int(port)), timeout=10) as sock:
            sock.sendall(f"GET /status HTTP/1.1\r\nAuthorization: Bearer {key}\r\n{SECRET}".encode())  # and no more
        with socket.create_connection(("127.0.0.1", int(port)), timeout=10) as sock:
            sock.sendall(f"{MARKER} {key} {SECRET}\r\n\r\n".encode())
            assert sock.recv(100).startswith(b"HTTP/1.1 400")
