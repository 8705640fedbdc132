"""Tables 1 and 2 of QuickVideo with trained weights, on clips of 64 to 256 frames, and how key norms relate
to attention: the part `long` of `make bench-recordings`.

The trained tiny model, which was trained on windows of up to 80 frames, answers all of its questions about
unseen rendered clips. Table 1: every score, keeping shares from 0.1 to 0.9, in groups of 16 frames. Table 2:
groups of 4 to 128 frames, keeping a half. In both, a frame's text rows compete with its visual rows; `text
kept` is the same with all text kept. `right`: share of known answers that are right. `lost`: `right` of the
unpruned prefill minus that of a setting, paired by clip. `dp`: mean |difference of p(yes)| from the unpruned
one-shot prefill.

`norms`: by model and layer, the rank correlation of a key's norm with the attention that the questions' rows
pay to it, and the mean cosine of these rows' queries with the keys. If queries and keys point in opposite
directions, a small norm means attention, as the paper's score assumes; if they point in the same direction, a
large one does. It is measured on clips of 64 frames, if these are among the lengths.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

import numpy as np
import torch
from tqdm import tqdm

from bench.recordings_answers import asked, clip_of, interval, right
from bench.results import Results
from lookout.models import TINY
from lookout.models.engines.transformers import group_pass
from lookout.recordings import PrefillSettings, Score
from lookout.recordings.analysis import Analyzer
from tests.tiny_models import FAMILIES, checkpoint

LENGTHS: Final = {64: 8, 128: 6, 256: 4}  # frames: clips
RHOS: Final = (0.1, 0.3, 0.5, 0.7, 0.9)
FEWER: Final = (0.1, 0.5, 0.9)  # of clips of 256 frames, which take most time
GROUPS: Final = (4, 64, 128)  # beside groups of 16
GROUP: Final = 16
NORM_FRAMES: Final = 64
NORM_CLIPS: Final = 4
FIRST: Final = 20_000  # behind the seed of the first clip of the other parts


def settings(frames: int) -> dict[str, PrefillSettings]:
    """Every setting of a length by name."""
    out = {}
    long = frames == max(LENGTHS)
    for score in Score:
        for rho in FEWER if long else RHOS:
            out[f"rho {rho:g}, {score.value}"] = PrefillSettings(GROUP, rho, score)
        for group in GROUPS[1:] if long else GROUPS:
            if group <= frames:
                out[f"groups of {group}, {score.value}"] = PrefillSettings(group, 0.5, score)
        out[f"text kept, {score.value}"] = PrefillSettings(GROUP, 0.5, score, keep_text=True)
    return out


def measure(results: Results, lengths: Sequence[int], first: int, within: Callable[[], bool]) -> None:
    """Every clip of every length that is not measured yet."""
    analyzer = Analyzer(TINY)
    # In turns, so that a run that is cut short has clips of every length.
    turns = [(number, frames) for number in range(max(LENGTHS.values())) for frames in lengths]
    for number, frames in tqdm(turns, desc="long"):
        seed = first + number
        name = f"long {frames} {seed}"
        if name in results or number >= LENGTHS[frames] or not within():
            continue
        clip = clip_of(analyzer, seed, frames)
        whole, _ = asked(analyzer, clip.frames, PrefillSettings(frames, 1.0))
        cells = {"unpruned": [0.0, right(whole, clip.truth)]}
        for told, how in settings(frames).items():
            p, _ = asked(analyzer, clip.frames, how)
            cells[told] = [float(np.abs(p - whole).mean()), right(p, clip.truth)]
        results.add(name, cells)
    analyzer.close()


def tables(results: Results, lengths: Sequence[int], first: int) -> dict[str, dict[str, dict[str, Any]]]:
    """By length and setting: `right`, what it loses to the unpruned prefill and `dp`, with intervals."""
    out: dict[str, dict[str, dict[str, Any]]] = {}
    for frames in lengths:
        names = [f"long {frames} {seed}" for seed in range(first, first + LENGTHS[frames])]
        clips = [results.found[name] for name in names if name in results]
        if not clips:
            continue
        out[f"{frames} frames"] = {
            told: _row(*(np.array([clip[key] for clip in clips]) for key in ("unpruned", told)))
            for told in clips[0]
        }
    return out


def _row(unpruned: np.ndarray, own: np.ndarray) -> dict[str, Any]:
    lost = unpruned[:, 1] - own[:, 1]
    return {
        "right": round(float(own[:, 1].mean()), 4),
        "lost": round(float(lost.mean()), 4),
        "lost 95 %": [round(edge, 4) for edge in interval(lost)],
        "dp": round(float(own[:, 0].mean()), 4),
        "dp 95 %": [round(edge, 4) for edge in interval(own[:, 0])],
        "clips": len(own),
    }


def accuracy(found: dict[str, dict[str, dict[str, Any]]], score: Score) -> dict[str, float]:
    """Mean over lengths of `right` by share kept; "1": unpruned."""
    names = {"1": "unpruned"} | {f"{rho:g}": f"rho {rho:g}, {score.value}" for rho in FEWER}
    return {
        rho: round(float(np.mean([rows[name]["right"] for rows in found.values()])), 4)
        for rho, name in names.items()
    }


@contextmanager
def looked(rows: list[tuple[int, torch.Tensor, torch.Tensor]]) -> Iterator[None]:
    """Gather (layer, keys [kv_heads, n, dim], queries [heads, rows, dim]) of groups that are scored."""
    usual = group_pass.GroupPass._scores

    def scores(self: Any, layer: int, keys: Any, values: Any, queries: Any) -> torch.Tensor:
        rows.append((layer, keys.float(), queries.float()))
        return usual(self, layer, keys, values, queries)

    with patch.object(group_pass.GroupPass, "_scores", scores):
        yield


def _ranks(values: np.ndarray) -> np.ndarray:
    return values.argsort().argsort().astype(float)


def norm_and_attention(keys: torch.Tensor, queries: torch.Tensor) -> tuple[float, float]:
    """Rank correlation of norms with attention, and mean cosine of queries with keys; means over KV heads."""
    heads, _, dim = keys.shape
    own = queries.reshape(heads, -1, dim)
    scores = own @ keys.transpose(1, 2)
    weight = (scores / dim**0.5).softmax(-1).mean(1).numpy()
    norm = keys.norm(dim=-1)
    cosine = (scores / own.norm(dim=-1)[..., None] / norm[:, None]).mean()
    ranked = zip(norm.numpy(), weight, strict=True)
    return float(np.mean([np.corrcoef(_ranks(n), _ranks(w))[0, 1] for n, w in ranked])), float(cosine)


def norms(model: Path, first: int) -> list[dict[str, float]]:
    """By layer, means over clips. Nearly everything is kept: later layers see what they usually do."""
    analyzer = Analyzer(model)
    found: dict[int, list[tuple[float, float]]] = {}
    for seed in range(first, first + NORM_CLIPS):
        clip = clip_of(analyzer, seed, NORM_FRAMES)
        rows: list[tuple[int, torch.Tensor, torch.Tensor]] = []
        with looked(rows):
            asked(analyzer, clip.frames, PrefillSettings(NORM_FRAMES, 0.99, Score.ATTENTION))
        for layer, keys, queries in rows:
            found.setdefault(layer, []).append(norm_and_attention(keys, queries))
    analyzer.close()
    return [
        {"layer": layer, "correlation": round(float(c), 3), "cosine": round(float(a), 3)}
        for layer, values in sorted(found.items())
        for c, a in [np.mean(values, 0)]
    ]


def norms_of_all(
    results: Results, first: int, within: Callable[[], bool]
) -> dict[str, list[dict[str, float]]]:
    """The trained model, then every family with random weights."""
    models: dict[str, Callable[[], Path]] = {"trained": lambda: TINY}
    models |= {f"{family}, random weights": lambda family=family: checkpoint(family) for family in FAMILIES}  # type: ignore[misc]
    for name, path in models.items():
        if f"norms {name}" not in results and within():
            results.add(f"norms {name}", norms(path(), first))
    return {name: results.found[f"norms {name}"] for name in models if f"norms {name}" in results}


def measured(
    results: Results, lengths: Sequence[int], first: int, within: Callable[[], bool]
) -> tuple[dict[str, float], dict[str, Any]]:
    """Measure and print; returns `accuracy` under the shipped score, and the tables."""
    told = norms_of_all(results, first, within) if NORM_FRAMES in lengths else {}
    measure(results, lengths, first, within)
    found = tables(results, lengths, first)
    for length, cells in found.items():
        print(f"\n{length}")
        for name, row in cells.items():
            print(f"  {name:36}", row)
    layers = {
        f"{name}, layer {row['layer']}": {key: row[key] for key in ("correlation", "cosine")}
        for name, rows in told.items()
        for row in rows
    }
    shipped = accuracy(found, PrefillSettings().score) if found else {}
    return shipped, found | ({"key norms and attention": layers} if layers else {})
