"""Virtual time: loops that wait, on one thread."""

from __future__ import annotations

from meshsite.simulation.virtual_time import VirtualTime


def test_loops_wait_side_by_side() -> None:
    time, said = VirtualTime(), []

    def loop(name: str, seconds: float) -> None:
        for _ in range(2):
            time.wait(seconds)
            said.append((name, time.now()))

    time.start(lambda: loop("slow", 3.0))
    time.start(lambda: loop("quick", 1.0))
    time.run()
    assert said == [("quick", 1.0), ("quick", 2.0), ("slow", 3.0), ("slow", 6.0)]


def test_a_run_ends_at_its_horizon_and_goes_on_from_there() -> None:
    time, said = VirtualTime(), []
    time.call_at(5.0, lambda: said.append(time.now()))
    time.run(2.0)
    assert (said, time.now()) == ([], 2.0)
    time.run()
    assert said == [5.0]


def test_what_a_loop_raises_ends_the_run() -> None:
    time = VirtualTime()

    def stumble() -> None:
        time.wait(1.0)
        raise KeyError("lost")

    time.start(stumble)
    try:
        time.run()
    except KeyError as error:
        assert error.args == ("lost",)
    else:
        raise AssertionError("it was swallowed")


def test_a_line_is_bounded_and_first_come_first_served() -> None:
    time, got, put = VirtualTime(), [], []
    line = time.line(1)

    def give() -> None:
        for item in range(3):
            line.put(item)
            put.append((item, time.now()))

    def take() -> None:
        for _ in range(3):
            time.wait(1.0)
            got.append(line.get())

    time.start(give)
    time.start(take)
    time.run()
    assert got == [0, 1, 2]
    assert put == [(0, 0.0), (1, 1.0), (2, 2.0)]


def test_an_event_wakes_all_who_wait_and_a_join_waits_for_the_end() -> None:
    time, said = VirtualTime(), []
    event = time.event()
    task = time.start(lambda: (event.wait(), said.append("woken")))
    time.start(lambda: (task.join(), said.append("joined")))
    time.call_at(2.0, event.set)
    time.run()
    assert said == ["woken", "joined"]
