from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

from nodes.head_client import HeadClient


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, format: str, *args: object) -> None:
        return


def test_no_connection_to_a_head_is_kept_which_would_hold_up_its_end() -> None:
    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        # Returns when the one connection that it takes has ended.
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        client = HeadClient(f"http://127.0.0.1:{server.server_port}", "a secret")
        assert client.announce({}, timeout=10) == {}
        thread.join(10)
        assert not thread.is_alive()
