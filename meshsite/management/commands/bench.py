"""`manage.py bench`: the mesh side by side with its peers on this machine (meshsite/bench/)."""

from __future__ import annotations

import time
from argparse import ArgumentParser
from dataclasses import replace
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from meshsite.bench.contenders import ContenderFailed
from meshsite.bench.random_model import NAME, random_model
from meshsite.bench.scale import MEASURES, QUICK, RATIOS, Scale, wanted
from nodes.errors import MeshnetError


class Command(BaseCommand):
    help = (
        "Measures the mesh side by side with generate(), transformers' pipeline parallelism and llama.cpp, all on the "
        "same cores. Starts processes of its own. Prints tables and writes var/bench/latest.json."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--only",
            nargs="+",
            default=[],
            metavar="NAME",
            help=f"Run these measures alone: {', '.join(MEASURES)}; or what gives these ratios: {', '.join(RATIOS)}.",
        )
        parser.add_argument("--quick", action="store_true", help="Fewer rounds, MESHNET_MODEL only: within 4 minutes.")
        parser.add_argument(
            "--model",
            nargs="+",
            default=[],
            help=f"Models, as MESHNET_MODEL names them (that one and {NAME}, which is built the first time).",
        )
        parser.add_argument(
            "--dtype",
            nargs="+",
            default=[],
            choices=("float32", "bfloat16", "float16"),
            help="The first is measured in full, others in decoding only (float32 bfloat16).",
        )
        parser.add_argument("--threads", type=int, default=0, help="Threads of each process (0: each one's best).")
        parser.add_argument("--cores", default="", help="Cores for all of them, such as 0,1 (the first two).")
        parser.add_argument("--rounds", type=int, default=0, help="Rounds of each measure (5; quick: 3).")
        parser.add_argument("--tokens", type=int, default=0, help="New tokens in a round (32; quick: 16).")
        parser.add_argument(
            "--stateless", action="store_true", help="Short for --only flatness: with the cache and without it."
        )

    def handle(self, *args: Any, **options: Any) -> None:
        quick = options["quick"]
        if min(options["threads"], options["rounds"], options["tokens"]) < 0 or options["tokens"] == 1:
            raise CommandError("--threads and --rounds must not be negative, and --tokens be 2 or more.", returncode=2)
        try:
            measures = wanted([*options["only"], *(["flatness"] if options["stateless"] else [])])
        except KeyError as error:
            raise CommandError(
                f"--only: {error.args[0]!r} is neither a measure ({', '.join(MEASURES)}) nor a ratio "
                f"({', '.join(RATIOS)}).",
                returncode=2,
            ) from None
        try:
            cores = [int(core) for core in options["cores"].split(",") if core]
        except ValueError:
            raise CommandError(
                f"--cores takes numbers with commas between them, not {options['cores']!r}.", returncode=2
            ) from None
        self._begun = time.monotonic()
        # Here, so that `manage.py help` does not load torch.
        from meshsite.bench.run import Wanted, run

        try:
            target = run(
                Wanted(
                    models=options["model"] or self._models(quick),
                    dtypes=options["dtype"] or (["float32"] if quick else ["float32", "bfloat16"]),
                    measures=measures,
                    scale=self._scale(options),
                    threads=options["threads"],
                    cores=cores,
                ),
                self._say,
                self.stdout.write,
            )
        except KeyboardInterrupt:
            raise CommandError("Interrupted; nothing was written.", returncode=130) from None
        except MeshnetError as error:
            raise CommandError(error.detail) from None
        except (ContenderFailed, OSError) as error:
            raise CommandError(str(error)) from None
        self.stdout.write(f"Written to {target} and latest.json beside it.")

    def _models(self, quick: bool) -> list[str]:
        if quick:
            return [settings.MESHNET_MODEL]
        self._say(f"Making sure that {NAME} is here …")
        random_model(settings.MESHNET_VAR_DIR)
        return [settings.MESHNET_MODEL, NAME]

    def _scale(self, options: dict[str, Any]) -> Scale:
        scale = QUICK if options["quick"] else Scale()
        return replace(scale, rounds=options["rounds"] or scale.rounds, tokens=options["tokens"] or scale.tokens)

    def _say(self, text: str) -> None:
        """Progress goes to standard error: standard output holds the tables."""
        self.stderr.write(f"[{time.monotonic() - self._begun:5.0f} s] {text}", style_func=str)
