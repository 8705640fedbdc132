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
