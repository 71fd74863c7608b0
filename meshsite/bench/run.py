"""One benchmark from its options to `var/bench/latest.json`.

1. Pin this process, and so all that it starts, to the same cores.
2. For each model and dtype: start the contenders, choose each one's setup, run the measures, end the contenders.
3. Print tables and ratios, write the report.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from django.conf import settings

from meshsite.bench import breakdown, crowd, machine, measures, report, trips
from meshsite.bench.contenders import ContenderFailed
from meshsite.bench.measures import Say
from meshsite.bench.roster import NEEDED, Place, Roster
from meshsite.bench.scale import MEASURES, RATIOS, Scale
from nodes.errors import MeshnetError
from nodes.model_files import ModelFiles, find_model

#: Beside the first dtype, what others are measured in.
OF_OTHER_DTYPES = ("decode",)


@dataclass(frozen=True)
class Wanted:
    """What was asked for. The first model and dtype give the fixed names at the top of the report."""

    models: Sequence[str]
    dtypes: Sequence[str]
    measures: Sequence[str]
    scale: Scale
    threads: int = 0
    cores: Sequence[int] = field(default_factory=tuple)


def run(wanted: Wanted, say: Say, show: Say) -> Path:
    """Runs the benchmark and writes its report; where it is. `say` takes progress, `show` the tables.

    Raises MeshnetError when a model is not here, ContenderFailed when nothing can be measured, OSError for a core
    that this process may not use.
    """
    import torch

    begun = time.monotonic()
    at = datetime.now(UTC)
    cores = machine.pin(wanted.cores)
    torch.set_num_threads(1)  # the head's part is small, and the cores are the contenders'
    about = machine.describe(cores)
    runs = []
    for model in wanted.models:
        found = find_model(model, settings.MESHNET_VAR_DIR, download=False)
        for dtype in wanted.dtypes:
            chosen = [name for name in wanted.measures if dtype == wanted.dtypes[0] or name in OF_OTHER_DTYPES]
            if chosen:
                say(f"{found.name}, {dtype}: {', '.join(chosen)}")
                one = _run(found, dtype, chosen, wanted, len(cores), say)
                runs.append(one)
                show(f"{found.name}, {dtype}")
                for line in report.tables(one["samples"]):
                    show(line)
                for line in report.ratio_lines(one["ratios"], one["reasons"]):
                    show(line)
    first = runs[0]
    whole = {
        "at": at.isoformat(timespec="seconds"),
        "seconds": round(time.monotonic() - begun, 1),
        "model": first["model"],
        "dtype": first["dtype"],
        "threads": first["setups"],
        **first["ratios"],
        "reasons": first["reasons"],
        "bars": {name: f"{sign} {limit:g}" for name, (sign, limit) in report.BARS.items()},
        "scale": wanted.scale.as_json(),
        "machine": {**about, "load_after": machine.load()},
        "versions": machine.versions(),
        "runs": runs,
    }
    return _write(whole, at)


def _run(model: ModelFiles, dtype: str, chosen: Sequence[str], wanted: Wanted, cores: int, say: Say) -> dict[str, Any]:
    from nodes.framing import DTYPES
    from nodes.shard import Embedder

    embedder = Embedder.load(model.folder, dtype=DTYPES[dtype], allow_untested=settings.MESHNET_ALLOW_UNTESTED_MODELS)
    scale = wanted.scale.fits(embedder.shape.context_length)
    place = Place(model, dtype, wanted.threads, cores, settings.MESHNET_VAR_DIR, settings.BASE_DIR)
    samples: dict[str, Any] = {}
    pieces: dict[str, int] = {}
    with Roster(place, embedder, scale, say) as roster:
        roster.start(chosen)
        setups = {name: one.setup for name, one in roster.contenders.items()}
        for name in MEASURES:
            if name not in chosen:
                continue
            try:
                samples[name] = _measure(name, roster, embedder.shape.vocab_size, DTYPES[dtype].itemsize, scale, say)
            except (ContenderFailed, MeshnetError) as error:
                roster.absent[name] = str(error)
                say(f"{name} is not measured: {error}")
        if "hops" in samples:
            samples["hops"]["head"]["text_ms"] = _text_ms(model, embedder.shape.vocab_size, say)
        if "ttft" in samples and "mesh2" in roster.contenders:
            pieces = breakdown.pieces(roster.mesh("mesh2"), embedder.shape.vocab_size, scale.prompts)
        absent = dict(roster.absent)
    if not trips.can_hand_over():
        absent["handover"] = trips.MISSING
    if not samples:
        raise ContenderFailed("Nothing could be measured; the reasons stand above.")
    ratios = report.ratios(samples)
    return {
        "model": model.name,
        "dtype": dtype,
        "setups": setups,
        "pieces": pieces,
        "ratios": ratios,
        "reasons": report.reasons(ratios, chosen, absent),
        "absent": absent,
        "samples": samples,
    }


def _measure(name: str, roster: Roster, vocab_size: int, value_bytes: int, scale: Scale, say: Say) -> Any:
    """The raw samples of one measure. Raises ContenderFailed when somebody that it cannot do without is absent."""
    if name == "decode":
        return measures.decode(roster.named(*NEEDED["decode"]), vocab_size, scale, say)
    if name == "memory":
        return measures.memory(roster.named(*NEEDED["decode"]))
    if name == "handover":
        return trips.far_apart(roster.mesh("mesh3"), vocab_size, scale, say)
    mesh = roster.mesh("mesh2")
    if name == "hops":
        return breakdown.one_token(mesh, vocab_size, scale, say)
    if name == "wire":
        return breakdown.bytes_on_the_wire(mesh, vocab_size, value_bytes, scale, say)
    if name == "flatness":
        others = roster.named("generate", "transformers_pp")
        return measures.flatness(others, mesh, vocab_size, scale, say)
    if name == "ttft":
        whom = roster.with_prompts("generate", "transformers_pp", "mesh2")
        return measures.first_token(whom, vocab_size, scale, say)
    if name == "stall":
        return crowd.stall(mesh, vocab_size, scale, say)
    alone = roster.contenders.get("generate")
    if alone is None:
        raise ContenderFailed(roster.absent.get("generate", "generate was not started."))
    return crowd.together(alone, mesh, vocab_size, scale, say)


def _text_ms(model: ModelFiles, vocab_size: int, say: Say) -> list[float]:
    """Without a tokenizer nothing is measured."""
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(model.folder)
    except (OSError, ValueError) as error:
        say(f"No tokenizer, no text: {str(error).splitlines()[0]}")
        return []

    def decode(ids: list[int]) -> str:
        return str(tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False))

    return breakdown.text_ms(decode, vocab_size, 64)


def _write(whole: dict[str, Any], at: datetime) -> Path:
    folder: Path = settings.MESHNET_VAR_DIR / "bench"
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / f"{at:%Y%m%d-%H%M%S}.json"
    text = json.dumps(whole, indent=1) + "\n"
    target.write_text(text)
    partial = folder / ".latest.json"
    partial.write_text(text)
    partial.replace(folder / "latest.json")
    return target


#: What `--only` takes.
NAMES = (*MEASURES, *RATIOS)
