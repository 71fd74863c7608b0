"""`manage.py check_model MODEL`: proves a model's shards and compares them with the whole model."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser

from nodes.amounts import MISSING, human_bytes
from nodes.errors import MeshnetError
from nodes.table import aligned

if TYPE_CHECKING:
    from nodes.model_check import Finding, ModelCheck, Split


class Command(BaseCommand):
    help = (
        "Loads a model's shards, proves each of them, and compares the chain of shards with the whole model, with a "
        "cache and without. Takes twice the memory of the weights."
    )
    requires_system_checks = ()  # they would load the URLs of the whole head

    def create_parser(self, prog_name: str, subcommand: str, **kwargs: Any) -> CommandParser:
        kwargs.setdefault(
            "epilog",
            "Exit codes: 0 everything is equal; 1 something differs, is refused or cannot be loaded; 2 wrong usage; "
            "130 interrupted.",
        )
        return super().create_parser(prog_name, subcommand, **kwargs)

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "model", nargs="?", default=settings.MESHNET_MODEL, help="Default: MESHNET_MODEL, now %(default)s."
        )
        which = parser.add_mutually_exclusive_group()
        which.add_argument(
            "--splits",
            nargs="+",
            metavar="A:B,B:C",
            help="Splits to check, such as 0:15,15:30. Default: two and three even shards, and a single-layer tail.",
        )
        which.add_argument("--all-splits", action="store_true", help="Every cut into two; for a small model.")
        parser.add_argument(
            "--dtype",
            default=settings.MESHNET_DTYPE,
            choices=("float32", "bfloat16", "float16"),
            help="Default: MESHNET_DTYPE, now %(default)s.",
        )
        parser.add_argument("--json", action="store_true", help="Print JSON instead of a table.")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            findings = self._check(options)
        except MeshnetError as error:
            raise CommandError(error.detail) from None
        except KeyboardInterrupt:
            raise CommandError("Interrupted.", returncode=130) from None
        bad = sum(not finding.good for finding in findings)
        if options["json"]:
            rows = [_as_json(finding) for finding in findings]
            self.stdout.write(json.dumps({"dtype": options["dtype"], "good": not bad, "findings": rows}, indent=2))
        else:
            self.stdout.write(_table(findings))
        if bad:
            raise CommandError(f"{bad} of {len(findings)} checks failed.")

    def _check(self, options: dict[str, Any]) -> list[Finding]:
        import torch
        import transformers

        from nodes.framing import DTYPES
        from nodes.model_check import ModelCheck
        from nodes.model_files import find_model

        transformers.logging.disable_progress_bar()
        if settings.MESHNET_THREADS:
            torch.set_num_threads(settings.MESHNET_THREADS)
        found = find_model(options["model"], settings.MESHNET_VAR_DIR)
        check = ModelCheck.of(
            found.folder,
            dtype=DTYPES[options["dtype"]],
            device=settings.MESHNET_DEVICE,
            context_length=settings.MESHNET_CONTEXT_LENGTH,
            allow_untested=settings.MESHNET_ALLOW_UNTESTED_MODELS,
        )
        splits = _splits(check, found.folder, options)
        self._say(f"Loading {found.name} whole …")
        check.load()
        return list(check.run(splits, self._say))

    def _say(self, line: str) -> None:
        # Beside the table, not in it: --json leaves standard output to the JSON alone.
        self.stderr.write(line, self.style.NOTICE if self.stderr.isatty() else str)
        self.stderr.flush()


def _splits(check: ModelCheck, folder: Path, options: dict[str, Any]) -> Sequence[Split]:
    """Raises CommandError for splits that cannot be checked."""
    from nodes import model_check

    if options["splits"]:
        try:
            return [model_check.parse_split(text, check.n_layers) for text in options["splits"]]
        except ValueError as error:
            raise CommandError(str(error), returncode=2) from None
    if not options["all_splits"]:
        return model_check.default_splits(check.n_layers)
    size = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    if size > model_check.ALL_SPLITS_MOST_BYTES:
        raise CommandError(
            f"--all-splits would load {human_bytes(size)} of weights {check.n_layers - 1} times; it is meant for "
            f"models of {human_bytes(model_check.ALL_SPLITS_MOST_BYTES)} at most. Name some --splits."
        )
    return model_check.every_cut(check.n_layers) or model_check.default_splits(check.n_layers)


def _table(findings: Sequence[Finding]) -> str:
    rows = [
        (
            _name(finding.split),
            "all" if finding.shard is None else finding.shard,
            _yes(finding.cached),
            _yes(finding.stateless),
            MISSING if finding.difference is None else f"{finding.difference:.1e}",
            MISSING if finding.bytes_per_token is None else finding.bytes_per_token,
            finding.verdict,
        )
        for finding in findings
    ]
    header = ("SPLIT", "SHARD", "CACHED", "STATELESS", "MAX DIFFERENCE", "BYTES PER TOKEN", "VERDICT")
    return aligned(header, rows, right=("MAX DIFFERENCE", "BYTES PER TOKEN"))


def _as_json(finding: Finding) -> dict[str, Any]:
    return {
        "split": _name(finding.split),
        "shard": None if finding.shard is None else str(finding.shard),
        "cached": finding.cached,
        "stateless": finding.stateless,
        "max_difference": _finite(finding.difference),
        "bytes_per_token": finding.bytes_per_token,
        "verdict": finding.verdict,
        "good": finding.good,
    }


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None  # JSON has no NaN


def _name(split: Split) -> str:
    return ",".join(map(str, split))


def _yes(value: bool | None) -> str:
    return MISSING if value is None else "equal" if value else "DIFFERS"
