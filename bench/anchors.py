"""How often a frame must be whole: `make bench-anchors`.

The default keeps one whole frame of a stride, its anchor; in a stride of 16 samples that is one every 8 s.
Of eleven rules that keep more (docs/results/crowds.md) one more whole frame was the cheapest gain. It was
seen on the cameras that are reported there, so it is tried here on others, as the setting of the product
(`PrunePolicy.anchor_samples`), in windows of 80 frames that slide by 8 s, beside simple ways to spend as
much:

- `stride`: an anchor a stride. `anchor 8`, `anchor 4`: one every 8 or 4 samples at least.
- At as many tokens as `anchor 8`, over all cameras: `anywhere` (random-k), `floor` (in every frame so many
  groups, those that differ most from the frame before), `lower threshold` (of luma).
- `full`: every token, every window computed whole. `behind`: the tokens of `stride`, of frames that the tower
  encoded whole.

All but `full` are computed as the default computes windows. F1 is by windows, intervals are 95 % over cameras
(bootstrap), differences are paired by camera: what `anchor 8` has more than every other rule. `from dense`:
mean |difference of p(yes)| of product questions from full windows. Real clips have no truth here.
`at full size`: FLOPs of a 7B's windows of 80 frames that are saved, as in the README. All answers are kept
under --keep, and a run continues where it was stopped. The last line is JSON.
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
    Clip,
    RuleOutcomes,
    at_cost,
    at_full_size,
    dp_of_reuse,
    film_clips,
    group_outcomes,
    print_tables,
    real_clips,
    workplace,
)
from bench.crowds.films import CONFIRMING
from bench.crowds.masks import ONE_A_STRIDE
from lookout.pruning import MaskPolicy

BEFORE: Final = "stride"
CHOSEN: Final = "anchor 8"
KINDS: Final[dict[str, MaskPolicy]] = {
    BEFORE: ONE_A_STRIDE,
    CHOSEN: replace(ONE_A_STRIDE, anchor_samples=8),
    "anchor 4": replace(ONE_A_STRIDE, anchor_samples=4),
}
EQUAL: Final = ("anywhere", "floor", "lower threshold")


def group(name: str, clips: Sequence[Clip], place: Workplace) -> tuple[list[RuleOutcomes], dict[str, Any]]:
    """All rules on one group of cameras, and their table."""
    like = (CHOSEN, KINDS[CHOSEN])
    kinds = KINDS | {simple: at_cost(simple, clips, name, like, place) for simple in EQUAL}
    return group_outcomes(name, clips, kinds, place, whole=tuple(KINDS), against=CHOSEN)


def tables_of(cameras: int, place: Workplace) -> dict[str, Mapping[str, Any]]:
    """Every table by its title."""
    tables: dict[str, Mapping[str, Any]] = {}
    answers, tables["rendered"] = group("rendered", list(film_clips(CONFIRMING, cameras, place)), place)
    tables["rendered: reuse"] = dp_of_reuse(answers, tuple(KINDS))
    where = motion.footage()
    if where is not None:
        clips = real_clips(where, place)
        if clips:
            answers, tables["real"] = group("real", clips, place)
            tables["real: reuse"] = dp_of_reuse(answers, tuple(KINDS))
        tables["at full size"] = at_full_size(where, KINDS)
    return tables


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cameras", type=int, default=40, help="rendered ones")
    parser.add_argument("--keep", type=Path, default=Path("out/anchors"), help="folder for films and answers")
    options = parser.parse_args()
    with workplace(options.keep, CUTS["80 frames"]) as place:
        tables = tables_of(options.cameras, place)
    print_tables(tables)
    print(json.dumps({"chosen": CHOSEN, "tables": tables}))


if __name__ == "__main__":
    main()
