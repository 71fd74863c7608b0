"""Clients that ask for texts that are known, at random, and judge each answer: right, cleanly refused, or wrong."""

from __future__ import annotations

import http.client
import random
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from tests.chaos.chat import Answer, ask
from tests.chaos.mesh import ChaosMesh

#: Errors that the mesh may answer while it is being broken, and nothing else.
CLEAN = {"busy", "no_route", "gave_up"}
LONGEST = 48


@dataclass(frozen=True)
class Question:
    """A prompt whose answer of LONGEST tokens is known; a shorter one is its beginning."""

    prompt: str
    seed: int | None
    text: str


class Load:
    """As many clients as asked for, each on a thread of its own, until `stop`. Counts what became of each request."""

    def __init__(self, mesh: ChaosMesh, questions: Sequence[Question], *, clients: int, seed: str) -> None:
        self._mesh = mesh
        self._questions = questions
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self.counts: Counter[str] = Counter()
        self.problems: list[str] = []
        self.tokens = 0
        self._threads = [
            threading.Thread(target=self._run, args=(f"{seed}.{number}",), daemon=True) for number in range(clients)
        ]

    def run(self, seconds: float) -> None:
        """For so long, from start to end."""
        self.start()
        self._stopping.wait(seconds)
        self.stop(60)

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self, seconds: float) -> None:
        """Lets every request end. Raises AssertionError when one does not."""
        self._stopping.set()
        for thread in self._threads:
            thread.join(seconds)
        assert not any(thread.is_alive() for thread in self._threads), "a request hangs"

    def _run(self, seed: str) -> None:
        rng = random.Random(seed)  # noqa: S311  # to be repeated, not to be secret
        while not self._stopping.is_set():
            question = rng.choice(self._questions)
            tokens = rng.randint(4, LONGEST)
            stream = rng.random() < 0.75
            goes_after = rng.randint(1, tokens) if stream and rng.random() < 0.1 else None
            try:
                answer = ask(
                    self._mesh, question.prompt, tokens, seed=question.seed, stream=stream, stop_after=goes_after
                )
                ending, problem = judge(answer, question.text, tokens, goes_after)
            except (OSError, AssertionError, http.client.HTTPException) as error:
                answer, ending, problem = None, "broken", f"{type(error).__name__}: {error}"
            with self._lock:
                self.counts[ending] += 1
                self.tokens += len(answer.text) if answer else 0
                if problem:
                    self.problems.append(f"{question.prompt!r} (seed {question.seed}, {tokens} tokens): {problem}")
            if ending.startswith("error"):
                self._stopping.wait(rng.uniform(0.2, 1.0))  # as a client that was told to come back later


def judge(answer: Answer, text: str, tokens: int, goes_after: int | None) -> tuple[str, str]:
    """How it ended, and what is wrong with that (empty: nothing)."""
    expected = text[:tokens]
    if goes_after is not None and not answer.errors and not answer.is_whole:
        return "client gone", "" if expected.startswith(answer.text) else f"{answer.text} is no beginning of {expected}"
    if not answer.errors:
        if answer.text != expected:
            return "wrong", f"{answer.text} instead of {expected}"
        if not answer.is_whole or answer.completion_tokens != tokens:
            return "wrong", f"a whole text without a whole ending: {answer}"
        return "right", ""
    ending = f"error {answer.code}"
    if answer.code not in CLEAN or len(answer.errors) > 1 or answer.is_whole:
        return ending, f"not an error of a mesh that is being broken: {answer}"
    if not expected.startswith(answer.text):
        return ending, f"{answer.text} is no beginning of {expected}"
    if answer.status == 503 and not {"retry-after", "x-should-retry"} & set(answer.headers):
        return ending, f"nothing says whether to try again: {answer.headers}"
    return ending, "" if answer.status in (200, 503) else f"status {answer.status}"
