"""Readiness and liveness."""

from __future__ import annotations

import time

from lookout.runtime import Health


def test_ready_when_nothing_stands_in_the_way() -> None:
    health = Health()
    assert health.alive()
    assert not health.ready()
    health.block("kafka", "no broker answers")
    health.clear("worker")
    assert health.blockers() == {"kafka": "no broker answers"}
    health.clear("kafka")
    assert health.ready()


def test_a_polling_thread_that_hangs_is_dead() -> None:
    health = Health(stall_s=0.0)
    health.clear("worker")
    time.sleep(0.001)
    assert not health.alive()
    assert not health.ready()


def test_a_process_that_loads_its_model_is_alive_and_not_ready() -> None:
    health = Health(stall_s=0.0)
    health.allow(600.0)
    assert health.alive()
    assert not health.ready()
    health.beat()
    health.clear("worker")
    time.sleep(0.001)
    assert not health.alive()
