"""The default's rule of rows beside others at about its FLOPs, paired by camera.

Windows of 20 and of 80 frames, rendered cameras and real clips, the default's masks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from bench.answered import Cut, Setting, apart_of, chains, default, interval, over_period
from bench.codecsight.policies import MEASURES, PRUNED, WHOLE
from bench.codecsight.streams import Outcome, Workplace, camera, film, outcome
from bench.motion import MOVING, clips_of
from bench.row_policies import CACHEBLEND, RANDOM_K, VLCACHE
from lookout.models.windows import Policy, StrideBlock
from lookout.pruning import PrunePolicy
from lookout.video.segments import CodecError

WHOLE_WINDOWS: Final = MEASURES[PRUNED]
CUTS: Final = {"20 frames": Cut(4, 100, 10), "80 frames": Cut(16, 100, 1)}
#: frames of budget: the default's FLOPs lie near the first or between the two
BUDGETS: Final = {"20 frames": (2, 3), "80 frames": (8,)}
RULES: Final = {
    "20 frames": (Policy.FRONT, VLCACHE),
    "80 frames": (Policy.FRONT, VLCACHE, CACHEBLEND, RANDOM_K),
}


def ways(told: str) -> dict[str, Setting]:
    """Every rule by name; that of whole windows is the measure of |dp|."""
    rules = [(policy, budget) for budget in BUDGETS[told] for policy in RULES[told]]
    named = {f"{policy.value} {budget}": Setting(policy, budget) for policy, budget in rules}
    return {WHOLE_WINDOWS: WHOLE, "default": default(), **named}


def key_of(path: Path, told: str, name: str) -> str:
    """Where an answer is kept: with the bench's own windows, that of the policies on the same film."""
    return f"{path.stem}, {name}" if told == "80 frames" else f"{path.stem}, {told}, {name}"


def films(count: int, where: Path | None, place: Workplace) -> Iterator[tuple[str, Path]]:
    """Rendered cameras, then real clips of fixed cameras, each with its group."""
    for number in range(count):
        if not place.late or film(number, place).is_file():
            yield "rendered", camera(number, place).path
    for path in [] if where is None else clips_of(where):
        if path.stem not in MOVING:
            yield "real", path


def rules(count: int, where: Path | None, place: Workplace) -> dict[str, dict[str, Any]]:
    """By windows, group of cameras and rule: |dp| from whole windows under the same masks, FLOPs over the
    default's, and the default's |dp| less the rule's with its interval over cameras.

    Args:
        count: Rendered cameras.
        where: Folder of real clips, None where there are none.
        place: Engine, tower, and what is answered already.
    """
    out: dict[str, dict[str, Any]] = {}
    for told, cut in CUTS.items():
        here = replace(place, cut=cut)
        groups: dict[str, list[Mapping[str, Outcome]]] = {"rendered": [], "real": []}
        for group, path in films(count, where, here):
            if (found := _answers(told, path, here)) is not None:
                groups[group].append(found)
        groups["all"] = groups["rendered"] + groups["real"]
        for group, cameras in groups.items():
            if cameras:
                out |= {f"{told}, {group}: {name}": row for name, row in compared(cameras).items()}
    return out


def _answers(told: str, path: Path, place: Workplace) -> dict[str, Outcome] | None:
    """Every rule on one film; None where the time was up, or the film has no chain of windows."""
    names = {name: key_of(path, told, name) for name in ways(told)}
    short = key_of(path, told, "too short")
    missing = [key for key in names.values() if key not in place.results]
    if short in place.results or (missing and place.late):
        return None
    blocks: Sequence[StrideBlock] = ()
    if missing:
        try:
            blocks = next(iter(chains(path, place.tower, PrunePolicy(), place.cut)), ())
        except CodecError:
            blocks = ()
        # One window that continues the key window, at least.
        if len(blocks) <= place.cut.blocks:
            place.results.add(short, True)
            return None
    return {name: outcome(names[name], blocks, setting, place) for name, setting in ways(told).items()}


def compared(cameras: list[Mapping[str, Outcome]]) -> dict[str, dict[str, Any]]:
    """By rule, of one group of cameras."""

    def dp(name: str) -> NDArray[np.float64]:
        return apart_of(
            [one[name].answered for one in cameras], [one[WHOLE_WINDOWS].answered for one in cameras]
        )

    def cost(name: str) -> float:
        return float(
            np.mean([over_period(one[name].answered.flops, one[name].answered.key) for one in cameras])
        )

    rows: dict[str, dict[str, Any]] = {}
    for name in cameras[0]:
        if name == WHOLE_WINDOWS:
            continue
        less = dp("default") - dp(name)
        rows[name] = {
            "dp": round(float(dp(name).mean()), 5),
            "dp 95 %": interval(dp(name)),
            "FLOPs over the default's": round(cost(name) / cost("default"), 3),
            "default less it": round(float(less.mean()), 5),
            "default less it 95 %": interval(less),
            "cameras": len(cameras),
        }
        front = f"front {name.rpartition(' ')[2]}"
        if front in cameras[0]:
            # As many rows, so that FLOPs are the same but for what a rule spends on its choice.
            less = dp(front) - dp(name)
            rows[name] |= {
                "front less it": round(float(less.mean()), 5),
                "front less it 95 %": interval(less),
            }
    return rows
