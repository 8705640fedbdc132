"""Incidents of cameras that decode writes: silence, frozen pictures, takeovers, ends."""

from __future__ import annotations

import io
from fractions import Fraction
from functools import cache

import av
import numpy as np
import pytest

from lookout.services.decode import health_state
from lookout.v1.alerts_pb2 import Alert
from lookout.v1.state_pb2 import CameraHealth
from lookout.v1.watches_pb2 import Watch
from lookout.video.segments import cut
from lookout.wire import CAMERA_HEALTH, CAMERA_OFFLINE, to_json
from tests.unit.services.decode_case import World, pieces

SIDE = 64
OPENED, CLOSED = Alert.KIND_OPENED, Alert.KIND_CLOSED


@cache
def film() -> tuple[bytes, ...]:
    """Segments of two seconds: forty with noise, twenty of one picture, ten with noise."""
    rng = np.random.default_rng(3)
    room = np.kron(rng.uniform(60, 190, (8, 8)), np.ones((8, 8)))
    buffer, still = io.BytesIO(), room + rng.normal(0, 8, room.shape)
    with av.open(buffer, "w", format="mpegts") as container:
        stream = container.add_stream("libx264", rate=2)
        stream.width = stream.height = SIDE
        stream.pix_fmt = "yuv420p"
        stream.options = {"g": "4", "bf": "0", "qp": "20", "preset": "ultrafast", "sc_threshold": "0"}
        for number in range(4 * 70):
            frozen = 160 <= number < 240
            grey = still if frozen else room + rng.normal(0, 8, room.shape)
            pixels = np.repeat(np.clip(grey, 0, 255).astype(np.uint8)[..., None], 3, axis=2)
            frame = av.VideoFrame.from_ndarray(pixels, format="rgb24")
            frame.pts, frame.time_base = number, Fraction(1, 2)
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return tuple(piece.data for piece in cut(io.BytesIO(buffer.getvalue())))


def world() -> World:
    return World(silence_s=10.0, pruning="default")


def seen() -> World:
    """A camera that was seen for eighty seconds."""
    played = world()
    for piece in film()[:40]:
        played.send(piece)
    assert played.alerts == []
    return played


def kinds(played: World) -> list[tuple[int, str, str]]:
    return [(alert.kind, alert.cause, alert.reason) for alert in played.alerts]


@pytest.mark.slow
def test_a_frozen_camera_is_one_incident_whoever_reads_its_segments() -> None:
    undisturbed, killed = world(), world()
    for piece in film():
        undisturbed.send(piece)
        killed.send(piece)
        killed.takeover()
    assert kinds(undisturbed) == [(OPENED, "frozen", ""), (CLOSED, "frozen", "cleared")]
    assert undisturbed.alerts == killed.alerts
    assert undisturbed.counts["camera_frozen"] == 1
    first, last = undisturbed.alerts
    assert (first.watch, first.incident, first.camera) == (CAMERA_HEALTH, last.incident, "yard")
    assert first.question == "The camera sends the same picture again and again."
    assert first.id != last.id
    assert first.start.ToMilliseconds() <= first.end.ToMilliseconds() < last.end.ToMilliseconds()


@pytest.mark.slow
def test_an_offline_camera_is_an_incident_until_it_returns() -> None:
    played = seen()
    played.wait(30)
    assert kinds(played) == [(OPENED, "offline", "")]
    played.takeover()
    played.wait(30)
    assert len(played.alerts) == 1
    played.send(film()[40])
    assert kinds(played) == [(OPENED, "offline", ""), (CLOSED, "offline", "cleared")]
    assert played.alerts[0].incident == played.alerts[1].incident


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cameras", "others", "spoken"),
    [
        ([], ["fall"], []),
        (["yard"], ["fall"], []),
        (["gate-*"], ["fall"], ["offline"]),  # another camera's
        ([], [], ["offline"]),  # alerts sees no verdict of a camera that nothing else is asked of
    ],
)
def test_an_outage_that_a_watch_asks_for_is_no_second_incident(
    cameras: list[str], others: list[str], spoken: list[str]
) -> None:
    played = seen()
    played.watches[CAMERA_OFFLINE] = [to_json(Watch(id=CAMERA_OFFLINE, version=1, cameras=cameras))]
    played.watches |= {name: [to_json(Watch(id=name, version=1, question="?"))] for name in others}
    played.wait(30)
    assert [alert.cause for alert in played.alerts] == spoken
    for piece in film()[40:]:
        played.send(piece)
    assert {"frozen"} <= {alert.cause for alert in played.alerts} <= {"frozen", *spoken}


@pytest.mark.slow
def test_a_fault_before_an_outage_that_a_watch_asks_for_leaves_the_outage_to_it() -> None:
    played = seen()
    played.watches[CAMERA_OFFLINE] = [to_json(Watch(id=CAMERA_OFFLINE, version=1))]
    played.watches["fall"] = [to_json(Watch(id="fall", version=1, question="?"))]
    for piece in film()[40:60]:
        played.send(piece)
    assert kinds(played) == [(OPENED, "frozen", "")]
    played.wait(30)
    assert kinds(played) == [(OPENED, "frozen", ""), (CLOSED, "frozen", "offline")]
    played.wait(30)
    assert len(played.alerts) == 2


@pytest.mark.slow
def test_the_end_of_a_recording_is_no_outage() -> None:
    played = seen()
    played.send(film()[40], **{"lookout-last": "1"})
    played.wait(60)
    assert played.alerts == []


def test_a_clip_of_a_few_seconds_is_no_camera_that_went_offline() -> None:
    played = world()
    for piece in pieces():
        played.send(piece)
    played.wait(60)
    assert played.alerts == []


@pytest.mark.slow
def test_a_camera_that_moves_to_another_partition_leaves_no_open_incident() -> None:
    played = seen()
    played.wait(30)
    played.takeover()
    result = played.notice("7")
    played.take(result)
    assert kinds(played)[1:] == [(CLOSED, "offline", "moved")]


@pytest.mark.slow
def test_a_camera_that_is_forgotten_leaves_no_open_incident() -> None:
    played = seen()
    played.wait(30)
    played.take(played.handler.forget(played.state))
    assert kinds(played)[1:] == [(CLOSED, "offline", "forgotten")]


@pytest.mark.slow
def test_switched_off_it_closes_what_is_open_and_opens_nothing() -> None:
    played = seen()
    played.wait(30)
    off = World(silence_s=10.0, pruning="default", camera_health=False)
    off.checkpoint, off.now = played.checkpoint, played.now
    off.takeover()
    for piece in film()[40:]:
        off.send(piece)
    assert kinds(off) == [(CLOSED, "offline", "removed")]


def test_a_checkpoint_holds_all_of_it() -> None:
    played = world()
    for piece in film()[:10]:
        played.send(piece)
    kept = health_state.pack(played.state.unit.health)
    again = health_state.pack(health_state.unpack(CameraHealth.FromString(kept.SerializeToString())))
    assert again == kept
    assert len(kept.pictures) == 1
