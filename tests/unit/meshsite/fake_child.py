"""A cheap child for the supervisor: a tiny HTTP server that behaves as FAKE_MODE says. Run as a script."""

from __future__ import annotations

import os
import signal
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/readyz" else 404)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        return


def main() -> None:
    mode = os.environ.get("FAKE_MODE", "serve")
    if mode == "refuse":
        sys.stderr.write("[ERROR] Refused to start: the shoe does not fit.\n")
        raise SystemExit(3)
    if mode == "crash":
        sys.stderr.write("[2026-01-01 00:00:00 +0000] [1] [ERROR] It broke.\n")
        raise SystemExit(4)
    server = HTTPServer(("127.0.0.1", int(os.environ["FAKE_PORT"])), Handler)
    if mode == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if mode == "fork":  # a worker, as gunicorn has it: it holds the port after its master is gone
        worker = os.fork()
        if worker == 0:
            Path(os.environ["FAKE_PID_FILE"]).write_text(str(os.getpid()))
            server.serve_forever()
        os.waitpid(worker, 0)
    server.serve_forever()


if __name__ == "__main__":
    main()
