"""Rendered cameras that no training met, and what every policy answers on them; kept, so that the bench
continues where it was stopped."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

from bench.codecsight.policies import (
    DEJA_VU,
    EVS,
    FAULTY,
    PRUNED,
    REFERENCES,
    WAYS,
    corner_mask,
    kept_behind_anchors,
    masks_of,
    reused,
)
from bench.codecsight.scores import Answers
from bench.results import Results
from bench.windows_fidelity import Answered, Cut, Setting, answered, chains
from lookout.engines import Engine
from lookout.pruning import MaskPolicy
from lookout.vision import Tower
from lookout.windows import StrideBlock
from watchbench import cameras, encode, scenes
from watchbench.finetune import chosen
from watchbench.questions import QUESTIONS, answers
from watchbench.sight import HELD_BACK
from watchbench.training import STEP_S

FIRST: Final = HELD_BACK + 70_000
GRADE: Final = 0.2  # of disturbances: with the noise of training's scenes, vectors keep every patch
#: what each camera shows for sure, in turns, so that no question is without a case
WISHES: Final = ("left", "order", "lying", "count", "many", "novel", "static", "dwell")


@dataclass(frozen=True, slots=True)
class Camera:
    """One rendered camera: its film and its scene."""

    name: str
    path: Path
    scene: scenes.Scene


@dataclass(frozen=True, slots=True)
class Workplace:
    """Where cameras are answered.

    Attributes:
        tower: Of the model.
        engine: Of the model.
        results: What is answered already.
        folder: Of films.
        cut: How streams are cut.
        seconds: Length of a film.
        until: `time.monotonic` after which nothing more is begun.
    """

    tower: Tower
    engine: Engine
    results: Results
    folder: Path
    cut: Cut
    seconds: float
    until: float
    blocks: dict[str, list[StrideBlock]] = field(default_factory=dict)

    @property
    def late(self) -> bool:
        """Whether the time is up."""
        return time.monotonic() > self.until


def camera(number: int, workplace: Workplace, how: encode.Encoding | None = None) -> Camera:
    """Camera `number`; rendered on first use.

    Args:
        number: From 0 on.
        workplace: Where films are kept.
        how: Its encoding; None: one of those found in the field, by its number.
    """
    seed, seconds = FIRST + number, workplace.seconds
    scene = chosen((WISHES[number % len(WISHES)],), seconds, round(seconds / STEP_S), seed, GRADE)
    how = how or replace(encode.varied(seed), loss=0.0, crf=28)
    told = (seed, cameras.LOOK, f"{GRADE:g}", f"{seconds:g}s", how.codec)
    name = "-".join(map(str, (*told, f"{how.gop_s:g}", f"{how.phase:.3f}", how.bframes)))
    path = workplace.folder / f"{name}.mp4"
    if not path.is_file():
        encode.write(cameras.frames(scene, seconds), path, cameras.FPS, how)
    return Camera(name, path, scene)


def blocks_of(shown: Camera, kind: str, workplace: Workplace) -> list[StrideBlock]:
    """The blocks of a camera under a kind of masks (`policies`); those of the newest camera are kept."""
    key = f"{shown.name} {kind} {workplace.cut}"
    if key not in workplace.blocks:
        others = [name for name in workplace.blocks if not name.startswith(shown.name)]
        for name in others:
            del workplace.blocks[name]
        if kind == DEJA_VU:
            made = reused(blocks_of(shown, PRUNED, workplace))
        else:
            share = kept_behind_anchors(blocks_of(shown, PRUNED, workplace)) if kind == EVS else 1.0
            made = encoded(shown, masks_of(kind, share), workplace)
        workplace.blocks[key] = made
    return workplace.blocks[key]


def encoded(shown: Camera, masks: MaskPolicy, workplace: Workplace) -> list[StrideBlock]:
    """The blocks of a camera under a rule of masks, as one chain."""
    (blocks,) = chains(shown.path, workplace.tower, masks, workplace.cut)
    return blocks


@dataclass(frozen=True, slots=True)
class Outcome:
    """One policy on one camera.

    Attributes:
        answered: p(yes) and FLOPs by window.
        kept: Visual tokens of the windows, as a share of all.
    """

    answered: Answered
    kept: float


def outcome(name: str, blocks: Sequence[StrideBlock], setting: Setting, workplace: Workplace) -> Outcome:
    """The windows of a camera under one setting, kept by `name`."""
    results = workplace.results
    if name not in results:
        got = answered(workplace.engine, [blocks], setting, workplace.cut)
        frames = [frame for block in blocks for frame in block.frames]
        kept = sum(len(frame.kept) for frame in frames) / sum(frame.keep.size for frame in frames)
        p = np.round(got.p, 6).tolist()
        results.add(name, {"p": p, "flops": got.flops.tolist(), "since": got.since.tolist(), "kept": kept})
    told = results.found[name]
    found = Answered(np.array(told["p"]), np.array(told["flops"]), np.array(told["since"]))
    return Outcome(found, told["kept"])


def policy_answers(shown: Camera, workplace: Workplace) -> dict[str, Outcome] | None:
    """Every policy on one camera; None where the time was up before the last."""
    out = {}
    for name, (kind, setting) in {**WAYS, **REFERENCES}.items():
        key = f"{shown.name}, {name}"
        if key in workplace.results:
            out[name] = outcome(key, (), setting, workplace)
            continue
        if workplace.late:
            return None
        with corner_mask() if name in FAULTY else nullcontext():
            out[name] = outcome(key, blocks_of(shown, kind, workplace), setting, workplace)
    return out


def window_times(blocks: Sequence[StrideBlock], cut: Cut) -> Iterator[torch.Tensor]:
    """Seconds of the frames of every whole window."""
    for last in range(cut.blocks, len(blocks) + 1):
        window = blocks[last - cut.blocks : last]
        yield torch.tensor([frame.time_us / 1e6 for block in window for frame in block.frames])


def truth_of(shown: Camera, workplace: Workplace) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """What is true of every whole window, and where that is known: bool [windows, questions]."""
    key = f"{shown.name}, times {workplace.cut}"
    if key not in workplace.results:
        times = window_times(blocks_of(shown, PRUNED, workplace), workplace.cut)
        workplace.results.add(key, [window.tolist() for window in times])
    pairs = [
        answers(scenes.observe(shown.scene, torch.tensor(times)).truth)
        for times in workplace.results.found[key]
    ]
    yes, known = (torch.stack([pair[part][0, -1] for pair in pairs]).numpy() for part in (0, 1))
    return yes, known


def judged(p: NDArray[np.float64], truth: tuple[NDArray[np.bool_], NDArray[np.bool_]]) -> list[Answers]:
    """The answers of one camera, by question."""
    yes, known = truth
    return [Answers(p[:, q] > 0.5, yes[:, q], known[:, q]) for q in range(len(QUESTIONS))]


def answered_cameras(
    numbers: Iterable[int], workplace: Workplace
) -> Iterator[tuple[Camera, Mapping[str, Outcome]]]:
    """The cameras whose answers are all there, until the time is up."""
    for number in numbers:
        shown = camera(number, workplace)
        if (found := policy_answers(shown, workplace)) is None:
            return
        yield shown, found
