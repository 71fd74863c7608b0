"""Two architectures that are broken on purpose, registered as somebody's own model type would be: one is served
without a cache and says the right text, the other must not serve.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, LlamaModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from nodes.errors import ShardRefused
from tests import toys
from tests.meshes import LocalMesh, local_clients, ranges, running_nodes

PROMPT = torch.randint(1, 255, (12,), generator=torch.Generator().manual_seed(3)).tolist()


class ForgetfulConfig(LlamaConfig):
    model_type = "llama_forgetful"


class ForgetfulForCausalLM(LlamaForCausalLM):
    """Its attention ignores the cache that it is given."""

    config_class = ForgetfulConfig

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        for layer in self.model.layers:
            attend = layer.self_attn.forward
            layer.self_attn.forward = lambda *args, attend=attend, **kw: attend(*args, **{**kw, "cache": None})


class ScalingConfig(LlamaConfig):
    model_type = "llama_scaling"


class ScalingModel(LlamaModel):
    """Scales what comes before its first layer, also when that is another shard's output."""

    config_class = ScalingConfig

    def forward(self, input_ids: Any = None, inputs_embeds: Any = None, **kwargs: Any) -> Any:
        if inputs_embeds is None:
            inputs_embeds = self.embed_tokens(input_ids)
        return super().forward(inputs_embeds=inputs_embeds * 2, **kwargs)


class ScalingForCausalLM(LlamaForCausalLM):
    config_class = ScalingConfig

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.model = ScalingModel(config)
        self.post_init()


@pytest.fixture(params=[(ForgetfulConfig, ForgetfulForCausalLM), (ScalingConfig, ScalingForCausalLM)])
def broken(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Path, Any]]:
    """The folder of a broken toy and the whole model."""
    config_class, model_class = request.param
    AutoConfig.register(config_class.model_type, config_class)
    AutoModelForCausalLM.register(config_class, model_class)
    plain = toys.CONFIGS["llama"]().to_dict()
    torch.manual_seed(0)
    model = model_class(config_class(**{**plain, "model_type": config_class.model_type})).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim >= 2:
                parameter.mul_(10)
    model.save_pretrained(tmp_path)
    toys.byte_tokenizer().save_pretrained(tmp_path)
    yield tmp_path, model
    CONFIG_MAPPING._extra_content.pop(config_class.model_type)
    AutoModelForCausalLM._model_mapping._extra_content.pop(config_class)


def test_layers_that_ignore_the_cache_are_served_without_one_and_layers_that_scale_are_refused(
    broken: tuple[Path, Any],
) -> None:
    folder, model = broken
    if isinstance(model, ScalingForCausalLM):
        with (
            pytest.raises(ShardRefused, match="no layer"),
            running_nodes(folder, ranges(0, 2), allow_untested=True),
        ):
            pass
        return
    with pytest.raises(ShardRefused, match="MESHNET_ALLOW_UNTESTED_MODELS"), running_nodes(folder, ranges(0, 2)):
        pass
    expected = model.generate(torch.tensor([PROMPT]), max_new_tokens=12, do_sample=False, use_cache=False)
    with running_nodes(folder, ranges(0, 2, 4), allow_untested=True) as nodes:
        assert [node.status()["supports_kv_cache"] for node in nodes] == [False, False]
        mesh = LocalMesh(folder, local_clients(nodes), allow_untested=True)
        loop = mesh.loop(PROMPT, 12)
        assert list(loop.tokens()) == expected[0, len(PROMPT) :].tolist()
        assert loop.progress.cached is False
        assert all(not node.sessions()["sessions"] for node in nodes)
