"""gunicorn's gthread worker with an end to silent requests.

A thread of the pool reads each request with no timeout of gunicorn's own, so a few dozen connections that send half a
header and stop would take all of them, without any key. Here a header that is not complete after HEADER_SECONDS is
cut off, and so is a client that is silent for SILENCE_SECONDS in the middle of a body, or does not take what is
written to it. A client that drips a body byte by byte still holds its thread: in front of the open internet belongs a
proxy that reads requests whole.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from typing import Any

from gunicorn.workers.gthread import TConn, ThreadWorker

SILENCE_SECONDS = 15.0
HEADER_SECONDS = 20.0


class Worker(ThreadWorker):
    """gthread. One thread of its own looks after headers that take too long; a request costs a dictionary entry."""

    def init_process(self) -> None:
        self._headers: dict[TConn, float] = {}  # connections whose header is being read, and until when
        threading.Thread(target=self._look_after_headers, name="meshnet-headers", daemon=True).start()
        super().init_process()

    def handle(self, conn: TConn) -> Any:
        begin = conn.init

        def init() -> None:
            begin()
            self._headers[conn] = time.monotonic() + HEADER_SECONDS

        conn.init = init
        try:
            return super().handle(conn)
        finally:
            self._headers.pop(conn, None)
            conn.init = begin

    def handle_request(self, req: Any, conn: TConn) -> Any:
        self._headers.pop(conn, None)  # the header is complete
        conn.sock.settimeout(SILENCE_SECONDS)  # gunicorn sets it back before the next request
        return super().handle_request(req, conn)

    def _look_after_headers(self) -> None:
        while True:
            time.sleep(0.5)
            now = time.monotonic()
            for conn, until in list(self._headers.items()):
                if now > until:
                    self._headers.pop(conn, None)
                    # The thread that reads gets the end of the stream, and gunicorn's main thread, which closes the
                    # connection, does not linger for a client that has gone.
                    with contextlib.suppress(OSError):
                        conn.sock.shutdown(socket.SHUT_RDWR)
