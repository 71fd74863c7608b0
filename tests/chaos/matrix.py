"""The kill matrix: every node of a route, at every kind of step, meets every fault, and the text must not change.

A generation has 24 tokens: the first comes of the prefill, the others of the decode steps 1 to 23. A cell is one
generation in which one fault happens to whichever replica of a stage serves one step. It holds when

1. the text, streamed, is the undisturbed one, with as many tokens as asked for, and ends well;
2. the generation's row counts a failover or a cache miss, and a further prefill;
3. no living node holds its session afterwards, and neither does one that was only suspended.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from tests.chaos import faults
from tests.chaos.chat import Answer, ask
from tests.chaos.mesh import ChaosMesh, Fault, Stage
from tests.chaos.model import Reference
from tests.processes import wait_until

TOKENS = 24
PROMPT = "Hello"
#: Which `/forward` of a stage it is.
MOMENTS = {"prefill": 1, "step 1": 2, "step 2": 3, "step 12": 13, "step 22": 23, "last": TOKENS}
FAULTS: dict[str, Fault | None] = {
    "SIGKILL": faults.kill,
    "SIGSTOP": faults.stop,
    "reset before": faults.reset_before,
    "reset after": faults.reset_after,
    "half before": faults.half_before,
    "half after": faults.half_after,
    "500 before": faults.error_before,
    "500 after": faults.error_after,
    "restart empty": None,  # by the stage's own spare
}
#: So that a suspended node is missed after half a second and not after two.
PATIENCE = {"MESHNET_STEP_PATIENCE_SECONDS": "0.5", "MESHNET_CONNECT_TIMEOUT_SECONDS": "1"}
#: A session that no release reached is gone after this, in seconds.
TTL = 20
NODE = {"MESHNET_KV_TTL_SECONDS": str(TTL)}


@dataclass(frozen=True)
class Cell:
    stage: int
    moment: str
    fault: str
    #: At temperature 1 with a seed; else greedy.
    is_sampled: bool = False

    def __str__(self) -> str:
        return f"{self.fault} at {self.moment} of stage {self.stage}, {'sampled' if self.is_sampled else 'greedy'}"


@dataclass(frozen=True)
class Outcome:
    """How a cell went; `problem` is empty when it holds. `recovery`: seconds from the fault to the next token."""

    cell: Cell
    recovery: float = 0.0
    failovers: int = 0
    cache_misses: int = 0
    problem: str = ""


def every_cell() -> list[Cell]:
    """The whole matrix, greedy and sampled."""
    return [
        Cell(stage, moment, fault, is_sampled)
        for is_sampled, fault, moment, stage in itertools.product((False, True), FAULTS, MOMENTS, range(3))
    ]


def some_cells(most: int) -> list[Cell]:
    """Each fault equally often, over stages, moments and ways to choose a token in turn."""
    moments = list(MOMENTS)
    cells = []
    for number, fault in zip(range(most), itertools.cycle(FAULTS), strict=False):
        turn, shift = divmod(number, len(FAULTS))
        cells.append(
            Cell((turn + shift) % 3, moments[(2 * turn + shift) % len(moments)], fault, bool((turn + shift) % 2))
        )
    return cells


class Matrix:
    """Runs cells on a mesh with two replicas and a spare a stage; knows what each text must be.

    `repaired` looks at the row of a generation whose node met a fault.
    """

    def __init__(
        self,
        mesh: ChaosMesh,
        reference: Reference,
        *,
        repaired: Callable[[Stage, dict[str, object]], None] | None = None,
    ) -> None:
        self._mesh = mesh
        self._repaired = repaired or check_repaired
        self.greedy = reference.text(PROMPT, TOKENS)
        self.seed, self.sampled = sampled_text(mesh, PROMPT, TOKENS)
        for text in (self.greedy, self.sampled):
            assert len(text) == TOKENS and len(set(text)) > 12, "a text that repeats itself would hide a lost token"
        assert self.greedy != self.sampled

    def run(self, cells: Iterable[Cell]) -> Iterator[Outcome]:
        """Every cell's outcome, a failed one's too."""
        for cell in cells:
            try:
                yield self.check(cell)
            except (AssertionError, OSError) as error:
                yield Outcome(cell, problem=f"{type(error).__name__}: {error}")

    def check(self, cell: Cell) -> Outcome:
        """Raises AssertionError when the cell does not hold. The mesh is whole again afterwards."""
        try:
            return self._run(cell)
        finally:
            self._mesh.heal()

    def _run(self, cell: Cell) -> Outcome:
        stage = self._mesh.stages[cell.stage]
        stage.arm(MOMENTS[cell.moment], FAULTS[cell.fault] or faults.restart(stage))
        answer = ask(self._mesh, PROMPT, TOKENS, seed=self.seed if cell.is_sampled else None)
        check_whole(answer, self.sampled if cell.is_sampled else self.greedy, TOKENS)
        row = self._mesh.last_row()
        self._repaired(stage, row)
        wait_until(self._mesh.is_idle, 5, "a session was left on a node that lives")
        self._mesh.heal()
        # The release that could not reach it waits in its socket: it is read once the node goes on.
        wait_until(self._mesh.is_idle, TTL + 5, "a session was left on the node that came back")
        recovery = answer.seconds_to(MOMENTS[cell.moment], stage.sprung_at)
        return Outcome(cell, recovery, row["failovers"], row["cache_misses"])


def undisturbed(mesh: ChaosMesh, prompt: str, tokens: int, seed: int) -> str:
    """What the mesh itself says, asked twice."""
    first, second = (ask(mesh, prompt, tokens, seed=seed) for _ in range(2))
    assert first.is_whole and first.text == second.text, "a seed did not repeat its text"
    return first.text


def sampled_text(mesh: ChaosMesh, prompt: str, tokens: int) -> tuple[int, str]:
    """A seed that gives a text of full length, and the text."""
    for seed in range(1, 100):
        text = undisturbed(mesh, prompt, tokens, seed)
        if len(text) == tokens:  # else it ended early, by a token that ends texts
            return seed, text
    raise AssertionError("every seed ends its text early")


def check_whole(answer: Answer, text: str, tokens: int) -> None:
    assert (answer.status, answer.errors) == (200, [])
    assert answer.text == text, f"{answer.text} instead of {text}"
    assert (answer.completion_tokens, answer.finish_reason, answer.is_whole) == (tokens, "length", True)


def check_repaired(stage: Stage, row: dict[str, object]) -> None:
    assert stage.victim is not None, "the fault never happened"
    assert (row["status"], row["completion_tokens"]) == ("done", TOKENS)
    counted = (row["failovers"], row["cache_misses"])
    assert counted != (0, 0) and row["prefills"] != 1, f"the row does not show the repair: {counted}"


def table(outcomes: Iterable[Outcome]) -> list[str]:
    """Median and maximum of the recovery times in milliseconds, by fault and moment."""
    found: dict[tuple[str, str], list[float]] = {}
    for outcome in outcomes:
        if not outcome.problem:
            found.setdefault((outcome.cell.fault, outcome.cell.moment), []).append(outcome.recovery * 1e3)
    lines = [f"{'median/max ms':15}" + "".join(f"{moment:>14}" for moment in MOMENTS)]
    for fault in FAULTS:
        cells = [found.get((fault, moment), []) for moment in MOMENTS]
        if any(cells):
            shown = [f"{statistics.median(times):.0f}/{max(times):.0f}" if times else "-" for times in cells]
            lines.append(f"{fault:15}" + "".join(f"{text:>14}" for text in shown))
    return lines
