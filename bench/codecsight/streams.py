"""Rendered cameras that no training met, and what every policy answers on them; kept, so that the bench
continues where it was stopped."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from math import prod
from pathlib import Path
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

from bench.answered import Answered, Cut, Setting, answered, chains
from bench.codecsight.policies import (
    BEHIND,
    DEJA_VU,
    DENSE,
    ENCODED,
    EQUAL_TOKENS,
    FAULTY,
    PAPER,
    PRUNED,
    REFERENCES,
    WAYS,
    corner_mask,
    kept_behind,
    kept_behind_anchors,
    masks_of,
    reused,
)
from bench.codecsight.scores import Answers
from bench.results import Results
from bench.shapes import VIT_300M
from bench.windows import VIT_PATCHES, WHOLE as TOKENS
from lookout.models import find_model
from lookout.models.digest import folder_digest
from lookout.models.engines import Engine, load_engine
from lookout.models.families import load_tower
from lookout.models.vision import Tower
from lookout.models.windows import StrideBlock
from lookout.pruning import MaskPolicy
from lookout.streams import read_clip
from watchbench import cameras, encode, scenes
from watchbench.clips import CANDIDATES as FEW, chosen
from watchbench.films import HELD_BACK
from watchbench.questions import QUESTIONS, answers
from watchbench.training import STEP_S

EVERY_POLICY: Final = (*WAYS, *REFERENCES)
SECONDS: Final = 80.5  # of a film: six whole windows
FIRST: Final = HELD_BACK + 70_000
GRADE: Final = 0.2  # of disturbances: with the noise of training's scenes, vectors keep every patch
#: what each camera shows for sure, in turns, so that no question is without a case
WISHES: Final = (
    "left",
    "order",
    "lying",
    "count",
    "many",
    "novel",
    "static",
    "dwell",
    "return",
    "slow",
)
#: scenes drawn as truth alone, of which one shows the wish: of what is rare, more
CANDIDATES: Final = {"return": 600}


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

    @classmethod
    def at(
        cls,
        keep: Path,
        seconds: float = SECONDS,
        *,
        model: Path | None = None,
        fresh: bool = False,
        minutes: float = 1e6,
    ) -> Workplace:
        """Load a model and open what is kept of its answers.

        Args:
            keep: Folder of films and answers.
            seconds: Length of a film.
            model: A checkpoint folder; None: the bundled model.
            fresh: Forget earlier answers.
            minutes: Begin nothing new after so long.
        """
        model = model or find_model()
        results = Results(keep / f"answers-{folder_digest(model)[:12]}.jsonl", fresh=fresh)
        until = time.monotonic() + 60 * minutes
        tower, engine = load_tower(model), load_engine(model)
        return cls(tower, engine, results, keep / "films", Cut(16, 100, 1), seconds, until)

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
    (shown,) = encodings(number, workplace, (how or encoding_of(number),))
    return shown


def encoding_of(number: int) -> encode.Encoding:
    """The encoding of camera `number`: one of those found in the field."""
    return replace(encode.varied(FIRST + number), loss=0.0, crf=28)


def film(number: int, workplace: Workplace, how: encode.Encoding | None = None) -> Path:
    """Where the film of camera `number` is kept in an encoding, its own by default."""
    how = how or encoding_of(number)
    told = (FIRST + number, cameras.LOOK, f"{GRADE:g}", f"{workplace.seconds:g}s", how.codec)
    name = "-".join(map(str, (*told, f"{how.gop_s:g}", f"{how.phase:.3f}", how.bframes)))
    return workplace.folder / f"{name}.mp4"


def encodings(number: int, workplace: Workplace, hows: Sequence[encode.Encoding]) -> list[Camera]:
    """Camera `number` in some encodings of the same pictures, which are rendered once."""
    seed, seconds = FIRST + number, workplace.seconds
    wish = WISHES[number % len(WISHES)]
    frames = round(seconds / STEP_S)
    scene = chosen((wish,), seconds, frames, seed, GRADE, CANDIDATES.get(wish, FEW))
    out, missing = [], []
    for how in hows:
        path = film(number, workplace, how)
        out.append(Camera(path.stem, path, scene))
        if not path.is_file():
            missing.append((path, how))
    if missing:
        frames = cameras.frames(scene, seconds)
        shown = list(frames) if len(missing) > 1 else frames
        for path, how in missing:
            encode.write(shown, path, cameras.FPS, how)
    return out


def blocks_of(shown: Camera, kind: str, workplace: Workplace) -> list[StrideBlock]:
    """The blocks of a camera under a kind of masks (`policies`); those of the newest camera are kept."""
    key = f"{shown.name} {kind} {workplace.cut}"
    if key not in workplace.blocks:
        others = [name for name in workplace.blocks if not name.startswith(shown.name)]
        for name in others:
            del workplace.blocks[name]
        if kind == DEJA_VU:
            made = reused(blocks_of(shown, PRUNED, workplace))
        elif kind == BEHIND:
            made = kept_behind(blocks_of(shown, DENSE, workplace), blocks_of(shown, PRUNED, workplace))
        else:
            share = 1.0
            if kind in EQUAL_TOKENS:
                share = min(1.0, max(0.001, kept_behind_anchors(blocks_of(shown, PRUNED, workplace))))
            made = encoded(shown, masks_of(kind, share), workplace)
        workplace.blocks[key] = made
    return workplace.blocks[key]


def tower_key(shown: Camera, kind: str) -> str:
    """Where the tower's FLOPs under a kind of masks are kept."""
    return f"{shown.name}, tower {ENCODED.get(kind, kind)}"


def tower_share(shown: Camera, kind: str, workplace: Workplace) -> float:
    """FLOPs of the tower under a kind of masks, as a share of those of whole frames (`encoded_share`)."""
    key = tower_key(shown, kind)
    if key not in workplace.results:
        workplace.results.add(key, encoded_share(blocks_of(shown, ENCODED.get(kind, kind), workplace)))
    return float(workplace.results.found[key])


def encoded_share(blocks: Sequence[StrideBlock]) -> float:
    """FLOPs of a tower that encodes these blocks, as a share of those of whole frames.

    They are those of a full-size model's tower (`bench.shapes.VIT_300M`, 98 tokens a frame) that encodes the
    same shares of the frames.
    """
    frames = [frame for block in blocks for frame in block.frames]
    patches = prod(TOKENS) * VIT_PATCHES
    rows = [1 + round(patches * len(frame.kept) / frame.keep.size) for frame in frames]
    spent = sum(VIT_300M.flops(count, count**2) for count in rows)
    whole = VIT_300M.flops(patches + 1, (patches + 1) ** 2)
    return round(spent / (len(rows) * whole), 4)


def motion_of(shown: Camera, workplace: Workplace) -> float | None:
    """Mean length of a camera's motion vectors, pixels of the model's input; content that is new has none.
    None: the codec exports no vectors."""
    key = f"{shown.name}, vectors"
    if key not in workplace.results:
        clip = read_clip(shown.path, workplace.tower.grid, vectors=PAPER.gathers)
        workplace.results.add(key, mean_length([frame.sample.v for frame in clip.frames]))
    length: float | None = workplace.results.found[key]
    return length


def mean_length(grids: Sequence[NDArray[np.float16] | None]) -> float | None:
    """Return the mean over all grids, without infinities and NaN; None if no value is finite."""
    values = np.concatenate(
        [np.zeros(0), *(grid.ravel().astype(float) for grid in grids if grid is not None)]
    )
    finite = values[np.isfinite(values)]
    return round(float(finite.mean()), 4) if finite.size else None


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
        tower: FLOPs of the vision tower, as a share of encoding whole frames (`tower_share`).
    """

    answered: Answered
    kept: float
    tower: float = 1.0


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


def policy_answers(
    shown: Camera, workplace: Workplace, names: Sequence[str] = EVERY_POLICY
) -> dict[str, Outcome] | None:
    """Some policies on one camera; None where the time was up before the last."""
    out = {}
    for name in names:
        kind, setting = (WAYS | REFERENCES)[name]
        key = f"{shown.name}, {name}"
        if workplace.late and not (key in workplace.results and tower_key(shown, kind) in workplace.results):
            return None
        with corner_mask() if name in FAULTY else nullcontext():
            blocks = () if key in workplace.results else blocks_of(shown, kind, workplace)
            out[name] = outcome(key, blocks, setting, workplace)
        out[name] = replace(out[name], tower=tower_share(shown, kind, workplace))
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
    numbers: Iterable[int], workplace: Workplace, names: Sequence[str] = EVERY_POLICY
) -> Iterator[tuple[Camera, Mapping[str, Outcome]]]:
    """The cameras whose answers are all there, until the time is up."""
    for number in numbers:
        if workplace.late and not film(number, workplace).is_file():
            return
        shown = camera(number, workplace)
        if (found := policy_answers(shown, workplace, names)) is None:
            return
        yield shown, found
