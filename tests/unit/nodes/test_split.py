from __future__ import annotations

from itertools import combinations, pairwise, product
from math import ceil, inf
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nodes.errors import MeshnetError, SplitRefused
from nodes.layers import LayerRange
from nodes.machines import Machine
from nodes.split import Stage, split
from nodes.stage_search import Assignment
from tests.unit.nodes.fake_costs import FakeCosts, even

RESERVE = 5


def machine(name: str, memory: int = 10_000, speed: float = 1.0) -> Machine:
    return Machine(name, memory, speed)


def cut(*args: Any, **options: Any) -> list[Stage]:
    return list(split(*args, **options).stages)


def layers_of(stages: list[Stage]) -> list[str]:
    return [str(stage.layers) for stage in stages]


def names_of(stages: list[Stage]) -> list[str]:
    return [stage.machine.name for stage in stages]


def test_equal_machines_get_equal_work() -> None:
    stages = cut(even(12), 3, [machine("a"), machine("b"), machine("c")], reserve_bytes=RESERVE)
    assert layers_of(stages) == ["0:4", "4:8", "8:12"]
    assert sorted(names_of(stages)) == ["a", "b", "c"]
    assert [stage.seconds for stage in stages] == [40, 40, 40]


def test_a_faster_machine_gets_more() -> None:
    stages = cut(even(12), 2, [machine("slow"), machine("fast", speed=3)], reserve_bytes=RESERVE)
    assert {stage.machine.name: stage.layers.size for stage in stages} == {"slow": 3, "fast": 9}


def test_the_output_head_counts_as_the_layers_that_it_weighs() -> None:
    stages = cut(even(12, tail=80), 2, [machine("a"), machine("b")], reserve_bytes=RESERVE)
    assert layers_of(stages) == ["0:10", "10:12"]
    assert [stage.weight_bytes for stage in stages] == [100, 100]


def test_what_a_layer_takes_whatever_its_size_counts_too() -> None:
    # By bytes alone it is 10 and 2 layers.
    machines = [machine("a"), machine("b")]
    stages = cut(even(12, tail=80), 2, machines, reserve_bytes=RESERVE, layer_seconds=10.0)
    assert layers_of(stages) == ["0:8", "8:12"]
    assert [stage.seconds for stage in stages] == [160, 160]
    assert stages[0].seconds_at(2.0) == 120


def test_memory_holds_a_fast_machine_back() -> None:
    small = machine("fast", memory=3 * 11 + RESERVE, speed=100)
    stages = cut(even(12), 2, [small, machine("slow")], reserve_bytes=RESERVE)
    assert {stage.machine.name: stage.layers.size for stage in stages} == {"fast": 3, "slow": 9}
    # The reserve is real: a byte less of memory is a layer less.
    smaller = machine("fast", memory=3 * 11 + RESERVE - 1, speed=100)
    stages = cut(even(12), 2, [smaller, machine("slow")], reserve_bytes=RESERVE)
    assert {stage.machine.name: stage.layers.size for stage in stages} == {"fast": 2, "slow": 10}


def test_the_best_machines_are_taken_when_there_are_more_than_stages() -> None:
    machines = [machine("a", speed=1), machine("b", speed=4), machine("c", speed=2), machine("d", memory=6, speed=99)]
    assert sorted(names_of(cut(even(6), 2, machines, reserve_bytes=RESERVE))) == ["b", "c"]


def test_a_machine_with_several_stages_shares_everything() -> None:
    one = Machine("only", 1000, 8.0, cpus=4, gpus=1)
    stages = cut(even(8), 4, [one], reserve_bytes=RESERVE)
    assert layers_of(stages) == ["0:2", "2:4", "4:6", "6:8"]
    for stage in stages:
        share = stage.machine
        assert (share.name, share.memory_bytes, share.cpus, share.gpus) == ("only", 250, 1, 0.25)
        assert stage.seconds == 20 / 2.0


def test_stages_spread_over_machines_before_they_share_one() -> None:
    # Both on the fast one would be faster.
    assert sorted(names_of(cut(even(2), 2, [machine("a", speed=100), machine("b")], reserve_bytes=RESERVE))) == [
        "a",
        "b",
    ]


def test_a_machine_that_can_hold_nothing_is_left_out_and_another_shared() -> None:
    stages = cut(even(4), 2, [machine("tiny", memory=RESERVE), machine("b")], reserve_bytes=RESERVE)
    assert names_of(stages) == ["b", "b"]


def test_layers_that_share_keys_stay_together() -> None:
    costs = FakeCosts((10,) * 8, (1,) * 8, bound=frozenset({3, 4, 5, 6, 7}))
    stages = cut(costs, 2, [machine("a"), machine("b")], reserve_bytes=RESERVE)
    assert layers_of(stages) == ["0:2", "2:8"]
    with pytest.raises(SplitRefused, match=r"1 to 3 stages \(layers that share keys stay together\), not 4"):
        cut(costs, 4, [machine(name) for name in "abcd"], reserve_bytes=RESERVE)


def test_a_cut_by_hand_only_gets_its_machines_chosen() -> None:
    named = [LayerRange(0, 9), LayerRange(9, 12)]
    stages = cut(even(12), 7, [machine("slow"), machine("fast", speed=5)], reserve_bytes=RESERVE, layers=named)
    assert layers_of(stages) == ["0:9", "9:12"]
    assert names_of(stages) == ["fast", "slow"]


@pytest.mark.parametrize(
    "named", [[(0, 3), (4, 6)], [(0, 3), (2, 6)], [(0, 6), (6, 7)], [(0, 5)], [(3, 6), (0, 3)], []]
)
def test_a_cut_by_hand_must_be_all_layers_in_order(named: list[tuple[int, int]]) -> None:
    with pytest.raises(SplitRefused, match="not all of the layers 0:6"):
        cut(even(6), 2, [machine("a")], reserve_bytes=0, layers=[LayerRange(*one) for one in named])


def test_a_cut_by_hand_may_not_part_layers_that_share_keys() -> None:
    costs = FakeCosts((10,) * 4, (1,) * 4, bound=frozenset({2}))
    with pytest.raises(SplitRefused, match="2:4 need keys"):
        cut(costs, 2, [machine("a")], reserve_bytes=0, layers=[LayerRange(0, 2), LayerRange(2, 4)])


@pytest.mark.parametrize(
    ("costs", "shards", "machines", "message"),
    [
        (even(4), 5, [machine("a")], "1 to 4 stages, not 5"),
        (even(4), 0, [machine("a")], "not 0"),
        (even(4), 2, [], "no machine"),
        # 4 * 11 + 2 * 5 = 54
        (even(4), 2, [machine("a", 25), machine("b", 28)], r"take 54 B; the machines have 53 B: 1 B are missing"),
        (FakeCosts((10, 90), (1, 1)), 2, [machine("a", 90), machine("b", 90)], "1:2 cannot be cut.*6 B are missing"),
        # 44 + 2 * 5 in all, and 55 are there; but both halves take 27.
        (FakeCosts((20, 10, 10), (2, 1, 1)), 2, [machine("a", 26), machine("b", 29)], "no cut into 2 stages fits"),
    ],
)
def test_a_refusal_names_what_is_missing(costs: FakeCosts, shards: int, machines: list[Machine], message: str) -> None:
    with pytest.raises(SplitRefused, match=message) as caught:
        cut(costs, shards, machines, reserve_bytes=RESERVE)
    assert isinstance(caught.value, MeshnetError)


@pytest.mark.parametrize(("count", "shards"), [(8, 8), (16, 12), (64, 60)])
def test_memory_that_is_missing_is_told_at_once(count: int, shards: int) -> None:
    # 60 * 11 + shards * 5 are needed, and some 80 % of it are there.
    each = (660 + shards * RESERVE) * 8 // (10 * count)
    machines = [machine(str(index), each + index % 3, 1.0 + index) for index in range(count)]
    with pytest.raises(SplitRefused, match=r"B are missing\. Name more machines"):
        cut(even(60), shards, machines, reserve_bytes=RESERVE)


def test_a_refusal_says_so_when_the_search_could_not_look_at_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nodes.split.best_assignment", lambda *args: Assignment((), False))
    with pytest.raises(SplitRefused, match=r"no cut into 2 stages that fits was found.*--layers can name it"):
        cut(even(4), 2, [machine("a")], reserve_bytes=RESERVE)


def test_what_a_node_of_a_stage_needs() -> None:
    (stage,) = cut(even(4, tail=7), 1, [machine("a", memory=47 + RESERVE + 4 * 10)], reserve_bytes=RESERVE)
    assert (stage.weight_bytes, stage.session_bytes, stage.room_bytes, stage.sessions()) == (47, 4, 40, 10)
    assert stage.cache_bytes(8, 1000) == 32
    assert stage.cache_bytes(8, 30) == 30  # what a node may use anyway
    assert stage.cache_bytes(99, 1000) == 40  # what is there
    assert stage.memory_bytes(8, 1000) == 47 + 32 + RESERVE


SIZES = st.integers(1, 9)
COSTS = st.integers(1, 6).flatmap(
    lambda n: st.builds(
        FakeCosts,
        st.tuples(*[SIZES] * n),
        st.tuples(*[st.integers(0, 3)] * n),
        st.integers(0, 20),
        st.frozensets(st.integers(1, max(1, n - 1)), max_size=2),
    )
)
MACHINES = st.lists(st.tuples(st.integers(5, 60), st.sampled_from([1.0, 2.0, 2.5, 7.0])), min_size=1, max_size=4)


@settings(max_examples=150, deadline=None)
@given(COSTS, st.integers(1, 4), MACHINES, st.integers(0, 4), st.sampled_from([0.0, 0.5, 3.0]))
def test_no_other_way_is_faster(
    costs: FakeCosts, shards: int, sizes: list[tuple[int, float]], reserve: int, fixed: float
) -> None:
    machines = [machine(str(index), *size) for index, size in enumerate(sizes)]
    best = brute_force(costs, shards, machines, reserve, fixed)
    try:
        found = split(costs, shards, machines, reserve_bytes=reserve, layer_seconds=fixed)
    except SplitRefused:
        assert best is None
        return
    assert best is not None
    assert found.proven
    stages = found.stages
    assert [stage.layers.start for stage in stages] == [0, *(stage.layers.end for stage in stages[:-1])]
    assert stages[-1].layers.end == costs.n_layers and len(stages) == shards
    times = [stage.seconds for stage in stages]
    assert (max(times), sum(times)) == pytest.approx(best)
    for one in machines:
        here = [stage for stage in stages if stage.machine.name == one.name]
        assert sum(costs.bytes(stage.layers) + reserve for stage in here) <= one.memory_bytes
        assert sum(stage.machine.bytes_per_second for stage in here) <= one.bytes_per_second * (1 + 1e-9)


def brute_force(
    costs: FakeCosts, shards: int, machines: list[Machine], reserve: int, fixed: float
) -> tuple[float, float] | None:
    """Every cut on every choice of machines; stages share a machine only as far as it does not fit otherwise."""
    n_layers = costs.n_layers
    allowed = [cut for cut in range(1, n_layers) if costs.runs_alone(LayerRange(cut, n_layers))]
    for most in range(ceil(shards / len(machines)), shards + 1):
        best = (inf, inf)
        for cuts in combinations(allowed, shards - 1):
            stretches = [LayerRange(*ends) for ends in pairwise((0, *cuts, n_layers))]
            for chosen in product(range(len(machines)), repeat=shards):
                loads = [chosen.count(index) for index in range(len(machines))]
                if max(loads) > most:
                    continue
                times = []
                for stretch, index in zip(stretches, chosen, strict=True):
                    if costs.bytes(stretch) + reserve > machines[index].memory_bytes // loads[index]:
                        break
                    reading = costs.weight_bytes(stretch) * loads[index] / machines[index].bytes_per_second
                    times.append(reading + stretch.size * fixed)
                else:
                    best = min(best, (max(times), sum(times)))
        if best[0] < inf:
            return best
    return None
