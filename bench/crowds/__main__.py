"""Does a crowd need more of the tower? Masks that keep more where many move, at equal cost beside simple
ways to keep as much: `make bench-crowds`.

"Are five or more people in view" is lost under the default's masks in windows of 80 frames. Rules that keep
more are compared on rendered cameras, every second of which shows a crowd (drawn at the two pictures a second
that are sampled), in windows of 80 frames and of 20, and on real clips of fixed cameras:

- `busy frames S`: frames of which the default keeps a share S or more are whole. `many moving N`: those in
  which N separate regions changed. `busy blocks S N`: once a share S of the picture has changed since the
  anchor, every Nth frame is whole. `surroundings S`: busy frames keep the neighbours of what they keep.
  `since the anchor`: what changed stays kept until the next anchor.
- At equal cost, as many tokens over all cameras of a group as the chosen rule has: `anywhere` (random-k),
  `floor` (at least so many groups of every frame, those that differ most from the frame before),
  `even frames` (whole frames between anchors, at even distances), `lower threshold` (of luma).
- `one more whole frame`: in the middle of every block, so an anchor every 4 s or every second.
- `behind`: the default's tokens of frames that the tower encoded whole. `full`: every token, computed whole.

`--choose` compares the rules on cameras that are not reported; CHOSEN is the one of most F1 of product
questions among those with at most MOST times the default's tokens. All but `full` are computed as the default
computes windows; `dp` is that from whole windows under the same masks. F1 is by windows, intervals are 95 %
over cameras (bootstrap). Real clips have no truth here: `from dense` is the mean |difference of p(yes)| from
full windows. `at full size`: FLOPs of a 7B's windows of 80 frames that are saved, as in the README. All
answers are kept under --keep, and a run continues where it was stopped. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from bench import motion
from bench.codecsight.streams import Workplace
from bench.crowds.compare import (
    CUTS,
    SIMPLE,
    Clip,
    RuleOutcomes,
    at_cost,
    at_full_size,
    comparison,
    dp_of_reuse,
    film_clips,
    group_outcomes,
    print_tables,
    real_clips,
    truth,
    workplace,
)
from bench.crowds.films import CHOOSING, REPORTED
from bench.crowds.masks import (
    ONE_A_STRIDE,
    BusyBlocks,
    BusyFrames,
    EvenFrames,
    ManyMoving,
    Surroundings,
)
from lookout.pruning import Accumulation, MaskPolicy

CHOSEN: Final = "since the anchor"
MORE: Final = "one more whole frame"
KINDS: Final[dict[str, MaskPolicy]] = {
    "default": ONE_A_STRIDE,
    **{f"busy frames {share:g}": BusyFrames(share) for share in (0.125, 0.25, 0.5)},
    **{f"many moving {regions}": ManyMoving(regions) for regions in (2, 3, 4)},
    **{
        f"busy blocks {share:g} {every}": BusyBlocks(share, every)
        for share, every in ((0.25, 4), (0.5, 4), (0.5, 2))
    },
    "surroundings 0.125": Surroundings(0.125),
    "since the anchor": replace(ONE_A_STRIDE, accumulation=Accumulation.SINCE_ANCHOR),
}
REPORTED_KINDS: Final = {name: KINDS[name] for name in ("default", CHOSEN)} | {MORE: EvenFrames(1.0)}
MOST = 3.0


def group(
    name: str, clips: Sequence[Clip], place: Workplace, *, choose: bool
) -> tuple[list[RuleOutcomes], dict[str, dict[str, Any]]]:
    """All that is compared on one group of cameras, and its table."""
    kinds = dict(KINDS if choose else REPORTED_KINDS)
    if not choose:
        kinds |= {simple: at_cost(simple, clips, name, (CHOSEN, KINDS[CHOSEN]), place) for simple in SIMPLE}
    whole = [kind for kind in ("default", CHOSEN) if kind in kinds]
    against = "default" if choose else CHOSEN
    return group_outcomes(name, clips, kinds, place, whole=whole, against=against)


def against_default(
    found: Sequence[RuleOutcomes], clips: Sequence[Clip], place: Workplace
) -> dict[str, dict[str, Any]]:
    """What the default has more than each of them, of what F1 and distance the tables before have."""
    rows = comparison(found, [truth(clip, place)[0] for clip in clips], "default")
    return {
        name: {key: value for key, value in row.items() if "default" in key or "95" in key}
        for name, row in rows.items()
    }


def best(rows: Mapping[str, Mapping[str, Any]]) -> str:
    """The rule of most F1 of product questions among those within `MOST` times the default's tokens."""
    bound = MOST * rows["default"]["tokens kept"]
    fit = [name for name in KINDS if name != "default" and rows[name]["tokens kept"] <= bound]
    return max(fit, key=lambda name: float(rows[name]["product"]), default="default")


def tables_of(options: argparse.Namespace, where: Path | None, place: Workplace) -> dict[str, Any]:
    """Every table by its title."""
    first = CHOOSING if options.choose else REPORTED
    clips = list(film_clips(first, options.cameras, place))
    tables: dict[str, Any] = {}
    for frames in options.frames:
        here = replace(place, cut=CUTS[frames])
        answers, tables[f"rendered, {frames}"] = group("rendered", clips, here, choose=options.choose)
        tables[f"rendered, {frames}: reuse"] = dp_of_reuse(answers, ("default", CHOSEN))
        if not options.choose:
            tables[f"rendered, {frames}, against the default"] = against_default(answers, clips, here)
        real = real_clips(where, here) if where is not None else []
        if real:
            tables[f"real, {frames}"] = group("real", real, here, choose=False)[1]
    if where is not None:
        tables["at full size"] = at_full_size(where, REPORTED_KINDS)
    return tables


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cameras", type=int, default=40, help="rendered ones")
    parser.add_argument("--choose", action="store_true", help="all rules, on cameras that are not reported")
    parser.add_argument("--frames", nargs="+", choices=tuple(CUTS), default=list(CUTS))
    parser.add_argument("--keep", type=Path, default=Path("out/crowds"), help="folder for films and answers")
    options = parser.parse_args()
    where = None if options.choose else motion.footage()
    with workplace(options.keep, CUTS["80 frames"]) as place:
        tables = tables_of(options, where, place)
    print_tables(tables)
    line: dict[str, Any] = {"chosen": CHOSEN}
    if options.choose:
        line = {"best": best(tables[f"rendered, {options.frames[0]}"])}
    print(json.dumps(line | {"tables": tables}))


if __name__ == "__main__":
    main()
