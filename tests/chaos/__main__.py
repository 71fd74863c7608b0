"""`python -m tests.chaos matrix` and `python -m tests.chaos soak`: what `make chaos` and `make soak` run."""

from __future__ import annotations

import argparse
import dataclasses
import json
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch

from tests.processes import ROOT

#: Results, and the logs of the processes of the last run.
FOLDER = ROOT / "var" / "chaos"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos")
    commands = parser.add_subparsers(dest="command", required=True)
    matrix = commands.add_parser("matrix", help="every node, step and fault")
    matrix.add_argument("--cells", type=int, help="only so many, of all kinds")
    matrix.add_argument("--seconds", type=float, default=1800, help="give up after so long (default 1800)")
    soak = commands.add_parser("soak", help="random faults under load")
    soak.add_argument("--seconds", type=float, default=600)
    soak.add_argument("--clients", type=int, default=16)
    soak.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(1)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the processes are ended
    logs = FOLDER / "logs"
    shutil.rmtree(logs, ignore_errors=True)
    logs.mkdir(parents=True)
    return run_matrix(options, logs) if options.command == "matrix" else run_soak(options, logs)


def run_matrix(options: argparse.Namespace, logs: Path) -> int:
    from tests.chaos import model
    from tests.chaos.matrix import NODE, PATIENCE, Cell, Matrix, Outcome, every_cell, some_cells, table
    from tests.chaos.mesh import running_chaos_mesh

    folder = model.build(logs / "model")
    reference = model.Reference(folder)
    give_up_at = time.monotonic() + options.seconds
    outcomes: dict[str, list[Outcome]] = {"lowered": [], "default": []}
    for name, head in (("lowered", PATIENCE), ("default", {})):
        with running_chaos_mesh(folder, logs / name, spares=True, node=NODE, head=head) as mesh:
            runner = Matrix(mesh, reference)
            if name == "default":
                cells = [Cell(stage, moment, "SIGSTOP") for stage in range(3) for moment in ("prefill", "step 12")]
            elif options.cells:
                cells = some_cells(options.cells)
            else:
                cells = every_cell()
            for number, outcome in enumerate(runner.run(cells), 1):
                outcomes[name].append(outcome)
                say(f"[{number}/{len(cells)}] {outcome.cell}: {outcome.problem or f'{outcome.recovery * 1e3:.0f} ms'}")
                if time.monotonic() > give_up_at:
                    say(f"Given up after {options.seconds:g} s.")
                    return 1
    for name, title in (("lowered", "Patience of half a second"), ("default", "Default settings")):
        say(f"\n{title}: from the fault to the next token")
        say("\n".join(table(outcomes[name])))
    failed = [outcome for found in outcomes.values() for outcome in found if outcome.problem]
    save("latest", {name: [dataclasses.asdict(one) for one in found] for name, found in outcomes.items()})
    say(f"\n{sum(map(len, outcomes.values()))} cells, {len(failed)} failed.")
    for outcome in failed:
        say(f"  {outcome.cell}: {outcome.problem}")
    return 1 if failed else 0


def run_soak(options: argparse.Namespace, logs: Path) -> int:
    from tests.chaos import model
    from tests.chaos.soak import Soak, running_soak_mesh

    folder = model.build(logs / "model")
    with running_soak_mesh(folder, logs / "soak") as mesh:
        soak = Soak(mesh, model.Reference(folder), clients=options.clients, seed=options.seed, say=say)
        report = soak.run(options.seconds)
    save("soak", report.as_json())
    say("\n".join(report.lines()))
    return 1 if report.problems else 0


def save(name: str, value: Any) -> None:
    (FOLDER / f"{name}.json").write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n")


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
