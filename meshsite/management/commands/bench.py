"""`manage.py bench`: does a token cost the same however long the text is? Prints medians and their ratio."""

from __future__ import annotations

import contextlib
import json
import statistics
import subprocess
import sys
from argparse import ArgumentParser
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from nodes.errors import MeshnetError
from nodes.mesh_file import MeshFile


class Command(BaseCommand):
    help = (
        "Measures milliseconds per token at a short and at a long text, in turn, on the running mesh; without one, "
        "starts a local mesh for the measurement. Writes var/bench/pace.json."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--rounds", type=int, default=5, help="Rounds of 20 alternated steps each (5).")
        parser.add_argument("--short", type=int, default=40, help="Tokens of the short text (40).")
        parser.add_argument("--long", type=int, default=400, help="Tokens of the long text (400).")
        parser.add_argument("--model", default=None, help="The mesh's model, where it is not MESHNET_MODEL.")
        parser.add_argument("--stateless", action="store_true", help="Also measure without a cache, as it was before.")

    def handle(self, *args: Any, **options: Any) -> None:
        if options["rounds"] < 1 or not 11 <= options["short"] < options["long"]:
            raise CommandError("--rounds must be 1 or more, and --short at least 11 and less than --long.")
        try:
            with self._mesh() as (urls, secret):
                results = self._measure(urls, secret, options)
        except MeshnetError as error:
            raise CommandError(error.detail) from None
        target: Path = settings.MESHNET_VAR_DIR / "bench" / "pace.json"
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(json.dumps(results, indent=2) + "\n")
        self.stdout.write(f"Written to {target}.")

    @contextlib.contextmanager
    def _mesh(self) -> Iterator[tuple[list[str], str]]:
        """URLs and secret of the running mesh, or of one that lives as long as the measurement."""
        found = MeshFile.read(settings.MESHNET_VAR_DIR)
        if found is not None:
            yield list(found.nodes), found.mesh_secret
            return
        self.stdout.write("No mesh is running: starting one …")
        process = subprocess.Popen(  # this project's own command
            [sys.executable, "manage.py", "mesh", "--json"], cwd=settings.BASE_DIR, stdout=subprocess.PIPE, text=True
        )
        try:
            line = process.stdout.readline() if process.stdout else ""
            if not line:
                raise CommandError("The mesh did not start; its messages stand above.")
            mesh = json.loads(line)
            yield mesh["nodes"], mesh["mesh_secret"]
        finally:
            process.terminate()
            process.wait()

    def _measure(self, urls: list[str], secret: str, options: dict[str, Any]) -> dict[str, Any]:
        # Here, so that `manage.py help` does not load torch.
        import torch

        from generation.directory import NodeDirectory
        from generation.head import TokenLoop
        from generation.job import Job, LoopSettings
        from generation.pace import measure_pace
        from nodes.client import HttpNodeClient
        from nodes.framing import DTYPES
        from nodes.model_files import find_model
        from nodes.shard import Embedder

        torch.set_num_threads(1)
        clients = [HttpNodeClient(url, secret) for url in urls]
        status = clients[0].status(timeout=10)
        found = find_model(options["model"] or settings.MESHNET_MODEL, settings.MESHNET_VAR_DIR)
        if found.fingerprint != status["fingerprint"]:
            raise CommandError(f"The mesh serves {status['model']}, not {found.name}: name its model with --model.")
        embedder = Embedder.load(
            found.folder, dtype=DTYPES[status["dtype"]], allow_untested=settings.MESHNET_ALLOW_UNTESTED_MODELS
        )
        loop_settings = LoopSettings(
            found.fingerprint,
            status["dtype"],
            status["n_layers"],
            embedder.shape.vocab_size,
            embedder.shape.context_length,
        )
        directory = NodeDirectory(list(clients))

        def make_loop(job: Job) -> TokenLoop:
            return TokenLoop(directory, embedder, loop_settings, job)

        def release(loop: TokenLoop) -> None:
            for url in loop.progress.touched:
                directory.client(url).release(loop.session_id, timeout=10)

        results: dict[str, Any] = {"model": found.name, "nodes": len(urls), "dtype": status["dtype"]}
        for name, cache in (("cached", True), ("stateless", False)):
            if not cache and not options["stateless"]:
                continue
            pace = measure_pace(
                make_loop,
                release,
                vocab_size=embedder.shape.vocab_size,
                cache=cache,
                short_at=options["short"],
                long_at=options["long"],
                rounds=options["rounds"],
                progress=lambda done, name=name: self.stdout.write(f"{name}: round {done} of {options['rounds']}"),  # type: ignore[misc]
            )
            results[name] = pace.as_json()
            self.stdout.write(
                f"{name}: {statistics.median(pace.short_ms):.1f} ms at token {pace.short_at}, "
                f"{statistics.median(pace.long_ms):.1f} ms at token {pace.long_at}, ratio {pace.ratio:.3f}"
            )
        for client in clients:
            client.close()
        return results
