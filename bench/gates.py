"""What gates and a second opinion save and cost, on rendered cameras: `make bench-gates`.

Cameras that are in no training set, 80 s each, are played through the handlers of decode, prune-encode and
prefill, with the bundled model, default windows (10 s, every 2 s) and five watches, with a threshold of 0.5
and 2 of 3:

- `none`: no gates.
- `motion`: every watch is asked only while something moves.
- `person`: lying, many and left are asked only while person answers yes.
- `opinion`: as `none`, but the same model is asked once more about each incident, with every token of the
  window that raised it. Incidents that it denies are not reported. `motion, opinion`: both.

An incident is right if the truth is yes in one of its windows from the raising on; a period of yes is found
if an incident overlaps it. `prefill`, `own`: FLOPs of windows, and of the watches' own tokens, as a share of
`none`; an opinion's window counts as `prefill`. `gated`: share of outcomes. Intervals are 95 % over cameras
(bootstrap); differences from `none` are paired by camera. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from tqdm import tqdm

from bench.answered import Cut
from bench.workplace import blocks_of, workplace
from bench.worth import DENSE, Camera, alone, camera
from lookout.models import DEMO_QUESTIONS, find_model
from lookout.models.engines import Question
from lookout.past.backtests import Backtest
from lookout.rules.messages import rule_of, verdict_of
from lookout.v1.verdicts_pb2 import Verdict
from lookout.v1.watches_pb2 import Gate, Rule, Watch
from lookout.video.segments import cut
from tests.one_process_fleet import OneProcessFleet
from watchbench import scenes
from watchbench.questions import QUESTIONS as KNOWN, answers

CUT: Final = Cut(4, 36, 40, 5)
RULE: Final = Rule(threshold=0.5, k=2, n=3)
BEHIND_PERSON: Final = ("lying", "many", "left")
ROWS: Final = {name: [q.text for q in KNOWN].index(text) for name, text in DEMO_QUESTIONS.items()}


def watches(gates: str) -> list[Watch]:
    """The five watches, with their gates."""
    out = []
    for name, text in DEMO_QUESTIONS.items():
        gate = Gate(motion=True) if gates == "motion" else None
        if gates == "person" and name in BEHIND_PERSON:
            gate = Gate(watch="person")
        out.append(Watch(id=name, version=1, question=text, rule=RULE, gate=gate))
    return out


@dataclass
class Tally:
    """What one way did on one camera: incidents, those that are right, spells, those found, costs."""

    incidents: int = 0
    right: int = 0
    spells: int = 0
    found: int = 0
    prefill: float = 0.0
    own: float = 0.0
    gated: int = 0
    outcomes: int = 0
    asked: int = 0

    def row(self) -> list[float]:
        """As numbers."""
        return [float(value) for value in vars(self).values()]


FIELDS: Final = tuple(vars(Tally()))


def play(film: Path, gates: str, model: Path) -> list[Verdict]:
    """The verdicts of a camera."""
    fleet = OneProcessFleet(model, *watches(gates))
    try:
        with film.open("rb") as source:
            for piece in cut(source):
                fleet.send(piece.data)
        fleet.end()
        return fleet.verdicts
    finally:
        fleet.close()


def truth_of(one: Camera, spans: Mapping[int, tuple[float, float]]) -> dict[int, NDArray[np.bool_]]:
    """What is true of every question, by window; of windows by their begin and end in seconds."""
    out = {}
    for index, (begin, end) in spans.items():
        times = torch.tensor(np.arange(begin, end, 0.5), dtype=torch.float32)
        yes, _ = answers(scenes.observe(one.scene, times).truth)
        out[index] = yes[0, -1].numpy()
    return out


def tally(
    verdicts: Sequence[Verdict],
    truth: Mapping[int, NDArray[np.bool_]],
    denied: Mapping[tuple[str, int], bool] | None,
    dense_flops: float,
) -> Tally:
    """Score the incidents of all watches of a camera.

    Args:
        verdicts: Its outcomes.
        truth: By window.
        denied: By watch and window, whether a second opinion says no; None: nobody is asked.
        dense_flops: Of a window of the second opinion.
    """
    out = Tally()
    costs: dict[int, float] = {}
    for name, row in ROWS.items():
        own = sorted((v for v in verdicts if v.watch == name and v.window in truth), key=lambda v: v.window)
        backtest = Backtest(rule_of(RULE), timeline={})
        by_end: dict[int, int] = {}
        for verdict in own:
            out.outcomes += 1
            out.gated += verdict.outcome == Verdict.OUTCOME_GATED
            if verdict.outcome == Verdict.OUTCOME_ANSWERED:
                costs[verdict.window] = float(verdict.cost.flops_prefill)
                out.own += verdict.cost.flops_question
            by_end[verdict.end.ToMilliseconds()] = verdict.window
            backtest.add(verdict_of(verdict, backtest.rule))
        told: set[int] = set()
        for incident in backtest.incidents:
            opened, last = by_end[incident.raised_ms], by_end[incident.end_ms]
            windows = range(opened, last + 1)
            if denied is not None:
                out.asked += 1
                if denied[name, opened]:
                    continue
            out.incidents += 1
            out.right += any(truth[window][row] for window in windows if window in truth)
            told |= set(windows)
        for spell in _spells([window for window in sorted(truth) if truth[window][row]]):
            out.spells += 1
            out.found += bool(told & set(spell))
    out.prefill = sum(costs.values()) + out.asked * dense_flops
    return out


def _spells(windows: Sequence[int]) -> list[list[int]]:
    """Runs of consecutive windows."""
    out: list[list[int]] = []
    for window in windows:
        if out and window == out[-1][-1] + 1:
            out[-1].append(window)
        else:
            out.append([window])
    return out


def measured(one: Camera, place: Any, model: Path) -> dict[str, list[float]]:
    """Every way on one camera."""
    clip = one.clip(place)
    film = place.folder / f"{one.name}.mp4"
    played = {gates: play(film, gates, model) for gates in ("none", "motion", "person")}
    spans = {v.window: (v.stream_start_s, v.stream_end_s) for v in played["none"] if v.HasField("p_yes")}
    truth = truth_of(one, spans)
    dense = blocks_of(clip, DENSE, place)
    questions = [Question(name, text) for name, text in DEMO_QUESTIONS.items()]
    windows = [dense[max(0, index - CUT.blocks + 1) : index + 1] for index in sorted(truth)]
    p, flops = alone(place.engine, windows, questions)
    denied = {
        (name, index): p[place_of][number] < 0.5
        for place_of, index in enumerate(sorted(truth))
        for number, name in enumerate(DEMO_QUESTIONS)
    }
    each = float(np.mean(flops))
    ways = {name: tally(verdicts, truth, None, each) for name, verdicts in played.items()}
    ways["opinion"] = tally(played["none"], truth, denied, each)
    ways["motion, opinion"] = tally(played["motion"], truth, denied, each)
    return {name: way.row() for name, way in ways.items()}


def shares(table: NDArray[np.float64], base: NDArray[np.float64]) -> dict[str, NDArray[np.float64]]:
    """Figures of sums over cameras [..., fields]."""
    at = {name: table[..., number] for number, name in enumerate(FIELDS)}
    of = {name: base[..., number] for number, name in enumerate(FIELDS)}
    return {
        "precision": at["right"] / np.maximum(1, at["incidents"]),
        "recall": at["found"] / np.maximum(1, at["spells"]),
        "prefill": at["prefill"] / of["prefill"],
        "own": at["own"] / of["own"],
        "gated": at["gated"] / at["outcomes"],
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--cameras", type=int, default=24)
    parser.add_argument("--keep", type=Path, default=Path("out/gates"), help="folder for films and answers")
    options = parser.parse_args()
    model = find_model(None)
    rows: list[dict[str, list[float]]] = []
    with workplace(options.keep, CUT) as place:
        for one in tqdm([camera(number) for number in range(options.cameras)]):
            key = f"{one.name}, gates"
            if key not in place.results:
                place.results.add(key, measured(one, place, model))
            rows.append(place.results.found[key])
    tables = {way: np.array([row[way] for row in rows]) for way in rows[0]}
    drawn = np.random.default_rng(0).integers(0, len(rows), (2000, len(rows)))
    base, base_drawn = tables["none"].sum(0), tables["none"][drawn].sum(1)
    plain = shares(base_drawn, base_drawn)
    ways: dict[str, dict[str, Any]] = {}
    for way, table in tables.items():
        sums = table.sum(0)
        row: dict[str, Any] = {name: round(float(value), 4) for name, value in shares(sums, base).items()}
        drawn_row = shares(table[drawn].sum(1), base_drawn)
        for name in ("precision", "recall", "prefill"):
            row[f"{name} 95 %"] = np.quantile(drawn_row[name], (0.025, 0.975)).round(3).tolist()
            less = np.quantile(drawn_row[name] - plain[name], (0.025, 0.975)).round(3).tolist()
            row[f"{name} less none"] = less
        row |= {name: int(sums[FIELDS.index(name)]) for name in ("incidents", "right", "spells", "found")}
        row["asked again"] = int(sums[FIELDS.index("asked")])
        ways[way] = row
        print(way, row)
    line = {"cameras": len(rows), "ways": ways, "per camera": {way: t.tolist() for way, t in tables.items()}}
    print(json.dumps(line))


if __name__ == "__main__":
    main()
