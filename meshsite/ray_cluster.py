"""The one module that speaks to Ray: machines, reserved bundles of resources, actors and their answers.

Nothing here waits for an actor. Ray's own requests (the tables of machines and bundles) go to its head process and
take milliseconds.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from meshsite import ray_actor
from meshsite.engine import EngineRefused
from meshsite.ray_actor import NodeActor, Order
from meshsite.ray_host import OWN_RAY, RayHost
from meshsite.ray_places import Room

HOW_TO_GET_IT = "Ray is not installed: .venv/bin/python -m pip install -r requirements-ray.txt"
SURVEY_SECONDS = 60.0
CONNECT_SECONDS = 5.0


class ActorAway(Exception):  # reads as what happened
    """Its machine or its process is gone, and Ray starts it again somewhere."""


class ActorLost(Exception):  # reads as what happened
    """Ray will not start it again by itself; the message says why."""


@dataclass(frozen=True)
class RayMachine:
    """A living machine of the cluster: Ray's id of it, what people call it, its address, and all that it has."""

    id: str
    name: str
    address: str
    room: Room


class RayCluster:
    """A connection to a cluster, or a cluster of its own on this machine. Main thread only."""

    def __init__(self, ray: Any, host: RayHost | None) -> None:
        from ray.util import get_node_ip_address

        self._ray = ray
        self._host = host
        self.address_here: str = get_node_ip_address()
        # The actor's module must arrive where the project is not (meshsite/ray_actor.py).
        ray.cloudpickle.register_pickle_by_value(ray_actor)
        self._actor_class = ray.remote(NodeActor)

    @classmethod
    def connect(cls, address: str) -> RayCluster:
        """To the cluster at `address` (host:port, or `auto` for one that runs on this machine); starts one for an
        empty address, which ends with this process. Raises EngineRefused.
        """
        if address:
            check_address(address)
        else:
            for name, value in OWN_RAY.items():  # before Ray is imported, which looks at once
                os.environ.setdefault(name, value)
        with _signals_kept():
            try:
                import ray
            except ImportError:
                raise EngineRefused(HOW_TO_GET_IT) from None
            host = None
            try:
                host = None if address else RayHost()
                ray.init(
                    address=address if host is None else host.address, log_to_driver=False, logging_level=logging.ERROR
                )
            except (ConnectionError, ValueError, RuntimeError, OSError, ray.exceptions.RayError) as error:
                if host is not None:
                    host.end()
                what = f"The Ray cluster {address} cannot be used" if address else "Ray cannot be started here"
                raise EngineRefused(f"{what}: {_first_line(error)}") from None
        return cls(ray, host)

    def machines(self) -> list[RayMachine]:
        """Those that live, in the order of their names."""
        found = [
            RayMachine(
                node["NodeID"],
                node["NodeName"] or node["NodeManagerAddress"],
                node["NodeManagerAddress"],
                Room.from_resources(node["Resources"]),
            )
            for node in self._ray.nodes()
            if node["Alive"]
        ]
        return sorted(found, key=lambda machine: (machine.name, machine.id))

    def free(self) -> dict[str, Room]:
        """What is not reserved on each living machine, by its id."""
        from ray._private.state import available_resources_per_node

        return {machine: Room.from_resources(left) for machine, left in available_resources_per_node().items()}

    def survey(self, folder: str) -> dict[str, dict[str, Any]]:
        """What each living machine says of itself (meshsite/ray_actor.py), by its id. Waits for them."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        asked = {}
        for machine in self.machines():
            here = NodeAffinitySchedulingStrategy(machine.id, soft=False)
            # The GPU has to be asked for: without it Ray hides it from the task.
            task = self._ray.remote(num_cpus=0, num_gpus=min(1, machine.room.gpus), max_retries=0)(ray_actor.survey)
            asked[machine.id] = task.options(scheduling_strategy=here).remote(folder)
        done, _ = self._ray.wait(list(asked.values()), num_returns=len(asked), timeout=SURVEY_SECONDS)
        return {machine_id: self._surveyed(call, done) for machine_id, call in asked.items()}

    def _surveyed(self, call: Any, done: Sequence[Any]) -> dict[str, Any]:
        if call not in done:
            return {"problem": f"it did not answer within {SURVEY_SECONDS:.0f} s"}
        try:
            said: dict[str, Any] = self._ray.get(call)
        except self._ray.exceptions.RayError as error:  # it has gone meanwhile, or the task failed there
            return {"problem": f"it could not be looked at ({_last_line(error)})"}
        return said

    def reserve(self, name: str, rooms: Sequence[Room], near: str | None) -> Any:
        """Asks for a bundle for each room, spread over machines; `near` is where a single one is best."""
        from ray.util import placement_group

        bundles = [room.bundle() for room in rooms]
        if len(bundles) == 1 and near is not None:
            # Only a wish: when that machine has no room any more, or dies, Ray places the bundle anywhere.
            return placement_group(bundles, strategy="STRICT_PACK", name=name, _soft_target_node_id=near)
        return placement_group(bundles, strategy="SPREAD", name=name)

    def places(self, group: Any) -> dict[int, str] | None:
        """The machine's id of each bundle that has one; None when the group is gone."""
        from ray.util import placement_group_table

        table = placement_group_table(group)
        if not table or table["state"] in ("REMOVED", "INFEASIBLE"):
            return None
        if table["state"] == "PENDING":
            return {}
        return {int(bundle): machine for bundle, machine in table["bundles_to_node_id"].items() if machine}

    def start(self, order: Order, group: Any, bundle: int, room: Room) -> Any:
        """An actor in a bundle, which Ray starts again for ever, wherever the bundle is then."""
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        return self._actor_class.options(
            max_restarts=-1,
            max_task_retries=0,
            num_cpus=room.cpus,
            num_gpus=room.gpus,
            memory=room.memory_bytes or None,
            scheduling_strategy=PlacementGroupSchedulingStrategy(
                placement_group=group, placement_group_bundle_index=bundle
            ),
        ).remote(order)

    def call(self, actor: Any, method: str, *arguments: Any) -> Any:
        return getattr(actor, method).remote(*arguments)

    def answers(self, calls: Sequence[Any], seconds: float = 0.0) -> list[Any]:
        """Those of the calls that have been answered, or never will be, within so many seconds."""
        if not calls:
            return []
        done: list[Any] = self._ray.wait(list(calls), num_returns=len(calls), timeout=seconds)[0]
        return done

    def answer(self, call: Any) -> Any:
        """What an answered call returned. Raises ActorAway or ActorLost."""
        errors = self._ray.exceptions
        try:
            return self._ray.get(call, timeout=5)
        except errors.ActorUnavailableError as error:
            raise ActorAway(_first_line(error)) from None
        except errors.RayError as error:
            raise ActorLost(_last_line(error)) from None

    def end(self, actor: Any) -> None:
        """The actor's process is killed, if there still is one, and not started again."""
        with contextlib.suppress(self._ray.exceptions.RayError, ValueError):
            self._ray.kill(actor, no_restart=True)

    def release(self, group: Any) -> None:
        from ray.util import remove_placement_group

        with contextlib.suppress(self._ray.exceptions.RayError):
            remove_placement_group(group)

    def close(self) -> None:
        """Leaves the cluster; one that was started here ends."""
        with _signals_kept():
            self._ray.shutdown()
        if self._host is not None:
            self._host.end()


def check_address(address: str) -> None:
    """Raises EngineRefused for what is no address of a cluster, or where nobody listens: Ray would try for 80 s."""
    if address == "auto":
        return
    host, colon, port = address.rpartition(":")
    if not colon or not host or "/" in host or not (port.isascii() and port.isdecimal()):
        raise EngineRefused(
            f"--address {address}: name a Ray cluster as host:port, or auto for the one that runs here."
        )
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise EngineRefused(f"The Ray cluster {address} cannot be used: nobody answers there ({error}).") from None


@contextlib.contextmanager
def _signals_kept() -> Iterator[None]:
    """Ray takes SIGTERM for itself, which a launcher has handled before."""
    former = {sig: signal.getsignal(sig) for sig in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for sig, handler in former.items():
            signal.signal(sig, handler)


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0].strip()


def _last_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[-1].strip()
