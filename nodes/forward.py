"""`POST /forward` without a web framework: one step's headers and body in, the answer's headers and body out."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from nodes import framing, wire
from nodes.framing import Payload
from nodes.wire import StepHeaders

if TYPE_CHECKING:
    from nodes.client import StepAnswer
    from nodes.runtime import NodeRuntime


def run(runtime: NodeRuntime, headers: StepHeaders, body: bytes) -> tuple[list[tuple[str, str]], bytes]:
    """Runs one step of one generation through this node's layers; the headers and the body of a 200.

    Raises MeshnetError subclasses.
    """
    payload = framing.decode(body)
    if payload.handover is not None:
        answer = runtime.handing_over.run(runtime, headers, payload)
        # This node and all behind it have done their part. Nobody waits for it to go on with the text.
        content = b'{"handed_over": true}'
        return _fields(answer, wire.JSON_TYPE, content), content
    answer = runtime.forward(headers, payload)
    if answer.hidden is not None:
        content_type, content = wire.TENSOR_TYPE, framing.encode(Payload(answer.hidden))
    else:
        said: dict[str, Any] = {"text": answer.text, "token_id": answer.token_id}
        if answer.logprobs is not None:
            said["logprobs"] = answer.logprobs.as_json()
        content_type, content = wire.JSON_TYPE, json.dumps(said).encode()
    return _fields(answer, content_type, content), content


def _fields(answer: StepAnswer, content_type: str, content: bytes) -> list[tuple[str, str]]:
    fields = [
        ("Content-Type", content_type),
        # Without a length gunicorn would send chunks: more bytes and one more write for every step.
        ("Content-Length", str(len(content))),
        ("Server-Timing", answer.timings.to_http()),
    ]
    if answer.past_len is not None:
        fields.append((wire.PAST_LEN, str(answer.past_len)))
    return fields
