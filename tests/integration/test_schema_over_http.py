"""The running server against its own schema: what it must take and refuse, and what it may answer (schemathesis).

Each endpoint gets every boundary of every field, then MESHNET_SCHEMA_EXAMPLES random requests, the same in every run;
`make schema` sends many more, other ones each time. A body that fits the schema is changed in what the schema cannot
say: a model that is served, a short answer, fields that go together.
"""

from __future__ import annotations

import json
import os
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis import Case

from generation.openai.schema import document_json
from tests import processes, toys
from tests.toy_mesh import ToyMesh

EXAMPLES = os.environ.get("MESHNET_SCHEMA_EXAMPLES", "")
#: This model has no form of calls, and a short context; models of random names are not served.
MAY_BE_REFUSED_WITH = {"unsupported_parameter", "context_length_exceeded", "model_not_found"}

api = schemathesis.openapi.from_dict(
    json.loads(document_json()),
    config=schemathesis.Config.from_dict(
        {
            "checks": {
                # Which refusals these may be is looked at below.
                "positive_data_acceptance": {"expected-statuses": ["200", "400", "404"]},
                "negative_data_rejection": {"expected-statuses": ["400", "401", "404", "415"]},
            }
        }
    ),
)


@api.parametrize()
@settings(
    max_examples=int(EXAMPLES or 15),
    derandomize=not EXAMPLES,
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
@pytest.mark.timeout(0 if EXAMPLES else 300)
def test_every_answer_is_one_that_the_schema_allows(case: Case, toy_mesh: ToyMesh) -> None:
    fits = case.meta is not None and case.meta.generation.mode.is_positive
    name = toy_mesh.model.name
    if fits and len(case.path_parameters.get("name", "")) == 1:
        case.path_parameters["name"] = name
    if isinstance(case.body, dict) and isinstance(case.body.get("model"), str) and case.body["model"]:
        case.body = _fitting({**case.body, "model": name}) if fits else {"max_tokens": 1, **case.body, "model": name}
    response = case.call_and_validate(
        base_url=toy_mesh.head.url, headers={"Authorization": f"Bearer {toy_mesh.api_key}"}, timeout=30
    )
    if fits and response.status_code >= 400:
        assert response.json()["error"]["code"] in MAY_BE_REFUSED_WITH, f"{case.body!r}\n{response.text}"


def test_what_is_served_is_what_was_checked(toy_mesh: ToyMesh) -> None:
    status, _, body = processes.call(f"{toy_mesh.head.url}/v1/openapi.json")
    assert (status, body) == (200, document_json())


def _fitting(body: dict[str, Any]) -> dict[str, Any]:
    """A body that fits the schema, in such a way that the code takes it too and its answer is short."""
    body = _whole(body) | {"max_tokens": 1}
    if body.get("max_completion_tokens") is not None:
        body["max_completion_tokens"] = 1
    if body.get("stream_options") is not None:
        body["stream"] = True
    if body.get("logit_bias"):
        body["logit_bias"] = {str(int(key) % toys.VOCAB): bias for key, bias in body["logit_bias"].items()}
    return _fitting_chat(body) if "messages" in body else _fitting_completion(body)


def _fitting_chat(body: dict[str, Any]) -> dict[str, Any]:
    if body.get("top_logprobs"):
        body["logprobs"] = True
    for message in body["messages"]:
        if message["role"] == "assistant":
            calls = [call["function"] for call in message.get("tool_calls") or []]
            for function in [*calls, message.get("function_call") or {}]:
                if isinstance(function.get("arguments"), str):
                    function["arguments"] = '{"city": "Paris"}'  # a string of any other kind fits as well
    return body


def _fitting_completion(body: dict[str, Any]) -> dict[str, Any]:
    prompt = body["prompt"]
    if isinstance(prompt, str):
        body["prompt"] = prompt or "a"
    elif isinstance(prompt[0], int):
        body["prompt"] = [token_id % toys.VOCAB for token_id in prompt]
    else:
        body["n"] = 1
        body["prompt"] = [
            (one or "a") if isinstance(one, str) else [token_id % toys.VOCAB for token_id in one] for one in prompt[:8]
        ]
    if body.get("best_of") is not None:
        body["best_of"] = body.get("n") or 1
    if body.get("logprobs") is not None:
        body["echo"] = False
    return body


def _whole(value: Any) -> Any:
    """JSON Schema takes 3.0 for a whole number, as this server does not."""
    if isinstance(value, dict):
        return {key: _whole(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_whole(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value
