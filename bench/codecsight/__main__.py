"""CodecSight's accuracy, ablation and sensitivity with a small model: `make bench-codecsight`.

The trained tiny model answers all of its questions about rendered cameras that it never saw, in windows of 80
frames that slide by 16 (40 s and 8 s, as in the paper), with every policy of `bench.codecsight.policies`.
These cameras have less noise than those it was trained on, on which the codec's vectors keep every patch. F1
is computed by the paper's rule (a video is positive if two consecutive windows are), by event, and by window.

- `default`, `faithful`: the product's presets; `faithful` computes a fifth of the window's frames again.
- `front N`, `cacheblend`, `vlcache`, `random-k`: budgets of token-layers. The last three have the budget of
  `front 2`, and with an 8 that of `front 8`, which is about what the default spends including bursts. With
  two frames, `cacheblend` chooses no row, because comparing all rows in the first layer costs more than that.
- `evs`: as many tokens as the default, namely those least like the previous frame; windows are computed
  whole. `behind`: the default's tokens, taken from frames that the tower encoded whole. `evs of luma N`: as
  many, among those that the tower encodes with a fixed luma threshold. `luma by block`: as many in every
  block, those whose luma differs most from the previous frame, chosen before the tower. `random tokens`: as
  many, anywhere. `anchors alone`: none except those of anchors. `reused`: these tokens in the default's
  windows.
- `tower's FLOPs`: for the frames of a stride, relative to whole frames, at a full-size tower's shape.
- `deja-vu`: reuses the tower's outputs for static patches; the language model reads every frame whole.
- `wrong mask`: the default's masks rotated by half a turn, except for anchors. If the F1 of a family of
  questions falls by less than 0.005 under it, the family is named saturated. `refresh, corner mask`:
  codecsight with the attention mask of a kernel that aligns "causal" to the corner.
- `dp`: mean |difference of p(yes)| from whole windows under the same masks.
- `default less others`: F1 and `dp` of the default minus those of every other policy, paired by camera.
- `rules at equal FLOPs`: the default's choice of rows and others, each at about its FLOPs, in windows of 20
  and of 80 frames, on these cameras and on real clips; the default's |dp| minus theirs, paired by camera.
- `flops_saved`: at full size, with 1, 5 and 17 questions, including audits and key windows; for the default
  also with a key-window interval that is halved or doubled.

Figures 14, 16, 17 and 18 follow. Everything is stored under --keep, and an interrupted run continues. With
--minutes, the command begins nothing new after that time and reports the cameras that are complete. `--only`
chooses tables by name: `policies`, `rules` or figures; with only `flops`, nothing but FLOPs is computed,
which every run counts. Figure 14 needs only three policies; `per camera` has the data of its rows. `--quick`:
two short cameras, and only the ends of the sweeps. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from bench.codecsight import sweeps
from bench.codecsight.paper import beside_paper
from bench.codecsight.policies import REFERENCES
from bench.codecsight.rules import rules
from bench.codecsight.scores import Answers
from bench.codecsight.streams import (
    EVERY_POLICY,
    SECONDS,
    Camera,
    Outcome,
    Workplace,
    answered_cameras,
    judged,
    motion_of,
    truth_of,
)
from bench.codecsight.table import (
    BY_MOTION,
    accuracy,
    camera_rows,
    default_less,
    families,
    fidelity,
    flops_saved,
    thirds,
)
from bench.motion import footage

QUICK_SECONDS = 56.5  # of a film: three whole windows
PARTS = ("policies", "flops", "rules", "figure 14", "figure 16", "figure 17", "figure 18")


def judged_cameras(
    count: int, place: Workplace, names: Sequence[str]
) -> tuple[list[Camera], list[Mapping[str, Outcome]], dict[str, list[list[Answers]]]]:
    """The cameras that are complete, their outcomes, and by policy the answers of each by question."""
    shown, found, judgements = [], [], []
    bar = tqdm(answered_cameras(range(count), place, names), total=count, desc="cameras", disable=None)
    for camera, outcomes in bar:
        truth = truth_of(camera, place)
        shown.append(camera)
        found.append(outcomes)
        judgements.append({name: judged(one.answered.p, truth) for name, one in outcomes.items()})
    return shown, found, {name: [camera[name] for camera in judgements] for name in names}


def policies(count: int, place: Workplace) -> dict[str, Any]:
    """Every policy on the cameras that are complete."""
    _, cameras, by_policy = judged_cameras(count, place, EVERY_POLICY)
    if not cameras:
        return {"cameras": 0}
    for name in REFERENCES:
        by_policy.pop(name)
    f1, cost = accuracy(by_policy), fidelity(cameras)
    return {
        "cameras": len(cameras),
        "policies": {name: f1[name] | cost[name] for name in f1},
        "default less others": default_less(by_policy, cameras),
        "families": families(by_policy),
    }


def by_motion(count: int, place: Workplace) -> dict[str, Any]:
    """Figure 14: three policies alone, on the complete cameras whose codec exports vectors, and what its rows
    are made of."""
    shown, cameras, by_policy = judged_cameras(count, place, BY_MOTION)
    rows = camera_rows(cameras, by_policy, [motion_of(camera, place) for camera in shown])
    moving = {
        camera.name: row for camera, row in zip(shown, rows, strict=True) if row["vectors, px"] is not None
    }
    if not moving:
        return {"cameras": 0}
    return {"cameras": len(moving), "figure 14": thirds(list(moving.values())), "per camera": moving}


def report(found: dict[str, Any]) -> None:
    """Print the tables."""
    for title, rows in found.items():
        if not isinstance(rows, dict):
            continue
        print(f"\n{title}")
        for name, row in rows.items():
            cells = row.items() if isinstance(row, dict) else [("", row)]
            print(f"  {name:22}" + "  ".join(f"{key} {value}" for key, value in cells), flush=True)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cameras", type=int, default=16, help="rendered cameras")
    parser.add_argument("--sweep-cameras", type=int, default=6, help="of them, for figures 16 to 18")
    parser.add_argument("--minutes", type=float, default=1e6, help="begin nothing new after so long")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), help="some of the tables")
    parser.add_argument("--quick", action="store_true", help="two short cameras, few settings: does it run?")
    parser.add_argument("--fresh", action="store_true", help="forget earlier answers")
    parser.add_argument("--model", type=Path, default=None, help="another checkpoint folder")
    parser.add_argument("--keep", type=Path, default=Path("out/codecsight"), help="films and answers")
    options = parser.parse_args()
    torch.set_num_threads(1)
    cameras, swept, seconds = options.cameras, options.sweep_cameras, SECONDS
    if options.quick:
        cameras, swept, seconds = 2, 1, QUICK_SECONDS
    place = Workplace.at(
        options.keep, seconds, model=options.model, fresh=options.fresh, minutes=options.minutes
    )
    where = footage()
    parts: dict[str, Callable[[], dict[str, Any]]] = {
        "rules at equal FLOPs": lambda: rules(swept if options.quick else cameras, where, place),
        "figure 16": lambda: sweeps.strides(swept, place, options.quick),
        "figure 17": lambda: sweeps.thresholds(swept, place, options.quick),
        "figure 18": lambda: sweeps.groups_of_pictures(swept, place, options.quick),
    }
    found: dict[str, Any] = {"cameras": swept}
    for title, run in (("figure 14", by_motion), ("policies", policies)):
        if title in options.only:
            found |= run(cameras, place)
    for title, part in parts.items():
        if title in options.only or title.partition(" at ")[0] in options.only:
            found[title] = part()
    found["flops_saved"] = flops_saved()
    place.engine.close()
    report(found)
    told = found.get("policies", {})
    line = {
        "f1": {name: row["video F1"] for name, row in told.items()},
        "dp80": told["default"]["dp"] if told else None,
        "flops_saved": found.pop("flops_saved"),
        "cameras": found.pop("cameras"),
    }
    if rows := found.pop("per camera", None):
        line["per camera"] = rows
    print(json.dumps(line | {"tables": {"beside the paper": beside_paper(found, line)} | found}))


if __name__ == "__main__":
    main()
