"""Every family of the tested table: shards equal the whole model, whatever is cached and however the text is cut.

`pytest tests -k architectures` runs these. One line in `tests/toys.py` and one in `nodes/families.py` add a family.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
import torch

from nodes.families import FAMILIES
from nodes.families import WRAPPED as WRAPPED_TYPES
from nodes.layers import LayerRange
from nodes.shard import Embedder, ModelShard
from tests import toys
from tests.architecture_table import ArchitectureTable
from tests.meshes import ranges
from tests.toys import BAR, reference_ids

PROMPT = torch.randint(1, 255, (20,), generator=torch.Generator().manual_seed(5)).tolist()
NEW = 6
#: How the prompt is sent, in pieces each; `None` is a miss after which everything is sent anew on empty caches.
MODES: dict[str, list[list[int | None]]] = {
    "stateless": [[20]],
    "cached": [[20], [12, *[1] * 8]],
    "pieces": [[12, 4, 4], [6, 14]],
    "re-prefill": [[12, 4, None, 20], [6, None, 12, 8]],
}


@dataclass(frozen=True)
class Toy:
    """A family's toy on disk, and the same weights whole, in this process."""

    folder: Path
    reference: Any
    logits: torch.Tensor
    ids: list[int]


@dataclass(frozen=True)
class Hop:
    """Layers that are run, on a shard that holds these or more."""

    shard: ModelShard
    layers: LayerRange


WRAPPED = [f"{kind} (wrapped)" for kind in sorted(toys.WRAPPED)]


@pytest.fixture(scope="module")
def toy(
    toy_folder: Callable[[str], Path], toy_reference: Any, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Toy]:
    made: dict[str, Toy] = {}

    def get(family: str) -> Toy:
        if family not in made:
            with torch.inference_mode(mode=False):  # other tests share the reference
                if family in WRAPPED:
                    folder, whole = toys.build_wrapped(family.split()[0], tmp_path_factory.mktemp("wrapped"))
                else:
                    folder, whole = toy_folder(family), toy_reference(family)
                with torch.no_grad():
                    logits = whole(input_ids=torch.tensor([PROMPT])).logits[0]
                made[family] = Toy(folder, whole, logits, reference_ids(whole, PROMPT, NEW))
        return made[family]

    return get


@pytest.fixture(scope="module")
def shard(toy: Callable[[str], Toy]) -> Callable[[str, LayerRange], ModelShard]:
    loaded: dict[tuple[str, LayerRange], ModelShard] = {}

    def get(family: str, layers: LayerRange) -> ModelShard:
        key = (family, layers)
        if key not in loaded:
            loaded[key] = ModelShard.load(toy(family).folder, layers)
        return loaded[key]

    return get


def splits(toy: Toy) -> dict[str, list[tuple[LayerRange, LayerRange]]]:
    """Name -> what each shard holds, and what of it is run."""
    config = toy.reference.config.get_text_config()
    n = config.num_hidden_layers
    found = {
        "halves": ranges(0, n // 2, n),
        "single layers": ranges(*range(n + 1)),
    }
    kinds = list(getattr(config, "layer_types", None) or [])
    if len(set(kinds)) > 1:
        cuts = [0]
        for _, run in groupby(kinds):
            cuts.append(cuts[-1] + len(list(run)))
        special = "sliding" if "sliding_attention" in kinds else "linear"
        found[f"only {special}"] = ranges(*cuts)
    named = {name: [(layers, layers) for layers in parts] for name, parts in found.items()}
    whole = LayerRange(0, n)
    named["overlapping"] = [
        (LayerRange(0, n - 1), LayerRange(0, 2)),
        (LayerRange(1, n), LayerRange(2, n - 1)),
        (whole, LayerRange(n - 1, n)),
    ]
    return named


def all_logits(hop: Hop, hidden: torch.Tensor, past: int, cache: Any) -> torch.Tensor:
    """`ModelShard.logits` for every position instead of the last, [T, vocabulary]: the same call, all rows kept."""
    output = hop.shard._view(hop.layers)(**hop.shard._inputs(hidden, past, cache))
    if cache is not None:
        cache.advance(hidden.shape[1])
    return output.logits[0].float()


def new_caches(hops: list[Hop]) -> list[Any]:
    return [hop.shard.new_cache(hop.layers) for hop in hops]


def run(hops: list[Hop], hidden: torch.Tensor, past: int, caches: list[Any]) -> torch.Tensor:
    """One pass through all hops; logits of all its positions."""
    for hop, cache in zip(hops[:-1], caches[:-1], strict=True):
        hidden = hop.shard.forward(hidden, past, cache, hop.layers)
    return all_logits(hops[-1], hidden, past, caches[-1])


def send_prompt(hops: list[Hop], hidden: torch.Tensor, pieces: list[int | None], caches: list[Any]) -> torch.Tensor:
    """The prompt in pieces on the caches, in place; logits of every position."""
    rows: list[torch.Tensor] = []
    past = 0
    for size in pieces:
        if size is None:
            caches[:] = new_caches(hops)
            rows, past = [], 0
            continue
        rows.append(run(hops, hidden[:, past : past + size], past, caches))
        past += size
    assert past == hidden.shape[1]
    return torch.cat(rows)


def greedy(hops: list[Hop], embedder: Embedder, mode: str, first: int, caches: list[Any]) -> list[int]:
    """The first new id and those after it, ended like `generate()`."""
    ids: list[int] = []
    new = first
    while new != toys.EOS and len(ids) < NEW:
        ids.append(new)
        past = len(PROMPT) + len(ids) - 1
        if mode == "stateless":
            logits = run(hops, embedder.embed(PROMPT + ids), 0, [None] * len(hops))
        elif mode == "re-prefill" and len(ids) % 2:  # a miss before every other token
            caches[:] = new_caches(hops)
            logits = run(hops, embedder.embed(PROMPT + ids), 0, caches)
        else:
            logits = run(hops, embedder.embed(ids[-1:]), past, caches)
        new = int(logits[-1].argmax())
    return ids


@pytest.mark.parametrize("family", [*sorted(toys.CONFIGS), *WRAPPED])
@torch.inference_mode()
def test_a01_a04_a05_any_split_in_any_mode_equals_the_whole_model(
    family: str,
    toy: Callable[[str], Toy],
    shard: Callable[[str, LayerRange], ModelShard],
    architecture_table: ArchitectureTable,
) -> None:
    """Logits of every position, and the greedy ids after them."""
    whole = toy(family)
    embedder = Embedder.load(whole.folder)
    hidden = embedder.embed(PROMPT)
    wrong = []
    for split, parts in splits(whole).items():
        hops = [Hop(shard(family, own), layers) for own, layers in parts]
        for mode, ways in MODES.items():
            worst, ids = 0.0, []
            for pieces in ways:
                caches = [None] * len(hops) if mode == "stateless" else new_caches(hops)
                logits = send_prompt(hops, hidden, pieces, caches)
                assert logits.shape == whole.logits.shape
                worst = max(worst, float((logits - whole.logits).abs().max()))
                ids = greedy(hops, embedder, mode, int(logits[-1].argmax()), caches)
                if ids != whole.ids:
                    break
            architecture_table.record(family, split, mode, error=worst, ids_equal=ids == whole.ids)
            if not worst < BAR or ids != whole.ids:
                wrong.append((split, mode, worst, ids))
    assert not wrong, f"{family} gives {whole.ids}, but {wrong}"


@pytest.mark.parametrize("family", sorted(toys.CONFIGS))
@torch.inference_mode()
def test_the_tail_answers_the_logits_of_the_last_position(
    family: str, toy: Callable[[str], Toy], shard: Callable[[str, LayerRange], ModelShard]
) -> None:
    n = toys.CONFIGS[family]().num_hidden_layers
    tail = Hop(shard(family, LayerRange(0, n)), LayerRange(n - 1, n))
    hidden = torch.randn(1, 5, 64, generator=torch.Generator().manual_seed(1))
    last = tail.shard.logits(hidden, 0, None, tail.layers)
    assert torch.allclose(last, all_logits(tail, hidden, 0, None)[-1], atol=1e-6)


@pytest.mark.parametrize("family", sorted(toys.CONFIGS))
def test_a09_the_head_embeds_like_the_whole_model_bit_for_bit(family: str, toy_folder: Any, toy_reference: Any) -> None:
    ids = [5, 9, 7]
    with torch.inference_mode():
        output = toy_reference(family)(torch.tensor([ids]), output_hidden_states=True)
    assert torch.equal(Embedder.load(toy_folder(family)).embed(ids), output.hidden_states[0])


def test_every_family_of_the_tested_table_is_tested_here() -> None:
    assert {toys.CONFIGS[name]().model_type for name in toys.CONFIGS} == set(FAMILIES)
    assert set(toys.WRAPPED) == set(WRAPPED_TYPES)


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen3_next"])
@torch.inference_mode()
def test_a01_the_eager_attention_gives_the_same(family: str, toy: Callable[[str], Toy]) -> None:
    whole = toy(family)
    hidden = Embedder.load(whole.folder).embed(PROMPT)
    n = toys.CONFIGS[family]().num_hidden_layers
    hops = [Hop(ModelShard.load(whole.folder, layers), layers) for layers in ranges(0, n // 2, n)]
    for hop in hops:
        hop.shard._model.set_attn_implementation("eager")
    for pieces in (way for ways in MODES.values() for way in ways):
        logits = send_prompt(hops, hidden, pieces, new_caches(hops))
        assert float((logits - whole.logits).abs().max()) < BAR


@pytest.mark.parametrize("cuts", [(0, 4, 8), (0, 2, 8), (0, 3, 8)])
@torch.inference_mode()
def test_a02_a_shard_knows_its_length_also_without_attention(
    cuts: tuple[int, ...], shard: Callable[[str, LayerRange], ModelShard]
) -> None:
    for layers in ranges(*cuts):
        part = shard("qwen3_next", layers)
        cache = part.new_cache()
        part.forward(torch.randn(1, 12, 64), 0, cache)
        part.forward(torch.randn(1, 1, 64), 12, cache)
        assert cache.tokens == 13
        assert cache.get_seq_length() == 13
