"""Faults of a camera from its pictures, sizes and clock; one incident with the root cause."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import cache

import numpy as np
import pytest

from lookout.video.health import (
    NO_LOOKS,
    CameraFault,
    CameraHealth,
    HealthEvent,
    Looks,
    Observation,
    advance,
    end,
    look_at,
    observe,
    unlearned,
)

SIZE = 64
DAY_MS = 86_400_000
MIDDLE = Looks.middle
NOON_MS = 20_000 * DAY_MS + 12 * 3_600_000
Frames = np.ndarray[tuple[int, ...], np.dtype[np.float32]]
Tamper = Callable[[Frames], Frames]


@cache
def room() -> Frames:
    """A textured picture, brightness 0 to 255."""
    rng = np.random.default_rng(1)
    coarse = np.kron(rng.uniform(60, 190, (8, 8)), np.ones((8, 8)))
    return (coarse + rng.uniform(-25, 25, (SIZE, SIZE))).astype(np.float32)


@dataclass
class Player:
    """Plays a still room with sensor noise, four samples in a segment."""

    at_ms: int = NOON_MS
    health: CameraHealth = field(default_factory=CameraHealth)
    events: list[HealthEvent] = field(default_factory=list)
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(2))
    noise: float = 2.0
    segment_s: float = 6.0
    facts: dict[str, object] = field(default_factory=dict)

    def play(self, seconds: float, tamper: Tamper = lambda frames: frames) -> Player:
        """Play on; `tamper` changes what the sensor sees, float32 [4, SIZE, SIZE]."""
        for _ in range(round(seconds / self.segment_s)):
            frames = np.repeat(room()[None], 4, axis=0)
            frames = tamper(frames + self.rng.normal(0, self.noise, frames.shape).astype(np.float32))
            pixels = np.repeat(np.clip(frames, 0, 255).astype(np.uint8)[..., None], 3, axis=3)
            seen = Observation(self.at_ms, self.segment_s, look_at(pixels), frames=150, size=300_000)
            self.take(replace(seen, **self.facts))  # type: ignore[arg-type]
            self.at_ms += round(1000 * self.segment_s)
        return self

    def take(self, seen: Observation) -> None:
        """Take one segment."""
        self.health, faults = observe(self.health, seen)
        self.advance(faults, seen.end_ms, seen.seconds)

    def advance(self, faults: Iterable[CameraFault], end_ms: int, seconds: float) -> None:
        """See `advance`."""
        self.health, events = advance(self.health, faults, end_ms, seconds, identity=f"{len(self.events)}")
        self.events += events

    def known(self) -> Player:
        """A camera that was seen for three minutes on two days, without an incident."""
        self.play(180)
        self.at_ms += DAY_MS
        self.play(180)
        assert self.events == []
        return self

    def said(self) -> list[tuple[str, str]]:
        """What happened to its incidents."""
        return [(event.kind, event.incident.cause.value) for event in self.events]


def covered(frames: Frames) -> Frames:
    return 90 + (frames - room()) / 4


def sprayed(frames: Frames) -> Frames:
    frames[:, :, : SIZE * 2 // 3] = 150
    return frames


def dark(frames: Frames) -> Frames:
    return frames * 0.05


def blurred(frames: Frames) -> Frames:
    coarse = frames.reshape(len(frames), 8, 8, 8, 8).mean(axis=(2, 4))
    return np.kron(coarse, np.ones((1, 8, 8), np.float32))


def moved(frames: Frames) -> Frames:
    return np.roll(frames, (13, 29), axis=(1, 2))


def frozen(frames: Frames) -> Frames:
    return np.repeat(room()[None], len(frames), axis=0)


def loop() -> Tamper:
    """A replacement by 83 samples that were recorded before."""
    rng = np.random.default_rng(5)
    recorded = np.repeat(room()[None], 83, axis=0) + rng.normal(0, 2, (83, SIZE, SIZE))
    place = 0

    def tamper(frames: Frames) -> Frames:
        nonlocal place
        place += len(frames)
        return recorded[np.arange(place - len(frames), place) % 83].astype(np.float32)

    return tamper


@pytest.mark.parametrize(
    ("tamper", "cause"),
    [
        (covered, "covered"),
        (sprayed, "covered"),
        (dark, "dark"),
        (blurred, "blurred"),
        (moved, "moved"),
        (frozen, "frozen"),
    ],
)
def test_a_fault_is_one_incident_that_closes_when_it_is_gone(tamper: Tamper, cause: str) -> None:
    player = Player().known()
    begun_ms = player.at_ms
    player.play(120, tamper)
    assert player.said() == [("opened", cause)]
    assert player.health.incident is not None
    assert 0 <= player.health.incident.opened_ms - begun_ms <= 60_000
    player.play(60)
    assert player.said() == [("opened", cause), ("closed", cause)]
    assert {event.incident.id for event in player.events} == {"0"}
    assert player.events[-1].reason == "cleared"
    player.play(60)
    assert len(player.events) == 2


def test_a_known_view_is_compared_every_few_seconds_and_its_faults_last_in_between(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    player = Player(segment_s=1.0).known()
    compared: list[int] = []
    monkeypatch.setattr(Looks, "middle", lambda looks: compared.append(1) or MIDDLE(looks))
    player.play(60)
    assert len(compared) == 8
    begun_ms = player.at_ms
    player.play(60, covered)
    assert player.said() == [("opened", "covered")]
    assert 30_000 <= player.events[0].at_ms - begun_ms <= 38_000
    player.play(30)
    assert player.said() == [("opened", "covered"), ("closed", "covered")]


def test_a_loop_of_earlier_footage_is_noticed_by_its_noise() -> None:
    player = Player().known().play(420, loop())
    assert player.said() == [("opened", "looped")]


def test_a_fault_of_a_few_seconds_is_none() -> None:
    assert Player().known().play(20, covered).play(60).events == []


def test_a_still_scene_with_noise_is_not_frozen() -> None:
    assert Player(noise=0.5).play(900).events == []


def test_a_picture_without_noise_that_stays_equal_for_long_is_frozen_only_beyond_its_habit() -> None:
    player = Player(noise=0.0)
    flicker = iter(range(10_000))

    def steps(frames: Frames) -> Frames:
        frames += 8 * (next(flicker) // 3 % 2)  # another picture every 18 s
        return frames

    assert player.play(600, steps).events == []
    assert player.play(42).events == []
    assert player.play(42).said() == [("opened", "frozen")]


@pytest.mark.slow
def test_the_first_night_is_no_fault_and_darkness_at_noon_on_the_second_day_is() -> None:
    player = Player()

    def light(frames: Frames) -> Frames:
        return dark(frames) if not 6 <= player.at_ms // 3_600_000 % 24 < 20 else frames

    for day in range(2):
        for hour in range(24):
            player.at_ms = (20_000 + day) * DAY_MS + hour * 3_600_000
            player.play(66, light)
    assert player.events == []
    player.at_ms = 20_002 * DAY_MS + 12 * 3_600_000
    player.play(60).play(60, dark)
    assert player.said() == [("opened", "dark")]


def test_ten_minutes_of_black_without_structure_are_a_covered_lens() -> None:
    player = Player().known()
    player.play(120, lambda frames: 0 * frames)
    assert player.said() == [("opened", "dark")]
    player.play(600, lambda frames: 0 * frames)
    assert player.said() == [("opened", "dark"), ("updated", "covered")]


def test_a_black_picture_of_a_dark_scene_keeps_its_incident_after_ten_minutes() -> None:
    player = Player().known().play(700, dark)
    assert player.said() == [("opened", "dark")]


def test_the_incident_follows_the_root_cause() -> None:
    player = Player().known().play(100, frozen)
    player.play(200, covered)
    player.advance({CameraFault.OFFLINE}, player.at_ms + 30_000, 30.0)
    player.play(60)
    causes = [("opened", "frozen"), ("updated", "covered"), ("updated", "offline"), ("closed", "offline")]
    assert player.said() == causes
    assert {event.incident.id for event in player.events} == {"0"}


def test_a_turned_camera_is_at_home_after_six_hours() -> None:
    player = Player().known().play(60, moved)
    player.at_ms += 7 * 3_600_000
    player.play(60, moved)
    assert player.said()[0] == ("opened", "moved")
    assert player.said()[-1] == ("closed", "moved")
    player.play(300, moved)
    assert len(player.events) == 2


def test_constant_areas_are_no_fault_and_what_they_hide_does_not_count() -> None:
    """A privacy mask greys out areas before pictures are looked at."""

    def masked(frames: Frames) -> Frames:
        frames[:, 8:40, 8:40] = 128
        return frames

    assert Player().play(400, masked).events == []
    assert Player().play(200, lambda frames: np.full_like(frames, 128)).said() == [("opened", "frozen")]


def test_a_new_mask_is_no_fault_and_nothing_stays_of_what_it_hides() -> None:
    """Half of the picture turns grey: without learning again it is a fault."""

    def grey(frames: Frames) -> Frames:
        frames[:, :, : SIZE // 2] = 128
        return frames

    control, masked = Player().known(), Player().known()
    assert control.play(120, grey).said()[0][0] == "opened"
    masked.health = unlearned(masked.health)
    assert masked.play(300, grey).said() == []
    (picture,) = masked.health.usual.pictures
    assert (picture.luma[:, : picture.luma.shape[1] // 2] == 128).all()


@pytest.mark.parametrize(
    ("facts", "cause"),
    [
        ({"damaged": 0.5}, "damaged"),
        ({"frames": 30}, "rate"),
        ({"size": 3000}, "rate"),
        ({"ahead_s": 600.0}, "clock"),
        ({"jumped": True}, "clock"),
        ({"refused": True, "planes": NO_LOOKS}, "damaged"),
    ],
)
def test_faults_of_the_stream(facts: dict[str, object], cause: str) -> None:
    player = Player().known()
    player.facts = facts
    assert player.play(120).said() == [("opened", cause)]


def test_no_incident_begins_after_its_end_when_the_clock_is_set_back() -> None:
    player = Player().known().play(60, covered)
    player.at_ms -= 3_600_000
    player.play(120)
    assert [event.kind for event in player.events] == ["opened", "closed"]
    assert all(event.incident.opened_ms <= event.at_ms for event in player.events)


def test_what_ends_a_camera_closes_its_incident() -> None:
    player = Player().known().play(60, covered)
    health, events = end(player.health, player.at_ms, "forgotten")
    assert [(event.kind, event.reason) for event in events] == [("closed", "forgotten")]
    assert end(health, player.at_ms, "forgotten") == (health, [])


def test_planes_of_any_size_have_the_same_cells() -> None:
    for height, width in ((14, 14), (16, 40), (112, 112), (448, 252), (447, 701)):
        planes = look_at(np.full((2, height, width, 3), 77, np.uint8))
        luma, detail = planes.middle()
        assert planes.luma.shape == (2, *luma.shape) == (2, *detail.shape) == (2, 16, 16)
        assert np.all(planes.luma == 77)
        assert np.all(luma == 77)
        assert np.all(detail == 0)
        assert planes.checksums[0] == planes.checksums[1]
