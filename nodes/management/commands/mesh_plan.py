"""`manage.py mesh_plan`: how a model would be split over machines, what it takes and how fast it would be."""

from __future__ import annotations

import json
import os
from argparse import ArgumentTypeError
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser

from nodes import mesh_plan
from nodes.amounts import human_bytes
from nodes.errors import MeshnetError
from nodes.layers import LayerRange
from nodes.machines import Machine
from nodes.mesh_plan import MachineText, MeshPlan
from nodes.table import aligned


class Command(BaseCommand):
    help = (
        "Says how a model would be split over machines, what each stage takes, and how long a token would take. Reads "
        "the model's configuration alone: its weights need not be here. Without --machine: for this machine, measured."
    )
    requires_system_checks = ()  # they would load the URLs of the whole head

    def create_parser(self, prog_name: str, subcommand: str, **kwargs: Any) -> CommandParser:
        kwargs.setdefault("epilog", "Exit codes: 0 planned; 1 it cannot be done so; 2 wrong usage.")
        return super().create_parser(prog_name, subcommand, **kwargs)

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--model", default=settings.MESHNET_MODEL, help="Default: MESHNET_MODEL, now %(default)s.")
        cut = parser.add_mutually_exclusive_group()
        cut.add_argument("--shards", type=_positive, metavar="N", help="Into so many stages (2).")
        cut.add_argument("--layers", type=_stretches, metavar="A:B,B:C", help="Into these stages.")
        parser.add_argument(
            "--replicas", type=_positive, default=1, metavar="R", help="How many nodes hold each stage (1)."
        )
        parser.add_argument(
            "--machine",
            type=_machine,
            action="append",
            default=[],
            dest="machines",
            metavar="NAME=MEMORY[@SPEED][,cpus=N,gpus=N]",
            help="A machine and the bytes of weights that it reads per second (gpu1=80GiB@2TB,cpus=16,gpus=1). Without "
            "a speed: as fast as this machine, measured now. May be given again and again.",
        )
        parser.add_argument(
            "--context", type=_positive, metavar="N", help="Longest text in tokens. Default: MESHNET_CONTEXT_LENGTH."
        )
        parser.add_argument(
            "--dtype",
            default=settings.MESHNET_DTYPE,
            choices=("float32", "bfloat16", "float16"),
            help="Default: MESHNET_DTYPE, now %(default)s.",
        )
        parser.add_argument(
            "--hop-ms",
            type=_milliseconds,
            default=mesh_plan.HOP_MS,
            metavar="MS",
            help="What the way to a node and back takes (%(default)s, one machine); add the round trip of a network.",
        )
        parser.add_argument(
            "--layer-ms",
            type=_milliseconds,
            default=mesh_plan.LAYER_MS,
            metavar="MS",
            help="What each layer takes besides reading its weights (%(default)s).",
        )
        parser.add_argument("--json", action="store_true", help="Print JSON instead of a table.")

    def handle(self, *args: Any, **options: Any) -> None:
        if len({machine.name for machine in options["machines"]}) < len(options["machines"]):
            raise CommandError("Two machines have the same name.")
        from nodes.joining import RESERVE_BYTES
        from nodes.kv_plan import config_folder
        from nodes.layer_costs import read_costs

        try:
            costs = read_costs(
                config_folder(options["model"].strip(), settings.MESHNET_VAR_DIR),
                options["dtype"],
                options["context"] or settings.MESHNET_CONTEXT_LENGTH,
                allow_untested=settings.MESHNET_ALLOW_UNTESTED_MODELS,
            )
            plan = mesh_plan.plan_mesh(
                costs,
                self._machines(options),
                shards=options["shards"] or 2,
                layers=options["layers"],
                replicas=options["replicas"],
                reserve_bytes=RESERVE_BYTES,
                max_sessions=settings.MESHNET_KV_MAX_SESSIONS,
                max_cache_bytes=settings.MESHNET_KV_MAX_BYTES,
                hop_ms=options["hop_ms"],
                layer_ms=options["layer_ms"],
            )
        except MeshnetError as error:
            raise CommandError(error.detail) from None
        if options["json"]:
            data = {"model": options["model"].strip(), "dtype": options["dtype"], **plan.as_json()}
            self.stdout.write(json.dumps(data, indent=2))
        else:
            self.stdout.write(_text(plan, options["dtype"]))

    def _machines(self, options: dict[str, Any]) -> list[Machine]:
        named: list[MachineText] = options["machines"]
        if named and all(machine.bytes_per_second for machine in named):
            return [machine.with_speed(0) for machine in named]
        from nodes.machine_speed import free_bytes, measure_speed

        speed = measure_speed(device=settings.MESHNET_DEVICE, dtype=options["dtype"], threads=settings.MESHNET_THREADS)
        return [machine.with_speed(speed) for machine in named] or [
            _this_machine(speed, free_bytes(settings.MESHNET_DEVICE))
        ]


def _this_machine(speed: float, memory: int | None) -> Machine:
    if memory is None:
        raise CommandError("This machine does not say how much memory it has: name it with --machine here=8GiB.")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    gpus = 0.0 if settings.MESHNET_DEVICE == "cpu" else 1.0
    return Machine("this machine", memory, speed, cpus=float(cores), gpus=gpus)


def _text(plan: MeshPlan, dtype: str) -> str:
    header = ("STAGE", "LAYERS", "MACHINES", "WEIGHTS", "CACHES", "SESSIONS FIT", "REQUEST", "CPUS", "GPUS", "MS")
    rows = [
        (
            index,
            stage.layers,
            ", ".join(stage.machines),
            human_bytes(stage.weight_bytes),
            human_bytes(stage.cache_bytes),
            stage.sessions_fit,
            human_bytes(stage.memory_bytes),
            f"{stage.cpus:g}",
            f"{stage.gpus:g}",
            f"{stage.compute_ms:.1f}",
        )
        for index, stage in enumerate(plan.stages, start=1)
    ]
    each = "" if plan.replicas == 1 else f" Each stage stands {plan.replicas} times; the numbers are of one node."
    found = (
        []
        if plan.proven_best
        else ["The best split found within the bound of the search, not proven to be the best: see the documentation."]
    )
    return "\n".join(
        [
            aligned(header, rows, right={*header} - {"LAYERS", "MACHINES"}),
            "",
            f"In {dtype}, with {plan.max_sessions} sessions of {plan.context_length} tokens as far as they fit.{each}",
            f"Expected per token of one session: {plan.token_ms:.1f} ms, {1000 / plan.token_ms:.1f} tokens/s: "
            f"{plan.compute_ms:.1f} ms to compute, and {plan.hop_ms:g} ms for each of {len(plan.stages)} hops.",
            f"Many sessions wait for the slowest stage: {plan.slowest_ms:.1f} ms a step, with every node at work.",
            *found,
        ]
    )


def _machine(text: str) -> MachineText:
    try:
        return MachineText.parse(text)
    except ValueError as error:
        raise ArgumentTypeError(str(error)) from None


def _stretches(text: str) -> list[LayerRange]:
    try:
        return [LayerRange.parse(part) for part in text.split(",")]
    except ValueError as error:
        raise ArgumentTypeError(str(error)) from None


def _positive(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 0 < len(text) < 10 and int(text)):
        raise ArgumentTypeError(f"{text!r} is not a whole number above 0.")
    return int(text)


def _milliseconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1e6:
        raise ArgumentTypeError(f"{text!r} is not a number of milliseconds.")
    return value
