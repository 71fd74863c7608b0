"""Chats that go on while something is done to the mesh: none may fail, each text must be that of a quiet mesh."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

from tests import processes
from tests.processes import wait_until


class SteadyChats:
    """So many chats at once, each one answer after the other. Made while the mesh is quiet."""

    def __init__(self, head: str, api_key: str, model: str, *, chats: int = 8, tokens: int = 32) -> None:
        self._head = head
        self._api_key = api_key
        self._model = model
        self._tokens = tokens
        self._alone = [self._ask(chat) for chat in range(chats)]
        #: How many answers each has had.
        self.counts = [0] * chats
        self._stopping = threading.Event()

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """They go on while the block runs, and each for another answer after it. Raises what went wrong in one."""
        with ThreadPoolExecutor(len(self.counts)) as pool:
            asking = [pool.submit(self._keep_asking, chat) for chat in range(len(self.counts))]
            try:
                yield
                before = list(self.counts)
                wait_until(
                    lambda: self._have_gone_on(before) or _has_failed(asking), 60, f"from {before} on they stand"
                )
            finally:
                self._stopping.set()
            for future in asking:
                future.result()

    def _have_gone_on(self, before: list[int]) -> bool:
        return all(now > then for now, then in zip(self.counts, before, strict=True))

    def _keep_asking(self, chat: int) -> None:
        while not self._stopping.is_set():
            assert self._ask(chat) == self._alone[chat]
            self.counts[chat] += 1

    def _ask(self, chat: int) -> str:
        status, _, body = processes.call(
            f"{self._head}/v1/chat/completions",
            "POST",
            {
                "model": self._model,
                "temperature": 0,
                "max_tokens": self._tokens,
                "messages": [{"role": "user", "content": f"{chat}. Tell me more of it"}],
            },
            {"Authorization": f"Bearer {self._api_key}"},
            timeout=60,
        )
        assert status == 200, body
        return str(json.loads(body)["choices"][0]["message"]["content"])


def _has_failed(futures: list[Future[None]]) -> bool:
    return any(future.done() and future.exception() is not None for future in futures)
