"""A camera that sends nothing hears the record time of its partition while a neighbour keeps it busy."""

from __future__ import annotations

import threading
from contextlib import ExitStack

from tests.eventually import eventually
from tests.fleet.bench import Bench, running


def test_a_busy_neighbour_tells_a_silent_camera_the_time(kafka: str, prefix: str, stack: ExitStack) -> None:
    bench = stack.enter_context(Bench(kafka, prefix))
    bench.send("silent", 1, partition=0)
    bench.flush()
    done = threading.Event()

    def keep_busy() -> None:
        n = 0
        while not done.wait(0.01):
            n += 1
            bench.send("busy", n, partition=0, sleep=0.02)  # more than is worked off: a backlog

    neighbour = threading.Thread(target=keep_busy)
    with running(bench.settings()) as worker:
        eventually(lambda: ("silent", 1) in worker.handler.seen)
        worker.handler.outdated = {"silent"}
        neighbour.start()
        try:
            eventually(lambda: not worker.handler.outdated)
        finally:
            done.set()
            neighbour.join()
        # read once nothing more is sent: the end of a topic that grows is never reached
        told = eventually(lambda: [one for one in bench.outputs()["silent"] if "passed" in one])
    newest = max(message.timestamp()[1] for message in bench.read("in") if message.key() == b"busy")
    sent = next(message.timestamp()[1] for message in bench.read("in") if message.key() == b"silent")
    assert [sent < one["passed"] <= newest for one in told] == [True]
