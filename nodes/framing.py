"""Tensors on the wire: one safetensors buffer each way. The only module that turns bytes into tensors.

Never pickle: safetensors holds names, shapes, dtypes and raw bytes, and nothing that could run (case E01).
"""

from __future__ import annotations

import json
from typing import Any

import numpy
import torch
from safetensors import SafetensorError, TensorSpec, serialize
from safetensors.torch import load

from nodes.errors import BadRequest
from nodes.handover import LONGEST_BYTES
from nodes.payload import Payload

HIDDEN = "hidden_states"
TOKEN_IDS = "token_ids"  # noqa: S105  # a tensor's name, not a password
SAMPLING = "sampling"
HANDOVER = "handover"

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_NAMES = {dtype: name for name, dtype in DTYPES.items()}


def encode(payload: Payload) -> bytes:
    tensors = {HIDDEN: payload.hidden.cpu().contiguous()}
    if payload.token_ids is not None:
        tensors[TOKEN_IDS] = payload.token_ids.contiguous()
    if payload.sampling is not None:
        tensors[SAMPLING] = _text(payload.sampling)
    if payload.handover is not None:
        tensors[HANDOVER] = _text(payload.handover)
    # The library's own `save` looks for what cannot be here (sparse tensors, shared memory), at ten times the cost.
    return serialize({name: _spec(tensor) for name, tensor in tensors.items()})


def _spec(tensor: torch.Tensor) -> TensorSpec:
    """Of a contiguous tensor in main memory, which must stay alive until it was serialized."""
    return TensorSpec(
        dtype=dtype_name(tensor.dtype),
        shape=list(tensor.shape),
        data_ptr=tensor.data_ptr(),
        data_len=tensor.nbytes,
    )


def _text(value: dict[str, Any]) -> torch.Tensor:
    return torch.frombuffer(bytearray(json.dumps(value, separators=(",", ":")).encode()), dtype=torch.uint8)


def decode(body: bytes) -> Payload:
    """Reads one buffer. Raises BadRequest that names what is wrong; knows no model, so checks no sizes against one."""
    try:
        tensors = load(body)
    except (SafetensorError, ValueError, KeyError, RuntimeError, TypeError, OverflowError) as error:
        # Beyond its own error: dtypes that this torch does not know, and shapes that no machine can hold.
        raise BadRequest(f"The body is not a safetensors buffer: {error}") from None
    unknown = set(tensors) - {HIDDEN, TOKEN_IDS, SAMPLING, HANDOVER}
    if unknown:
        raise BadRequest(f"The body holds an unknown tensor {sorted(unknown)[0]!r:.80}.")
    if HIDDEN not in tensors:
        raise BadRequest(f"The body lacks the tensor {HIDDEN!r}.")
    hidden = tensors[HIDDEN]
    if hidden.ndim != 3 or hidden.shape[0] != 1 or hidden.shape[1] < 1:
        raise BadRequest(f"{HIDDEN} must have the shape [1, T, hidden size] with T >= 1, not {list(hidden.shape)}.")
    if hidden.dtype not in _NAMES:
        raise BadRequest(f"{HIDDEN} must be one of {', '.join(DTYPES)}, not {dtype_name(hidden.dtype)}.")
    if not is_finite(hidden):
        raise BadRequest(f"{HIDDEN} holds NaN or infinite values.")
    token_ids = tensors.get(TOKEN_IDS)
    if token_ids is not None and (token_ids.dtype != torch.int64 or token_ids.shape != hidden.shape[:2]):
        raise BadRequest(f"{TOKEN_IDS} must be int64 of the shape {list(hidden.shape[:2])}.")
    handover = tensors.get(HANDOVER)
    if handover is not None and handover.numel() > LONGEST_BYTES:
        raise BadRequest(f"{HANDOVER} may hold {LONGEST_BYTES} bytes.")
    return Payload(hidden, token_ids, _object(tensors.get(SAMPLING), SAMPLING), _object(handover, HANDOVER))


def _object(tensor: torch.Tensor | None, name: str) -> dict[str, Any] | None:
    if tensor is None:
        return None
    if tensor.dtype != torch.uint8 or tensor.ndim != 1:
        raise BadRequest(f"{name} must be a one-dimensional uint8 tensor of JSON.")
    try:
        value = json.loads(tensor.numpy().tobytes())
    except (ValueError, RecursionError):
        raise BadRequest(f"{name} is not JSON in UTF-8.") from None
    if not isinstance(value, dict):
        raise BadRequest(f"{name} must hold a JSON object.")
    return value


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def is_finite(tensor: torch.Tensor) -> bool:
    """Whether no value is NaN or infinite. Looks with numpy, on the caller's thread.

    torch would start an OpenMP pool for each HTTP thread that ran this on a long prompt (DESIGN fact 7).
    """
    if tensor.dtype != torch.bfloat16:
        return bool(numpy.isfinite(tensor.detach().numpy()).all())
    # numpy does not know bfloat16: not finite is an exponent of ones.
    bits = tensor.detach().contiguous().view(torch.int16).numpy()
    return not bool(((bits & 0x7F80) == 0x7F80).any())
