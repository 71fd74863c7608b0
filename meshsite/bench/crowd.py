"""What is measured of many sessions at once on one mesh: their tokens together, and how a long prompt stalls them."""

from __future__ import annotations

import itertools
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

from meshsite.bench.contenders import Contender, ContenderFailed, tokens_per_second
from meshsite.bench.measures import Say, text
from meshsite.bench.mesh import Mesh
from meshsite.bench.scale import Scale, rounds


def together(
    generate: Contender, mesh: Mesh, vocab_size: int, scale: Scale, say: Say
) -> dict[str, dict[str, list[float]]]:
    """Tokens per second of 1, 2, 4 … sessions together, and of `generate()` alone in the same rounds."""
    alone: list[float] = []
    crowds: dict[str, list[float]] = {str(count): [] for count in scale.sessions}
    prompt = text(scale.prompt, vocab_size)
    for number in rounds(scale):
        alone.append(tokens_per_second(generate.generate(prompt, scale.tokens + 1)))
        for count in scale.sessions:
            crowds[str(count)].append(_aggregate(mesh, vocab_size, count, scale))
        say(
            f"sessions, round {number + 1}: {generate.name} {alone[-1]:.1f}; "
            + ", ".join(f"{count}: {found[-1]:.1f}" for count, found in crowds.items())
            + " tokens/s"
        )
    return {generate.name: {"1": alone}, mesh.name: crowds}


def _aggregate(mesh: Mesh, vocab_size: int, count: int, scale: Scale) -> float:
    """All have their first token before the clock starts; it stops when the last has its last."""
    with ExitStack() as stack:
        streams = [
            stack.enter_context(mesh.answering(text(scale.prompt, vocab_size, seed=index), scale.tokens + 1))
            for index in range(count)
        ]
        for stream in streams:
            next(stream)
        begun = time.perf_counter()
        run_all([lambda stream=stream: _drain(stream) for stream in streams])  # type: ignore[misc]  # mypy cannot infer these lambdas
        return count * scale.tokens / (time.perf_counter() - begun)


def _drain(stream: Iterator[int]) -> None:
    for _ in stream:
        pass


def run_all(works: list[Callable[[], None]]) -> None:
    """Each on a thread of its own; returns when all have ended. Raises ContenderFailed for the first that failed."""
    errors: list[Exception] = []

    def run(work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:  # told to whoever waits
            errors.append(error)

    threads = [threading.Thread(target=run, args=(work,), name="bench-session") for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise ContenderFailed(f"A session ended: {errors[0]}") from errors[0]


def stall(mesh: Mesh, vocab_size: int, scale: Scale, say: Say) -> list[dict[str, Any]]:
    """While some sessions decode, a long prompt comes: gaps between their tokens before it and while it is prefilled.

    For each round, in milliseconds: `median_ms` before, `during_ms` the median while, `worst_ms` the longest while.
    """
    found = []
    for number in rounds(scale):
        one = _stalled(mesh, vocab_size, scale, number)
        found.append(one)
        say(
            f"stall, round {number + 1}: median gap {one['median_ms']:.0f} ms, while {scale.stall_prompt} tokens are "
            f"prefilled {one['during_ms']:.0f} ms, worst {one['worst_ms']:.0f} ms; first token after "
            f"{one['first_token_ms']:.0f} ms"
        )
    return found


def _stalled(mesh: Mesh, vocab_size: int, scale: Scale, number: int) -> dict[str, Any]:
    warm = threading.Barrier(scale.stall_sessions + 1)
    over = threading.Event()
    came: list[list[float]] = [[] for _ in range(scale.stall_sessions)]
    prefill: list[float] = []

    def answer(stream: Iterator[int], times: list[float]) -> None:
        try:
            for _ in stream:
                times.append(time.perf_counter())
                if len(times) == scale.stall_steps:
                    warm.wait(timeout=600)
                if over.is_set():
                    return
        except BaseException:
            warm.abort()  # the others would wait for it
            raise

    def long_prompt() -> None:
        try:
            warm.wait(timeout=600)
            prompt = text(scale.stall_prompt, vocab_size, seed=1000 + number)
            with mesh.answering(prompt, 1) as stream:
                prefill.append(time.perf_counter())
                next(stream)
                prefill.append(time.perf_counter())
        finally:
            over.set()

    with ExitStack() as stack:
        # More tokens than they will need: they end when the prompt is through.
        streams = [
            stack.enter_context(mesh.answering(text(scale.prompt, vocab_size, seed=index), room(mesh, scale)))
            for index in range(scale.stall_sessions)
        ]
        for stream in streams:
            next(stream)
        works = [lambda pair=pair: answer(*pair) for pair in zip(streams, came, strict=True)]
        run_all([*works, long_prompt])
    return gaps(came, *prefill)


def room(mesh: Mesh, scale: Scale) -> int:
    """New tokens that the context leaves behind a short prompt."""
    return mesh.embedder.embedder.shape.context_length - scale.prompt


def gaps(came: list[list[float]], begun: float, ended: float) -> dict[str, Any]:
    """`came`: when each session's tokens came. A gap counts as *while* when any of it lies in [begun, ended]."""
    before: list[float] = []
    during: list[float] = []
    for times in came:
        for earlier, later in itertools.pairwise(times):
            gap = (later - earlier) * 1e3
            if later <= begun:
                before.append(gap)
            elif earlier < ended:
                during.append(gap)
    if not before or not during:
        raise ContenderFailed("No token came before the long prompt, or none while it was prefilled.")
    return {
        "median_ms": statistics.median(before),
        "during_ms": statistics.median(during),
        "worst_ms": max(during),
        "first_token_ms": (ended - begun) * 1e3,
    }
