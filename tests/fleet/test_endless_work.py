"""Work on a record that never ends: its dead letter is committed once, and its process ends if it must."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.eventually import eventually
from tests.fleet.bench import Bench, process, running

pytestmark = pytest.mark.fleet
LIMIT_S = 2.0


def reasons(bench: Bench) -> list[str]:
    """Why the dead letters are there."""
    headers = [dict(letter.headers()) for letter in bench.read("dlq")]
    return [found["lookout-reason"].decode() for found in headers]


def assert_answered(bench: Bench) -> None:
    """The record before and after is counted; the handler added to the dead letter in between."""
    outputs = bench.outputs()["cam"]
    assert [(output.get("n"), output.get("rejected")) for output in outputs] == [
        (1, None),
        (None, "overdue"),
        (2, None),
    ]


def test_a_loop_is_stopped_and_its_camera_goes_on(kafka: str, prefix: str, stack: ExitStack) -> None:
    bench = stack.enter_context(Bench(kafka, prefix))
    bench.send("cam", 1)
    bench.send("cam", 2, do="loop")
    bench.send("cam", 2)
    bench.send("other", 1)
    bench.flush()
    with running(bench.settings(work_limit_s=LIMIT_S)) as worker:
        eventually(lambda: bench.counted(["cam"], 3) and bench.counted(["other"], 1))
        eventually(lambda: "work" not in worker.health.blockers())
        assert worker.error is None
    assert reasons(bench) == ["overdue"]
    assert_answered(bench)


def test_what_cannot_be_stopped_ends_the_process_after_its_dead_letter(
    kafka: str, prefix: str, stack: ExitStack, tmp_path: Path
) -> None:
    bench = stack.enter_context(Bench(kafka, prefix))
    log = tmp_path / "log"
    settings = bench.settings(work_limit_s=LIMIT_S)
    toy = process(settings, log)
    try:
        bench.send("cam", 1)
        bench.flush()
        eventually(lambda: bench.counted(["cam"], 1))
        bench.send("cam", 2, sleep=3600)
        bench.send("cam", 2)
        bench.send("other", 1)
        bench.flush()
        eventually(lambda: toy.poll() is not None)
    finally:
        toy.kill()
        toy.wait()
    assert toy.returncode != 0
    assert "work cannot be stopped" in log.read_text()
    assert reasons(bench) == ["overdue"]
    after = process(settings, log)  # the record does not come again
    try:
        eventually(lambda: bench.counted(["cam"], 3) and bench.counted(["other"], 1))
    finally:
        after.kill()
        after.wait()
    assert reasons(bench) == ["overdue"]
    assert_answered(bench)
