"""Measures F1 per question on unseen rendered cameras and, separately, on real clips. Both are asked as in
the product: encoded video, Lookout's decoder, two frames a second, windows of at most ten seconds.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tqdm import tqdm

from watchbench import hard, model as vlm, scenes
from watchbench.films import FRAMES, HELD_BACK, ask, decode, rendered_clips
from watchbench.questions import NAMES, PRODUCT, answers

STRIDE = 4
ASKED_AT = (0.35, 0.65, 0.9)  # shares of a rendered clip
ENDS = tuple(round(share * FRAMES) for share in ASKED_AT)
Spans = tuple[tuple[float, float], ...]
ALWAYS: Spans = ((0.0, 1e9),)
NEVER: Spans = ()


@dataclass(frozen=True, slots=True)
class Clip:
    """What is in view in a real clip, as spans in seconds; a question without an entry has no clear truth
    there."""

    path: str
    truth: dict[str, Spans]


def _clip(path: str, **truth: Spans) -> Clip:
    return Clip(path, {"many": NEVER} | truth)


# Labelled by hand for this project; none of the clips is used in training.
CLIPS: tuple[Clip, ...] = (
    _clip("fixed/gmdcsa_s1_fall13.mp4", person=ALWAYS, lying=((1.6, 4.4),), vehicle=NEVER, left=NEVER),
    _clip("derived/sim_night_noise_fall.mp4", person=ALWAYS, lying=((1.6, 4.4),), vehicle=NEVER, left=NEVER),
    _clip("fixed/gmdcsa_s2_fall12_night.mp4", person=ALWAYS, lying=((8.3, 13.0),), vehicle=NEVER, left=NEVER),
    _clip("fixed/gmdcsa_s3_fall01.mp4", person=ALWAYS, lying=((1.7, 4.0),), vehicle=NEVER, left=NEVER),
    _clip("fixed/gmdcsa_s3_fall16_night.mp4", person=ALWAYS, lying=((2.6, 7.0),), vehicle=NEVER, left=NEVER),
    _clip("fixed/gmdcsa_s1_adl10.mp4", person=ALWAYS, lying=NEVER, vehicle=NEVER, left=NEVER),
    _clip("fixed/gmdcsa_s2_adl23_night.mp4", person=ALWAYS, lying=NEVER, vehicle=NEVER, left=NEVER),
    _clip("fixed/gmdcsa_s3_adl20_night.mp4", person=ALWAYS, lying=NEVER, vehicle=NEVER, left=NEVER),
    _clip("fixed/sam2_juggle.mp4", person=ALWAYS, lying=NEVER, vehicle=NEVER, left=NEVER),
    _clip("fixed/sam2_dog.mp4", person=ALWAYS, lying=NEVER, vehicle=NEVER, left=NEVER),
    _clip("fixed/intel_asl_again.mkv", person=ALWAYS, lying=NEVER, vehicle=NEVER, left=NEVER),
    _clip(
        "fixed/intel_car_topdown.mp4",
        person=NEVER,
        lying=NEVER,
        vehicle=((4.4, 8.9), (14.3, 19.2), (25.6, 28.0)),
        left=NEVER,
    ),
    _clip("moving/carnd_dashcam_highway.mp4", person=NEVER, lying=NEVER, vehicle=ALWAYS),
    _clip("fixed/dvrscan_issue53_brightness_change.avi", person=NEVER, lying=NEVER, left=NEVER),
    _clip("fixed/lightning_sky_hevc_1080p.mp4", person=NEVER, lying=NEVER, vehicle=NEVER, left=NEVER),
    _clip("fixed/axis_ceiling_1080p_signed.h264", person=NEVER, lying=NEVER, vehicle=NEVER, left=NEVER),
    _clip("fixed/intel_bottle_shelf.mp4", lying=NEVER, vehicle=NEVER),
)


FURTHER: tuple[str, ...] = (
    *("Subject 1/Fall/14.mp4", "Subject 1/Fall/15.mp4", "Subject 2/Fall/13.mp4", "Subject 2/Fall/14.mp4"),
    *("Subject 3/Fall/15.mp4", "Subject 3/Fall/19.mp4", "Subject 3/Fall/20.mp4", "Subject 1/ADL/16.mp4"),
    *("Subject 3/ADL/07.mp4", "Subject 3/ADL/15.mp4", "Subject 3/ADL/18.mp4", "Subject 3/ADL/19.mp4"),
)
"""Falls and activities of daily living in the data set GMDCSA24 (MIT). Nobody looked at these clips when
weights were chosen, and only the data set's Subject 4 is used in training."""


@dataclass(slots=True)
class Tally:
    """Counts of answers to one question, by answer and truth."""

    hit: int = 0
    miss: int = 0
    false: int = 0
    quiet: int = 0

    def add(self, said: bool, true: bool) -> None:
        """Count one answer."""
        if true:
            self.hit, self.miss = self.hit + said, self.miss + (not said)
        else:
            self.false, self.quiet = self.false + said, self.quiet + (not said)

    @property
    def f1(self) -> float | None:
        """The F1 score; None if no window was true."""
        if self.hit + self.miss == 0:
            return None
        return round(2 * self.hit / (2 * self.hit + self.miss + self.false), 3)


@dataclass(slots=True)
class Score:
    """Tallies by question."""

    tallies: dict[str, Tally] = field(default_factory=dict)

    def add(self, name: str, said: bool, true: bool) -> None:
        """Count one answer to a question."""
        self.tallies.setdefault(name, Tally()).add(said, true)

    def merge(self, other: Score) -> None:
        """Add the counts of another score."""
        for name, theirs in other.tallies.items():
            ours = self.tallies.setdefault(name, Tally())
            ours.hit, ours.miss = ours.hit + theirs.hit, ours.miss + theirs.miss
            ours.false, ours.quiet = ours.false + theirs.false, ours.quiet + theirs.quiet

    def f1(self) -> dict[str, float | None]:
        """F1 per question."""
        return {name: self.tallies[name].f1 for name in NAMES if name in self.tallies}

    def table(self) -> str:
        """Format a table by question: F1, how many true windows were answered yes, and how many of the others
        no.
        """
        rows = [f"{'question':<14}{'F1':>7}{'found':>12}{'let be':>12}"]
        for name in (n for n in NAMES if n in self.tallies):
            t = self.tallies[name]
            f1 = "-" if t.f1 is None else f"{t.f1:.3f}"
            found, quiet = f"{t.hit}/{t.hit + t.miss}", f"{t.quiet}/{t.quiet + t.false}"
            rows.append(f"{name:<14}{f1:>7}{found:>12}{quiet:>12}")
        return "\n".join(rows)


def rendered(  # noqa: PLR0917
    model: Any,
    count: int,
    folder: Path,
    drop: bool = False,
    first: int = HELD_BACK,
    frames: int = FRAMES,
) -> Score:
    """Ask every question on unseen rendered cameras, in windows of a third, two thirds and nine tenths of
    ``frames``.

    ``drop`` prunes with the product's masks, five strides to ``frames``.
    """
    score = Score()
    for camera in by_camera(model, count, folder, drop, first, frames):
        score.merge(camera)
    return score


def by_camera(  # noqa: PLR0917
    model: Any,
    count: int,
    folder: Path,
    drop: bool = False,
    first: int = HELD_BACK,
    frames: int = FRAMES,
) -> list[Score]:
    """The scores of :func:`rendered` for each camera separately."""
    from watchbench.clips import product_masks

    scores = []
    for path, scene in tqdm(rendered_clips(count, folder, first, frames), total=count, desc="rendered"):
        score = Score()
        pixels, times = decode(path)
        pixels, times = pixels[:frames], times[:frames]
        ends = moments(frames, len(pixels), vlm.form_of(model).frames)
        keep = product_masks(pixels, frames // 5, vlm.form_of(model).frames) if drop else None
        said = ask(model, pixels, NAMES, ends, keep) > 0.5
        yes, known = answers(scenes.observe(scene, times).truth)
        for e, end in enumerate(ends):
            for q, name in enumerate(NAMES):
                if known[0, end, q]:
                    score.add(name, bool(said[e, q]), bool(yes[0, end, q]))
        scores.append(score)
    return scores


def real(
    model: Any, where: Path, clips: tuple[Clip, ...] = CLIPS
) -> tuple[Score, dict[str, dict[str, float]]]:
    """Ask the product's questions on real clips, in every window of at most ten seconds that ends with a
    stride of two.

    Returns the score and, per clip and question, the largest p(yes).
    """
    score, most = Score(), {}
    for clip in tqdm(clips, desc="real"):
        path = where / clip.path
        if not path.is_file():
            print(f"skipped: {clip.path} is not in {where}")
            continue
        pixels, times = decode(path)
        names = tuple(name for name in PRODUCT if name in clip.truth)
        peaks = dict.fromkeys(names, 0.0)
        for end in _ends(len(pixels)):
            begin = max(0, (end // STRIDE) * STRIDE + STRIDE - FRAMES)
            p = ask(model, pixels[begin : end + 1], names, (end - begin,))[0]
            for q, name in enumerate(names):
                peaks[name] = max(peaks[name], round(float(p[q]), 3))
                true = _truth(clip.truth[name], float(times[begin]), float(times[end]))
                if true is not None:
                    score.add(name, bool(p[q] > 0.5), true)
        most[clip.path] = peaks
    return score, most


def falls(model: Any, folder: Path) -> dict[str, Any]:
    """Ask whether anyone is lying on the ground in :data:`FURTHER`.

    Args:
        model: The model.
        folder: A clone of the repository of GMDCSA24.

    Returns:
        How many clips show a fall, and in how many of these some window's p(yes) is above 0.5; the same for
        the other clips; and the largest p(yes) of each clip.
    """
    most: dict[str, float] = {}
    for path in tqdm(FURTHER, desc="falls"):
        pixels, _ = decode(folder / path)
        asked = []
        for end in _ends(len(pixels)):
            begin = max(0, (end // STRIDE) * STRIDE + STRIDE - FRAMES)
            asked.append(float(ask(model, pixels[begin : end + 1], ("lying",), (end - begin,))[0, 0]))
        most[path] = round(max(asked), 3)

    def said(name: str) -> dict[str, int]:
        peaks = [peak for path, peak in most.items() if f"/{name}/" in path]
        return {"clips": len(peaks), "answered yes": sum(peak > 0.5 for peak in peaks)}

    return {"falls": said("Fall"), "no falls": said("ADL"), "largest p(yes)": most}


def _ends(count: int) -> list[int]:
    """The last frame of every window: the end of each whole stride, and of the rest."""
    ends = list(range(STRIDE - 1, count, STRIDE))
    return ends if ends and ends[-1] == count - 1 else [*ends, *([count - 1] if count > 1 else [])]


def _truth(spans: Spans, begin: float, end: float) -> bool | None:
    """Whether a window shows what the spans say; None within half a second of a span's border."""
    shared = max((min(end, b) - max(begin, a) for a, b in spans), default=-9.0)
    if shared >= min(0.5, end - begin):
        return True
    return False if shared < -0.5 else None


def moments(frames: int, count: int, together: int = 1) -> tuple[int, ...]:
    """Return the frames after which a clip is asked, as far as the clip has them, since lost packets shorten
    a film. Each is the last of ``together`` frames that the model encodes as one.
    """
    asked_at = (round(share * frames) // together * together + together - 1 for share in ASKED_AT)
    return tuple(end for end in asked_at if end < count)


@dataclass(frozen=True, slots=True)
class Gain:
    """Mean F1 of the product's questions for two models on the same cameras.

    Attributes:
        before: F1 of the first model.
        after: F1 of the second model.
        interval: 95 % interval of the difference over cameras (bootstrap).
        by_question: The difference of each question's F1.
    """

    before: float
    after: float
    interval: tuple[float, float]
    by_question: dict[str, float | None]


def gains(before: list[Score], after: list[Score], rounds: int = 2000) -> Gain:
    """Measure the gain of a second model from its and the first model's scores of the same cameras, in the
    same order."""
    tables = [
        np.array([[_counts(camera, name) for name in NAMES] for camera in cameras])
        for cameras in (before, after)
    ]

    def mean(table: NDArray[np.int64]) -> float:
        f1 = [Tally(*table[NAMES.index(name)].tolist()).f1 for name in PRODUCT]
        return float(np.mean([value for value in f1 if value is not None]))

    draws = np.random.default_rng(0).integers(0, len(before), (rounds, len(before)))
    apart = [mean(tables[1][rows].sum(0)) - mean(tables[0][rows].sum(0)) for rows in draws]
    totals = [table.sum(0) for table in tables]
    low, high = np.quantile(apart, (0.025, 0.975))
    by_question = {}
    for number, name in enumerate(NAMES):
        one, other = (Tally(*total[number].tolist()).f1 for total in totals)
        by_question[name] = None if one is None or other is None else round(other - one, 3)
    means = [round(mean(total), 4) for total in totals]
    return Gain(means[0], means[1], (round(float(low), 4), round(float(high), 4)), by_question)


def _counts(score: Score, name: str) -> tuple[int, int, int, int]:
    t = score.tallies.get(name, Tally())
    return t.hit, t.miss, t.false, t.quiet


def beside(  # noqa: PLR0917
    folder: Path, before: Path, after: Path, count: int, first: int = HELD_BACK, frames: int = FRAMES
) -> dict[str, Gain]:
    """Compare two checkpoints on the same rendered cameras, whole and pruned as in :func:`rendered`."""
    models = [vlm.load(weights) for weights in (before, after)]
    out = {}
    for name, drop in (("whole", False), ("pruned", True)):
        one, other = (by_camera(model, count, folder, drop, first, frames) for model in models)
        out[name] = gains(one, other)
    return out


def report(  # noqa: PLR0917
    folder: Path,
    weights: Path,
    count: int,
    where: Path | None,
    first: int = HELD_BACK,
    frames: int = FRAMES,
) -> dict[str, dict[str, float | None]]:
    """Print the tables, and return the object that the last line prints."""
    model = vlm.load(weights)
    shown = rendered(model, count, folder, first=first, frames=frames)
    print(f"\nrendered cameras, {count} clips, every token\n{shown.table()}")
    pruned = rendered(model, count, folder, drop=True, first=first, frames=frames)
    print(f"\nrendered cameras, static tokens dropped\n{pruned.table()}")
    seen: dict[str, float | None] = {}
    if where is None:
        print("\nreal clips: skipped, there is no footage (set LOOKOUT_FOOTAGE)")
    else:
        score, most = real(model, where)
        seen = score.f1()
        print(f"\nreal clips\n{score.table()}\n\nlargest p(yes) per clip")
        for path, peaks in most.items():
            print(f"  {path:<48}", "  ".join(f"{name} {p:.2f}" for name, p in peaks.items()))
    return {"rendered": shown.f1(), "pruned": pruned.f1(), "real": seen}


def _weights(name: str) -> Path:
    """Return a checkpoint folder, or committed weights by name."""
    path = Path(name)
    return path if path.is_dir() else vlm.weights(name)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description="F1 per question on unseen rendered cameras and on real clips.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument(
        "--weights", default="tolerant", help="name of committed weights, or a checkpoint folder"
    )
    parser.add_argument("--clips", type=int, default=120, help="rendered cameras")
    parser.add_argument("--first", type=int, default=HELD_BACK, help="seed of the first of them")
    parser.add_argument(
        "--folder", type=Path, default=Path("out/sight"), help="where rendered cameras are kept"
    )
    parser.add_argument(
        "--frames", type=int, default=FRAMES, help="frames of a rendered clip; 80: windows of 40 s"
    )
    parser.add_argument(
        "--against", default=None, help="other weights to compare --weights with on the same rendered cameras"
    )
    parser.add_argument(
        "--harmless",
        type=int,
        default=0,
        metavar="N",
        help="instead, measure false positives on N films that resemble a fall",
    )
    parser.add_argument(
        "--falls", type=Path, metavar="FOLDER", help="instead, ask about falls in a clone of GMDCSA24"
    )
    parser.add_argument("--threads", type=int, default=1)
    return parser


def main() -> None:
    """Entry point of ``python -m watchbench.sight``; the last line is JSON."""
    from watchbench.footage import folder

    parser = _parser()
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.falls is not None and not (options.falls / FURTHER[0]).is_file():
        parser.error(f"--falls: {options.falls} is not a clone of GMDCSA24: it has no {FURTHER[0]}")
    try:
        weights, others = (name and _weights(name) for name in (options.weights, options.against))
    except FileNotFoundError as error:
        parser.error(str(error))
    if options.falls is not None:
        found = {Path(options.weights).name: falls(vlm.load(weights), options.falls)}
        if options.against is not None:
            found[Path(options.against).name] = falls(vlm.load(others), options.falls)
        print(json.dumps(found))
        return
    if options.harmless:
        watched = (options.harmless, options.folder, options.first, options.frames)
        print(json.dumps(hard.report(vlm.load(weights), *watched)))
        return
    if options.against is not None:
        told = (options.folder, others, weights, options.clips, options.first)
        print(json.dumps({name: asdict(gain) for name, gain in beside(*told, options.frames).items()}))
        return
    given = (options.folder, weights, options.clips, folder(), options.first, options.frames)
    print(json.dumps(report(*given)))


if __name__ == "__main__":
    main()
