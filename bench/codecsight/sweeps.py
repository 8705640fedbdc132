"""One setting varied, the others kept: strides, thresholds, groups of pictures, overhead, similar patches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, Final, TypeVar

import numpy as np

from bench.answered import Setting, apart_of, default, over_period
from bench.codecsight.policies import KEYFRAMES, PAPER, WHOLE, corner_mask, masks_of
from bench.codecsight.scores import Answers, Counts, by_video, rounded
from bench.codecsight.streams import (
    Camera,
    Outcome,
    Workplace,
    camera,
    encoded,
    encodings,
    judged,
    outcome,
    truth_of,
)
from bench.codecsight.table import LEARNT, summed
from lookout.models.windows import Policy
from lookout.pruning import MaskPolicy, PrunePolicy
from watchbench import encode

STRIDES: Final = {"10 %": 8, "20 %": 16, "50 %": 40, "100 %": 80}  # frames of a stride, of windows of 80
TAUS: Final = (0.25, 0.5, 1.0, 2.0, 5.0)  # pixels
LUMAS: Final = (3.0, 6.0, 12.0, 24.0, 48.0)  # grey levels
GOPS: Final = (4, 8, 16)  # samples at two a second
EVERY_TOKEN: Final = masks_of(KEYFRAMES, 1.0)
REFRESH: Final = Setting(Policy.REFRESH)

Row = dict[str, Any]
N = TypeVar("N", int, float)


def _some(values: Sequence[N], sparse: bool) -> Sequence[N]:
    """All of them, or the first and the last."""
    return (values[0], values[-1]) if sparse else values


def video_f1(cameras: Sequence[Sequence[Answers]]) -> float | None:
    """F1 of all learnt questions by the paper's rule."""
    counts = summed([[by_video(answers) for answers in camera] for camera in cameras])
    return rounded(sum((counts[n] for n in LEARNT), Counts()).f1)


def flops(outcomes: Iterable[Outcome]) -> float:
    """Mean FLOPs of a window over cameras, key windows counted in; questions apart."""
    told = [one.answered for one in outcomes]
    # Strides as long as a window give key windows alone.
    return float(np.mean([over_period(a.flops, a.key) if not a.key.all() else a.flops.mean() for a in told]))


def shown_cameras(count: int, place: Workplace) -> Iterator[Camera]:
    """The first cameras, until the time is up."""
    for number in range(count):
        if place.late:
            return
        yield camera(number, place)


def strides(count: int, place: Workplace, sparse: bool = False) -> dict[str, Row]:
    """Figure 16: strides of 10 to 100 % of a window of 80 frames, by the default and computed whole."""
    rows: dict[str, Row] = {}
    for name, frames in ({"10 %": 8, "20 %": 16} if sparse else STRIDES).items():
        cut = replace(place.cut, frames=frames, blocks=80 // frames, shortest=1)
        here = replace(place, cut=cut)
        found: dict[str, list[Outcome]] = {"default": [], "full": []}
        truths = []
        for shown in shown_cameras(count, here):
            ways = {"default": (PrunePolicy(), default()), "full": (PrunePolicy(everything=True), WHOLE)}
            for way, (masks, setting) in ways.items():
                key = f"{shown.name}, stride {frames}, {way}"
                found[way].append(_outcome(key, shown, masks, setting, here))
            truths.append(truth_of(shown, here))
        if truths:
            rows[name] = {
                f"{way}: F1": video_f1(
                    [judged(o.answered.p, t) for o, t in zip(outcomes, truths, strict=True)]
                )
                for way, outcomes in found.items()
            } | {"cameras": len(truths), "FLOPs": flops(found["default"])}
    return _beside(rows, "20 %")


def thresholds(count: int, place: Workplace, sparse: bool = False) -> dict[str, Row]:
    """Figure 17: the threshold of motion vectors, windows refreshed by anchors (the paper), and that of luma,
    windows as the default has them."""
    kinds: dict[str, tuple[MaskPolicy, Setting]] = {
        f"vectors {tau:g} px": (replace(PAPER, tau=tau), REFRESH) for tau in _some(TAUS, sparse)
    }
    kinds |= {f"luma {tau:g}": (PrunePolicy(luma_tau=tau), default()) for tau in _some(LUMAS, sparse)}
    return _beside(_compared(kinds, count, place), "vectors 0.25 px")


def groups_of_pictures(count: int, place: Workplace, sparse: bool = False) -> dict[str, Row]:
    """Figure 18: the same pictures with a keyframe every 4, 8 and 16 samples.

    Refresh alone (every token kept, anchors at keyframes) and with the paper's masks, each with the right
    attention mask and with one aligned to the corner; `dp` against whole windows under the same masks.
    """
    rows: dict[str, Row] = {}
    kinds = {"every token": EVERY_TOKEN, "paper": PAPER}
    for number in range(count):
        if not place.late:
            encodings(number, place, [_with_gop(gop) for gop in _some(GOPS, sparse)])
    for name, masks in kinds.items():
        for gop in _some(GOPS, sparse):
            cameras = []
            for number in range(count):
                if place.late:
                    break
                cameras.append(camera(number, place, _with_gop(gop)))
            truths = [truth_of(shown, place) for shown in cameras]
            right, wrong, whole = (
                [
                    _outcome(
                        f"{shown.name}, gop {name}, {told}",
                        shown,
                        masks,
                        setting,
                        place,
                        faulty=told == "corner",
                    )
                    for shown in cameras
                ]
                for told, setting in (("right", REFRESH), ("corner", REFRESH), ("whole", WHOLE))
            )
            if not cameras:
                continue

            def f1(outcomes: Sequence[Outcome]) -> float | None:
                return video_f1([judged(o.answered.p, t) for o, t in zip(outcomes, truths, strict=True)])  # noqa: B023

            exact = [one.answered for one in whole]
            rows[f"{name}, GOP {gop}"] = {
                "F1": f1(right),
                "dp": round(float(apart_of([o.answered for o in right], exact).mean()), 5),
                "corner mask: F1": f1(wrong),
                "corner mask: dp": round(float(apart_of([o.answered for o in wrong], exact).mean()), 5),
                "whole: F1": f1(whole),
                "cameras": len(cameras),
                "FLOPs": flops(right),
            }
    return _beside(rows, "every token, GOP 16")


def _with_gop(samples: int) -> encode.Encoding:
    return encode.Encoding(gop_s=samples / 2, crf=28)


def _compared(
    kinds: Mapping[str, tuple[MaskPolicy, Setting]], count: int, place: Workplace
) -> dict[str, Row]:
    """Some rules of masks on the same cameras: F1 by the paper's rule, tokens kept, FLOPs."""
    rows: dict[str, Row] = {}
    for name, (masks, setting) in kinds.items():
        found, truths = [], []
        for shown in shown_cameras(count, place):
            found.append(_outcome(f"{shown.name}, {name}", shown, masks, setting, place))
            truths.append(truth_of(shown, place))
        if found:
            rows[name] = {
                "F1": video_f1([judged(o.answered.p, t) for o, t in zip(found, truths, strict=True)]),
                "tokens kept": round(float(np.mean([one.kept for one in found])), 4),
                "cameras": len(found),
                "FLOPs": flops(found),
            }
    return rows


def _outcome(
    key: str, shown: Camera, masks: MaskPolicy, setting: Setting, place: Workplace, *, faulty: bool = False
) -> Outcome:
    blocks = () if key in place.results else encoded(shown, masks, place)
    with corner_mask() if faulty else nullcontext():
        return outcome(key, blocks, setting, place)


def _beside(rows: dict[str, Row], base: str) -> dict[str, Row]:
    """FLOPs as multiples of one row's."""
    if base not in rows:
        return {}
    unit = rows[base]["FLOPs"]
    return {name: row | {"FLOPs": round(row["FLOPs"] / unit, 3)} for name, row in rows.items()}
