"""Speaking with many nodes at once.

Every node is asked in a thread of its own and all together have one deadline, so that a dead or hanging node
costs nobody more than that. A thread that is still waiting then is abandoned: it is a daemon, it puts what it
may still hear into a queue that nobody reads, sends nothing more, and ends with its client's own timeouts.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

from nodes.client import NodeClient
from nodes.errors import MeshnetError

logger = logging.getLogger(__name__)

#: Names of the threads begin with this.
THREAD_NAME = "meshnet-live"


@dataclass
class Reply:
    """What one node has answered until the deadline, by the name of the request."""

    answers: dict[str, Any] = field(default_factory=dict)
    error: str | None = None


def ask(
    clients: Sequence[NodeClient],
    requests: dict[str, Callable[[NodeClient], Any]],
    deadline: float,
) -> list[Reply]:
    """Sends every client the requests one after another, all clients at once; back by the deadline."""
    give_up = monotonic() + deadline
    news: queue.SimpleQueue[tuple[int, str, Any]] = queue.SimpleQueue()
    abandoned = threading.Event()

    def talk(index: int, client: NodeClient) -> None:
        error = None
        try:
            for name, request in requests.items():
                if abandoned.is_set():
                    return
                news.put((index, name, request(client)))
        except MeshnetError as problem:
            error = problem.detail
        except Exception as problem:  # an unheard end would cost whoever waits the whole deadline
            logger.exception("Asking %s failed.", client.url)
            error = f"{client.url}: {type(problem).__name__}"
        news.put((index, "", error))

    for index, client in enumerate(clients):
        thread = threading.Thread(target=talk, args=(index, client), name=f"{THREAD_NAME} {client.url}", daemon=True)
        try:
            thread.start()
        except RuntimeError:
            news.put((index, "", f"{client.url} was not asked: this machine has no thread left."))

    replies = [Reply() for _ in clients]
    waiting = set(range(len(clients)))
    while waiting:
        try:
            index, name, value = news.get(timeout=max(0.0, give_up - monotonic()))
        except queue.Empty:
            break
        if name:
            replies[index].answers[name] = value
        else:
            replies[index].error = value
            waiting.discard(index)
    abandoned.set()
    for index in waiting:
        replies[index].error = f"{clients[index].url} did not answer within {deadline:g} s."
    return replies
