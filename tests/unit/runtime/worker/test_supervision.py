"""A supervised thread that dies ends the process."""

from __future__ import annotations

import threading

import pytest

from lookout.runtime.worker.supervision import Supervisor, ThreadDiedError


def test_a_thread_that_raises_is_told_by_name() -> None:
    supervisor = Supervisor()
    supervisor.check()

    def fail() -> None:
        raise ValueError("a bug")

    supervisor.start("table-watches", fail).join()
    with pytest.raises(ThreadDiedError, match="table-watches"):
        supervisor.check()


def test_a_thread_that_has_done_its_work_is_no_fault() -> None:
    supervisor, done = Supervisor(), threading.Event()
    supervisor.start("one-shot", done.set).join()
    assert done.is_set()
    supervisor.check()


def test_a_thread_that_died_is_known_though_nothing_can_be_logged(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr("lookout.runtime.worker.supervision.logs.get", fail)
    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    supervisor = Supervisor()
    supervisor.start("chapters-0", fail).join()
    with pytest.raises(ThreadDiedError, match="chapters-0"):
        supervisor.check()
