"""A node as it was before caches: `/forward` with hidden states in, hidden states or a text out, and nothing else.

It ignores every header that it does not know, acknowledges nothing, knows no sessions, and as tail answers a text
without a token id, an empty one at the end. A head learns of it like of any node: from `/status`, with the fields
that a plan needs (docs/protocol.md, "What an old node may leave out").
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from nodes import framing
from nodes.framing import Payload
from nodes.layers import LayerRange
from nodes.runtime import NodeRuntime
from nodes.wire import StepHeaders
from tests.meshes import running_nodes
from tests.toys import EOS

#: What the plan reads, and no field more.
PLANNED_WITH = ("state", "dtype", "start_layer", "end_layer", "n_layers", "context_length")


@dataclass
class OldNode:
    """A running old node. `lengths` are the tokens of each step that it was sent."""

    runtime: NodeRuntime
    fingerprint: str
    url: str = ""
    lengths: list[int] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)

    def forward(self, body: bytes) -> tuple[str, bytes]:
        hidden = framing.decode(body).hidden
        self.lengths.append(hidden.shape[1])
        answer = self.runtime.forward(StepHeaders(), Payload(hidden))
        if answer.hidden is not None:
            return "application/octet-stream", framing.encode(Payload(answer.hidden))
        text = "" if answer.token_id == EOS else answer.text
        return "application/json", json.dumps({"text": text}).encode()

    def status(self) -> dict[str, Any]:
        now = self.runtime.status()
        return {"fingerprint": self.fingerprint, **{name: now[name] for name in PLANNED_WITH}}


@contextmanager
def old_node(folder: Path, layers: LayerRange, fingerprint: str) -> Iterator[OldNode]:
    """Serves layers of a toy model on loopback as a node of the fingerprint."""
    with running_nodes(folder, [layers], kv_enabled=False) as (runtime,):
        node = OldNode(runtime, fingerprint)

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.path == "/forward":
                    self.answer(*node.forward(body))
                else:
                    self.refuse()

            def do_GET(self) -> None:
                if self.path == "/status":
                    self.answer("application/json", json.dumps(node.status()).encode())
                else:
                    self.refuse()

            def do_DELETE(self) -> None:
                self.refuse()

            def refuse(self) -> None:
                node.unknown.append(f"{self.command} {self.path}")
                self.send_error(404)

            def answer(self, content_type: str, body: bytes) -> None:
                self.send_response(200)
                self.send_header("Content-Type", content_type)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                """Silent."""

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        node.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield node
        finally:
            server.shutdown()
            server.server_close()
            thread.join()
