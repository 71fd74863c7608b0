"""How a running mesh is spoken to: a Unix socket in its var folder, one line of JSON each way, then it is closed.

Only the owner may connect: the socket is made with mode 0600, and the peer's user is looked at as well. A request is
one object, at most MOST_BYTES long, and has ANSWER_SECONDS to arrive. Whatever arrives, the answer is one object:
what was asked for, or `{"error": "…"}`. The server's thread answers one after the other; it only calls `answer`,
which must be quick and must not fork: children are bound to the thread that forked them.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

NAME = "mesh.sock"
MOST_BYTES = 4096
#: An answer names every node.
MOST_ANSWER_BYTES = 1_000_000
ANSWER_SECONDS = 2.0
ASK_SECONDS = 5.0
#: What the kernel takes as a socket's path.
_LONGEST_PATH = 100

Request = Mapping[str, Any]


class ControlRefused(Exception):  # reads as what happened
    """The request cannot be met; the message says why."""


class NoAnswer(Exception):  # reads as what happened
    """No mesh answers there; the message says what to do about it."""


class ControlSocket:
    """The server. Use as a context manager: leaving it removes the socket. `answer` may raise ControlRefused.

    Entering raises ControlRefused where the socket cannot be made.
    """

    def __init__(self, var_dir: Path, answer: Callable[[Request], Mapping[str, Any]]) -> None:
        self._path = var_dir / NAME
        self._answer = answer
        self._listening = False

    def __enter__(self) -> ControlSocket:
        self._socket = socket.socket(socket.AF_UNIX)
        try:
            self._path.unlink(missing_ok=True)  # of a mesh that was killed; the lock on the folder is held
            with _short(self._path) as path:
                self._socket.bind(path)
            self._path.chmod(0o600)
            self._socket.listen(8)
        except OSError as error:
            self._socket.close()
            raise ControlRefused(
                f"The socket {self._path} cannot be made: {error.strerror}. Set MESHNET_VAR_DIR to a folder of a file "
                "system of this machine that takes sockets."
            ) from None
        self._listening = True
        self._thread = threading.Thread(target=self._serve, name="meshnet-control", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._listening = False
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes the thread
        self._socket.close()
        self._thread.join()
        self._path.unlink(missing_ok=True)

    def _serve(self) -> None:
        while self._listening:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                time.sleep(0.1)  # out of descriptors, or closed
                continue
            with connection, contextlib.suppress(OSError):
                reply = json.dumps(self._reply(connection)).encode() + b"\n"
                connection.settimeout(ANSWER_SECONDS)
                connection.sendall(reply)

    def _reply(self, connection: socket.socket) -> Mapping[str, Any]:
        try:
            line = _read_line(connection, MOST_BYTES, ANSWER_SECONDS)
            _check_peer(connection)  # not before it has said all: it would not read the answer
            return self._answer(_parse(line))
        except ControlRefused as error:
            return {"error": str(error)}
        except Exception as error:  # a request must not end the thread
            return {"error": f"The mesh could not answer: {type(error).__name__}: {error}"}


def ask(var_dir: Path, request: Request) -> dict[str, Any]:
    """What the mesh on this var folder answers. Raises NoAnswer, or ControlRefused with the mesh's own words."""
    path = var_dir / NAME
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(ASK_SECONDS)
            with _short(path) as short:
                connection.connect(short)
            with contextlib.suppress(BrokenPipeError):  # the answer may be there all the same
                connection.sendall(json.dumps(request).encode() + b"\n")
            answer = _parse(_read_line(connection, MOST_ANSWER_BYTES, ASK_SECONDS))
    except (FileNotFoundError, ConnectionRefusedError):
        raise NoAnswer(
            f"No mesh is running on {var_dir}, or it is still starting: start one with `manage.py mesh`, or set "
            "MESHNET_VAR_DIR to its folder."
        ) from None
    except PermissionError:
        raise NoAnswer(f"{path} belongs to whoever started the mesh: ask as that user.") from None
    except (OSError, ControlRefused) as error:
        raise NoAnswer(f"The mesh on {var_dir} does not answer: {error}") from None
    if "error" in answer:
        raise ControlRefused(str(answer["error"]))
    return answer


def _parse(line: bytes) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        raise ControlRefused("That is not a line of JSON.") from None
    if not isinstance(value, dict):
        raise ControlRefused("That is not an object.")
    return value


def _read_line(connection: socket.socket, most: int, seconds: float) -> bytes:
    """Up to the line's end, or to where the other side stops sending."""
    give_up_at = time.monotonic() + seconds
    data = b""
    while not data.endswith(b"\n"):
        left = give_up_at - time.monotonic()
        if left <= 0:
            raise ControlRefused(f"No line came within {seconds:.0f} s.")
        connection.settimeout(left)
        try:
            more = connection.recv(4096)
        except TimeoutError:
            continue
        if not more:
            break
        data += more
        if len(data) > most:
            raise ControlRefused(f"That line is longer than {most} bytes.")
    return data


def _check_peer(connection: socket.socket) -> None:
    """Linux says whose process connected. Root may do everything anyway."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    _, user, _ = struct.unpack("3i", credentials)
    if user not in (os.geteuid(), 0):
        raise ControlRefused("This mesh belongs to another user.")


@contextlib.contextmanager
def _short(path: Path) -> Iterator[str]:
    """The path as the kernel takes it, however long it is: through a descriptor of its folder."""
    if len(os.fsencode(path)) <= _LONGEST_PATH:
        yield str(path)
        return
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)
