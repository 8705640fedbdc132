"""A backup of the broker's volume: a copy of its folder, started elsewhere, continues where the fleet was."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from lookout.local import Fleet, KafkaServer
from lookout.models import TINY
from lookout.v1.verdicts_pb2 import Verdict
from lookout.verification import verify
from lookout.wire import Stage
from tests.eventually import eventually
from tests.fleet.faults import outcomes, run
from tests.fleet.faults.footage import Piece, pieces

pytestmark = [pytest.mark.fleet, pytest.mark.long]

CAMERAS, PARTITIONS = 3, 4
STRIDES = 12  # of each camera, the first half before the backup
HALF = STRIDES // 2


def fleet(folder: Path, kafka: KafkaServer) -> Fleet:
    """Every stage, with a Redis of its own that is empty."""
    settings = {"model_dir": str(TINY), "stride_s": str(run.STRIDE_S), "window_s": str(run.WINDOW_S)}
    return Fleet(
        folder,
        kafka=kafka.bootstrap,
        settings=settings,
        stage_settings={Stage.DECODE: {"silence_s": "86400"}},
        partitions=PARTITIONS,
        open_servers=True,
    )


def publish(running: Fleet, film: Sequence[Piece], half: int) -> None:
    """One half of every camera, and wait for its outcomes."""
    first, last = half * HALF * run.STRIDE_S, (half + 1) * HALF * run.STRIDE_S
    publisher = run.Publisher(
        running.bootstrap, [piece for piece in film if first <= piece.start_s < last], pace=None
    )
    publisher.start()
    expected = CAMERAS * len(run.QUESTIONS) * HALF * (half + 1)
    eventually(
        lambda: (
            running.supervise(),
            publisher.done and outcomes.read(running.bootstrap).outcomes >= expected,
        )[-1],
        seconds=300.0,
        every=0.5,
    )


@pytest.mark.timeout(900)
def test_a_copy_of_the_brokers_folder_continues_where_the_fleet_was(tmp_path: Path) -> None:
    film = [
        piece
        for number in range(CAMERAS)
        for piece in pieces(f"cam-{number}", number, int(STRIDES * run.STRIDE_S), run.STRIDE_S)
    ]
    with KafkaServer(tmp_path / "before") as kafka, fleet(tmp_path / "first", kafka) as running:
        run.watch(running.bootstrap)
        publish(running, film, 0)
    # As a volume would be: the broker has ended, and nothing but its files goes to the other place.
    shutil.copytree(tmp_path / "before", tmp_path / "after")
    shutil.rmtree(tmp_path / "before")
    with KafkaServer(tmp_path / "after") as kafka, fleet(tmp_path / "second", kafka) as running:
        publish(running, film, 1)
        committed = outcomes.read(running.bootstrap)
        tally = verify(
            TINY,
            running.bootstrap,
            common={"stride_s": run.STRIDE_S, "window_s": run.WINDOW_S},
            tolerance=outcomes.SAME,
        )
    assert committed.outcomes == CAMERAS * len(run.QUESTIONS) * STRIDES
    copies = {**committed.verdicts, **committed.alerts}
    assert [name for name, rows in copies.items() if len(rows) > 1] == []
    verdicts = [verdict for verdict, *_ in committed.verdicts.values()]
    assert len({(verdict.camera, verdict.epoch) for verdict in verdicts}) == CAMERAS
    answered = sum(verdict.outcome == Verdict.OUTCOME_ANSWERED for verdict in verdicts)
    assert (tally.counts["verified"], tally.unverified) == (answered, [])
    # Each camera's first window, and the first behind the restore, whose KV nobody has.
    assert outcomes.bases(committed)["key"] == 2 * CAMERAS * len(run.QUESTIONS)
