"""gunicorn's gthread worker, made so that clients without a key cannot hold it up.

gthread gives each new connection a thread of its pool before a byte has come, reads requests and makes TLS handshakes
there with no timeout of its own, and waits for clients that do not close on the thread that accepts. A few dozen
connections can so make a process deaf. Here

- a connection waits for its first byte without a thread;
- a handshake and header that are not complete after HEADER_SECONDS are cut off, sooner while requests wait for threads;
- so is a client that is silent for SILENCE_SECONDS in the middle of a body, or does not take what is written to it;
- one that does not close is closed, by a thread that waits for nobody.

A client that drips a body byte by byte still holds its thread: in front of the open internet belongs a proxy that reads
requests whole.
"""

from __future__ import annotations

import contextlib
import errno
import select
import selectors
import socket
import ssl
import threading
import time
from collections import deque
from functools import partial
from typing import Any

from gunicorn.http import errors
from gunicorn.workers.gthread import TConn, ThreadWorker

SILENCE_SECONDS = 15.0
#: For the first byte of a connection; and then for its TLS handshake and header, or a further request's header.
HEADER_SECONDS = 20.0
#: Instead, while there are more requests than threads.
HURRIED_SECONDS = 2.0
#: How long the end of a connection waits for the client's own, so that the last answer is not lost to a reset.
CLOSING_SECONDS = 2.0
#: What a client may still send meanwhile.
CLOSING_BYTES = 65536
LOOK_SECONDS = 0.5
#: How long a thread waits for the next request of the connection that it has just answered; at most half of all do.
STAY_SECONDS = 0.1
#: How soon such a thread sees that others wait for one.
STAY_LOOK_SECONDS = 0.02
#: Errors whose text repeats what the client sent, in gunicorn's log and its answer.
REPEATING = (
    errors.ExpectationFailed,
    errors.InvalidChunkSize,
    errors.InvalidHeader,
    errors.InvalidHeaderName,
    errors.InvalidHTTPVersion,
    errors.InvalidRequestLine,
    errors.InvalidRequestMethod,
    errors.NoMoreData,
    errors.ObsoleteFolding,
    errors.UnsupportedTransferCoding,
)


class Worker(ThreadWorker):
    """gthread. One thread of its own looks after late headers and closing connections; a request costs a dictionary
    entry."""

    def init_process(self) -> None:
        self._headers: dict[TConn, float] = {}  # connections whose header is being read, and since when
        self._closing: deque[_Closing] = deque()  # oldest first
        self._lock = threading.Lock()
        self._staying = 0  # threads that wait for their connection's next request
        for error in REPEATING:
            # A header that is broken, or broken off, may hold a key.
            error.__str__ = lambda self: type(self).__name__
        threading.Thread(target=self._look, name="meshnet-connections", daemon=True).start()
        super().init_process()

    def accept(self, listener: Any) -> None:
        """As gthread, but the connection waits at the poller until its first byte."""
        try:
            sock, address = listener.accept()
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.ECONNABORTED, errno.EWOULDBLOCK):
                raise
            return
        self.nr_conns += 1
        conn = TConn(self.cfg, sock, address, listener.getsockname())
        conn.close = partial(self._close, conn)
        conn.timeout = time.monotonic() + HEADER_SECONDS
        self.pending_conns.append(conn)  # in the order of their timeouts, since nothing else waits there
        self.poller.register(sock, selectors.EVENT_READ, partial(self.on_pending_socket_readable, conn))

    def handle(self, conn: TConn) -> Any:
        """As gthread, but the thread stays with its connection for a moment: the next step of an answer comes soon, and
        on the way over the poller it would wake two more threads.
        """
        while True:
            self._headers[conn] = time.monotonic()
            try:
                keeps = super().handle(conn)
            finally:
                self._headers.pop(conn, None)
            if keeps is not True or not self._next_comes(conn):
                return keeps

    def _next_comes(self, conn: TConn) -> bool:
        """Waits for a further request on a plain connection, as long as no other one needs this thread."""
        if isinstance(conn.sock, ssl.SSLSocket) or conn.is_http2 or conn.parser.unreader.buf.getvalue():
            return False
        with self._lock:
            if self._staying >= self.cfg.threads // 2:
                return False
            self._staying += 1
        try:
            waiting = select.poll()
            waiting.register(conn.sock, select.POLLIN)
            until = time.monotonic() + STAY_SECONDS
            while self.alive and not self._has_queue():
                left = until - time.monotonic()
                if left <= 0:
                    return False
                if waiting.poll(1e3 * min(left, STAY_LOOK_SECONDS)):
                    return True
            return False
        finally:
            with self._lock:
                self._staying -= 1

    def handle_request(self, req: Any, conn: TConn) -> Any:
        self._headers.pop(conn, None)  # the header is complete
        conn.sock.settimeout(SILENCE_SECONDS)  # gunicorn sets it back before the next request
        return super().handle_request(req, conn)

    def _cap_keepalive(self, deadline: float) -> None:
        """A worker that leaves waits for silent clients no longer than for those that it has answered."""
        super()._cap_keepalive(deadline)
        for conn in self.pending_conns:
            conn.timeout = min(conn.timeout, deadline)

    def _close(self, conn: TConn, graceful: bool = False) -> None:
        """Stands in for the connection's own `close`, which would wait for the client on the thread that accepts."""
        if graceful and self.alive:
            self._closing.append(_Closing(conn.sock))
        else:
            TConn.close(conn, graceful)

    def _has_queue(self) -> bool:
        pool: Any = self.tpool
        return pool is not None and pool._work_queue.qsize() > 0

    def _look(self) -> None:
        while True:
            time.sleep(LOOK_SECONDS)
            now = time.monotonic()
            patience = min(HEADER_SECONDS, HURRIED_SECONDS) if self._has_queue() else HEADER_SECONDS
            for conn, since in list(self._headers.items()):
                if now - since > patience:
                    # The thread that reads gets the end of the stream. Race accepted: one that is complete just now.
                    _shut_down(conn.sock, socket.SHUT_RDWR)
            for _ in range(len(self._closing)):
                closing = self._closing.popleft()
                if not closing.has_ended(now):
                    self._closing.append(closing)


class _Closing:
    """A connection that has said its last, until the client has closed or its time is up."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._until = time.monotonic() + CLOSING_SECONDS
        self._left = CLOSING_BYTES
        _shut_down(sock, socket.SHUT_WR)

    def has_ended(self, now: float) -> bool:
        """Takes what the client sent off the socket, and closes it when that was all or enough. Never waits."""
        with contextlib.suppress(BlockingIOError):
            while now < self._until and self._left > 0:
                piece = self._receive()
                if not piece:
                    break
                self._left -= len(piece)
            self._sock.close()
            return True
        return False

    def _receive(self) -> bytes:
        try:
            # Not a TLS socket's own `recv`: the bytes matter to nobody any more.
            return socket.socket.recv(self._sock, 16384, socket.MSG_DONTWAIT)
        except BlockingIOError:
            raise
        except OSError:
            return b""


def _shut_down(sock: socket.socket, how: int) -> None:
    """Not a TLS socket's own `shutdown`, which makes it a plain one: what is still written must never go out plain."""
    with contextlib.suppress(OSError):
        socket.socket.shutdown(sock, how)
