"""Old nodes among new ones, over HTTP: the text stays right, at the old cost, and nothing is left behind."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import openai
import pytest
import torch
from safetensors.torch import load_file, save_file

from nodes.client import HttpNodeClient
from tests import processes, toys
from tests.meshes import LocalMesh, ranges
from tests.old_node import OldNode, old_node
from tests.processes import Served, wait_until
from tests.toy_mesh import get_json
from tests.toys import EOS, byte_tokenizer, reference_ids

SPLITS = ranges(0, 1, 3, 4)
#: Ids of printable ASCII in the byte tokenizer. A tail that sends text only cannot say any other byte.
PRINTABLE = 94
NEW = 12


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A toy whose text is printable, so that an old tail can send it token by token."""
    folder = toys.build_model("llama", tmp_path_factory.mktemp("printable"))
    weights = load_file(folder / "model.safetensors")
    for id_ in range(PRINTABLE, toys.VOCAB):
        if id_ != EOS:
            weights["lm_head.weight"][id_] = 0
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@pytest.fixture(scope="module")
def reference(model: Path) -> Any:
    return toys.reference_model(model)


@pytest.fixture(scope="module")
def new_nodes(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Served]]:
    folder = tmp_path_factory.mktemp("mixed")
    nodes = [processes.node(folder / str(index), model, str(layers)) for index, layers in enumerate(SPLITS)]
    with processes.serving(*nodes):
        yield nodes


@pytest.fixture(scope="module")
def old_nodes(model: Path, new_nodes: list[Served]) -> Iterator[list[OldNode]]:
    fingerprint = get_json(f"{new_nodes[0].url}/status")["fingerprint"]
    with ExitStack() as stack:
        yield [stack.enter_context(old_node(model, layers, fingerprint)) for layers in SPLITS]


def prompts() -> Iterator[list[int]]:
    for seed in range(100):
        yield torch.randint(1, PRINTABLE, (15,), generator=torch.Generator().manual_seed(seed)).tolist()


@pytest.fixture
def clients(new_nodes: list[Served], old_nodes: list[OldNode], position: int) -> Iterator[list[HttpNodeClient]]:
    """Three nodes, the one at `position` an old one."""
    urls = [node.url for node in new_nodes]
    urls[position] = old_nodes[position].url
    old_nodes[position].lengths.clear()
    made = [HttpNodeClient(url, processes.SECRET) for url in urls]
    yield made
    for client in made:
        client.close()


def mesh_of(model: Path, clients: list[HttpNodeClient], old: OldNode) -> LocalMesh:
    return LocalMesh(model, list(clients), fingerprint=old.fingerprint)


@pytest.mark.parametrize("position", [0, 1, 2])
def test_an_old_node_at_any_position_costs_speed_and_changes_no_token(
    model: Path,
    reference: Any,
    new_nodes: list[Served],
    old_nodes: list[OldNode],
    clients: list[HttpNodeClient],
    position: int,
) -> None:
    prompt = next(ids for ids in prompts() if len(reference_ids(reference, ids, NEW)) == NEW)
    old = old_nodes[position]
    mesh = mesh_of(model, clients, old)
    loop = mesh.loop(prompt, NEW, job={"encode": encode})
    assert list(loop.tokens()) == reference_ids(reference, prompt, NEW)
    assert loop.progress.cached is False
    assert loop.progress.prefills == NEW + 1, "one that was not acknowledged, then the whole text for each token"
    assert old.lengths == [len(prompt), *range(len(prompt), len(prompt) + NEW)]
    assert (loop.progress.cache_misses, loop.progress.failovers) == (0, 0)
    for index, node in enumerate(new_nodes):
        listing = get_json(f"{node.url}/sessions")
        assert listing["sessions"] == [], "a session was left on a new node"
        if index < position:
            assert listing["stats"]["prefills"] > 0, "the capability check is a real prefill"


@pytest.mark.parametrize("position", [0, 1, 2])
def test_the_end_of_a_text_is_found_with_an_old_node_at_any_position(
    model: Path, reference: Any, old_nodes: list[OldNode], clients: list[HttpNodeClient], position: int
) -> None:
    """An old tail says the end with an empty text, any other with the id."""
    prompt, expected = next(
        (ids, found) for ids in prompts() if 3 <= len(found := reference_ids(reference, ids, 40)) < 40
    )
    loop = mesh_of(model, clients, old_nodes[position]).loop(prompt, 40, job={"encode": encode})
    assert list(loop.tokens()) == expected
    assert loop.progress.finish_reason == "stop"


def encode(text: str) -> list[int]:
    ids: list[int] = byte_tokenizer().encode(text, add_special_tokens=False)
    return ids


def test_a_chat_over_an_old_tail_is_right_and_its_row_says_that_it_was_not_cached(
    model: Path, reference: Any, new_nodes: list[Served], old_nodes: list[OldNode], tmp_path: Path
) -> None:
    messages: list[Any] = [{"role": "user", "content": "old"}]
    tokenizer = byte_tokenizer()
    prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=True)["input_ids"]
    expected = reference_ids(reference, prompt, NEW)
    assert len(expected) > 3
    head = processes.head(tmp_path / "head", model, [new_nodes[0].url, new_nodes[1].url, old_nodes[2].url])
    key = processes.prepare_head(head)
    with processes.serving(head), openai.OpenAI(base_url=f"{head.url}/v1", api_key=key, max_retries=0) as client:
        answer = client.chat.completions.create(
            model=model.name, messages=messages, max_tokens=NEW, temperature=0, timeout=60
        )
        assert answer.choices[0].message.content == tokenizer.decode(expected)
        code = "from generation.models import Generation\nresult = list(Generation.objects.values())\n"
        (row,) = wait_until(lambda: [row for row in processes.in_django(head, code) if row["status"] != "running"], 10)
    assert (row["status"], row["cached"]) == ("done", False)
    assert row["prefills"] > len(expected), "the row shows the old cost"
    for node in new_nodes[:2]:
        assert get_json(f"{node.url}/sessions")["sessions"] == []
