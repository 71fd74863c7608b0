"""A mesh for the programs that people use, and the interpreter that has those programs.

The heavy ones are in an environment of their own, since what they need must not decide what the project's libraries
are. `make test` installs it and turns their tests on (MESHNET_CLIENT_TESTS=1).
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openai
import pytest

from tests import processes, toys
from tests.processes import ROOT, Served
from tests.proxies import Proxy, proxy_to
from tests.toy_mesh import get_json

clients_only = [
    pytest.mark.clients,
    pytest.mark.skipif(
        os.environ.get("MESHNET_CLIENT_TESTS") != "1", reason="set MESHNET_CLIENT_TESTS=1 (make test does)"
    ),
]
PROGRAMS = ROOT / "var" / "clients-venv" / "bin"
MOST_ANSWERS = 4

MESSAGES: list[Any] = [{"role": "user", "content": "What is the weather in Paris?"}]
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
ARGUMENTS = {"city": "Paris"}
SAID = "I look. "
#: With these the model says SAID and calls TOOL: a toy never would by itself.
CALLING: dict[str, Any] = {"seed": 20_061, "temperature": 1, "presence_penalty": 0.1, "max_tokens": 120}
CALL_TEXT = f'<tool_call>\n{{"name": "get_weather", "arguments": {json.dumps(ARGUMENTS)}}}\n</tool_call>'

TEMPLATE = """\
{%- if tools %}<|im_start|>system
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}<|im_end|>
{% endif %}
{%- for message in messages %}<|im_start|>{{ message.role }}
{{ message.content }}
{%- for call in message.tool_calls or [] %}<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>
{%- endfor %}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""

#: Runs on the node that chooses tokens.
SCRIPTED = """
import nodes.sampling as sampling
by_itself = sampling.choose
def choose(logits, params, position, history=()):
    if params.seed != {seed} or not params.prompt_len:
        return by_itself(logits, params, position, history)
    return {ids}[position - params.prompt_len]
sampling.choose = choose
"""


@dataclass
class ClientMesh:
    """`url` ends in /v1. `key` has no limits. `client` tries again by itself, as it comes."""

    url: str
    key: str
    model: str
    client: openai.OpenAI
    nodes: list[Served]
    proxy: Proxy
    new_key: Callable[..., str]

    def is_idle(self) -> bool:
        return not any(get_json(f"{node.url}/sessions")["sessions"] for node in self.nodes)

    def run(self, program: str, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
        """One of `tests/clients/programs`, or an installed program, which finds the mesh in its environment."""
        script = Path(__file__).parent / "programs" / f"{program}.py"
        command = [str(PROGRAMS / "python"), str(script)] if script.exists() else [str(PROGRAMS / program)]
        return subprocess.run(
            [*command, *arguments],
            env={
                "PATH": "/usr/bin:/bin",
                "MESH_URL": self.url,
                "MESH_KEY": self.key,
                "MESH_MODEL": self.model,
                "MESH_CASE": json.dumps(
                    {"messages": MESSAGES, "tool": TOOL, "calling": CALLING, "limited_key": environ.pop("limited", "")}
                ),
                **environ,
            },
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )


@pytest.fixture(scope="session")
def client_mesh(toy_folder: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClientMesh]:
    """A head and two nodes, of a toy whose template takes tools."""
    folder = tmp_path_factory.mktemp("clients")
    model = folder / "toy" / "talker"
    shutil.copytree(toy_folder("llama"), model)
    tokenizer = toys.byte_tokenizer()
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(model)
    ids = [*tokenizer(SAID + CALL_TEXT)["input_ids"], toys.EOS]
    nodes = [processes.node(folder / "one", model, "0:2"), processes.node(folder / "two", model, "2:4")]
    nodes[1].preload = SCRIPTED.format(seed=CALLING["seed"], ids=ids)
    with processes.serving(*nodes), proxy_to(nodes[0].port) as proxy:
        head = processes.head(folder / "head", model, [proxy.url, nodes[1].url], MESHNET_MAX_ANSWERS=str(MOST_ANSWERS))
        key, url = processes.prepare_head(head), f"{head.url}/v1"

        def new_key(**limits: int) -> str:
            made: str = processes.in_django(
                head,
                "from generation.models import APIKey\n"
                f"_, result = APIKey.objects.create_key(name='limited', **{limits!r})\n",
            )
            return made

        with processes.serving(head), openai.OpenAI(base_url=url, api_key=key) as client:
            yield ClientMesh(url, key, model.name, client, nodes, proxy, new_key)
