"""Figure 17 on real clips, `python -m bench.codecsight.coded`: the threshold of vectors in the paper's unit.

The threshold is in pixels of the coded picture. The bundled model answers the product's questions about the
labelled clips of fixed cameras that have vectors and last at most 31 s, in windows of 10 s that slide by 2 s,
under the paper's masks and refresh. `new content alone`: a threshold that no vector reaches, so that what
stays is anchors, intra blocks and samples without vectors. By clip: tokens kept at 448 pixels, where most
models look, their mean with 95 % over clips (`448 pixels`), and `new`: where samples have vectors, the share
of patches that are intra. `--quick`: three clips. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

from bench.codecsight.policies import PAPER
from bench.motion import GRID, LONG, SMALLEST, footage, samples_of, shares
from bench.workplace import print_tables
from lookout.models import TINY, window_defaults
from lookout.models.engines import load_engine
from lookout.models.families import load_tower
from lookout.models.windows import PRESETS
from lookout.pruning import GatherMethod, GatherSettings, MotionGather, PrunePolicy, keeping_everything
from lookout.video.segments import DecodeRequest, Limits
from lookout.video.segments.decoder import decode_segment
from watchbench.evaluation.choices import DEFAULT, FULL, Candidate, ClipRun, Comparison
from watchbench.evaluation.intervals import Drawn, edges
from watchbench.evaluation.labels import LabelledClip
from watchbench.questions import BY_NAME
from watchbench.sight import CLIPS

TAUS: Final = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)  # pixels of the coded picture
NEW: Final = "new content alone"
UNREACHED: Final = 1e6
LONGEST_S: Final = 31.0


def masks(tau: float) -> PrunePolicy:
    """The paper's, with a threshold in its unit."""
    return replace(PAPER, rule=GatherMethod.UNION_CODED, tau=tau)


def rules(sparse: bool = False) -> dict[str, PrunePolicy]:
    """The masks by name; the first is the paper's choice."""
    chosen = (TAUS[0], TAUS[-1]) if sparse else TAUS
    return {f"{tau:g} px": masks(tau) for tau in chosen} | {NEW: masks(UNREACHED)}


def coded(where: Path, sparse: bool = False) -> dict[str, dict[str, Any]]:
    """`thresholds`: by rule cost, tokens, F1, |dp| from every token, and what F1 differs; `clips`: tokens by
    rule."""
    clips: dict[str, dict[str, float]] = {}
    shown: list[LabelledClip] = []
    for clip in CLIPS[:3] if sparse else CLIPS:
        path = where / clip.path
        kept = tokens_kept(path, sparse) if path.is_file() and clip.path.startswith("fixed") else None
        if kept is not None:
            clips[path.stem] = kept
            shown.append(
                LabelledClip(path, {BY_NAME[name].text: truth for name, truth in clip.truth.items()})
            )
    if not shown:
        return {}
    questions = list(dict.fromkeys(text for clip in shown for text in clip.spans))
    refresh = PRESETS["codecsight"]
    found = {FULL: Candidate("", keeping_everything(PAPER), PRESETS["whole"])}
    for name, rule in rules(sparse).items():
        found[DEFAULT if len(found) == 1 else name] = Candidate("", rule, refresh)
    run = ClipRun(load_tower(TINY), load_engine(TINY), window_defaults(TINY), found, questions)
    for clip in shown:
        run.add(clip, list(clip.spans), recording=False)
    run.engine.close()
    by_f1 = Comparison(run.windows, DEFAULT, FULL, questions, True)
    by_dp = Comparison(run.windows, DEFAULT, FULL, questions, False)
    names = {DEFAULT: f"{TAUS[0]:g} px"}
    rows = {}
    for name in run.windows:
        right, near = by_f1.row(name), by_dp.row(name)
        rows[names.get(name, name)] = {
            "tokens kept": right["tokens kept"],
            "FLOPs": right["cost"],
            "F1": right["f1"],
            "F1 95 %": right["f1 95 %"],
            "F1 less the first's 95 %": right.get("better by 95 %"),
            "dp": near["dp"],
            "dp 95 %": near["dp 95 %"],
        }
    drawn = Drawn.of(len(clips))
    at_448 = {}
    for name in rules(sparse):
        shares_of = np.array([row[name] for row in clips.values()])
        mean = round(float(shares_of.mean()), 4)
        at_448[name] = {"tokens kept": mean, "tokens kept 95 %": edges(drawn.mean(shares_of))}
    return {"thresholds": rows, "448 pixels": at_448, "clips": clips}


def tokens_kept(path: Path, sparse: bool = False) -> dict[str, float] | None:
    """Tokens that a clip keeps under every rule at 448 pixels, and its share of new content; None without
    vectors to use."""
    rule = GatherMethod.UNION_CODED
    gather = MotionGather(GatherSettings(GRID.rows, GRID.cols, GRID.patch, rule))
    request = DecodeRequest(448, 448, gather=gather, limits=Limits(seconds=900))
    decoded = decode_segment(path.read_bytes(), request)
    samples = samples_of(decoded)
    grids = [sample.v for sample in samples if sample.v is not None]
    small = min(decoded.facts.width, decoded.facts.height) < SMALLEST
    if small or not grids or not LONG // 4 < len(samples) <= LONGEST_S * 2:
        return None
    row = {name: round(float(np.mean(shares(samples, rule))), 4) for name, rule in rules(sparse).items()}
    return {"new": round(float(np.mean([np.isinf(grid).mean() for grid in grids])), 4)} | row


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="three clips, two thresholds")
    options = parser.parse_args()
    torch.set_num_threads(1)
    where = footage()
    if where is None:
        raise SystemExit("no real footage: set LOOKOUT_FOOTAGE to its folder")
    tables = coded(where, options.quick)
    print_tables(tables)
    print(json.dumps({"tables": tables}))


if __name__ == "__main__":
    main()
