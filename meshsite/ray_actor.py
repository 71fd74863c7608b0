"""The Ray actor that keeps one node: a shell around meshsite/ray_node.py, for which it looks whether the project is
here at all.

Ray sends this module to the machines by value (meshsite/ray_engine.py), and it imports nothing of the project before
it has looked: so a machine without the project says so, instead of failing with a traceback.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

#: What the project's environment has and Ray's own does not.
_NEEDED = ("django", "gunicorn", "torch", "transformers")


@dataclass(frozen=True)
class Order:
    """What an actor is to keep. Neither Ray's pages nor its logs show arguments of actors, and `repr` shows no
    settings: the mesh secret is among them.

    `folder` is the project's on every machine, `var_dir` that of models and logs. `only_at` is the one address of a
    cluster of one machine, whose nodes stay on loopback; empty when there may be several.
    """

    name: str
    settings: Mapping[str, str] = field(repr=False)
    folder: str
    var_dir: str
    threads: int = 1
    only_at: str = ""


class NodeActor:
    """Methods are Ray's calls. None of them blocks: the node has a thread of its own."""

    def __init__(self, order: Order) -> None:
        import ray.util

        self._name = order.name
        self._address = ray.util.get_node_ip_address()
        self._machine = ray.get_runtime_context().get_node_id()
        self._problem = missing(order.folder)
        self._node: Any = None
        if not self._problem:
            sys.path.insert(0, order.folder)
            from meshsite.ray_node import RayNode

            self._node = RayNode(order, self._address)
            self._node.start()

    def __repr__(self) -> str:  # stands before lines in Ray's logs
        return f"meshnet {self._name}"

    def look(self) -> dict[str, Any]:
        """How the node stands (meshsite/engine.py), and what there was to say since the last look."""
        seen = {"stand": "refused", "reason": self._problem, "url": "", "lines": []}
        if self._node is not None:
            seen = self._node.look()
        return {**seen, "machine": self._machine, "address": self._address}

    def retire(self, patience: float) -> None:
        """No new sessions, and the end once there are none, or after so many seconds. `look` then says `left`."""
        if self._node is not None:
            self._node.retire(patience)

    def stop(self) -> None:
        """The end in order, within seconds. `look` then says `left`."""
        if self._node is not None:
            self._node.stop()

    def kill(self) -> None:
        """The end at once: when it returns, nothing is left."""
        if self._node is not None:
            self._node.kill()


def missing(folder: str) -> str:
    """What a machine lacks to hold a node; empty when nothing. Knows nothing but Python."""
    if not Path(folder, "meshsite", "ray_node.py").is_file():
        return f"the project is not at {folder} there: put the same version at the same path on each machine"
    absent = [name for name in _NEEDED if find_spec(name) is None]
    if absent:
        return (
            f"Ray runs there without the project's environment ({', '.join(absent)} missing): start it with "
            f"{folder}/.venv/bin/ray start …"
        )
    return ""


def survey(folder: str) -> dict[str, Any]:
    """A Ray task: what this machine says of itself.

    `problem` is what it lacks. Without one, `bytes_per_second` is how fast it reads weights, `cores` how many it has,
    and `gpu_bytes` the memory of the GPU that was given to the task, 0 without one.
    """
    import subprocess

    problem = missing(folder)
    if problem:
        return {"problem": problem}
    sys.path.insert(0, folder)
    from meshsite.ray_survey import measure

    try:
        return {"problem": "", **measure(folder)}
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        return {"problem": f"its speed cannot be measured: {error}"}
