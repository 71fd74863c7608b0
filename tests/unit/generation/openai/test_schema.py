"""The OpenAPI schema says what docs/openai.md says, and it is one."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from django.test import Client
from drf_spectacular.validation import validate_schema
from jsonschema import Draft202012Validator

from generation.openai import schema, urls
from generation.openai.errors import _BY_STATUS, _OF_NODES, Problem
from generation.openai.schema_errors import CODES, HEADERS

from .conftest import CHAT, COMPLETION
from .test_field_table import CASES, PAGE, rows

BODIES = {"chat": (CHAT, "ChatRequest"), "completions": (COMPLETION, "CompletionRequest")}
#: What depends on another field is refused by the code alone.
OF_TWO_FIELDS = ({"echo": True, "logprobs": 1}, {"best_of": 2})
#: In the table of errors, but with no documented method, or read by nobody.
NOT_OF_A_METHOD = {405, 499}


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    return schema.document()


def validator(document: dict[str, Any], name: str) -> Draft202012Validator:
    return Draft202012Validator({"$ref": f"#/components/schemas/{name}", "components": document["components"]})


def documented_codes() -> dict[int, set[str]]:
    """Of docs/openai.md. Where one row has several statuses, each has one code."""
    found: dict[int, set[str]] = {}
    for statuses, codes in re.findall(r"^\| (\d{3}(?:, \d{3})*) \| (.*?) \|", PAGE.read_text(), re.MULTILINE):
        names = re.findall(r"`(\w+)`", codes)
        numbers = [int(status) for status in statuses.split(", ")]
        for index, status in enumerate(numbers):
            found.setdefault(status, set()).update(names if len(numbers) == 1 else [names[index]])
    return found


def test_it_is_an_openapi_schema(document: dict[str, Any]) -> None:
    validate_schema(document)
    for component in document["components"]["schemas"].values():
        Draft202012Validator.check_schema(component)


def test_every_name_it_refers_to_is_there(document: dict[str, Any]) -> None:
    text = json.dumps(document)
    named = set(re.findall(r'"#/components/(\w+)/([\w-]+)"', text))
    there = {(kind, name) for kind, members in document["components"].items() for name in members}
    assert named <= there
    assert {kind for kind, _ in there - named} == {"securitySchemes"}


def test_it_has_every_endpoint(document: dict[str, Any]) -> None:
    endpoints = [path for path, operations in document["paths"].items() for _ in operations]
    assert endpoints == ["/v1/chat/completions", "/v1/completions", "/v1/models", "/v1/models/{name}"]
    others = {"^openapi\\.json$", "^docs/?$", ""}
    assert len(endpoints) == len([url for url in urls.urlpatterns if str(url.pattern) not in others])


def test_every_endpoint_needs_a_key(document: dict[str, Any]) -> None:
    (name, scheme) = next(iter(document["components"]["securitySchemes"].items()))
    assert (scheme["type"], scheme["scheme"]) == ("http", "bearer")
    for operations in document["paths"].values():
        assert all(operation["security"] == [{name: []}] for operation in operations.values())


@pytest.mark.parametrize("endpoint", BODIES)
def test_its_requests_have_the_fields_of_the_table(document: dict[str, Any], endpoint: str) -> None:
    fields = document["components"]["schemas"][BODIES[endpoint][1]]["properties"]
    assert set(fields) == {field for field, _, status in rows(endpoint) if status != "—"}


@pytest.mark.parametrize("endpoint, field, sent, status", CASES)
def test_what_the_table_takes_fits_and_what_it_refuses_does_not(
    document: dict[str, Any], endpoint: str, field: str, sent: dict[str, Any], status: str
) -> None:
    base, name = BODIES[endpoint]
    fits = validator(document, name).is_valid({**base, **sent})
    assert fits is (status in ("supported", "ignored", "required", "—") or sent in OF_TWO_FIELDS)


@pytest.mark.parametrize("endpoint", BODIES)
def test_null_fits_every_field_that_is_not_required(document: dict[str, Any], endpoint: str) -> None:
    base, name = BODIES[endpoint]
    component = document["components"]["schemas"][name]
    check = validator(document, name)
    may_be_null = {field for field in component["properties"] if check.is_valid({**base, field: None})}
    assert may_be_null == set(component["properties"]) - set(component["required"])


def test_its_errors_are_those_of_the_table() -> None:
    documented = {status: codes for status, codes in documented_codes().items() if status not in NOT_OF_A_METHOD}
    assert {status: set(codes) for status, codes in CODES.items()} == documented


def test_its_errors_have_every_code_that_errors_are_turned_into() -> None:
    for status, code, _ in _OF_NODES.values():
        assert code in CODES[status]
    for status, code in _BY_STATUS.items():
        assert status == 405 or code in CODES[status]


def test_an_error_fits_its_component(document: dict[str, Any]) -> None:
    assert validator(document, "Error500").is_valid(Problem(ValueError("x")).body)
    assert not validator(document, "Error400").is_valid(Problem(ValueError("x")).body)


def test_only_headers_that_are_described_are_named(document: dict[str, Any]) -> None:
    assert document["components"]["headers"] == HEADERS


def test_it_names_the_limit_of_answers_that_is_set(settings: Any) -> None:
    settings.MESHNET_MAX_CHOICES = 3
    assert schema.document()["components"]["schemas"]["ChatRequest"]["properties"]["n"]["maximum"] == 3


def test_it_is_served_without_a_key(client: Client, document: dict[str, Any]) -> None:
    response = client.get("/v1/openapi.json")
    assert response.status_code == 200
    assert response.headers["Content-Type"] == "application/json"
    assert response.headers["x-request-id"]
    assert response.json() == json.loads(json.dumps(document))


@pytest.mark.parametrize("path", ["/v1/docs", "/v1/docs/"])
def test_its_page_needs_no_key_and_loads_from_this_head_only(client: Client, path: str) -> None:
    response = client.get(path)
    assert response.status_code == 200
    page = response.content.decode()
    assert "://" not in page
    assert "'unsafe" not in response.headers["Content-Security-Policy"]
    for inline in ("<style", "<script>", "style=", "onload="):
        assert inline not in page


@pytest.mark.parametrize("path", ["/v1/docs/", "/v1/openapi.json"])
def test_what_is_only_read_takes_no_post(client: Client, path: str) -> None:
    response = client.post(path)
    assert response.status_code == 405
    assert response.json()["error"]["code"] == "method_not_allowed"
