"""Pooled connections to one node: only to allowed addresses, not reused when they may be stale, and with an ear for
nodes that hang.

urllib3 has one timeout for an answer. A step may take long on a node that is well, and a node that hangs is to be
left within seconds; so while a step is not answered, the node is asked on another connection whether it lives.
"""

from __future__ import annotations

import contextlib
import http.client
import io
import select
import socket
import ssl
import threading
from collections.abc import Callable
from functools import partial
from time import monotonic
from typing import Any

import urllib3
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.exceptions import ConnectTimeoutError, NewConnectionError

from nodes.errors import NodeUnreachable
from nodes.networks import NodeNetworks

#: A pooled connection that was idle for longer is closed instead of reused. Below the nodes' keep-alive of 75 s,
#: so that no request meets a connection that the node is just closing (case D05).
POOL_IDLE_SECONDS = 45.0
#: Connections kept per node: as many steps may be under way to it at once without a new handshake.
POOL_SIZE = 64
#: How long a node that is silent on a step may take to say that it lives.
PROBE_SECONDS = 2.0
#: How long an answer that has begun may pause.
PAUSE_SECONDS = 5.0
#: A larger body is sent in parts, each within the connection's timeout: a slow network is not a node that hangs.
PART_BYTES = 128 * 1024


class Patience(threading.local):
    """What the calling thread's request may wait for the first byte before its node is asked whether it lives."""

    seconds: float | None = None
    #: Set when the node was asked and was silent.
    is_over = False
    #: Called once, when the request has gone out and the wait begins.
    sent: Callable[[], object] | None = None

    def begin(self) -> None:
        sent, self.sent = self.sent, None
        if sent is not None:
            sent()


class _Guarded:
    """What both kinds of connections have in common; mixed in before urllib3's class."""

    host: str
    port: Any
    sock: Any
    timeout: Any
    socket_options: Any
    _dns_host: str

    #: Set by the pool on each connection that it makes.
    networks: NodeNetworks | None = None
    patience: Patience
    lives: Callable[[], bool]
    #: What `request` has not sent yet; None outside of it.
    _held: list[bytes] | None = None

    def _new_conn(self) -> socket.socket:
        if self.networks is None:
            return super()._new_conn()  # type: ignore[misc]  # of urllib3's class
        connection: Any = self
        port = self.port or 0
        try:
            addresses = self.networks.addresses(self._dns_host, port, tls=isinstance(self, HTTPSConnection))
        except NodeUnreachable as error:
            raise NewConnectionError(connection, error.detail) from error
        problem: OSError | None = None
        for family, address in addresses:
            sock = socket.socket(family, socket.SOCK_STREAM)
            try:
                for option in self.socket_options or ():
                    sock.setsockopt(*option)
                sock.settimeout(self.timeout)
                sock.connect(address)
                return sock
            except OSError as error:
                sock.close()
                problem = error
        if isinstance(problem, TimeoutError):
            raise ConnectTimeoutError(connection, f"no connection within {self.timeout:g} s") from problem
        raise NewConnectionError(connection, str(problem)) from problem

    def request(self, *args: Any, **kwargs: Any) -> None:
        """Sends header and body together: on their own they would be two packets, and wake the node twice."""
        self._held = []
        try:
            super().request(*args, **kwargs)  # type: ignore[misc]  # of urllib3's class
            self._send_held()
        finally:
            self._held = None

    def _send_held(self) -> None:
        held, self._held = self._held, None
        if held:
            self.send(b"".join(held))

    def send(self, data: Any) -> None:
        if self._held is not None and isinstance(data, bytes):
            if len(data) <= PART_BYTES:
                self._held.append(data)
                return
            self._send_held()  # a large body follows on its own
        if isinstance(data, bytes) and len(data) > PART_BYTES:
            view = memoryview(data)
            for start in range(0, len(data), PART_BYTES):
                super().send(view[start : start + PART_BYTES])  # type: ignore[misc]  # of urllib3's class
            return
        super().send(data)  # type: ignore[misc]  # of urllib3's class

    def getresponse(self) -> Any:
        """http.client's own answer, to be read at once: urllib3's around it would only add to the way of each step."""
        self.patience.begin()
        connection: Any = self
        if self.patience.seconds is None:
            return http.client.HTTPConnection.getresponse(connection)
        first = self._await_first_byte(self.patience.seconds)
        self.timeout = min(self.timeout or PAUSE_SECONDS, PAUSE_SECONDS)
        connection.response_class = partial(_response, first)
        connection.sock.settimeout(self.timeout)
        try:
            return http.client.HTTPConnection.getresponse(connection)
        finally:
            del connection.response_class

    def _await_first_byte(self, patience: float) -> bytes:
        """Waits for the answer to begin; what was taken off the socket of it.

        Raises TimeoutError when the node does not answer within the timeout, or does not live any more.
        """
        give_up_at = monotonic() + (self.timeout or float("inf"))
        waiting = select.poll()
        waiting.register(self.sock, select.POLLIN)
        while True:
            if waiting.poll(1e3 * max(0.0, min(patience, give_up_at - monotonic()))):
                if not isinstance(self.sock, ssl.SSLSocket):
                    return b""
                # Session tickets make a TLS socket readable long before the answer: only its own bytes count.
                self.sock.setblocking(False)
                with contextlib.suppress(ssl.SSLWantReadError):
                    return self.sock.recv(1)
            elif monotonic() < give_up_at and not self.lives() and not waiting.poll(0):
                self.patience.is_over = True
                raise TimeoutError
            if monotonic() >= give_up_at:
                raise TimeoutError


class _Begun(io.RawIOBase):
    """A socket's stream whose first byte was taken off it already."""

    def __init__(self, first: bytes, rest: Any) -> None:
        self._first = first
        self._rest = rest

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        if self._first and len(buffer):
            buffer[0], self._first = self._first[0], b""
            return 1
        read: int | None = self._rest.readinto(buffer)
        return read

    def close(self) -> None:
        self._rest.close()
        super().close()


class _BegunSocket:
    """What `http.client` needs of a socket to read an answer."""

    def __init__(self, first: bytes, sock: Any) -> None:
        self._first = first
        self._sock = sock

    def makefile(self, mode: str) -> io.BufferedReader:
        return io.BufferedReader(_Begun(self._first, self._sock.makefile(mode, buffering=0)))


def _response(first: bytes, sock: Any, **options: Any) -> http.client.HTTPResponse:
    return http.client.HTTPResponse(_BegunSocket(first, sock) if first else sock, **options)  # type: ignore[arg-type]


class GuardedConnection(_Guarded, HTTPConnection):
    """Over plain HTTP."""


class GuardedTLSConnection(_Guarded, HTTPSConnection):
    """Over TLS."""


class NodePool(urllib3.HTTPConnectionPool):
    """Connections to one node; threads may share it. Does not hand out those that were idle for too long."""

    ConnectionCls = GuardedConnection

    def __init__(
        self,
        host: str,
        port: int | None,
        *,
        networks: NodeNetworks | None = None,
        probe_seconds: float = PROBE_SECONDS,
        **options: Any,
    ) -> None:
        super().__init__(host, port, maxsize=POOL_SIZE, **options)
        self._probe_seconds = probe_seconds
        self._networks = networks
        self.patience = Patience()

    def close_idle(self, seconds: float = POOL_IDLE_SECONDS) -> None:
        """Closes what was not in use for so long; the pool stays usable.

        A connection that its node has closed would else lie here until somebody asks that node again.
        """
        if self.pool is None:
            return
        now = monotonic()
        with self.pool.mutex:
            waiting: Any = self.pool.queue
            idle = [
                (place, conn)
                for place, conn in enumerate(waiting)
                if conn is not None and now - getattr(conn, "meshnet_idle_since", now) >= seconds
            ]
            for place, _ in idle:
                waiting[place] = None  # the pool makes a new one when it takes this place
        for _, conn in idle:
            conn.close()

    def take(self) -> Any:
        """A connection, maybe not connected yet, for one request; `give_back` is called whatever comes of it."""
        return self._get_conn()

    def give_back(self, conn: Any) -> None:
        self._put_conn(conn)

    def _new_conn(self) -> Any:
        conn: Any = super()._new_conn()
        conn.networks, conn.patience, conn.lives = self._networks, self.patience, self._lives
        return conn

    def _get_conn(self, timeout: float | None = None) -> Any:
        conn: Any = super()._get_conn(timeout)
        if monotonic() - getattr(conn, "meshnet_idle_since", float("inf")) > POOL_IDLE_SECONDS:
            conn.close()
        return conn

    def _put_conn(self, conn: Any) -> None:
        if conn is not None:
            conn.meshnet_idle_since = monotonic()
        super()._put_conn(conn)

    def _lives(self) -> bool:
        """Whether the node answers anything at all, on a new connection. An old node has no /livez: 404 will do."""
        patience, self.patience.seconds = self.patience.seconds, None
        conn = self._new_conn()
        conn.timeout = self._probe_seconds
        try:
            conn.request("GET", "/livez", headers={"Connection": "close"})
            return bool(conn.getresponse().status)
        except (OSError, ssl.SSLError, http.client.HTTPException, urllib3.exceptions.HTTPError):
            return False
        finally:
            conn.close()
            self.patience.seconds = patience


class NodeTLSPool(NodePool, urllib3.HTTPSConnectionPool):
    """The same over TLS."""

    ConnectionCls = GuardedTLSConnection  # type: ignore[assignment]
