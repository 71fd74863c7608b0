from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from nodes.errors import ShardRefused
from nodes.layers import LayerRange
from nodes.model_check import Finding, ModelCheck, default_splits, every_cut, parse_split
from nodes.shard import ModelShard
from tests import toys
from tests.meshes import ranges
from tests.unit.nodes.test_families import gemma4, save


def findings(
    folder: Path,
    *splits: tuple[int, ...],
    dtype: torch.dtype = torch.float32,
    allow_untested: bool = False,
    said: list[str] | None = None,
) -> list[Finding]:
    check = ModelCheck.of(folder, dtype=dtype, allow_untested=allow_untested)
    check.load()
    return list(check.run([tuple(ranges(*cuts)) for cuts in splits], (said if said is not None else []).append))


def spoiled(monkeypatch: pytest.MonkeyPatch, layers: LayerRange, spoil: Any) -> None:
    """Shards of these layers are loaded as `spoil` makes them; the whole model is left alone."""
    load = ModelShard.load

    def loaded(folder: Path, wanted: LayerRange, **options: Any) -> ModelShard:
        shard = load(folder, wanted, **options)
        if wanted == layers:
            spoil(shard)
        return shard

    monkeypatch.setattr(ModelShard, "load", loaded)


@pytest.mark.parametrize("family", ["llama_tied", "gemma2", "granite", "lfm2", "qwen3_next", "gpt_oss", "mixtral"])
def test_a_good_model_is_equal_in_every_default_split(family: str, toy_folder: Any) -> None:
    check = ModelCheck.of(toy_folder(family), dtype=torch.float32, allow_untested=False)
    check.load()
    splits = default_splits(check.n_layers)
    found = list(check.run(splits, lambda line: None))
    assert all(finding.good for finding in found)
    chains = [finding for finding in found if finding.shard is None]
    assert [chain.split for chain in chains] == splits
    assert [finding.shard for finding in found if finding.shard] == [layers for split in splits for layers in split]
    for chain in chains:
        assert chain.difference is not None and 0 <= chain.difference < 1e-4
        parts = [finding for finding in found if finding.split == chain.split and finding.shard]
        assert chain.bytes_per_token == sum(part.bytes_per_token or 0 for part in parts) > 0


@pytest.mark.parametrize("kind", sorted(toys.WRAPPED))
def test_the_text_part_of_a_wrapped_checkpoint_can_be_checked(kind: str, tmp_path: Path) -> None:
    folder, _ = toys.build_wrapped(kind, tmp_path)
    n_layers = ModelCheck.of(folder, dtype=torch.float32, allow_untested=False).n_layers
    assert all(finding.good for finding in findings(folder, (0, 1, n_layers)))


def test_it_says_what_it_begins(toy_folder: Any) -> None:
    said: list[str] = []
    findings(toy_folder("llama"), (0, 2, 4), (0, 4), said=said)
    assert said == ["Split 1 of 2: 0:2 | 2:4", "Split 2 of 2: 0:4"]


def test_16_bit_is_held_to_what_16_bit_can_promise(toy_folder: Any) -> None:
    found = findings(toy_folder("llama"), (0, 2, 4), dtype=torch.bfloat16)
    assert all(finding.good for finding in found)
    assert found[-1].difference is not None and found[-1].difference > 1e-4


def test_other_weights_in_one_shard_are_found(toy_folder: Any, monkeypatch: Any) -> None:
    """Each shard is right in itself: only the comparison with the whole shows it."""

    def shift(shard: ModelShard) -> None:
        shard._model.model.layers[3].mlp.down_proj.weight.mul_(1.01)

    spoiled(monkeypatch, LayerRange(2, 4), shift)
    first, second, chain = findings(toy_folder("llama"), (0, 2, 4))
    assert first.good and second.good
    assert (chain.cached, chain.stateless, chain.verdict) == (False, False, "differs")
    assert chain.difference is not None and chain.difference > 1e-4


def test_layers_that_ignore_their_cache_are_named_and_compared_without_one(toy_folder: Any, monkeypatch: Any) -> None:
    def forget(shard: ModelShard) -> None:
        for layer in shard._model.model.layers[:2]:
            original = layer.self_attn.forward
            layer.self_attn.forward = lambda *args, original=original, **kw: original(*args, **{**kw, "cache": None})

    spoiled(monkeypatch, LayerRange(0, 2), forget)
    first, second, chain = findings(toy_folder("llama"), (0, 2, 4))
    assert (first.cached, first.stateless, first.bytes_per_token) == (False, True, None)
    assert "without one" in first.verdict
    assert second.good
    assert (chain.cached, chain.stateless, chain.verdict) == (None, True, "equal")
    assert not chain.good


def test_a_cache_that_only_the_whole_model_shows_to_be_wrong_is_found(toy_folder: Any, monkeypatch: Any) -> None:
    """The tail's logits with a cache, which the proof of a shard does not run."""

    def drift(shard: ModelShard) -> None:
        logits = shard.logits
        shard.logits = lambda hidden, past, cache, layers=None: (  # type: ignore[method-assign]
            logits(hidden, past, cache, layers) + (0.5 if cache is not None else 0.0)
        )

    spoiled(monkeypatch, LayerRange(2, 4), drift)
    *_, chain = findings(toy_folder("llama"), (0, 2, 4))
    assert (chain.cached, chain.stateless, chain.verdict) == (False, True, "differs")


def test_greedy_tokens_that_differ_are_found_where_logits_are_close(toy_folder: Any, monkeypatch: Any) -> None:
    def late(shard: ModelShard) -> None:
        logits = shard.logits

        def change(hidden: Any, past: int, cache: Any, layers: Any = None) -> torch.Tensor:
            found = logits(hidden, past, cache, layers)
            return found if past < 22 else found.roll(1)

        shard.logits = change  # type: ignore[method-assign]

    spoiled(monkeypatch, LayerRange(2, 4), late)
    *_, chain = findings(toy_folder("llama"), (0, 2, 4))
    assert (chain.cached, chain.stateless, chain.verdict) == (False, True, "equal, but for greedy tokens")


def test_nan_is_a_difference(toy_folder: Any, monkeypatch: Any) -> None:
    def spoil(shard: ModelShard) -> None:
        logits = shard.logits
        shard.logits = lambda *args: logits(*args) * float("nan")  # type: ignore[method-assign]

    spoiled(monkeypatch, LayerRange(2, 4), spoil)
    *_, chain = findings(toy_folder("llama"), (0, 2, 4))
    assert (chain.cached, chain.stateless) == (False, False)


def test_a_refused_shard_is_a_finding_and_the_next_split_goes_on(tmp_path: Path) -> None:
    folder = save(gemma4(), tmp_path)
    found = findings(folder, (0, 3, 6), (0, 2, 6), allow_untested=True)
    refused = [finding for finding in found if finding.verdict.startswith("refused")]
    assert [(finding.shard, finding.stateless) for finding in refused] == [(LayerRange(3, 6), False)]
    assert "4 (of 2)" in refused[0].verdict
    # Without one of its shards there is no chain to compare.
    assert [(finding.split[0].end, finding.good) for finding in found if finding.shard is None] == [(2, True)]


def test_a_shard_whose_code_fails_is_a_finding(toy_folder: Any, monkeypatch: Any) -> None:
    def fail(shard: ModelShard) -> None:
        raise AttributeError("no such thing")

    spoiled(monkeypatch, LayerRange(0, 2), fail)
    first, second = findings(toy_folder("llama"), (0, 2, 4))
    assert first.verdict == "refused: AttributeError: no such thing"
    assert second.good


def test_a_whole_model_that_cannot_run_is_refused(tmp_path: Path) -> None:
    check = ModelCheck.of(save(gemma4(output_hidden_states=False), tmp_path), dtype=torch.float32, allow_untested=True)
    with pytest.raises(ShardRefused, match="whole model cannot run: TypeError"):
        check.load()


def test_a_model_of_too_little_context_is_refused(toy_folder: Any) -> None:
    with pytest.raises(ShardRefused, match="28 tokens"):
        ModelCheck.of(toy_folder("llama"), dtype=torch.float32, context_length=27, allow_untested=False)


def test_missing_weights_of_the_whole_are_refused(toy_folder: Any, tmp_path: Path, monkeypatch: Any) -> None:
    from safetensors.torch import load_file, save_file

    for path in toy_folder("llama").iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    weights = load_file(tmp_path / "model.safetensors")
    del weights["model.layers.2.mlp.up_proj.weight"]
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    check = ModelCheck.of(tmp_path, dtype=torch.float32, allow_untested=False)
    with pytest.raises(ShardRefused, match=r"model\.layers\.2\.mlp\.up_proj\.weight"):
        check.load()


def test_default_splits_are_two_and_three_even_shards_and_a_single_layer_tail() -> None:
    def texts(n_layers: int) -> list[str]:
        return [",".join(map(str, split)) for split in default_splits(n_layers)]

    assert texts(30) == ["0:15,15:30", "0:10,10:20,20:30", "0:29,29:30"]
    assert texts(3) == ["0:2,2:3", "0:1,1:2,2:3"]
    assert texts(2) == ["0:1,1:2"]
    assert texts(1) == ["0:1"]


def test_every_cut_is_every_cut_into_two() -> None:
    assert every_cut(4) == [tuple(ranges(0, cut, 4)) for cut in (1, 2, 3)]
    assert every_cut(1) == []


def test_a_split_is_read() -> None:
    assert parse_split("0:15,15:30", 30) == tuple(ranges(0, 15, 30))
    assert parse_split("0:4", 4) == tuple(ranges(0, 4))


@pytest.mark.parametrize("text", ["0:2", "1:2,2:4", "0:2,3:4", "0:3,2:4", "0:2,2:5", "2:4,0:2"])
def test_a_split_with_gap_or_overlap_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="0:4 without gap or overlap"):
        parse_split(text, 4)


def test_a_split_that_is_no_ranges_is_refused() -> None:
    for text in ("", "0-2", "0:2;2:4", "2:2,2:4"):
        with pytest.raises(ValueError, match=r"start:end|no layer"):
            parse_split(text, 4)
