"""A thread that the service needs and that dies ends the process, and nothing is committed for its record."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from tests.eventually import eventually
from tests.fleet.bench import Bench, process


def test_a_batching_thread_that_dies_ends_the_process(
    kafka: str, prefix: str, stack: ExitStack, tmp_path: Path
) -> None:
    bench = stack.enter_context(Bench(kafka, prefix))
    log = tmp_path / "log"
    toy = process(bench.settings(), log)
    try:
        for n in (1, 2):
            bench.send("cam", n)
        bench.flush()
        eventually(lambda: bench.counted(["cam"], 2))
        bench.send("cam", 3, do="exit")
        bench.send("cam", 4)
        bench.flush()
        eventually(lambda: toy.poll() is not None)
    finally:
        toy.kill()
        toy.wait()
    said = log.read_text()
    assert toy.returncode == 1, said
    assert "the thread 'adder' died: SystemExit('as asked')" in said
    assert [one["n"] for one in bench.outputs()["cam"]] == [1, 2]
    assert bench.read("dlq") == []
