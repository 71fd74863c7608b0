"""The arithmetic of docs/scaling.md, checked against what is known of the default model and of large ones."""

from __future__ import annotations

from meshsite.simulation.arithmetic import SHAPES, Assumed, arithmetic, slots_of, trips, users

BY_NAME = {shape.name: shape for shape in SHAPES}


def test_a_token_of_the_default_model_is_as_small_as_the_bench_measures() -> None:
    shape = BY_NAME["SmolLM2-135M"]
    assert shape.state_bytes * 2 == 2304, "fp32, the README's number"
    assert shape.cache_bytes_per_token * 2 == 30 * 2 * 192 * 4


def test_the_cache_of_a_large_model_is_what_its_heads_say() -> None:
    assert BY_NAME["Llama-3.1-70B"].cache_bytes_per_token == 327_680


def test_trips_are_two_for_each_stretch_or_one_and_the_answer() -> None:
    row = next(row for row in trips() if row["stretches"] == 5)
    assert (row["metro_relayed"], row["metro_handed"]) == (50.0, 30.0)


def test_a_node_has_no_more_slots_than_memory_or_a_turn_allows() -> None:
    assert slots_of(BY_NAME["SmolLM2-135M"], Assumed()) == Assumed().most_slots
    assert slots_of(BY_NAME["Llama-3.1-70B"], Assumed(node_bytes=40e9)) == 21
    assert slots_of(BY_NAME["Llama-3.1-70B"], Assumed(node_bytes=24e9)) == 0


def test_more_users_need_more_of_everything() -> None:
    few, many, all_of_them = users(BY_NAME["Llama-3.1-70B"])
    assert few["nodes"] == 10, "two replicas at least"
    assert many["nodes"] > 50 * few["nodes"]
    assert all_of_them["nodes"] == 1000 * many["nodes"] - 5 * (1000 * 157 - 156_250)


def test_the_report_gets_lists_of_rows() -> None:
    (found,) = arithmetic()
    assert [len(rows) for rows in found.values()] == [5, 4, 3]
