"""The OpenAPI schema of /v1: drf-spectacular finds the endpoints, the components stand in `schema_*.py`.

The views are no serializers' work, so that each names what it takes and gives; a test sends the running server what
the schema allows and what it does not, and compares.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from typing import Any

from drf_spectacular.extensions import OpenApiAuthenticationExtension
from drf_spectacular.utils import OpenApiResponse, extend_schema

from generation.openai import schema_errors
from generation.openai.schema_answers import ANSWERS

Endpoint = tuple[str, str, str, Callable[..., Any]]
Document = dict[str, Any]

JSON = "application/json"
EVENTS = "text/event-stream"


class BearerScheme(OpenApiAuthenticationExtension):
    """How `BearerKey` is called in the schema."""

    target_class = "generation.openai.auth.BearerKey"
    name = "apiKey"

    def get_security_definition(self, auto_schema: object) -> dict[str, str]:
        return {"type": "http", "scheme": "bearer", "description": "An API key of this mesh."}


def _ref(name: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{name}"}


def _errors(statuses: tuple[int, ...]) -> dict[tuple[str, str], Any]:
    return {
        (str(status), JSON): OpenApiResponse(_ref(f"Error{status}"), schema_errors.description(status))
        for status in statuses
    }


def _answers(operation: str, summary: str, body: str, whole: str, chunk: str) -> Any:
    payload = {"contentMediaType": JSON, "contentSchema": {"anyOf": [_ref(chunk), _ref("ErrorEvent")]}}
    event = {
        "type": "object",
        "description": "With `stream`: one event. The last is `[DONE]`, or else an error. Lines that begin with a "
        "colon are comments.",
        "properties": {"data": {"type": "string", "anyOf": [{"const": "[DONE]"}, payload]}},
        "required": ["data"],
    }
    return extend_schema(
        operation_id=operation,
        summary=summary,
        description="Unknown keys are ignored, and null means absent.",
        request={JSON: _ref(body)},
        responses={
            ("200", JSON): OpenApiResponse(_ref(whole), "The answer."),
            ("200", EVENTS): OpenApiResponse(event, "The answer."),
            **_errors(schema_errors.OF_ANSWERS),
        },
        tags=["answers"],
    )


CHAT = _answers(
    "createChatCompletion",
    "Messages in, an assistant's message out",
    "ChatRequest",
    "ChatCompletion",
    "ChatCompletionChunk",
)
COMPLETION = _answers(
    "createCompletion", "Plain text is continued", "CompletionRequest", "Completion", "CompletionChunk"
)
MODELS = extend_schema(
    operation_id="listModels",
    summary="The models that are served",
    description="Only those that the key may use.",
    responses={
        ("200", JSON): OpenApiResponse(_ref("ModelList"), "The models."),
        **_errors(schema_errors.OF_MODELS),
    },
    tags=["models"],
)
MODEL = extend_schema(
    operation_id="retrieveModel",
    summary="One model",
    description="Its name may contain slashes, as they are or as %2F.",
    responses={("200", JSON): OpenApiResponse(_ref("Model"), "The model."), **_errors(schema_errors.OF_A_MODEL)},
    tags=["models"],
)


def without_slashes(endpoints: list[Endpoint], **_: Any) -> list[Endpoint]:
    """drf-spectacular's first hook: every path goes with and without a slash at its end; the schema has one of them."""
    return [(path.rstrip("/"), regex, method, view) for path, regex, method, view in endpoints]


def complete(result: Document, **_: Any) -> Document:
    """Its last hook: the components, the headers, and that bodies are required. Loads what reads requests."""
    from generation.openai import schema_requests  # loads torch

    components = result.setdefault("components", {})
    components["schemas"] = {**schema_requests.components(), **ANSWERS, **schema_errors.components()}
    components["headers"] = dict(schema_errors.HEADERS)
    for operations in result["paths"].values():
        for operation in operations.values():
            if "requestBody" in operation:
                operation["requestBody"]["required"] = True
            for status, response in operation["responses"].items():
                response["headers"] = {
                    name: {"$ref": f"#/components/headers/{name}"} for name in schema_errors.headers_of(int(status))
                }
    return result


def document() -> Document:
    """The whole schema, as this process's settings have it."""
    from drf_spectacular.generators import SchemaGenerator

    made: Document = SchemaGenerator().get_schema(request=None, public=True)
    return made


@cache
def document_json() -> bytes:
    """The same as it is served; made once, since nothing of it changes while the process runs."""
    return json.dumps(document(), separators=(",", ":")).encode()
