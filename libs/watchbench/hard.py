"""False positives on scenes that resemble a fall (:func:`watchbench.scenes.harmless`).

Scenes are rendered as films and asked as in :mod:`watchbench.sight`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tqdm import tqdm

from watchbench import scenes
from watchbench.clips import product_masks
from watchbench.films import FRAMES, HELD_BACK, STEP_S, ask, decode, rendered_clips
from watchbench.questions import NAMES, answers

WINDOWS = 5  # windows of a film, each a stride longer than the one before
KINDS = ("lies in bed", "gets into bed", "rolls over in bed", "bends down")
MASKS = {"every token": False, "pruned": True}


@dataclass(frozen=True, slots=True)
class Harmless:
    """One film.

    Attributes:
        kind: What happens in it, one of :data:`KINDS`.
        said: p(lying) of its windows, by name of :data:`MASKS`.
    """

    kind: str
    said: dict[str, list[float]]


def kind_of(scene: scenes.Scene, seconds: float) -> str:
    """What resembles a fall in a scene of :func:`watchbench.scenes.harmless`."""
    people = scene.people
    if not bool(people["bed"][0, 0]):
        return "bends down"
    if float(people["roll"][0, 0]) < seconds:
        return "rolls over in bed"
    return "lies in bed" if float(people["fall"][0, 0]) < 0 else "gets into bed"


def watched(
    model: Any, count: int, folder: Path, first: int = HELD_BACK, frames: int = FRAMES
) -> list[Harmless]:
    """Measure p(lying) on ``count`` films with seeds from ``first`` on.

    Each film is asked in five windows of up to ``frames`` samples, whole and with the product's masks.
    Windows whose truth is unknown, or in which somebody lies on the ground, are left out.
    """
    out, lying = [], NAMES.index("lying")
    films = rendered_clips(count, folder, first, frames, scenes.harmless)
    for path, scene in tqdm(films, total=count, desc="harmless"):
        pixels, times = (part[:frames] for part in decode(path))
        yes, known = (part[0, :, lying] for part in answers(scenes.observe(scene, times).truth))
        stride = frames // WINDOWS
        ends = [end for end in range(stride - 1, len(pixels), stride) if known[end] and not yes[end]]
        said = {}
        for name, drop in MASKS.items():
            keep = product_masks(pixels, stride) if drop else None
            p = ask(model, pixels, ("lying",), tuple(ends), keep) if ends else torch.zeros(0, 1)
            said[name] = p[:, 0].tolist()
        out.append(Harmless(kind_of(scene, frames * STEP_S), said))
    return out


def false_alarms(films: Sequence[Harmless], rounds: int = 2000) -> dict[str, dict[str, Any]]:
    """Return the false positive rate by masks: the share of windows with p(lying) above 0.5, overall and for
    each kind of film.

    Each overall share has a 95 % bootstrap interval over films. The share of a kind without a window is None.
    """
    out: dict[str, dict[str, Any]] = {}
    draws = np.random.default_rng(0).integers(0, len(films), (rounds, len(films)))
    for masks in MASKS:
        wrong = np.array([sum(p > 0.5 for p in film.said[masks]) for film in films])
        asked = np.array([len(film.said[masks]) for film in films])
        drawn = wrong[draws].sum(1) / np.maximum(1, asked[draws].sum(1))
        low, high = np.quantile(drawn, (0.025, 0.975))
        row: dict[str, Any] = {"windows": int(asked.sum()), "said": _share(wrong.sum(), asked.sum())}
        row["95 %"] = [round(float(low), 4), round(float(high), 4)]
        for kind in KINDS:
            some = np.array([film.kind == kind for film in films])
            row[kind] = _share(wrong[some].sum(), asked[some].sum())
        out[masks] = row
    return out


def _share(part: int, whole: int) -> float | None:
    return round(float(part / whole), 4) if whole else None


def report(
    model: Any, count: int, folder: Path, first: int = HELD_BACK, frames: int = FRAMES
) -> dict[str, Any]:
    """Print the shares, and return the object that the last line prints."""
    films = watched(model, count, folder, first, frames)
    table = false_alarms(films)
    for masks, row in table.items():
        print(f"{masks:12}", "  ".join(f"{name} {value}" for name, value in row.items()))
    kinds = {kind: sum(film.kind == kind for film in films) for kind in KINDS}
    return {"cameras": count, "frames": frames, "films": kinds, "tables": {"p(lying) above .5": table}}
