"""Readiness and liveness."""

from __future__ import annotations

from lookout.runtime.observe import Health


def test_ready_when_nothing_stands_in_the_way() -> None:
    health = Health()
    assert health.alive()
    assert not health.ready()
    health.block("kafka", "no broker answers")
    health.clear("worker")
    assert health.blockers() == {"kafka": "no broker answers"}
    health.clear("kafka")
    assert health.ready()


class Clock:
    """Seconds that a test sets."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_polling_thread_that_hangs_is_dead() -> None:
    clock = Clock()
    health = Health(stall_s=5.0, clock=clock)
    health.clear("worker")
    for clock.now, alive in ((4.9, True), (5.0, False)):
        assert (health.alive(), health.ready()) == (alive, alive)
    health.beat()
    assert health.ready()


def test_a_process_that_loads_its_model_is_alive_and_not_ready() -> None:
    clock = Clock()
    health = Health(stall_s=5.0, clock=clock)
    health.allow(600.0)
    clock.now = 604.0
    assert (health.alive(), health.ready()) == (True, False)
    health.beat()
    health.clear("worker")
    clock.now = 609.5
    assert not health.alive()
