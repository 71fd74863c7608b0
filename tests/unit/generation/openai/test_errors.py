"""The table of errors in docs/openai.md has every error that a client can get; none of them is a 409."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.core.exceptions import PermissionDenied, SuspiciousOperation
from django.http import Http404
from rest_framework import exceptions

import generation.errors
import generation.openai.errors
import nodes.errors
from generation.errors import RateLimitExceeded
from generation.limits import Standing
from generation.openai.errors import Problem, of_status
from nodes.errors import MeshnetError

PAGE = Path(__file__).resolve().parents[4] / "docs" / "openai.md"
ROW = re.compile(r"^\| ([0-9, ]+) \| (`.*?`|) \|", re.MULTILINE)
DOCUMENTED = {
    (int(status), code)
    for statuses, codes in ROW.findall(PAGE.read_text().partition("## Errors")[2])
    for status in statuses.split(", ")
    for code in re.findall(r"`(\w+)`", codes)
}
#: Errors of nodes among themselves, of loading, of planning and of announcing: none of them comes of an answer.
ELSEWHERE = {"too_many_nodes", "shard_refused", "model_unavailable", "split_refused"}


def every_error() -> Iterator[Exception]:
    for module in (nodes.errors, generation.errors, generation.openai.errors):
        for _, kind in inspect.getmembers(module, inspect.isclass):
            if not issubclass(kind, MeshnetError) or kind.code in ELSEWHERE:
                continue
            if issubclass(kind, RateLimitExceeded):
                yield kind("Too much.", retry_after=1, standing=Standing())
            elif "detail" in inspect.signature(kind).parameters:
                yield kind("What is wrong.")
            else:
                yield kind()
    yield from (Http404(), PermissionDenied(), SuspiciousOperation(), RuntimeError("a bug"))
    yield from (exceptions.NotAuthenticated(), exceptions.MethodNotAllowed("GET"))


ERRORS = [pytest.param(error, id=type(error).__name__) for error in every_error()]


@pytest.mark.parametrize("error", ERRORS)
def test_an_error_that_a_client_can_get_is_documented(error: Exception) -> None:
    problem = Problem(error)
    assert (problem.status, problem.code) in DOCUMENTED


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("work_done", [False, True], ids=["", "work done"])
def test_no_error_is_a_409_nor_promises_to_be_repeated_once_work_was_done(error: Exception, work_done: bool) -> None:
    problem = Problem(error, work_done=work_done)
    assert problem.status != 409
    assert set(problem.body["error"]) == {"message", "type", "param", "code"}
    if work_done:
        assert problem.headers["x-should-retry"] == "false"
        assert "Retry-After" not in problem.headers


@pytest.mark.parametrize("status", [400, 403, 404, 405, 411, 413, 415, 500])
def test_what_is_answered_below_the_views_is_documented(status: int) -> None:
    problem = of_status(status)
    assert (problem.status, problem.code) in DOCUMENTED
