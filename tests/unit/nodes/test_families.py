from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers as t

from nodes import proof
from nodes.errors import ShardRefused, WrongLayers
from nodes.families import FAMILIES, Family, check_tested, family_of
from nodes.framing import Payload
from nodes.kv_sharing import producers
from nodes.layers import LayerRange
from nodes.shard import Embedder, ModelShard, read_blueprint, wanted_files
from nodes.wire import StepHeaders, mint_session_id
from tests import toys
from tests.meshes import ranges, running_nodes

IDS = list(range(5, 25))


def save(config: Any, folder: Path) -> Path:
    torch.manual_seed(0)
    t.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval().save_pretrained(folder)
    return folder


def gemma4(**changes: Any) -> Any:
    """Case A11: six layers S F S F S F, of which the last two reuse the keys of 2 and 3."""
    options = {
        **toys._SIX,
        "head_dim": 16,
        "global_head_dim": 16,
        "sliding_window": 8,
        "layer_types": ["sliding_attention", "full_attention"] * 3,
        "num_kv_shared_layers": 2,
        "hidden_size_per_layer_input": 0,
        "vocab_size_per_layer_input": toys.VOCAB,
        # Without per-layer embeddings transformers 5.24 fails where it drops positions before the sharing layers;
        # asked for all hidden states it does not drop any.
        "output_hidden_states": True,
        **changes,
    }
    return t.Gemma4TextConfig(**options)


@pytest.fixture(scope="module")
def untested(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A type that is not in the table and is cut like most."""
    return save(t.StableLmConfig(**toys._COMMON), tmp_path_factory.mktemp("stablelm"))


@pytest.fixture(scope="module")
def sharing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(gemma4(), tmp_path_factory.mktemp("gemma4"))


@torch.inference_mode()
def difference(folder: Path, cuts: tuple[int, ...], pieces: list[int], **options: Any) -> float:
    """Of the logits behind each piece: the chain of shards from the whole model."""
    whole = t.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    expected = whole(torch.tensor([IDS]), use_cache=False).logits[0]
    shards = [ModelShard.load(folder, layers, **options) for layers in ranges(*cuts)]
    caches = [shard.new_cache() for shard in shards]
    error, end = 0.0, 0
    for piece in Embedder.load(folder, **options).embed(IDS).split(pieces, dim=1):
        end += piece.shape[1]
        hidden = piece
        for shard, cache in zip(shards[:-1], caches[:-1], strict=True):
            hidden = shard.forward(hidden, cache.tokens, cache)
        logits = shards[-1].logits(hidden, caches[-1].tokens, caches[-1])
        error = max(error, float((logits - expected[end - 1]).abs().max()))
    assert end == len(IDS)
    return error


# -- untested types


def test_a_type_outside_the_table_is_refused_with_the_setting_that_allows_it(untested: Path) -> None:
    for load in (
        lambda: ModelShard.load(untested, LayerRange(0, 2)),
        lambda: Embedder.load(untested),
        lambda: wanted_files(None)(untested),
    ):
        with pytest.raises(ShardRefused, match=r"'stablelm'.*MESHNET_ALLOW_UNTESTED_MODELS"):
            load()


def test_an_allowed_untested_type_equals_the_whole_model(untested: Path) -> None:
    for cuts in ((0, 2, 4), (0, 1, 3, 4)):
        assert difference(untested, cuts, [12, 4, 4], allow_untested=True) < 1e-4
    assert wanted_files(None, allow_untested=True)(untested) is None


def test_a_node_of_an_untested_type_serves_only_when_allowed_and_proved(
    untested: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running_nodes(untested, ranges(0, 2), allow_untested=True) as (node,):
        assert node.status()["model_type"] == "stablelm"
        assert node.status()["supports_kv_cache"]
    with pytest.raises(ShardRefused, match="stablelm"), running_nodes(untested, ranges(0, 2)):
        pass

    def fail(shard: ModelShard) -> None:
        raise ShardRefused("the proof says no")

    monkeypatch.setattr(proof, "prove", fail)
    with (
        pytest.raises(ShardRefused, match="the proof says no"),
        running_nodes(untested, ranges(0, 2), allow_untested=True),
    ):
        pass


def test_an_untested_model_of_another_anatomy_is_refused_by_name(tmp_path: Path) -> None:
    folder = save(t.GPT2Config(vocab_size=toys.VOCAB, n_embd=64, n_layer=4, n_head=4, n_positions=512), tmp_path)
    for load in (
        lambda: ModelShard.load(folder, LayerRange(0, 2), allow_untested=True),
        lambda: Embedder.load(folder, allow_untested=True),
    ):
        with pytest.raises(ShardRefused, match=r"'gpt2' cannot be cut: their base model has no 'layers'"):
            load()


def test_a_final_norm_of_another_name_is_refused_and_not_skipped(toy_folder: Any, monkeypatch: Any) -> None:
    """As lfm2 would be if the table did not know it."""
    monkeypatch.delitem(FAMILIES, "lfm2")
    with pytest.raises(ShardRefused, match=r"'lfm2' cannot be cut: their base model has no 'norm'"):
        ModelShard.load(toy_folder("lfm2"), LayerRange(0, 2), allow_untested=True)


def test_an_untested_model_that_repeats_the_heads_work_does_not_pass_the_proof(
    toy_folder: Any, monkeypatch: Any
) -> None:
    """As granite would if the table did not know it."""
    monkeypatch.delitem(FAMILIES, "granite")
    shard = ModelShard.load(toy_folder("granite"), LayerRange(0, 2), allow_untested=True)
    with pytest.raises(ShardRefused, match="no layer"):
        proof.prove(shard)


def test_a_model_that_generates_no_text_is_refused_by_name(tmp_path: Path) -> None:
    config = t.CLIPTextConfig(hidden_size=64, num_hidden_layers=2, num_attention_heads=4, vocab_size=320)
    config.save_pretrained(tmp_path)
    with pytest.raises(ShardRefused, match="do not generate text"):
        ModelShard.load(tmp_path, LayerRange(0, 1), allow_untested=True)


def test_a_configuration_without_sizes_is_refused_by_name(tmp_path: Path) -> None:
    t.CLIPConfig().save_pretrained(tmp_path)
    with pytest.raises(ShardRefused, match="does not say num_hidden_layers"):
        read_blueprint(tmp_path, allow_untested=True)


def test_the_table_is_what_is_tested() -> None:
    for model_type, family in FAMILIES.items():
        check_tested(SimpleNamespace(model_type=model_type))
        assert family_of(SimpleNamespace(model_type=model_type)) is family
    assert family_of(SimpleNamespace(model_type="no such type")) == Family()


# -- layers that reuse keys and values (case A11)


def test_a11_splits_that_part_consumers_from_their_producers_are_refused_by_layer(sharing: Path) -> None:
    for layers, named in (
        (LayerRange(3, 6), r"before 3: 4 \(of 2\)\. Cut this model at layer 2"),
        (LayerRange(4, 6), r"before 4: 4 \(of 2\), 5 \(of 3\)\. Cut this model at layer 2"),
        (LayerRange(5, 6), r"before 5: 5 \(of 3\)"),
    ):
        with pytest.raises(ShardRefused, match=named):
            ModelShard.load(sharing, layers, allow_untested=True)


def test_a11_the_allowed_splits_equal_the_whole_model(sharing: Path) -> None:
    for cuts in ((0, 2, 6), (0, 1, 6), (0, 1, 2, 6)):
        for pieces in ([20], [12, 4, 4], [6, 14], [12, *[1] * 8]):
            assert difference(sharing, cuts, pieces, allow_untested=True) < 1e-4


def test_a11_the_proof_cuts_where_the_model_can_be_cut(sharing: Path, monkeypatch: Any) -> None:
    for layers, halves in ((LayerRange(0, 6), {"0:2", "2:6"}), (LayerRange(2, 6), set()), (LayerRange(0, 2), {"1:2"})):
        shard = ModelShard.load(sharing, layers, allow_untested=True)
        ran: set[str] = set()
        forward = shard.forward

        def watch(hidden: Any, past: int, cache: Any, part: Any = None, forward: Any = forward, ran: Any = ran) -> Any:
            ran.add(str(part))
            return forward(hidden, past, cache, part)

        shard.forward = watch  # type: ignore[method-assign]
        assert proof.prove(shard).supports_kv_cache
        assert halves <= ran
        assert bool(halves) == bool(ran - {"None", str(layers), f"{layers.start}:{layers.start}"})


def test_a11_a_step_that_asks_a_node_for_consumers_alone_is_refused(sharing: Path) -> None:
    hidden = torch.randn(1, 3, 64)
    with running_nodes(sharing, ranges(2, 6), allow_untested=True) as (node,):
        for start, end in ((4, 6), (3, 5)):
            headers = StepHeaders(mint_session_id(), "prefill", None, start, end)
            with pytest.raises(WrongLayers, match="cannot run alone"):
                node.forward(headers, Payload(hidden))
        assert node.sessions()["sessions"] == []
        answer = node.forward(StepHeaders(mint_session_id(), "prefill", None, 2, 4), Payload(hidden))
        assert answer.past_len == 3


def test_a11_per_layer_embeddings_are_refused_by_name(tmp_path: Path) -> None:
    gemma4(hidden_size_per_layer_input=8).save_pretrained(tmp_path)
    with pytest.raises(ShardRefused, match=r"per-layer embeddings \(hidden_size_per_layer_input\)"):
        read_blueprint(tmp_path, allow_untested=True)


def test_a11_a_forward_that_fails_is_a_refusal_and_no_crash(sharing: Path, tmp_path: Path) -> None:
    """The same weights where transformers itself cannot run them: see `gemma4`."""
    for path in sharing.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    config = json.loads((tmp_path / "config.json").read_text())
    config["output_hidden_states"] = False
    (tmp_path / "config.json").write_text(json.dumps(config))
    shard = ModelShard.load(tmp_path, LayerRange(2, 6), allow_untested=True)
    with pytest.raises(ShardRefused, match="cannot run: TypeError"):
        proof.prove(shard)


def config(**fields: Any) -> Any:
    return SimpleNamespace(**{"model_type": "toy", "num_hidden_layers": 6, **fields})


SHARING: list[tuple[Any, dict[int, int]]] = [
    (config(), {}),
    (config(num_kv_shared_layers=0, layer_types=["full_attention"] * 6), {}),
    (config(num_kv_shared_layers=None), {}),
    (config(num_kv_shared_layers=2, layer_types=["s", "f"] * 3), {4: 2, 5: 3}),
    (config(num_kv_shared_layers=3, layer_types=["s", "s", "f", "s", "s", "f"]), {3: 1, 4: 1, 5: 2}),
    (config(kv_source_layers=[0, 0, 2, 3, 2, 5]), {1: 0, 4: 2}),
]


@pytest.mark.parametrize(("shape", "expected"), SHARING)
def test_a11_producers_are_read_from_the_configuration(shape: Any, expected: dict[int, int]) -> None:
    assert producers(shape) == expected


def test_a11_producers_are_those_that_transformers_names() -> None:
    shape = gemma4()
    assert set(producers(shape)) == {i for i, mode in enumerate(shape.kv_sharing_modes) if mode == "reuse"}
    assert set(producers(shape).values()) == {i for i, mode in enumerate(shape.kv_sharing_modes) if mode == "store"}


@pytest.mark.parametrize(
    "shape",
    [
        config(num_kv_shared_layers=2),
        config(num_kv_shared_layers=6, layer_types=["f"] * 6),
        config(num_kv_shared_layers=1, layer_types=["s"] * 5 + ["f"]),
        config(kv_sharing_modes=["store", "reuse", None, None, None, None]),
    ],
)
def test_a11_an_unknown_way_of_sharing_is_refused(shape: Any) -> None:
    with pytest.raises(ShardRefused, match="not known here"):
        producers(copy.copy(shape))


def test_no_family_of_the_table_shares(toy_folder: Callable[[str], Path]) -> None:
    for family in toys.CONFIGS:
        assert producers(toys.CONFIGS[family]()) == {}


def test_shards_of_experts_run_as_the_whole_model_does(toy_folder: Any) -> None:
    """Else they would fall back to a loop over the experts in Python."""
    whole = t.AutoModelForCausalLM.from_pretrained(toy_folder("qwen3_moe"))
    shard = ModelShard.load(toy_folder("qwen3_moe"), LayerRange(0, 2))
    for name in ("_experts_implementation", "_attn_implementation"):
        assert getattr(shard._model.config, name) == getattr(whole.config, name)
