"""Sessions that come over time, each driven by the real loop of the head; what became of each."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, cast

from generation.answer import Answer
from generation.head import TokenLoop
from generation.job import Job, Progress
from generation.runtime import RELEASE_SECONDS, HeadRuntime
from meshsite.simulation.cost import Texts
from meshsite.simulation.mesh import SimulatedMesh, quietly
from meshsite.simulation.node import token_of
from nodes.errors import Busy, MeshnetError

#: served: the whole text. refused: busy, before its first token. lost: an error after that. wrong: another text.
End = Literal["served", "refused", "lost", "wrong"]


@dataclass
class Session:
    """One answer, and how it went. Times are virtual seconds."""

    number: int
    head: int
    arrived: float
    prompt: int
    answer: int
    progress: Progress = field(default_factory=Progress)
    token_times: list[float] = field(default_factory=list)
    waited: bool = False
    end: End | None = None
    error: str = ""

    @property
    def session_id(self) -> str:
        return f"simulated-session-{self.number:08}"

    @property
    def slots_at(self) -> float | None:
        """When the prefill that gave its first token began; None when none did."""
        if not self.token_times:
            return None
        first = self.token_times[0] - self.arrived + 1e-3
        began = [at for at, event, _ in self.progress.events if event in ("prefill", "re-prefill") and at <= first]
        return self.arrived + began[-1]

    @property
    def queued(self) -> float:
        """Seconds until its slots were there, or until it was refused."""
        slots_at = self.slots_at
        if slots_at is None:
            return self.progress.last_token_at or 0.0
        return slots_at - self.arrived


class Client:
    """One session under way. For the head's admission it is an Answer."""

    def __init__(self, mesh: SimulatedMesh, session: Session, done: Callable[[Session], None]) -> None:
        self.session = session
        self.is_over = False
        self._was_admitted = False
        self._mesh = mesh
        self._done = done
        self._head: HeadRuntime = mesh.heads[session.head]
        job = Job(session.session_id, [0] * session.prompt, session.answer, frozenset())
        self._loop = TokenLoop(
            self._head.directory,
            self._head.embedder,
            self._head.settings,
            job,
            line=self._head.line,
            admitted=self._admit,
            clock=mesh.time.now,
            wait=mesh.time.wait,
            rng=random.Random(session.number),  # noqa: S311  # spreads load
            threads=mesh.time,
        )
        session.progress = self._loop.progress

    @property
    def is_waiting(self) -> bool:
        return not self._was_admitted or self._head.line.holds(self._loop)

    def arrive(self) -> None:
        self._loop.arrive()
        self.session.waited = self._head.line.holds(self._loop)

    def withdraw(self) -> None:
        self._loop.withdraw()

    def run(self) -> None:
        session = self.session
        answer: Any = self
        try:
            self._head.admit(cast(Answer, answer))
        except Busy as error:
            session.end, session.error = "refused", error.detail
            self._done(session)
            return
        said = []
        try:
            for token in self._loop.tokens():
                said.append(token)
                session.token_times.append(self._mesh.time.now())
            right = [token_of(session.session_id, session.prompt + place) for place in range(session.answer)]
            session.end = "served" if said == right else "wrong"
        except MeshnetError as error:
            session.end = "refused" if isinstance(error, Busy) and not said else "lost"
            session.error = f"{type(error).__name__}: {error.detail}"
        self.is_over = True
        self._head.note_load()
        for url in sorted(session.progress.touched):
            client = self._head.directory.client(url)
            release = partial(quietly, client.release, session.session_id, timeout=RELEASE_SECONDS)
            self._mesh.time.start(release, "release")
        self._head.forget(cast(Answer, answer))
        self._done(session)

    def _admit(self) -> None:
        if not self._was_admitted:
            self._was_admitted = True
            self._head.note_load()


class Traffic:
    """So many sessions, arriving at random (Poisson) with `per_second` on average, to heads in turn."""

    def __init__(
        self,
        mesh: SimulatedMesh,
        count: int,
        per_second: float,
        texts: Texts,
        *,
        progress: Callable[[int], None] = lambda done: None,
    ) -> None:
        self.mesh = mesh
        self.sessions: list[Session] = []
        self.ended: list[Session] = []
        self._count = count
        self._per_second = per_second
        self._texts = texts
        self._progress = progress

    def run(self, *, horizon: float = float("inf")) -> None:
        """Until every session has ended. Raises RuntimeError if some never end."""
        self.mesh.time.start(self._arrive, "arrivals")
        self.mesh.time.run(horizon)
        if len(self.ended) < self._count and horizon == float("inf"):
            raise RuntimeError(f"{self._count - len(self.ended)} sessions never ended.")

    @property
    def seconds(self) -> float:
        """In which the sessions came."""
        return self.sessions[-1].arrived

    @property
    def is_over(self) -> bool:
        return len(self.ended) == self._count

    def _arrive(self) -> None:
        rng, cost = self.mesh.rng, self.mesh.size.cost
        for number in range(self._count):
            self.mesh.time.wait(rng.expovariate(self._per_second))
            session = Session(
                number,
                number % len(self.mesh.heads),
                self.mesh.time.now(),
                self._prompt_blocks(cost.blocks(self._texts.prompt(rng))),
                cost.blocks(self._texts.answer(rng)),
            )
            self.sessions.append(session)
            self.mesh.time.start(Client(self.mesh, session, self._end).run, "loop")

    def _prompt_blocks(self, blocks: int) -> int:
        """One more where the last piece would be a single block, which a node takes for a decode step."""
        piece = self.mesh.heads[0].settings.piece_tokens
        return blocks + 1 if blocks > 1 and blocks % piece == 1 else blocks

    def _end(self, session: Session) -> None:
        self.ended.append(session)
        self._progress(len(self.ended))
