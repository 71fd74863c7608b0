"""Two cheap nodes, one of which comes by an order from another thread. To be killed by a test: ports, log folder."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

from meshsite.engine import NodeSpec
from meshsite.local_engine import LocalEngine
from meshsite.replicas import Progress, Replicas
from meshsite.scaler import Scaler
from meshsite.stop_signals import StopSignals
from nodes.layers import LayerRange
from tests.unit.meshsite.children import fake_spec


def main() -> None:
    first_port, log_dir = int(sys.argv[1]), Path(sys.argv[2])

    def leave(url: str) -> None:
        raise AssertionError("Nobody retires a node here.")

    engine = LocalEngine(
        log_dir,
        lambda line: None,
        make_child=lambda spec, port: fake_spec(spec.name, port),
        leave=leave,  # type: ignore[arg-type]
        ports={},
        next_port=first_port,
    )
    replicas = Replicas(
        engine,
        lambda replica: [NodeSpec(f"node{replica}", replica, 1, LayerRange(0, 1), {})],
        lambda line: None,
        wanted=1,
        most=2,
    )
    scaler = Scaler(replicas, lambda line: None)
    with StopSignals() as stop:
        while replicas.last_order.progress is not Progress.REACHED:
            scaler.step()
        order = threading.Thread(target=scaler.answer, args=({"do": "scale", "replicas": 2},))
        order.start()
        order.join()
        while replicas.last_order.progress is not Progress.REACHED:
            scaler.step()
        sys.stdout.write(" ".join(str(pid) for pid in engine.pids().values()) + "\n")
        sys.stdout.flush()
        while not stop.wait(0.1):
            scaler.step()
        engine.stop(stop.wait)


if __name__ == "__main__":
    main()
