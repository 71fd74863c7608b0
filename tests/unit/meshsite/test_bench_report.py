from __future__ import annotations

from typing import Any

import pytest

from meshsite.bench import report
from meshsite.bench.scale import MEASURES, RATIOS

SAMPLES: dict[str, Any] = {
    "decode": {
        "generate": [10.0, 20.0, 10.0],
        "mesh2": [11.0, 18.0, 12.0],
        "transformers_pp": [8.0, 9.0, 6.0],
    },
    "flatness": {"mesh2": {"32": [50.0, 100.0], "512": [55.0, 104.0]}},
    "ttft": {"512": {"generate": [100.0], "mesh2": [105.0]}},
    "sessions": {"generate": {"1": [10.0, 11.0]}, "mesh2": {"8": [40.0, 55.0], "16": [60.0, 66.0]}},
    "stall": [{"median_ms": 100.0, "worst_ms": 300.0}, {"median_ms": 50.0, "worst_ms": 200.0}],
    "hops": {"nodes": {"node 1": {"overhead_ms": [1.0, 2.0]}, "node 2": {"overhead_ms": [3.0]}}, "head": {}},
    "wire": {"payload_bytes": 4608, "hops": {"node 1": [5000, 5002], "node 2": [3000]}},
    "handover": {"relayed by the head": [60.0, 62.0], "handed over": [42.0, 31.0]},
}


def test_a_ratio_is_taken_within_each_round_and_then_the_median() -> None:
    # The medians' ratio would be 12 / 10; round by round they are 1.1, 0.9 and 1.2.
    assert report.ratio([11.0, 18.0, 12.0], [10.0, 20.0, 10.0]) == pytest.approx(1.1)


def test_a_ratio_of_nothing_is_none() -> None:
    assert report.ratio([], [1.0]) is None


def test_a_percentile_lies_between_its_neighbours_in_proportion() -> None:
    assert report.percentile([4.0, 1.0, 3.0, 2.0], 50) == 2.5
    assert report.percentile([1.0, 2.0], 95) == pytest.approx(1.95)
    assert report.percentile([7.0], 95) == 7.0
    assert report.percentile([], 50) is None


def test_every_fixed_name_has_its_number() -> None:
    assert report.ratios(SAMPLES) == {
        "mesh2_vs_generate": pytest.approx(1.1),
        "mesh2_vs_transformers_pp": pytest.approx(2.0),
        "flatness_512_vs_32": pytest.approx(1.07),
        "agg8_vs_generate": pytest.approx(4.5),
        "agg16_vs_generate": pytest.approx(6.0),
        "hop_ms_p50": 2.0,
        "hop_ms_p95": pytest.approx(2.9),
        "wire_bytes_over_payload": 394,
        "ttft512_mesh2_vs_generate": pytest.approx(1.05),
        "stall_max_vs_median": pytest.approx(3.5),
        "handover_vs_relay_20ms": pytest.approx(0.6),
        "mesh2_vs_llama_cpp": None,
    }


def test_nothing_measured_is_null_under_every_name() -> None:
    assert report.ratios({}) == dict.fromkeys(RATIOS)


def test_a_name_without_a_value_says_why() -> None:
    found = {**dict.fromkeys(RATIOS), "mesh2_vs_generate": 1.0}
    said = report.reasons(found, ["decode", "sessions"], {"llama_cpp": "not installed", "sessions": "it broke"})
    assert "mesh2_vs_generate" not in said
    assert said["mesh2_vs_llama_cpp"] == "not installed"
    assert said["agg8_vs_generate"] == "it broke"
    assert said["flatness_512_vs_32"] == "The measure flatness was not run."
    assert set(said) == set(RATIOS) - {"mesh2_vs_generate"}


def test_a_mesh_that_did_not_start_is_the_reason_of_its_ratios() -> None:
    said = report.reasons(dict.fromkeys(RATIOS), MEASURES, {"mesh2": "no port"})
    assert said["mesh2_vs_generate"] == "no port"


def test_lines_say_whether_a_bar_is_reached() -> None:
    found = {**dict.fromkeys(RATIOS), "mesh2_vs_generate": 0.94, "hop_ms_p50": 2.0, "mesh2_vs_llama_cpp": 0.2}
    lines = dict(zip(found, report.ratio_lines(found, {"agg8_vs_generate": "nobody asked"}), strict=True))
    assert lines["mesh2_vs_generate"].endswith(">= 0.95: MISSED")
    assert lines["hop_ms_p50"].endswith("<= 2: reached")
    assert lines["mesh2_vs_llama_cpp"].endswith("0.200")
    assert lines["agg8_vs_generate"].endswith("nobody asked")


def test_tables_show_each_measure_that_was_run() -> None:
    lines = report.tables({"decode": SAMPLES["decode"], "memory": {"mesh2": {"node 1": 2 * 2**20, "node 2": None}}})
    assert lines[0] == "tokens/s, one session"
    assert any(line.split() == ["mesh2", "12.0"] for line in lines)
    assert any(line.split() == ["mesh2", "2", "0"] for line in lines)
    assert len(lines) == 6


def test_every_bar_and_every_ratio_has_a_known_name() -> None:
    assert set(report.BARS) <= set(RATIOS)
    assert set(RATIOS.values()) <= set(MEASURES)
