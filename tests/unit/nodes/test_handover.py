from __future__ import annotations

import json
from typing import Any

import pytest

from nodes.errors import BadRequest
from nodes.handover import LONGEST_BYTES, MOST_HOPS, HandOver, Letter, NextHop, PassedHop
from nodes.layers import LayerRange
from nodes.sampling import TokenLogprobs
from nodes.wire import Timings

NONCE, BOOT = "nonce-of-sixteen", "boot"


def hop(number: int, url: str = "") -> NextHop:
    return NextHop(url or f"http://10.0.0.{number}:8001", f"boot{number}", LayerRange(number, number + 1), 60.0, 2.0)


def way(*hops: NextHop) -> HandOver:
    return HandOver(NONCE, BOOT, hops)


def test_what_is_read_is_what_was_written() -> None:
    passed = PassedHop(13, Timings(0.25, 7.5))
    handover = HandOver(NONCE, BOOT, (hop(1), hop(2)), (passed,))
    assert HandOver.from_json(json.loads(json.dumps(handover.as_json()))) == handover
    letter = Letter(7, " is", (passed, passed), TokenLogprobs(-0.5, ((7, -0.5),)))
    assert Letter.from_json(json.loads(json.dumps(letter.as_json()))) == letter


def test_the_next_node_is_sent_the_rest_and_what_was_done() -> None:
    passed = PassedHop(13, Timings())
    assert way(hop(1), hop(2)).after(passed) == HandOver(NONCE, "boot1", (hop(2),), (passed,))


def test_a_way_runs_every_layer_once_so_that_none_goes_round_for_ever() -> None:
    assert way(hop(1), hop(2)).ends_at(1) == 3
    assert way().ends_at(4) == 4
    for broken in (way(hop(2)), way(hop(1), hop(1)), way(hop(1), hop(3)), way(hop(0))):
        with pytest.raises(BadRequest, match="gap"):
            broken.ends_at(1)


def spoiled(**changes: Any) -> dict[str, Any]:
    return {**way(hop(1)).as_json(), **changes}


def spoiled_hop(**changes: Any) -> dict[str, Any]:
    return spoiled(next=[{**hop(1).as_json(), **changes}])


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({}, "nonce"),
        (spoiled(nonce="short"), "nonce"),
        (spoiled(nonce=7), "nonce"),
        (spoiled(boot_id=""), "boot_id"),
        (spoiled(next=None), "next"),
        (spoiled(next=[1]), "next"),
        (spoiled(next=[hop(1).as_json()] * (MOST_HOPS + 1)), str(MOST_HOPS)),
        (spoiled(next=[hop(1).as_json()] * 2), "twice"),
        (spoiled(passed={}), "passed"),
        (spoiled(passed=[{"held": -1, "queue_ms": 0, "compute_ms": 0}]), "held"),
        (spoiled(passed=[{"held": 1, "queue_ms": "0", "compute_ms": 0}]), "queue_ms"),
        (spoiled(passed=[{"held": 1, "queue_ms": 0, "compute_ms": 1e300}]), "compute_ms"),
        (spoiled(secret="x"), "secret"),
        (spoiled_hop(url="file:///etc/passwd"), "http"),
        (spoiled_hop(url="http://user@node:1"), "http"),
        (spoiled_hop(url="http://node:1/admin"), "http"),
        (spoiled_hop(url=None), "url"),
        (spoiled_hop(boot_id="a b"), "boot_id"),
        (spoiled_hop(start=True), "start"),
        (spoiled_hop(end=1), "end"),
        (spoiled_hop(timeout=0), "timeout"),
        (spoiled_hop(timeout=float("inf")), "timeout"),
        (spoiled_hop(patience=-1), "patience"),
        (spoiled_hop(path="/x"), "path"),
    ],
)
def test_a_bad_way_is_refused_and_the_field_named(body: dict[str, Any], named: str) -> None:
    with pytest.raises(BadRequest, match=named):
        HandOver.from_json(body)


@pytest.mark.parametrize(
    "change", [{"token_id": "7"}, {"token_id": True}, {"hops": None}, {"hops": [{}]}, {"logprobs": {"logprob": "x"}}]
)
def test_a_broken_letter_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(BadRequest):
        Letter.from_json({**Letter(7, "", ()).as_json(), **change})


def test_the_longest_way_fits() -> None:
    hops = [hop(number, f"http://{number:0>150}.example:65535") for number in range(MOST_HOPS)]
    passed = (PassedHop(10**9, Timings(1e5 / 3, 1e5 / 3)),) * MOST_HOPS
    assert len(json.dumps(HandOver(NONCE, BOOT, tuple(hops), passed).as_json())) < LONGEST_BYTES
