"""`manage.py simulate`: a thousand nodes for registry, planner and admission in virtual time (meshsite/simulation/)."""

from __future__ import annotations

import logging
import time
from argparse import ArgumentParser
from collections.abc import Collection
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from django.apps import apps
from django.conf import settings
from django.core.management.base import BaseCommand, CommandError
from django.db import DatabaseError

if TYPE_CHECKING:
    from meshsite.simulation.mesh import MeshSize

PARTS = ("announcing", "planning", "polling", "load", "faults", "memory", "arithmetic")


class Command(BaseCommand):
    help = (
        "Drives the real registry, planner, waiting line and session store with simulated nodes, in virtual time and "
        "without torch. Prints tables and writes var/simulate/latest.json. The registry is tried on a throw-away "
        "database: an SQLite file, or one beside that of DATABASE_URL."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--quick", action="store_true", help="100 nodes and some hundred sessions: seconds.")
        parser.add_argument("--seed", type=int, default=1, help="The same seed gives the same events (1).")
        parser.add_argument("--nodes", type=int, default=0, help="How many nodes (1000; quick: 100).")
        parser.add_argument("--slots", type=int, default=0, help="Session slots of each node (2).")
        parser.add_argument("--head-workers", type=int, default=0, help="Head workers that sessions come to (4).")
        parser.add_argument(
            "--only", nargs="+", default=list(PARTS), choices=PARTS, help=f"Parts of it: {', '.join(PARTS)}."
        )

    def handle(self, *args: Any, **options: Any) -> None:
        if min(options["nodes"], options["slots"], options["head_workers"]) < 0:
            raise CommandError("--nodes, --slots and --head-workers must not be negative.")
        if not apps.is_installed("generation"):
            raise CommandError("A head is simulated, and this is a node: unset MESHNET_ROLE, or set it to head.")
        try:
            from meshsite.simulation.run import QUICK, Plan, simulate, write
        except ModuleNotFoundError as error:
            if error.name != "greenlet":
                raise
            raise CommandError("The simulation needs greenlet: `make setup`, or pip install greenlet==3.5.6.") from None
        from meshsite.simulation.database import throw_away_database
        from meshsite.simulation.report import tables
        from nodes.announcements import MOST_NODES

        self._begun = time.monotonic()
        plan = QUICK if options["quick"] else Plan()
        size = replace(
            plan.size,
            nodes=options["nodes"] or plan.size.nodes,
            slots=options["slots"] or plan.size.slots,
            head_workers=options["head_workers"] or plan.size.head_workers,
        )
        plan = replace(plan, size=size)
        if plan.size.nodes < plan.size.cost.stretches:
            raise CommandError(f"--nodes must be {plan.size.cost.stretches} or more: one for each stretch of layers.")
        if "announcing" in options["only"] and plan.size.nodes > MOST_NODES:
            raise CommandError(
                f"A head knows {MOST_NODES} nodes at most: ask for fewer, or leave announcing out with --only."
            )
        folder = settings.MESHNET_VAR_DIR / "simulate"
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise CommandError(f"{folder} cannot be made: {error.strerror}. Set MESHNET_VAR_DIR to a folder.") from None
        self._warn(size, options["only"])
        before = logging.root.manager.disable
        logging.disable(logging.WARNING)  # thousands of lines on faults that are meant
        try:
            with ExitStack() as stack:
                if "announcing" in options["only"]:
                    stack.enter_context(throw_away_database(folder))
                found = simulate(plan, tuple(options["only"]), options["seed"], self._say)
        except DatabaseError as error:
            raise CommandError(f"The throw-away database cannot be used: {error}") from None
        except KeyboardInterrupt:
            raise CommandError("Interrupted; nothing was written.", returncode=130) from None
        finally:
            logging.disable(before)
        target = write(found, folder)
        for line in tables(found):
            self.stdout.write(line)
        self.stdout.write(f"Written to {target}.")

    def _warn(self, size: MeshSize, parts: Collection[str]) -> None:
        admitted = size.head_workers * size.max_answers
        if size.mesh_slots > admitted and {"load", "faults"} & set(parts):
            self._say(
                f"{size.head_workers} head workers admit {admitted} answers at once, fewer than the {size.mesh_slots} "
                "slots: what is refused may be theirs to refuse. Take more with --head-workers."
            )

    def _say(self, text: str) -> None:
        """Progress goes to standard error: standard output holds the tables."""
        self.stderr.write(f"[{time.monotonic() - self._begun:5.0f} s] {text}", style_func=str)
