"""Random faults, one after the other, from a seed: what happens to a mesh that is lived in."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
from collections import Counter
from collections.abc import Callable, Sequence

from tests import processes
from tests.chaos import faults
from tests.chaos.mesh import ChaosMesh, Fault, Replica

_AT_STEP: Sequence[Fault] = (
    faults.reset_before,
    faults.reset_after,
    faults.half_before,
    faults.half_after,
    faults.error_before,
    faults.error_after,
)


class Havoc:
    """Breaks and mends a mesh, on a thread of its own, until `stop`.

    Mostly one node of a stage is down at a time; sometimes both are, for about a second. `survivors` are suspended,
    evicted from and limited like the others, but never ended, so that their memory can be watched.
    """

    def __init__(self, mesh: ChaosMesh, survivors: Sequence[Replica], *, seed: int, pause: float = 1.0) -> None:
        self._mesh = mesh
        self._survivors = {replica.url for replica in survivors}
        self._rng = random.Random(f"{seed}.havoc")  # noqa: S311  # to be repeated, not to be secret
        self._pause = pause
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.counts: Counter[str] = Counter()
        self.problems: list[str] = []

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(60)
        self._mesh.heal()

    def _run(self) -> None:
        kinds: list[tuple[int, Callable[[Replica], None]]] = [
            (3, self.kill),
            (2, self.leave),
            (1, self.reload),
            (3, self.suspend),
            (3, self.evict),
            (2, self.limit),
            (1, self.drain),
            (8, self.fault_at_step),
            (1, self.outage),
        ]
        weights, events = [weight for weight, _ in kinds], [event for _, event in kinds]
        while not self._stopping.wait(self._rng.uniform(0.2, 2.0) * self._pause):
            (event,) = self._rng.choices(events, weights)
            replica = self._rng.choice(self._mesh.replicas)
            if event in (self.kill, self.leave, self.reload) and replica.url in self._survivors:
                continue
            self.counts[event.__name__] += 1
            try:
                event(replica)
            except (AssertionError, OSError) as error:
                self.problems.append(f"{event.__name__}: {type(error).__name__}: {error}")

    def kill(self, replica: Replica) -> None:
        replica.served.kill()
        self._stopping.wait(self._rng.uniform(0, 3))
        replica.served.start().wait_ready()

    def leave(self, replica: Replica) -> None:
        """SIGTERM: it lets running answers go on for a while, and leaves."""
        replica.served.process.terminate()
        replica.served.process.join(20)
        assert not replica.is_alive, "a node did not leave"
        replica.served.start().wait_ready()

    def reload(self, replica: Replica) -> None:
        os.kill(replica.served.process.pid, signal.SIGHUP)

    def suspend(self, replica: Replica) -> None:
        replica.suspend()
        self._stopping.wait(self._rng.uniform(0.5, 4))
        replica.resume()

    def evict(self, replica: Replica) -> None:
        self._tell(replica, "POST", "/sessions/evict", {"all": True})

    def limit(self, replica: Replica) -> None:
        slots = self._rng.choice([3, 6, 8])
        self._tell(replica, "PATCH", "/limits", {"max_sessions": slots})

    def drain(self, replica: Replica) -> None:
        self._tell(replica, "POST", "/drain", {})
        self._stopping.wait(self._rng.uniform(0.2, 1))
        self._tell(replica, "DELETE", "/drain", {})

    def fault_at_step(self, replica: Replica) -> None:
        (stage,) = (stage for stage in self._mesh.stages if replica in stage.replicas)
        stage.arm(self._rng.randint(1, 40), self._rng.choice(_AT_STEP))

    def outage(self, replica: Replica) -> None:
        """Every replica of a stage is silent for a moment."""
        (stage,) = (stage for stage in self._mesh.stages if replica in stage.replicas)
        for one in stage.replicas:
            one.suspend()
        self._stopping.wait(self._rng.uniform(0.3, 1.5))
        for one in stage.replicas:
            one.resume()

    def _tell(self, replica: Replica, method: str, path: str, body: dict[str, object]) -> None:
        with contextlib.suppress(OSError):  # one that was told to reload may be between two workers
            processes.call(f"{replica.served.url}{path}", method, body, processes.secret_header(), timeout=5)
