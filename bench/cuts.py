"""What masks make of a cut: `make bench-cuts`.

Rendered cameras that no training met miss eight seconds: the picture jumps and time goes on, as where a
recorder drops what lies between two events. Somebody or a vehicle is in view before the jump and not behind
it, or the other way round. The jump lies at a keyframe, where a codec says nothing of what changed
(`keyframe`), or in the middle of a group of pictures (`inside`); never at the beginning of a stride, where an
anchor would show it by chance.

- `default`: the product's masks. `stride`: one anchor a stride. `newest`: so, and the newest frame of every
  stride is whole; in windows of 80 frames that is as much as the default keeps. `vectors`: the paper's, from
  the codec alone. `anchors alone`: nothing behind anchors. `full`: every token, every window computed whole.
  All but `full` are computed as the default computes windows.
- `at once`: of the questions about now whose truth the jump changes, the share that is answered right in the
  window whose newest stride has the jump; `soon`: in the next four; `before`: in the window before; `behind`:
  what the default has more in these five.
- `product`: F1 of the product's questions in all windows from the jump on.
- `from dense`: mean |difference of p(yes)| from full windows over all questions, in windows that hold the
  jump; `undisturbed`: in windows before it; `the jump's part`: the difference of both.

Intervals are 95 % over cameras (bootstrap); differences are paired by camera. Answers and films are kept
under --keep, and a run continues where it was stopped. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from tqdm import tqdm

from bench.answered import BLOCKS, Cut, interval
from bench.codecsight.policies import PAPER, RandomTokens
from bench.codecsight.scores import Answers
from bench.codecsight.streams import GRADE, Workplace, judged, window_times
from bench.codecsight.table import PRODUCT_ROWS
from bench.crowds.compare import (
    Clip,
    RuleOutcomes,
    blocks_of,
    camera_outcomes,
    f1_of,
    print_tables,
    scores,
    workplace,
)
from bench.crowds.masks import ONE_A_STRIDE, NewestFrame
from lookout.pruning import MaskPolicy, PrunePolicy
from lookout.streams import read_clip
from watchbench import cameras, encode, scenes
from watchbench.films import HELD_BACK
from watchbench.questions import NAMES, answers

FIRST: Final = HELD_BACK + 95_000
SECONDS: Final = 48.5  # of a film
FPS: Final = Fraction(4)  # pictures a second: twice as many as are sampled, as drawing is what takes long
JUMP_S, MISSING_S = 37.25, 8.0  # where the jump lies, and what is missing there; between two samples
CUTS: Final = {"20 frames": Cut(4, 20, 10), "80 frames": Cut(16, 15, 6)}
CANDIDATES: Final = 600  # scenes drawn as truth alone
NOW: Final = [NAMES.index(name) for name in ("now_person", "now_vehicle")]
#: what the jump changes, by camera in turns: a question, and its answer behind the jump
WISHES: Final = ((NOW[0], True), (NOW[1], False), (NOW[0], False), (NOW[1], True))
#: where keyframes lie: one at the jump, or one half as far and the next as far behind
ENCODINGS: Final = {
    "keyframe": encode.Encoding(gop_s=JUMP_S, crf=28),
    "inside": encode.Encoding(gop_s=JUMP_S, phase=0.5, crf=28),
}
KINDS: Final[dict[str, MaskPolicy]] = {
    "default": PrunePolicy(),
    "stride": ONE_A_STRIDE,
    "newest": NewestFrame(),
    "vectors": PAPER,
    "anchors alone": RandomTokens(0.0),
}
RULES: Final = (*KINDS, "full")
#: strides from the one with the jump to the newest of a window
TIMES: Final = {"before": (-1,), "at once": (0,), "soon": (1, 2, 3, 4)}

Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Verdict:
    """One camera: what is true of its windows, and which of them hold the jump.

    Attributes:
        true: bool [windows, questions].
        known: Where the truth is known, as `true`.
        since: Strides from the one with the jump to the newest of a window, [windows]; negative before it.
        changed: Questions about now whose answer the jump changes.
    """

    true: Bools
    known: Bools
    since: NDArray[np.int64]
    changed: list[int]

    def right(self, p: NDArray[np.float64], since: Sequence[int]) -> list[bool]:
        """Whether answers to what the jump changed are right, in windows so many strides from it.

        Args:
            p: p(yes), [windows, questions].
            since: Strides.
        """
        windows = np.flatnonzero(np.isin(self.since, since))
        cases = [(w, q) for q in self.changed for w in windows if self.known[w, q]]
        return [bool((p[case] > 0.5) == self.true[case]) for case in cases]

    def later(self, p: NDArray[np.float64]) -> list[Answers]:
        """The answers by question, in windows from the jump on."""
        late = self.since >= 0
        return judged(p[late], (self.true[late], self.known[late]))


def scene_time(times: torch.Tensor) -> torch.Tensor:
    """Seconds of the scene at seconds of the film."""
    return times + MISSING_S * (times >= JUMP_S - 1e-3)


def around_the_jump(drawn: scenes.Scene) -> tuple[torch.Tensor, torch.Tensor]:
    """What is true of so many scenes and where that is known, bool [scenes, 6, questions]: three samples
    before the jump, and three from it on."""
    film = torch.arange(7) * 0.5 + JUMP_S - 2.0
    true, known = answers(scenes.observe(drawn, scene_time(film)).truth)
    return true[:, 1:], known[:, 1:]  # of a single sample nothing is known


def scene_of(number: int) -> scenes.Scene:
    """A scene in which the jump changes what camera `number` wishes: the first of those drawn."""
    question, answer = WISHES[number % len(WISHES)]
    drawn = scenes.sample(CANDIDATES, SECONDS + MISSING_S, FIRST + number, GRADE)
    true, known = (part[..., question] for part in around_the_jump(drawn))
    sure = known.all(1) & (true[:, :3] != answer).all(1) & (true[:, 3:] == answer).all(1)
    fitting = sure.nonzero()[:, 0]
    if not len(fitting):
        raise ValueError(f"no scene of {CANDIDATES} drawn with seed {FIRST + number} fits: take more")
    return scenes.some_of(drawn, fitting[:1])


def pictures(scene: scenes.Scene) -> Iterator[NDArray[np.uint8]]:
    """The film's: those before the jump, and those behind what is missing."""
    yield from cameras.frames(scene, JUMP_S, fps=FPS)
    yield from cameras.frames(scene, SECONDS - JUMP_S, fps=FPS, begin=JUMP_S + MISSING_S)


def clips(kind: str, count: int, place: Workplace) -> Iterator[Clip]:
    """Cameras with their jump at one kind of place; rendered on first use, once for both kinds."""
    for number in range(count):
        scene = scene_of(number)
        stem = f"{FIRST + number}-{cameras.LOOK}-{SECONDS:g}s"
        paths = {name: place.folder / f"{stem}-{name}.mp4" for name in ENCODINGS}
        if not paths[kind].is_file():
            film = list(pictures(scene))
            for name, path in paths.items():
                encode.write(film, path, FPS, ENCODINGS[name])
        # one of the rules needs vectors
        yield Clip(paths[kind].stem, read_clip(paths[kind], place.tower.grid, vectors=PAPER.gathers), scene)


def verdict(clip: Clip, place: Workplace) -> Verdict:
    """What is true of a camera's windows."""
    assert clip.scene is not None
    times = list(window_times(blocks_of(clip, ONE_A_STRIDE, place), place.cut))
    pairs = [answers(scenes.observe(clip.scene, scene_time(window)).truth) for window in times]
    true, known = (torch.stack([pair[part][0, -1] for pair in pairs]).numpy() for part in (0, 1))
    since = np.arange(len(times)) + place.cut.blocks - 1 - int(JUMP_S * 2) // place.cut.frames
    around = around_the_jump(clip.scene)[0][0]
    return Verdict(true, known, since, [q for q in NOW if around[2, q] != around[3, q]])


def mean_of(values: Sequence[bool]) -> float | None:
    """Rounded; None where there are none."""
    return round(float(np.mean(values)), 3) if len(values) else None


def shares_right(pairs: Sequence[tuple[RuleOutcomes, Verdict]], name: str) -> NDArray[np.float64]:
    """Of what the jump changed, the share that a rule answers right while a window holds it, by camera; those
    in which the truth is known in no window are left out."""
    answered = [seen.right(camera[name].answered.p, range(BLOCKS)) for camera, seen in pairs]
    return np.array([np.mean(verdicts) for verdicts in answered if verdicts])


def distances(
    outcomes: Sequence[RuleOutcomes], verdicts: Sequence[Verdict], name: str, *, disturbed: bool
) -> NDArray[np.float64]:
    """Mean |difference of p(yes)| of a rule from full windows by camera, in windows that hold the jump or in
    those before it."""
    out = []
    for camera, seen in zip(outcomes, verdicts, strict=True):
        windows = (seen.since >= 0) & (seen.since < BLOCKS) if disturbed else seen.since < 0
        out.append(np.abs(camera[name].answered.p - camera["full"].answered.p)[windows].mean())
    return np.array(out)


def rows_of(
    outcomes: Sequence[RuleOutcomes], verdicts: Sequence[Verdict], rounds: int = 2000
) -> dict[str, dict[str, Any]]:
    """The table of one kind of place: a row by rule."""
    draws = np.random.default_rng(0).integers(0, len(outcomes), (rounds, len(outcomes)))
    pairs = list(zip(outcomes, verdicts, strict=True))
    counts = {
        name: scores([seen.later(camera[name].answered.p) for camera, seen in pairs])[:, PRODUCT_ROWS]
        for name in RULES
    }
    rows: dict[str, dict[str, Any]] = {}
    for name in RULES:
        row: dict[str, Any] = {"cameras": len(outcomes)}
        row["kept"] = round(float(np.mean([camera[name].kept for camera in outcomes])), 4)
        for title, since in TIMES.items():
            told = [case for camera, seen in pairs for case in seen.right(camera[name].answered.p, since)]
            row[title] = mean_of(told)
        shares = {rule: shares_right(pairs, rule) for rule in ("default", name)}
        row["behind: default less it"] = interval(shares["default"] - shares[name])
        row["product"] = round(float(f1_of(counts[name].sum(0))), 3)
        less = f1_of(counts["default"][draws].sum(1)) - f1_of(counts[name][draws].sum(1))
        row["product: default less it"] = [
            round(float(edge), 3) for edge in np.quantile(less, (0.025, 0.975))
        ]
        row["from dense"] = round(float(distances(outcomes, verdicts, name, disturbed=True).mean()), 4)
        if all((seen.since < 0).any() for seen in verdicts):
            before = distances(outcomes, verdicts, name, disturbed=False)
            row["undisturbed"] = round(float(before.mean()), 4)
            row["the jump's part"] = interval(distances(outcomes, verdicts, name, disturbed=True) - before)
        rows[name] = row
    return rows


def tables_of(count: int, keep: Path) -> dict[str, Mapping[str, Mapping[str, Any]]]:
    """Every table by its title."""
    tables: dict[str, Mapping[str, Mapping[str, Any]]] = {}
    for length, cut in CUTS.items():
        with workplace(keep, cut) as place:
            for kind in ENCODINGS:
                outcomes, verdicts = [], []
                for clip in tqdm(clips(kind, count, place), f"{length}, {kind}", count, disable=None):
                    outcomes.append(camera_outcomes(clip, KINDS, place))
                    verdicts.append(verdict(clip, place))
                tables[f"{kind}, {length}"] = rows_of(outcomes, verdicts)
    return tables


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cameras", type=int, default=32, help="rendered ones")
    parser.add_argument("--keep", type=Path, default=Path("out/cuts"), help="folder for films and answers")
    options = parser.parse_args()
    tables = tables_of(options.cameras, options.keep)
    print_tables(tables)
    print(json.dumps({"cameras": options.cameras, "tables": tables}))


if __name__ == "__main__":
    main()
