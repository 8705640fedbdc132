"""Periodic tasks of the gateway."""

from __future__ import annotations

import threading

from lookout.errors import TransientError
from lookout.services.gateway.periodic import PeriodicTask
from tests.eventually import eventually


def test_a_round_that_fails_is_followed_by_the_next() -> None:
    rounds = list[int]()

    def work() -> None:
        rounds.append(len(rounds))
        if len(rounds) == 1:
            raise TransientError("away")

    task = PeriodicTask(work, 0.001, "work waits")
    thread = threading.Thread(target=task.run)
    thread.start()
    eventually(lambda: len(rounds) > 2)
    task.stop()
    thread.join(30.0)
    assert not thread.is_alive()


def test_nothing_begins_before_its_time_and_it_ends_all_the_same() -> None:
    began, rounds = threading.Event(), list[int]()
    task = PeriodicTask(lambda: rounds.append(0), 0.001, "work waits", began)
    thread = threading.Thread(target=task.run)
    thread.start()
    assert not thread.join(0.02)
    assert rounds == []
    task.stop()
    thread.join(30.0)
    assert not thread.is_alive()
    assert rounds == []
