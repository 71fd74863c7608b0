"""`manage.py kv_plan`: how many sessions fit beside a shard's weights, without loading them."""

from __future__ import annotations

import json
from argparse import ArgumentTypeError
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser

from nodes.amounts import MISSING, human_bytes, parse_bytes
from nodes.errors import MeshnetError
from nodes.layers import LayerRange, split_evenly
from nodes.table import aligned


class Command(BaseCommand):
    help = (
        "Says what a model's shards and their sessions take, and how many sessions fit into a machine's memory. Reads "
        "the model's configuration alone: its weights need not be here."
    )
    requires_system_checks = ()  # they would load the URLs of the whole head

    def create_parser(self, prog_name: str, subcommand: str, **kwargs: Any) -> CommandParser:
        kwargs.setdefault("epilog", "Exit codes: 0 planned; 1 the model or its layers cannot be; 2 wrong usage.")
        return super().create_parser(prog_name, subcommand, **kwargs)

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--model", default=settings.MESHNET_MODEL, help="Default: MESHNET_MODEL, now %(default)s.")
        cut = parser.add_mutually_exclusive_group()
        cut.add_argument("--layers", type=_layers, metavar="A:B", help="This shard alone. Default: all layers in one.")
        cut.add_argument("--shards", type=_positive, metavar="N", help="The even split into N shards.")
        parser.add_argument("--context", type=_positive, required=True, metavar="N", help="Tokens of each session.")
        parser.add_argument(
            "--memory", type=_memory, metavar="SIZE", help="Memory for weights and sessions of each shard: 8GiB, 8GB."
        )
        parser.add_argument(
            "--dtype",
            default=settings.MESHNET_DTYPE,
            choices=("float32", "bfloat16", "float16"),
            help="Default: MESHNET_DTYPE, now %(default)s.",
        )
        parser.add_argument("--json", action="store_true", help="Print JSON instead of a table.")

    def handle(self, *args: Any, **options: Any) -> None:
        from nodes import kv_plan
        from nodes.framing import DTYPES
        from nodes.shard import read_blueprint

        context, memory, dtype = options["context"], options["memory"], DTYPES[options["dtype"]]
        try:
            blueprint = read_blueprint(
                kv_plan.config_folder(options["model"].strip(), settings.MESHNET_VAR_DIR),
                context,
                allow_untested=settings.MESHNET_ALLOW_UNTESTED_MODELS,
            )
            shape = blueprint.shape
            if context > shape.context_length:
                raise CommandError(f"The model takes {shape.context_length} tokens at most, not {context}.")
            shards = [options["layers"] or LayerRange(0, shape.n_layers)]
            if options["shards"]:
                shards = split_evenly(shape.n_layers, options["shards"])
            plans = [kv_plan.plan_shard(blueprint, layers, dtype) for layers in shards]
            head = kv_plan.plan_head(blueprint, dtype)
        except MeshnetError as error:
            raise CommandError(error.detail) from None
        except ValueError as error:  # of split_evenly
            raise CommandError(str(error)) from None
        found = kv_plan.as_json(plans, context, memory)
        if options["json"]:
            data = {"context": context, "memory": memory, "dtype": options["dtype"], "head_bytes": head}
            self.stdout.write(json.dumps({**data, "shards": found}, indent=2))
            return
        self.stdout.write(_table(found))
        self.stdout.write("")
        room = "" if memory is None else f" in {human_bytes(memory)}"
        self.stdout.write(f"Sessions of {context} tokens in {options['dtype']}, beside the weights{room}.")
        self.stdout.write(f"The head keeps {human_bytes(head)} of embeddings.")
        self.stdout.write("Python, torch and the step under way come on top: leave them 1 GiB.")


def _table(found: list[dict[str, Any]]) -> str:
    rows = [
        (
            shard["layers"],
            human_bytes(shard["weight_bytes"]),
            human_bytes(shard["kv_bytes_per_token"]),
            human_bytes(shard["kv_bytes_per_session"]),
            MISSING if shard["sessions"] is None else shard["sessions"],
        )
        for shard in found
    ]
    header = ("LAYERS", "WEIGHTS", "PER TOKEN", "PER SESSION", "SESSIONS")
    return aligned(header, rows, right=header[1:])


def _layers(text: str) -> LayerRange:
    try:
        return LayerRange.parse(text)
    except ValueError as error:
        raise ArgumentTypeError(str(error)) from None


def _memory(text: str) -> int:
    try:
        return parse_bytes(text)
    except ValueError as error:
        raise ArgumentTypeError(str(error)) from None


def _positive(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 0 < len(text) < 10 and int(text)):
        raise ArgumentTypeError(f"{text!r} is not a whole number above 0.")
    return int(text)
