"""The policies beside each other: F1 by three rules, |dp|, FLOPs, families and gates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from bench import windows as shapes
from bench.answered import Answered, apart_of, interval, over_period, shares
from bench.codecsight.policies import BEHIND, DENSE, MEASURES, WAYS
from bench.codecsight.scores import RULES, Answers, Counts, expired, interval_of, mean, rounded
from bench.codecsight.streams import Outcome
from lookout.models.families import load_layout
from lookout.models.windows import DEFAULT_PRESET, PRESETS, Policy, WindowSettings
from tests.tiny_models import checkpoint
from watchbench.questions import PRODUCT, QUESTIONS

#: families of questions that need more than the newest frames; the others are controls
CONTEXTUAL: Final = ("order", "count", "novel", "return", "dwell", "static-only", "left-behind")
UNLEARNT: Final = ("slow", "return")  # families that no weights know; F1 over all cases is without them
SATURATED: Final = 0.005  # F1 by which a wrong mask must lose
LEARNT: Final = [n for n, question in enumerate(QUESTIONS) if question.family not in UNLEARNT]
PRODUCT_ROWS: Final = [n for n, question in enumerate(QUESTIONS) if question.name in PRODUCT]
CONTEXT_ROWS: Final = [
    n for n, q in enumerate(QUESTIONS) if q.family in CONTEXTUAL and q.family not in UNLEARNT
]

Judged = Mapping[str, Sequence[Sequence[Answers]]]
"""By policy, of every camera, its answers by question."""


def mean_f1(rows: Sequence[int], counts: Sequence[Counts]) -> float | None:
    """Mean F1 of some questions, of counts by question."""
    return mean([counts[row].f1 for row in rows])


def counted(cameras: Sequence[Sequence[Answers]], rule: str) -> list[list[Counts]]:
    """Of every camera, the counts by question under a rule of `RULES`."""
    return [[RULES[rule](answers) for answers in camera] for camera in cameras]


def summed(cameras: Sequence[Sequence[Counts]]) -> list[Counts]:
    """Counts by question over cameras."""
    return [sum(parts, Counts()) for parts in zip(*cameras, strict=True)]


def accuracy(judged: Judged) -> dict[str, dict[str, Any]]:
    """By policy: F1, precision and recall of all cases by each rule, and mean F1 of the product's and of the
    contextual questions by windows, with intervals over cameras."""
    out: dict[str, dict[str, Any]] = {}
    for name, cameras in judged.items():
        row: dict[str, Any] = {}
        for rule in RULES:
            total = sum((summed(counted(cameras, rule))[n] for n in LEARNT), Counts())
            row[f"{rule} F1"] = rounded(total.f1)
            row[f"{rule} precision"], row[f"{rule} recall"] = rounded(total.precision), rounded(total.recall)
        windows = counted(cameras, "window")
        for told, some in (("product", PRODUCT_ROWS), ("contextual", CONTEXT_ROWS)):
            row[told] = rounded(mean_f1(some, summed(windows)))
            row[f"{told} 95 %"] = interval_of(windows, lambda c, some=some: mean_f1(some, c))  # type: ignore[misc]
        left = sum((expired(answers) for camera in cameras for answers in camera), Counts())
        row["expired let be"] = rounded(left.quiet / max(1, left.quiet + left.false))
        out[name] = row
    return out


def families(judged: Judged) -> dict[str, dict[str, Any]]:
    """F1 by family and policy, by windows; a family in which a wrong mask does not lose is saturated."""
    names = list(dict.fromkeys(question.family for question in QUESTIONS))
    out: dict[str, dict[str, Any]] = {}
    for family in names:
        rows = [n for n, question in enumerate(QUESTIONS) if question.family == family]
        f1 = {name: mean_f1(rows, summed(counted(cameras, "window"))) for name, cameras in judged.items()}
        right, wrong = f1["prune only"], f1["wrong mask"]
        if right is None:
            gate = "no case"
        elif family in UNLEARNT:
            gate = "not learnt"
        else:
            gate = "open" if right - (wrong or 0.0) >= SATURATED else "saturated"
        out[family] = {"gate": gate} | {name: rounded(value, 3) for name, value in f1.items()}
    return out


def fidelity(cameras: Sequence[Mapping[str, Outcome]]) -> dict[str, dict[str, Any]]:
    """By policy: |dp| against whole windows under the same masks and against dense ones, FLOPs and tokens as
    shares of dense windows (questions apart, one key window in a period)."""

    def of(name: str) -> list[Answered]:
        return [camera[name].answered for camera in cameras]

    dense = of(MEASURES[DENSE])
    out: dict[str, dict[str, Any]] = {}
    for name, (kind, _) in WAYS.items():
        against = of(MEASURES.get(kind, name))
        dp, lost = apart_of(of(name), against), apart_of(of(name), dense)
        out[name] = {
            "dp": round(float(dp.mean()), 5),
            "dp 95 %": interval(dp),
            "dp against dense": round(float(lost.mean()), 5),
            "FLOPs of full": round(float(shares(of(name), dense).mean()), 4),
            "tower's FLOPs": round(float(np.mean([camera[name].tower for camera in cameras])), 4),
            "tokens kept": round(float(np.mean([camera[name].kept for camera in cameras])), 4),
        }
    return out


def default_less(
    judged: Judged, cameras: Sequence[Mapping[str, Outcome]], rounds: int = 2000
) -> dict[str, dict[str, Any]]:
    """By policy: what the default has more than it, with 95 % intervals over the same cameras.

    Mean F1 of contextual and of product questions by windows, F1 of all cases by the paper's rule, |dp| from
    whole windows under the same masks, and the FLOPs of a window of the policy over the default's.
    """
    draws = np.random.default_rng(0).integers(0, len(cameras), (rounds, len(cameras)))

    def scores(name: str) -> dict[str, tuple[float, NDArray[np.float64]]]:
        windows, videos = (
            np.array([[(c.hit, c.miss, c.false) for c in camera] for camera in counted(judged[name], rule)])
            for rule in ("window", "video")
        )
        out = {}
        for told, rows in (("contextual", CONTEXT_ROWS), ("product", PRODUCT_ROWS)):
            some = windows[:, rows]
            out[told] = (_mean_f1(some.sum(0)[None])[0], _mean_f1(some[draws].sum(1)))
        some = videos[:, LEARNT].sum(1, keepdims=True)
        out["video F1"] = (_mean_f1(some.sum(0)[None])[0], _mean_f1(some[draws].sum(1)))
        kind, _ = WAYS[name]
        against = MEASURES.get(kind, name)
        apart = apart_of([c[name].answered for c in cameras], [c[against].answered for c in cameras])
        out["dp"] = (float(apart.mean()), apart[draws].mean(1))
        return out

    found = {name: scores(name) for name in judged}
    cost = {name: np.mean([_cost(camera[name].answered) for camera in cameras]) for name in judged}
    out: dict[str, dict[str, Any]] = {}
    for name, own in found.items():
        if name == "default":
            continue
        row: dict[str, Any] = {"FLOPs over the default's": round(float(cost[name] / cost["default"]), 3)}
        for told, (value, drawn) in found["default"].items():
            apart = drawn - own[told][1]
            row[told] = round(value - own[told][0], 5)
            row[f"{told} 95 %"] = [round(float(x), 5) for x in np.nanquantile(apart, (0.025, 0.975))]
        out[name] = row
    return out


def _mean_f1(counts: NDArray[np.int64]) -> NDArray[np.float64]:
    """Mean F1 over questions, int [draws, questions, (hit, miss, false)]; questions without a case are left
    out."""
    hit, miss, false = (counts[..., part].astype(float) for part in range(3))
    total = 2 * hit + miss + false
    f1 = np.where(total > 0, 2 * hit / np.maximum(total, 1), np.nan)
    out: NDArray[np.float64] = np.nanmean(f1, axis=1)
    return out


def _cost(one: Answered) -> float:
    """FLOPs of a window, one key window in a period."""
    return over_period(one.flops, one.key)


BY_MOTION: Final = ("full", "codecsight", "default")
"""The policies of figure 14."""


def camera_rows(
    cameras: Sequence[Mapping[str, Outcome]], judged: Judged, motion: Sequence[float | None]
) -> list[dict[str, Any]]:
    """What figure 14 is made of, by camera.

    The mean length of its motion vectors in pixels, and by policy the share of tokens dropped, FLOPs as a
    share of full windows, and [hit, miss, false] by the paper's rule over all cases.
    """
    out = []
    for place, (camera, length) in enumerate(zip(cameras, motion, strict=True)):
        row: dict[str, Any] = {"vectors, px": length}
        for name in BY_MOTION:
            (counts,) = counted([judged[name][place]], "video")
            total = sum((counts[n] for n in LEARNT), Counts())
            cost = shares([camera[name].answered], [camera["full"].answered])
            row[name] = {
                "dropped": round(1 - camera[name].kept, 4),
                "FLOPs": round(float(cost.mean()), 4),
                "counts": [total.hit, total.miss, total.false],
            }
        out.append(row)
    return out


def thirds(cameras: Sequence[Mapping[str, Any]], rounds: int = 2000) -> dict[str, dict[str, Any]]:
    """Cameras (`camera_rows`) in three groups by the mean length of their motion vectors: tokens dropped,
    FLOPs of full windows, and F1 by the paper's rule, with 95 % intervals over the cameras of a group."""
    draw = np.random.default_rng(0)
    order = np.argsort([camera["vectors, px"] for camera in cameras], kind="stable")
    out: dict[str, dict[str, Any]] = {}
    for level, members in zip(("low", "middle", "high"), np.array_split(order, 3), strict=True):
        if not len(members):
            continue
        some = [cameras[i] for i in members]
        lengths = [camera["vectors, px"] for camera in some]
        row: dict[str, Any] = {"cameras": len(members), "vectors, px": [min(lengths), max(lengths)]}
        picks = draw.integers(0, len(members), (rounds, len(members)))
        counts = {name: np.array([[camera[name]["counts"]] for camera in some]) for name in BY_MOTION}
        drawn = {name: _mean_f1(told[picks].sum(1)) for name, told in counts.items()}
        for name in BY_MOTION:
            row[f"{name}: F1"] = round(float(_mean_f1(counts[name].sum(0)[None])[0]), 4)
            if name == "full":
                continue
            for told, key in (("dropped", "dropped"), ("FLOPs of full", "FLOPs")):
                row[f"{name}: {told}"] = round(float(np.mean([camera[name][key] for camera in some])), 4)
            edges = np.nanquantile(drawn[name] - drawn["full"], (0.025, 0.975))
            row[f"{name}: F1 less full 95 %"] = [round(float(x), 4) for x in edges]
        out[level] = row
    return out


INTERVALS: Final = (shapes.PERIOD // 2, shapes.PERIOD, 2 * shapes.PERIOD)
"""Strides from key window to key window: after one audit above its limit, as set, and set twice as long."""


def flops_saved(asked: Sequence[int] = (1, 5, 17)) -> dict[str, dict[str, float]]:
    """FLOPs that the presets save at full size (98 tokens a frame, a 7B and its tower).

    By motion level and number of questions; key windows and an audit at each of them are counted in, and so
    is what questions cost. Of the default also with the other `INTERVALS` between key windows.
    """
    out: dict[str, dict[str, float]] = {}
    for count in asked:
        row = {}
        for name, masks in ((DEFAULT_PRESET, "default"), ("faithful", "default"), ("codecsight", "keep")):
            for level, keep in shapes.levels(masks).items():
                cost = at_full_size(keep, PRESETS[name], count)
                row[f"{name}, {level}"] = cost.saved()
                if name == DEFAULT_PRESET:
                    # As many tokens, dropped behind a tower that encodes every frame whole.
                    behind = at_full_size(keep, PRESETS[name], count, encoded=[1.0])
                    row[f"{BEHIND}, {level}"] = behind.saved()
                    row |= {
                        f"{name}, {level}, key window in {period}": cost.saved(period)
                        for period in INTERVALS
                        if period != shapes.PERIOD
                    }
        out[f"{count} questions"] = row
    return out


@dataclass(frozen=True, slots=True)
class FullSize:
    """FLOPs at full size of one window and, of its newest stride, of the tower.

    Attributes:
        full: Of a whole window with every token, its tower included.
        language: Of a window that slides.
        whole: Of a key window.
        vision: Of the tower.
    """

    full: float
    language: float
    whole: float
    vision: float

    def saved(self, period: int = shapes.PERIOD) -> float:
        """Share of the FLOPs saved where one window in `period` is a key window."""
        # An audit answers every key window incrementally as well.
        spent = (period * self.language + self.whole) / period
        return round(1 - (spent + self.vision) / self.full, 4)


def at_full_size(
    keep: list[float], settings: WindowSettings, count: int = 1, encoded: list[float] | None = None
) -> FullSize:
    """What windows cost at full size.

    Args:
        keep: Share of the groups of each frame that windows have.
        settings: How windows are computed.
        count: Questions.
        encoded: What the tower encodes of each frame; None: what is kept.
    """
    layout = load_layout(checkpoint("internvl"))

    def size(shares: list[float], policy: Policy, base: WindowSettings) -> tuple[float, float]:
        told = replace(
            base, blocks=shapes.BLOCKS, key_every=shapes.PERIOD, samples=shapes.FRAMES, stride_s=8.0
        )
        return shapes.full_size(layout, shares, policy, told, 5, questions=[12] * count)

    full = sum(size([1.0], Policy.FULL, WindowSettings()))
    language, vision = size(keep, settings.policy, settings)
    whole, _ = size(keep, Policy.PRUNE_ONLY, settings)
    if encoded is not None:
        _, vision = size(encoded, settings.policy, settings)
    return FullSize(full, language, whole, vision)
