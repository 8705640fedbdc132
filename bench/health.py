"""`python -m bench.health`: which camera faults are found, how many false alarms there are, and what the
detection costs.

**Recall**: rendered cameras are watched for four minutes, then tampered with for two: covered, sprayed,
defocused, turned away, knocked, frozen, or replaced by a loop of their own last 41.5 s. Pictures are drawn
and encoded at two a second, the sampling rate, with at least a little sensor noise. A fault is found if an
incident opens within the two minutes.

**False alarms**: the same cameras without tampering, and real clips of fixed cameras. Each clip is played
repeatedly through two days of 24 hours of two minutes, with daylight that fades to a twelfth and noise that
grows at night. A repeated clip is a loop, so alarms with that cause are counted only on the rendered cameras.

**cpu_share**: CPU time of detection over that of decoding, on real clips at their full rate. Each time is the
least of three runs, because other programs on the machine slow down short pieces of work most.

`learned` adapts to each camera. `fixed` has the same detectors with fixed thresholds. `simple` is what a
small script does: it compares mean luma, its spread, and the mean difference from the picture of the first
minute and from the previous sample with fixed thresholds. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

from bench.motion import MOVING, clips_of, footage
from lookout.video.health import (
    FIXED,
    LEARNED,
    CameraFault,
    CameraHealth,
    HealthEvent,
    Looks,
    Observation,
    Thresholds,
    advance,
    look_at,
    observe,
)
from lookout.video.health.looks import U8
from lookout.video.segments import CodecError, DecodedSegment, DecodeRequest, Limits
from lookout.video.segments.decoder import decode_segment
from watchbench import cameras, encode

SIZE: Final = 224
SAMPLES: Final = 4  # of a segment of two seconds
SEGMENT_S: Final = 2.0
RUNS: Final = 3  # of what is timed
NORMAL: Final = 480  # samples before the tampering, two minutes on each of two days
TAMPERED: Final = 240
KINDS: Final = ("room", "carpark", "doorway", "pole")
DAY_MS: Final = 86_400_000
NOON_MS: Final = 20_000 * DAY_MS + 12 * 3_600_000


# ---- tampering, on uint8 [n, height, width, 3] ----


def covered(frames: U8, rng: np.random.Generator) -> U8:
    """Something held before the lens."""
    colour = rng.uniform(40, 190) + rng.uniform(-15, 15, 3)
    shade = np.linspace(-1, 1, frames.shape[2])[None, :, None] * rng.uniform(2, 12)
    noise = rng.normal(0, 1.5, frames.shape[1:])
    return np.stack([_bytes(colour + shade + np.roll(noise, number, 1)) for number in range(len(frames))])


def sprayed(frames: U8, rng: np.random.Generator) -> U8:
    """Paint over half to four fifths of the lens."""
    field_ = rng.normal(size=(1, 1, 7, 7)).astype(np.float32)
    size = frames.shape[1:3]
    smooth = torch.nn.functional.interpolate(torch.from_numpy(field_), size, mode="bicubic")[0, 0].numpy()
    edge = np.quantile(smooth, rng.uniform(0.2, 0.5))
    opaque = np.clip((smooth - edge) * 4, 0, 1)[..., None]
    colour = rng.uniform(20, 200, 3)
    return np.stack([_bytes(frame * (1 - opaque) + colour * opaque) for frame in frames])


def defocused(frames: U8, rng: np.random.Generator) -> U8:
    """A lens out of focus: no detail below a fiftieth to a thirtieth of the picture."""
    cells = int(rng.integers(30, 50))
    return np.concatenate([_resized(part, cells) for part in np.array_split(frames, 8)])


def _resized(frames: U8, cells: int) -> U8:
    planes = torch.from_numpy(frames).permute(0, 3, 1, 2).float()
    small = torch.nn.functional.interpolate(planes, (cells, cells), mode="area")
    large = torch.nn.functional.interpolate(small, planes.shape[2:], mode="bicubic", align_corners=False)
    return large.clamp(0, 255).add(0.5).byte().permute(0, 2, 3, 1).numpy()


def turned(frames: U8, rng: np.random.Generator) -> U8:
    """Turned by two fifths to four fifths of its view; what comes into view mirrors what was there."""
    return _shifted(frames, rng.uniform(0.4, 0.8) * rng.choice([-1, 1]), rng.uniform(-0.1, 0.1), 0.0)


def knocked(frames: U8, rng: np.random.Generator) -> U8:
    """Knocked by a seventh to a quarter of its view, and tilted."""
    x, y = rng.uniform(0.14, 0.25, 2) * rng.choice([-1, 1], 2)
    return _shifted(frames, x, y, np.deg2rad(rng.uniform(3, 10)))


def _shifted(frames: U8, x: float, y: float, angle: float) -> U8:
    cos, sin = float(np.cos(angle)), float(np.sin(angle))
    theta = torch.tensor([[[cos, -sin, 2 * x], [sin, cos, 2 * y]]], dtype=torch.float32)
    size = (1, 3, *frames.shape[1:3])
    grid = torch.nn.functional.affine_grid(theta, list(size), align_corners=False)
    out = []
    for frame in frames:
        plane = torch.from_numpy(frame).permute(2, 0, 1)[None].float()
        moved = torch.nn.functional.grid_sample(plane, grid, padding_mode="reflection", align_corners=False)
        out.append(moved[0].add(0.5).byte().permute(1, 2, 0).numpy())
    return np.stack(out)


def frozen(frames: U8, rng: np.random.Generator) -> U8:
    """The first picture again and again; the encoder goes on."""
    return np.repeat(frames[:1], len(frames), axis=0)


TAMPERING: Final[dict[str, Callable[[U8, np.random.Generator], U8]]] = {
    "covered": covered,
    "sprayed": sprayed,
    "defocused": defocused,
    "turned": turned,
    "knocked": knocked,
    "frozen": frozen,
}
#: sensor noise that every rendered camera has at least, as the scripted ones do: a sensor without noise, in a
#: still scene, is the same frozen or not
NOISE: Final = 0.007
LOOP: Final = 83  # samples of the loop, no whole number of segments


def _bytes(values: np.ndarray[Any, Any]) -> U8:
    return np.clip(np.rint(values), 0, 255).astype(np.uint8)


# ---- streams of observations ----


def filmed(frames: U8) -> Iterator[tuple[Looks, int]]:
    """The segments of pictures that went through a codec: their looks and bytes."""
    with tempfile.TemporaryDirectory() as folder:
        path = encode.write(frames, Path(folder) / "film.ts", Fraction(2), encode.Encoding(gop_s=SEGMENT_S))
        data = path.read_bytes()
    pixels = decode_segment(
        data, DecodeRequest(SIZE, SIZE, vectors=False, limits=Limits(seconds=3600))
    ).pixels
    size = len(data) * SAMPLES // len(pixels)
    for begin in range(0, len(pixels) - SAMPLES + 1, SAMPLES):
        yield look_at(pixels[begin : begin + SAMPLES]), size


def observed(planes: Looks, at_ms: int, size: int = 20_000) -> Observation:
    """A segment of two seconds."""
    return Observation(at_ms, SEGMENT_S, planes, frames=len(planes.checksums), size=size)


@dataclass(slots=True)
class Detector:
    """One way to judge a stream."""

    thresholds: Thresholds
    health: CameraHealth = field(default_factory=CameraHealth)
    opened: list[HealthEvent] = field(default_factory=list)

    def take(self, seen: Observation) -> None:
        """Take a segment."""
        health, faults = observe(self.health, seen, self.thresholds)
        self.health, events = advance(health, faults, seen.end_ms, seen.seconds)
        self.opened += [event for event in events if event.kind == "opened"]

    def copy(self) -> Detector:
        """As it is now, without its incidents."""
        return Detector(self.thresholds, self.health)

    def causes(self) -> list[str]:
        """Of the incidents that opened."""
        return [event.incident.cause.value for event in self.opened]


@dataclass(slots=True)
class Simple:
    """Fixed thresholds on mean luma, its spread and mean differences, each for 30 s."""

    first: list[np.ndarray[Any, Any]] = field(default_factory=list)
    fault_s: int = 0
    alarm: bool = False
    opened: int = 0
    before: np.ndarray[Any, Any] | None = None

    def take(self, seen: Observation) -> None:
        """Take a segment."""
        luma = seen.planes.luma
        if len(self.first) < 30:
            self.first.append(luma.mean(axis=0))
            self.before = luma[-1]
            return
        usual, mean = np.mean(self.first, axis=0), luma.mean(axis=0)
        still = self.before is not None and np.abs(luma - self.before).mean() < 0.05
        self.before = luma[-1]
        fault = mean.mean() < 26 or mean.std() < 12 or np.abs(mean - usual).mean() > 30 or still
        self.fault_s = self.fault_s + 1 if fault else 0
        if self.fault_s >= 15 and not self.alarm:
            self.opened += 1
        self.alarm = self.fault_s >= 15

    def copy(self) -> Simple:
        """As it is now, without its alarms."""
        return replace(self, first=list(self.first), fault_s=0, alarm=False, opened=0)

    def causes(self) -> list[str]:
        """Of its alarms; it does not tell them apart."""
        return ["fault"] * self.opened


Way = Detector | Simple
RIGHT: Final = {
    "covered": {"covered", "dark"},
    "sprayed": {"covered"},
    "defocused": {"blurred"},
    "turned": {"moved", "covered"},
    "knocked": {"moved"},
    "frozen": {"frozen"},
    "looped": {"looped"},
}


def ways() -> dict[str, Way]:
    """Every way, at its beginning."""
    return {"learned": Detector(LEARNED), "fixed": Detector(FIXED), "simple": Simple()}


@dataclass(slots=True)
class Tally:
    """What one way found."""

    found: Counter[str] = field(default_factory=Counter)
    named: Counter[str] = field(default_factory=Counter)
    rendered_false: Counter[str] = field(default_factory=Counter)
    filmed_false: Counter[str] = field(default_factory=Counter)


def rendered(count: int, tallies: dict[str, Tally]) -> tuple[int, float]:
    """Tamper with rendered cameras; how many there were, and their hours without tampering."""
    for number in range(count):
        kind = KINDS[number % len(KINDS)]
        length = NORMAL + TAMPERED
        scene = cameras.random_camera(kind, 900 + number, length / 2)
        scene.look["noise"].clamp_(min=NOISE)
        frames = np.stack(list(cameras.frames(scene, length / 2, size=SIZE, fps=Fraction(2))))
        rng = np.random.default_rng(number)
        judges = ways()
        _play(judges, filmed(frames[: NORMAL // 2]), NOON_MS)
        _play(judges, filmed(frames[NORMAL // 2 : NORMAL]), NOON_MS + DAY_MS)
        begin_ms = NOON_MS + DAY_MS + round(NORMAL / 4 * 1000)
        _branch(judges, tallies, "", frames[NORMAL:], begin_ms)
        for name, tamper in TAMPERING.items():
            _branch(judges, tallies, name, tamper(frames[NORMAL:], rng), begin_ms)
        loop = frames[NORMAL - LOOP : NORMAL]
        _branch(judges, tallies, "looped", np.concatenate([loop] * 3)[:TAMPERED], begin_ms)
        print(
            f"{kind} {number}: { ({name: dict(tally.found) for name, tally in tallies.items()}) }", flush=True
        )
    return count, count * (NORMAL + TAMPERED) / 2 / 3600


def _play(judges: dict[str, Way], segments: Iterator[tuple[Looks, int]], begin_ms: int) -> None:
    for number, (planes, size) in enumerate(segments):
        for judge in judges.values():
            judge.take(observed(planes, begin_ms + round(number * SEGMENT_S * 1000), size))


def _branch(judges: dict[str, Way], tallies: dict[str, Tally], name: str, frames: U8, begin_ms: int) -> None:
    """Play what follows on copies of the judges; `name`: of the tampering, empty: none."""
    copies: dict[str, Way] = {way: judge.copy() for way, judge in judges.items()}
    _play(copies, filmed(frames), begin_ms)
    for way, judge in copies.items():
        causes = judge.causes()
        if not name:
            tallies[way].rendered_false.update([*causes, *judges[way].causes()])
        elif causes:
            tallies[way].found[name] += 1
            tallies[way].named[name] += bool(set(causes) & RIGHT[name])


def real(root: Path, tallies: dict[str, Tally]) -> tuple[list[str], float, float]:
    """Play real clips through two days; their names, their hours, and the share of CPU of the planes."""
    names, hours, looking, decoding = [], 0.0, 0.0, 0.0
    for path in clips_of(root):
        if path.stem in MOVING:
            continue
        try:
            decoded, decoded_s = _decoded(path.read_bytes())
        except CodecError:
            continue
        pixels = decoded.pixels
        if len(pixels) < 18 or min(decoded.facts.width, decoded.facts.height) < 100:
            continue
        decoding += decoded_s
        looking += min(_cost(pixels) for _ in range(RUNS))
        names.append(path.stem)
        hours += _days(pixels, tallies)
        counts = {name: dict(tally.filmed_false) for name, tally in tallies.items()}
        print(f"{path.stem}: {len(pixels)} samples, so far {counts}", flush=True)
    return names, hours, looking / decoding if decoding else 0.0


def _decoded(data: bytes) -> tuple[DecodedSegment, float]:
    """A clip, and the CPU seconds of decoding it."""
    request, times = DecodeRequest(SIZE, SIZE, vectors=False, limits=Limits(seconds=900)), []
    for _ in range(RUNS):
        begun = time.process_time()
        decoded = decode_segment(data, request)
        times.append(time.process_time() - begun)
    return decoded, min(times)


def _cost(pixels: U8) -> float:
    """CPU seconds of looking at a clip once, and of comparing it with what its camera usually shows.

    The camera is known and nothing is wrong with it. A clip that repeats would be a fault, so its segments
    come in another order each time, and each sample has noise of its own.
    """
    rng = np.random.default_rng(len(pixels))
    detector = Detector(LEARNED)
    begins = np.arange(0, len(pixels) - SAMPLES + 1, SAMPLES)

    def played() -> list[U8]:
        grained = [_bytes(sample + rng.normal(0, 1, sample.shape)) for sample in pixels]
        return [np.stack(grained[begin : begin + SAMPLES]) for begin in rng.permutation(begins)]

    number = 0
    while number < 90:  # comparing costs most once there is something to compare with
        for samples in played():
            detector.take(observed(look_at(samples), NOON_MS + number * 2000))
            number += 1
    segments = played()
    begun = time.process_time()
    for place, samples in enumerate(segments, number):
        detector.take(observed(look_at(samples), NOON_MS + place * 2000))
    return time.process_time() - begun


def _days(pixels: U8, tallies: dict[str, Tally]) -> float:
    """Play a clip over and over through two days of 24 hours of two minutes; their hours of stream."""
    rng = np.random.default_rng(len(pixels))
    noise = rng.normal(0, 1, (SIZE + 64, SIZE, 3)).astype(np.float32)
    judges, place, hour_segments = ways(), 0, 60
    for number in range(2 * 24 * hour_segments):
        hour, part = divmod(number, hour_segments)
        at_ms = 20_000 * DAY_MS + hour * 3_600_000 + round(part * SEGMENT_S * 1000)
        day = (hour + part / hour_segments) % 24
        light = 0.54 - 0.46 * np.cos(2 * np.pi * day / 24)  # 0.08 at midnight, 1 at noon
        samples = []
        for _ in range(SAMPLES):
            shift = int(rng.integers(64))
            grain = noise[shift : shift + SIZE] * (1.0 + 2.0 * (1 - light))
            samples.append(_bytes(pixels[place % len(pixels)] * np.float32(light) + grain))
            place += 1
        seen = observed(look_at(np.stack(samples)), at_ms)
        for judge in judges.values():
            judge.take(seen)
    for way, judge in judges.items():
        tallies[way].filmed_false.update(cause for cause in judge.causes() if cause != CameraFault.LOOPED)
    return 2 * 24 * hour_segments * SEGMENT_S / 3600


def figures(tally: Tally, count: int, hours: Sequence[float]) -> dict[str, Any]:
    """One way's line."""
    kinds = [*TAMPERING, "looped"]
    days = sum(hours) / 24
    false = tally.rendered_false.total() + tally.filmed_false.total()
    return {
        "recall": round(tally.found.total() / (count * len(kinds)), 3),
        "cause_right": round(tally.named.total() / max(1, tally.found.total()), 3),
        "recall_by_tampering": {kind: round(tally.found[kind] / count, 3) for kind in kinds},
        "false_alarms_camera_day": round(false / days, 2),
        "false_alarms": {"rendered": dict(tally.rendered_false), "real": dict(tally.filmed_false)},
    }


def main() -> int:
    """Run all of it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cameras", type=int, default=16, help="rendered cameras")
    given = parser.parse_args()
    torch.set_num_threads(1)
    tallies = {way: Tally() for way in ways()}
    count, rendered_hours = rendered(given.cameras, tallies)
    root = footage()
    names, hours, share = real(root, tallies) if root is not None else ([], 0.0, 0.0)
    lines = {way: figures(tally, count, (rendered_hours, hours)) for way, tally in tallies.items()}
    result = {
        "recall": lines["learned"]["recall"],
        "false_alarms_camera_day": lines["learned"]["false_alarms_camera_day"],
        "cpu_share": round(share, 4),
        "ways": lines,
        "rendered_cameras": count,
        "rendered_hours": round(rendered_hours, 2),
        "real_clips": names,
        "real_hours": round(hours, 2),
    }
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
