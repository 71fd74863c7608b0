"""One request to a node and its answer, on a connection of its pool.

urllib3 makes, checks, secures and keeps the connections. Its `urlopen` around them (retries, redirects, codings, bodies
that are read later) is left out: none of that may ever happen to a step, and with cold caches it cost a fifth of all
that a step takes beside computing (docs/performance.md).
"""

from __future__ import annotations

import contextlib
import http.client
from dataclasses import dataclass
from email.message import Message
from typing import Any

from nodes.connections import NodePool


class TooLong(Exception):
    """The answer holds more than was allowed."""


@dataclass(frozen=True)
class Reply:
    """An answer, read whole. Header names are looked up in any case."""

    status: int
    headers: Message
    data: bytes


def exchange(
    pool: NodePool,
    method: str,
    path: str,
    body: bytes | None,
    headers: dict[str, str],
    *,
    connect_timeout: float,
    timeout: float,
    longest: int,
) -> Reply:
    """Sends a request once and reads at most `longest` bytes of its answer; times in seconds. Threads may share a pool.

    Raises TooLong, urllib3's HTTPError for a connection that could not be made, `http.client.HTTPException` for an
    answer that is none or breaks off, TimeoutError and other OSErrors. Any of them closes the connection.
    """
    conn: Any = pool.take()
    try:
        if conn.is_closed:
            conn.timeout = connect_timeout
            conn.connect()
        conn.timeout = timeout
        # A node that refuses before the whole body came has said why.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            conn.request(method, path, body=body, headers=headers)
        response = conn.getresponse()
        data = response.read(longest + 1)
        if len(data) > longest:
            raise TooLong
        if response.length:
            raise http.client.IncompleteRead(data, response.length)
        if not response.isclosed():
            response.read()  # the end of an answer in chunks
    except BaseException:
        conn.close()
        raise
    finally:
        pool.give_back(conn)
    return Reply(response.status, response.headers, data)
