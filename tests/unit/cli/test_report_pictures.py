"""Pictures of the page: what does not come costs a camera its share of the time, and nobody else's."""

from __future__ import annotations

import time

import numpy as np
import pytest

from lookout.cli.report.pictures import Album
from lookout.cli.report.run import CameraRun, EvidenceFrame, FleetRecord, Place
from lookout.rules.masks import Masks
from tests.unit.cli.runs import FakeMessage, camera_records

SHARE_S = 0.2


class FakeRecords:
    """Stands for Kafka: no record comes, and that takes a while, as where a partition does not exist."""

    def __init__(self) -> None:
        self.asked: list[Place] = []

    def read(self, place: Place) -> None:
        self.asked.append(place)
        time.sleep(SHARE_S / 4)

    def close(self) -> None:
        """Nothing is open."""


def shots(camera: str) -> list[EvidenceFrame]:
    keep = np.ones((2, 2), bool)
    places = [("frames.v1", 0, offset) for offset in range(100)]
    return [EvidenceFrame(1, n, n, False, keep, place, 0) for n, place in enumerate(places)]


def test_a_camera_whose_records_do_not_come_uses_up_its_own_share(monkeypatch: pytest.MonkeyPatch) -> None:
    album, records = Album("127.0.0.1:1", ["127.0.0.1:1"], masks=Masks()), FakeRecords()
    try:
        monkeypatch.setattr(album, "_records", records)
        monkeypatch.setattr(album, "_share_s", SHARE_S)
        for camera in ("strange", "honest"):
            before = len(records.asked)
            run = CameraRun(camera)
            assert album.filmed(run, shots(camera)) == {}
            assert album.seen(run, shots(camera)) == {}
            assert 1 <= len(records.asked) - before <= 4
    finally:
        album.close()


def test_records_that_refer_to_what_does_not_exist_are_left_out() -> None:
    """Nothing is read or asked for them."""
    run = FleetRecord()
    honest = list(camera_records("yard", 10, {"a-person": (2.0, 6.0)}))
    for message in honest:
        # Under another camera's key: what `lookout report` reads has the same checks as what services read.
        run.take(FakeMessage(message.name, message.data, message.at, "other"))  # type: ignore[arg-type]
    assert not run.cameras
    for message in honest:
        run.take(message)  # type: ignore[arg-type]
    assert list(run.cameras) == ["yard"]
