"""CodecSight's accuracy, ablation and sensitivity, with a small model: `make bench-codecsight`.

The trained tiny model answers all of its questions on rendered cameras that it never saw, in windows of 80
frames that slide by 16 (40 s and 8 s, as in the paper), by every policy of `bench.codecsight.policies`. They
are less noisy than those it learnt from, where the codec's vectors keep every patch. F1 counts by the paper's
rule (a video is positive where two consecutive windows are), by event, and by window.

- `default`, `faithful`: the product's presets; the second computes a fifth of the window's frames again.
- `front N`, `cacheblend`, `vlcache`, `random-k`: budgets of token-layers; the last three that of `front 2`,
  and with an 8 that of `front 8`, which is about what the default spends with its bursts. With two frames
  `cacheblend` chooses no row: comparing all rows in the first layer costs more than that.
- `evs` keeps as many tokens as the default, those least like the frame before; windows are whole. `behind`:
  the default's tokens, of frames that the tower encoded whole. `evs of luma N`: as many of those that the
  tower encodes under a fixed threshold of luma. `luma by block`: as many in every block, those whose luma
  differs most from the frame before, chosen before the tower. `random tokens`: as many, anywhere; `anchors
  alone`: none behind anchors. `reused`: these tokens in the default's windows.
- `tower's FLOPs`: of the frames of a stride, against whole frames, at a full-size tower's shape.
- `deja-vu` reuses the tower's outputs of static patches; the language model reads every frame whole.
- `wrong mask`: the default's masks turned by half a turn behind anchors. A family of questions whose F1 falls
  by less than .005 under it is named saturated. `refresh, corner mask`: codecsight with the attention mask of
  a kernel that aligns "causal" to the corner.
- `dp`: mean |difference of p(yes)| from whole windows under the same masks.
- `default less others`: F1 and `dp` of the default less those of every policy, paired by camera.
- `rules at equal FLOPs`: the default's choice of rows beside others at about its FLOPs, in windows of 20 and
  of 80 frames, on these cameras and on real clips; the default's |dp| less theirs, paired by camera.
- `flops_saved`: at full size, with 1, 5 and 17 questions, audits and key windows counted in; of the default
  also where the interval between key windows was halved, or is set twice as long.

Then figures 14, 16, 17 and 18. Everything is kept under --keep, and the command continues where it was
stopped: with --minutes it begins nothing new after so long, and reports the cameras that are complete.
`--only` chooses tables: `policies`, `rules` or figures, by name; `flops` alone: FLOPs, which every run
counts. Figure 14 needs three policies, not all; `per camera` has what its rows are made of.
`--quick`: two short cameras, and the ends of the sweeps alone. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from bench.answered import Cut
from bench.codecsight import sweeps
from bench.codecsight.paper import beside_paper
from bench.codecsight.policies import REFERENCES
from bench.codecsight.rules import rules
from bench.codecsight.scores import Answers
from bench.codecsight.streams import (
    EVERY_POLICY,
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
from bench.results import Results
from lookout.models import find_model
from lookout.models.digest import folder_digest
from lookout.models.engines import load_engine
from lookout.models.families import load_tower

SECONDS, QUICK_SECONDS = 80.5, 56.5  # of a film: six and three whole windows
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
    model = options.model or find_model()
    results = Results(options.keep / f"answers-{folder_digest(model)[:12]}.jsonl", fresh=options.fresh)
    place = Workplace(
        load_tower(model),
        load_engine(model),
        results,
        options.keep / "films",
        Cut(16, 100, 1),
        seconds,
        time.monotonic() + 60 * options.minutes,
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
