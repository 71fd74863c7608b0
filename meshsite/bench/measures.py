"""What is measured of contenders one after the other: decoding, time to first token, flatness, memory.

Every function alternates the contenders within each round, and gives raw samples by contender, one for each round:
absolute times on a shared machine mean little, so ratios are taken within a round.
"""

from __future__ import annotations

import contextlib
import itertools
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from meshsite.bench.contenders import Contender, first_token_ms, tokens_per_second
from meshsite.bench.mesh import Mesh
from meshsite.bench.scale import Scale, rounds, turned

Say = Callable[[str], None]
#: By contender, one sample for each round.
Samples = dict[str, list[float]]


def text(length: int, vocab_size: int, *, seed: int = 0) -> list[int]:
    """Random ids: what is said does not change what a step costs."""
    rng = random.Random(seed)  # noqa: S311  # the text of a benchmark
    return [rng.randrange(vocab_size) for _ in range(length)]


def decode(contenders: Mapping[str, Contender], vocab_size: int, scale: Scale, say: Say) -> Samples:
    """Tokens per second of one session, first token to last."""
    prompt = text(scale.prompt, vocab_size)
    found: Samples = {name: [] for name in contenders}
    for number in rounds(scale):
        for name in turned(list(contenders), number):
            found[name].append(tokens_per_second(contenders[name].generate(prompt, scale.tokens + 1)))
        said = ", ".join(f"{name} {samples[-1]:.1f}" for name, samples in found.items())
        say(f"decode, round {number + 1}: {said} tokens/s")
    return found


def first_token(
    contenders: Mapping[str, Contender], vocab_size: int, scale: Scale, say: Say
) -> dict[str, dict[str, list[float]]]:
    """Milliseconds from the request to the first token, by length of the prompt."""
    found: dict[str, dict[str, list[float]]] = {}
    for length in scale.prompts:
        one: Samples = {name: [] for name in contenders}
        for number in rounds(scale):
            prompt = text(length, vocab_size, seed=number)
            for name in turned(list(contenders), number):
                times = contenders[name].generate(prompt, 1)
                one[name].append(first_token_ms(times))
            say(
                f"first token of {length}, round {number + 1}: "
                + ", ".join(f"{name} {one[name][-1]:.0f}" for name in one)
                + " ms"
            )
        found[str(length)] = one
    return found


def flatness(
    contenders: Mapping[str, Contender], mesh: Mesh, vocab_size: int, scale: Scale, say: Say
) -> dict[str, dict[str, list[float]]]:
    """Milliseconds per token at texts of several lengths, by contender and length: each round's median.

    The mesh's generations live side by side and are stepped in turn, so that whatever the machine does meanwhile hits
    all lengths; a process that cannot be stepped is asked for one length after the other.
    """
    found: dict[str, dict[str, list[float]]] = {}

    def add(name: str, at: int, milliseconds: float) -> None:
        found.setdefault(name, {}).setdefault(str(at), []).append(milliseconds)

    for number in rounds(scale):
        for name, cache, steps in ((mesh.name, True, scale.steps), ("stateless", False, scale.stateless_steps)):
            for at, samples in side_by_side(mesh, vocab_size, scale.lengths, steps, cache=cache).items():
                add(name, at, statistics.median(samples))
        for name in turned(list(contenders), number):
            for at in scale.lengths:
                prompt = text(at - scale.steps // 2, vocab_size)
                times = contenders[name].generate(prompt, scale.steps + 1)
                gaps = [later - earlier for earlier, later in itertools.pairwise(times[1:])]
                add(name, at, statistics.median(gaps) * 1e3)
        say(
            f"flatness, round {number + 1}: "
            + "; ".join(
                f"{name} " + ", ".join(f"{values[-1]:.1f} ms at {at}" for at, values in lengths.items())
                for name, lengths in found.items()
            )
        )
    return found


def side_by_side(
    mesh: Mesh, vocab_size: int, lengths: Sequence[int], steps: int, *, cache: bool = True
) -> dict[int, list[float]]:
    """Milliseconds of each of `steps` steps, centred on each length, the generations stepped in turn."""
    found: dict[int, list[float]] = {at: [] for at in lengths}
    whole = text(max(lengths), vocab_size)
    with contextlib.ExitStack() as stack:
        streams = {
            at: stack.enter_context(mesh.answering(whole[: max(1, at - steps // 2)], steps + 2, cache=cache))
            for at in lengths
        }
        for stream in streams.values():
            next(stream)  # the prompt
        for _ in range(steps):
            for at, stream in streams.items():
                begun = time.perf_counter()
                next(stream)
                found[at].append((time.perf_counter() - begun) * 1e3)
    return found


def memory(contenders: Mapping[str, Contender]) -> dict[str, dict[str, Any]]:
    """Resident bytes of every process, after whatever it ran before."""
    return {name: contender.memory() for name, contender in contenders.items()}
