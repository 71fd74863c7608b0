"""`manage.py mesh_scale`: tells a running mesh how many replicas of the model it is to have, and waits for them."""

from __future__ import annotations

import contextlib
import json
import time
from argparse import ArgumentParser
from collections.abc import Callable
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from meshsite import control_socket
from meshsite.control_socket import ControlRefused, NoAnswer
from nodes.table import aligned

LOOK_SECONDS = 0.5
#: Loading a model takes long, and a replica that leaves waits for its sessions.
TIMEOUT_SECONDS = 600.0

#: How often in a row a mesh may not answer before it counts as gone. It may be busy loading.
UNANSWERED = 5


class Command(BaseCommand):
    help = "Changes how many replicas a running mesh has, or shows how they stand."
    requires_system_checks: list[str] = []  # noqa: RUF012  # Django's own declaration

    #: Exchanged by tests.
    pause: Callable[[float], None] = staticmethod(time.sleep)
    clock: Callable[[], float] = staticmethod(time.monotonic)

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--replicas", type=int, default=None, help="How many nodes are to hold each stretch.")
        parser.add_argument(
            "--timeout", type=float, default=TIMEOUT_SECONDS, help="Seconds to wait until that is so (600)."
        )
        parser.add_argument("--json", action="store_true", help="Print how things stand in the end as JSON.")

    def handle(self, *args: Any, **options: Any) -> None:
        self._json = bool(options["json"])
        if not options["timeout"] >= 0:  # nan neither
            raise CommandError(f"--timeout {options['timeout']}: that is no time. Name seconds, such as 600.")
        try:
            if options["replicas"] is None:
                self._show(self._ask({"do": "status"}))
            else:
                self._show(self._scale(options["replicas"], options["timeout"]))
        except (NoAnswer, ControlRefused) as error:
            raise CommandError(str(error)) from None

    def _scale(self, replicas: int, timeout: float) -> dict[str, Any]:
        """How things stand once so many replicas serve. Raises CommandError when that cannot be, or not in time."""
        give_up_at = self.clock() + timeout
        report = self._ask({"do": "scale", "replicas": replicas})
        number, said = report["order"]["number"], ""
        while True:
            order = report["order"]
            line = progress_line(report)
            if line != said:
                said = line
                self._say(line)
            if order["number"] != number:
                raise CommandError(f"Another request came in between: {order['replicas']} replicas are wanted now.")
            if order["progress"] == "failed":
                raise CommandError(f"{replicas} replicas cannot be had: {order['reason']}")
            if order["progress"] == "reached":
                return report
            if self.clock() >= give_up_at:
                raise CommandError(
                    f"After {timeout:.0f} s it is not so yet: {line}. The mesh goes on with it; "
                    "`manage.py mesh_scale` shows how it stands."
                )
            report = self._look()

    def _look(self) -> dict[str, Any]:
        """How things stand a moment later. A mesh that does not answer once is asked again."""
        for _ in range(UNANSWERED - 1):
            self.pause(LOOK_SECONDS)
            with contextlib.suppress(NoAnswer):
                return self._ask({"do": "status"})
        self.pause(LOOK_SECONDS)
        return self._ask({"do": "status"})

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        return control_socket.ask(settings.MESHNET_VAR_DIR, request)

    def _show(self, report: dict[str, Any]) -> None:
        if self._json:
            self.stdout.write(json.dumps(report))
            return
        rows = [
            [node["name"], str(node["replica"]), node["layers"], node["state"], node["url"] or "-", node["reason"]]
            for node in report["nodes"]
        ]
        self.stdout.write(aligned(["NODE", "REPLICA", "LAYERS", "STATE", "URL", "REASON"], rows))
        self.stdout.write("")
        self.stdout.write(f"{standing_line(report)}.")

    def _say(self, line: str) -> None:
        stream = self.stderr if self._json else self.stdout
        stream.write(line, style_func=lambda text: text)
        stream.flush()


def standing_line(report: dict[str, Any]) -> str:
    """`2 of 2 replicas serve; autoscaling between 1 and 4`."""
    bounds = report["autoscaling"]
    scaling = f"autoscaling between {bounds['least']} and {bounds['most']}" if bounds else "no autoscaling"
    return f"{report['serving']} of {report['replicas']} replicas serve; {scaling}"


def progress_line(report: dict[str, Any]) -> str:
    """`serving: 1, wanted: 2; node3 starting, node4 starting`."""
    moving = [f"{node['name']} {node['state']}" for node in report["nodes"] if node["state"] != "ready"]
    line = f"serving: {report['serving']}, wanted: {report['order']['replicas']}"
    return f"{line}; {', '.join(moving)}" if moving else line
