"""A node that only talks: the protocol's JSON over real HTTP, without a model and without torch."""

from __future__ import annotations

import hmac
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

SECRET = "a-secret-of-the-test-mesh"


def session_id(letter: str) -> str:
    """A readable session id that fits the grammar."""
    return letter * 32


class FakeNode:
    """Answers `/status`, `/sessions`, `/sessions/evict`, `/limits` and `/drain` like a node. `sessions` is what it
    holds, by id; `refusal` is what it says to changes of its limits and state, if it refuses them.

    With `hanging` it accepts requests and answers none until it is closed.
    """

    def __init__(self, layers: str = "0:15", *, secret: str = SECRET, hanging: bool = False) -> None:
        self.layers = layers
        self.n_layers = 30
        self.boot_id = f"boot-of-{layers}"
        self.secret = secret
        self.hanging = hanging
        self.state = "ready"
        self.versions: Any = {"meshnet": "0.1.0", "torch": "0", "transformers": "0"}
        self.ttl_seconds = 600.0
        self.max_sessions = 8
        self.max_bytes = 2 * 1024**3
        self.sessions: dict[str, dict[str, Any]] = {}
        self.evictions = {"ttl": 0, "operator": 0}
        self.broken: dict[str, Any] = {}
        self.work: Any = {
            "steps": {"prefill": 2, "decode": 10, "stateless": 0},
            "tokens": 40,
            "compute_ms": 600.0,
            "queue_ms": 12.0,
            "refusals": {},
            "errors": [],
        }
        self.refusal = ""
        self.requests: list[str] = []
        self._closing = threading.Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()

    def close(self) -> None:
        self._closing.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def hold(
        self, session: str, *, past_len: int = 12, idle: float = 1.0, age: float = 5.0, busy: bool = False
    ) -> None:
        self.sessions[session] = {
            "id": session,
            "layers": self.layers,
            "past_len": past_len,
            "bytes": past_len * 1024,
            "created_at": 1_700_000_000.0,
            "age_seconds": age,
            "idle_seconds": idle,
            "expires_in_seconds": 600.0 - idle,
            "hits": max(0, past_len - 10),
            "busy": busy,
        }

    # -- what it says

    def _status(self) -> dict[str, Any]:
        start, end = map(int, self.layers.split(":"))
        return {
            "model": "toy",
            "fingerprint": "sha256:toy",
            "layers": self.layers,
            "start_layer": start,
            "end_layer": end,
            "n_layers": self.n_layers,
            "is_tail": end == self.n_layers,
            "dtype": "float32",
            "device": "cpu",
            "boot_id": self.boot_id,
            "state": self.state,
            "versions": self.versions,
            "started_at": 1_700_000_000.0,
            "work": self.work,
        }

    def _list(self) -> dict[str, Any]:
        size = sum(entry["bytes"] for entry in self.sessions.values())
        return {
            "boot_id": self.boot_id,
            "layers": self.layers,
            "limits": self._limits(),
            "stats": {
                "sessions": len(self.sessions),
                "bytes": size,
                "hits": 7,
                "misses": {"unknown_session": 2},
                "evictions": self.evictions,
            },
            "sessions": list(self.sessions.values()),
        }

    def _evict(self, body: dict[str, Any]) -> dict[str, Any]:
        if "ids" in body:
            chosen = [session for session in body["ids"] if session in self.sessions]
        elif "idle_longer_than" in body:
            chosen = [
                entry["id"]
                for entry in self.sessions.values()
                if not entry["busy"] and entry["idle_seconds"] > body["idle_longer_than"]
            ]
        else:
            chosen = list(self.sessions)
        unknown = [session for session in body.get("ids", ()) if session not in self.sessions]
        for session in chosen:
            del self.sessions[session]
        self.evictions["operator"] += len(chosen)
        return {"evicted": chosen, "unknown": unknown}

    def _limits(self) -> dict[str, Any]:
        return {"ttl_seconds": self.ttl_seconds, "max_sessions": self.max_sessions, "max_bytes": self.max_bytes}

    def _change(self, body: dict[str, Any]) -> dict[str, Any]:
        for name, value in body.items():
            setattr(self, name, value)
        return self._limits()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        node = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:  # the library's name
                self._answer()

            def do_POST(self) -> None:  # the library's name
                self._answer()

            def do_PATCH(self) -> None:  # the library's name
                self._answer()

            def do_DELETE(self) -> None:  # the library's name
                self._answer()

            def _answer(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                node.requests.append(f"{self.command} {self.path}")
                if node.hanging:
                    node._closing.wait()
                    return
                given = self.headers.get("Authorization", "").removeprefix("Bearer ")
                if not hmac.compare_digest(given, node.secret):
                    self._send(401, {"error": "unauthorized", "detail": "The mesh secret is missing or wrong."})
                elif self.path in node.broken:
                    self._send(200, node.broken[self.path])
                elif self.path == "/status":
                    self._send(200, node._status())
                elif self.path == "/sessions":
                    self._send(200, node._list())
                elif self.path == "/sessions/evict":
                    self._send(200, node._evict(json.loads(body)))
                elif node.refusal:
                    self._send(400, {"error": "bad_request", "detail": node.refusal})
                elif self.path == "/limits":
                    self._send(200, node._change(json.loads(body)))
                elif self.path == "/drain":
                    node.state = "draining" if self.command == "POST" else "ready"
                    self._send(200, {"state": node.state})
                else:
                    self._send(404, {"error": "not_found", "detail": f"There is nothing under {self.path}."})

            def _send(self, status: int, body: Any) -> None:
                data = json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        return Handler


@contextmanager
def dead_url() -> Iterator[str]:
    """The URL of a port on which nobody listens; it is kept reserved, so that nobody else can take it."""
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{reserved.getsockname()[1]}"
