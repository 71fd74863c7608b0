from __future__ import annotations

import io
import json
import pickle
from pathlib import Path

import pytest
import torch
from safetensors.torch import save

from nodes import framing
from nodes.errors import BadRequest
from nodes.framing import Payload


def test_a12_bfloat16_arrives_with_the_same_bytes() -> None:
    values = torch.tensor([70000.0, -1e6, 1e-30, 0.0, -0.0]).repeat(64)[:192].reshape(1, 3, 64).to(torch.bfloat16)
    arrived = framing.decode(framing.encode(Payload(values))).hidden
    assert arrived.dtype == torch.bfloat16
    assert arrived.view(torch.int16).equal(values.view(torch.int16))


def test_a12_slices_and_transposed_tensors_arrive_as_they_look() -> None:
    whole = torch.randn(1, 8, 64)
    for tensor in (whole[:, 2:5], whole[:, :, ::2], whole.transpose(1, 2)):
        assert framing.decode(framing.encode(Payload(tensor))).hidden.equal(tensor)


def test_ids_and_sampling_travel_beside_the_hidden_states() -> None:
    sent = Payload(torch.zeros(1, 2, 4), torch.tensor([[7, 8]]), {"temperature": 0.5, "seed": 2**62, "text": "é"})
    arrived = framing.decode(framing.encode(sent))
    assert arrived.token_ids is not None
    assert arrived.token_ids.tolist() == [[7, 8]]
    assert arrived.sampling == sent.sampling
    assert arrived.handover is None


def test_the_rest_of_a_way_travels_beside_them_and_has_a_longest_length() -> None:
    sent = Payload(torch.zeros(1, 1, 4), handover={"next": ["x" * 1000]})
    assert framing.decode(framing.encode(sent)).handover == sent.handover
    with pytest.raises(BadRequest, match="handover"):
        framing.decode(framing.encode(Payload(torch.zeros(1, 1, 4), handover={"next": ["x" * 40_000]})))


class Bomb:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[Path]]:
        return (Path.touch, (self.path,))


def test_e01_a_pickle_is_refused_and_never_run(tmp_path: Path) -> None:
    target = tmp_path / "pwned"
    saved = io.BytesIO()
    torch.save({"hidden_states": Bomb(target)}, saved)
    for body in (pickle.dumps(Bomb(target)), saved.getvalue()):
        with pytest.raises(BadRequest, match="safetensors"):
            framing.decode(body)
    assert not target.exists()


@pytest.mark.parametrize(
    ("tensors", "named"),
    [
        ({"x": torch.zeros(1)}, "unknown tensor 'x'"),
        ({"token_ids": torch.zeros(1, 1, dtype=torch.int64)}, "hidden_states"),
        ({"hidden_states": torch.zeros(3, 4)}, "shape"),
        ({"hidden_states": torch.zeros(2, 3, 4)}, "shape"),
        ({"hidden_states": torch.zeros(1, 0, 4)}, "shape"),
        ({"hidden_states": torch.zeros(1, 2, 4, dtype=torch.int64)}, "float32"),
        ({"hidden_states": torch.zeros(1, 2, 4, dtype=torch.float64)}, "float32"),
        ({"hidden_states": torch.full((1, 2, 4), float("nan"))}, "NaN"),
        ({"hidden_states": torch.full((1, 2, 4), float("-inf"), dtype=torch.float16)}, "NaN"),
        ({"hidden_states": torch.full((1, 2, 4), float("inf"), dtype=torch.bfloat16)}, "NaN"),
        ({"hidden_states": torch.zeros(1, 2, 4), "token_ids": torch.zeros(1, 3, dtype=torch.int64)}, "token_ids"),
        ({"hidden_states": torch.zeros(1, 2, 4), "token_ids": torch.zeros(1, 2)}, "token_ids"),
        ({"hidden_states": torch.zeros(1, 2, 4), "sampling": torch.zeros(2)}, "uint8"),
        ({"hidden_states": torch.zeros(1, 2, 4), "sampling": torch.tensor(list(b"[1]"), dtype=torch.uint8)}, "object"),
        ({"hidden_states": torch.zeros(1, 2, 4), "sampling": torch.tensor(list(b"{"), dtype=torch.uint8)}, "JSON"),
    ],
)
def test_a_body_that_is_no_step_is_refused_by_name(tensors: dict[str, torch.Tensor], named: str) -> None:
    with pytest.raises(BadRequest, match=named):
        framing.decode(save(tensors))


@pytest.mark.parametrize("body", [b"", b"{}", b"\xff" * 100, b'{"messages": []}', bytes(8), b"\x00" * 7 + b"\x7f"])
def test_garbage_is_refused(body: bytes) -> None:
    with pytest.raises(BadRequest):
        framing.decode(body)


@pytest.mark.parametrize("size", [2**31, 2**63, 2**64])
def test_a_shape_that_no_machine_can_hold_is_refused(size: int) -> None:
    header = json.dumps({"hidden_states": {"dtype": "F32", "shape": [1, size, 4], "data_offsets": [0, 16]}}).encode()
    with pytest.raises(BadRequest):
        framing.decode(len(header).to_bytes(8, "little") + header + bytes(16))


def test_a_header_that_claims_more_than_there_is_is_refused() -> None:
    header = json.dumps({"hidden_states": {"dtype": "F32", "shape": [1, 9, 9], "data_offsets": [0, 324]}}).encode()
    with pytest.raises(BadRequest):
        framing.decode(len(header).to_bytes(8, "little") + header + bytes(12))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_one_bad_value_among_many_is_found(dtype: torch.dtype) -> None:
    values = torch.randn(1, 50, 64).to(dtype)
    assert framing.is_finite(values)
    for bad in (float("nan"), float("inf"), float("-inf")):
        spoiled = values.clone()
        spoiled[0, 49, 63] = bad
        assert not framing.is_finite(spoiled)
