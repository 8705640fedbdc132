"""Rendered clips kept on disk with the vision tower's output, so that training the language model draws and
encodes every clip once.

A clip is 80 s of one scene at two frames a second, or eight scenes of 10 s one after another. In addition to
the dense tokens it keeps the tokens under the masks that the product computes (`lookout.pruning`, the default
policy), for strides of 4 and of 16 samples: a pruned frame is encoded without its dropped patches, so its
tokens differ from the dense ones.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lookout.pruning import Carry, PatchGrid, PrunePolicy, Sample, prune_block
from watchbench import drawing, model as vlm, scenes, training
from watchbench.questions import NAMES, answers

FRAMES = 160
SHORT = 20  # frames of a short scene
STRIDES = (4, 16)
CANDIDATES = 48  # how many scenes are drawn without pictures to choose those to render from
_PER_FRAME = {
    "person_share", "person_box", "lying", "falling", "vehicle_share", "vehicle_box", "object_there",
    "object_share", "object_box",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Clip:
    """Tokens and ground truth of one clip.

    Attributes:
        dense: Tokens of whole frames, bf16 [T, 16, hidden]. If the eye sees frames in pairs, T / 2 sets of
            tokens, and as many masks.
        pruned: For each of :data:`STRIDES`: tokens of the pruned frames, bf16 [T, 16, hidden] (rows of
            dropped tokens are meaningless), and the keep mask, bool [T, 16].
        truth: What is in view, [1, T, ...]; for a clip of short scenes [8, 20, ...].
    """

    dense: Tensor
    pruned: tuple[tuple[Tensor, Tensor], ...]
    truth: scenes.Truth


@dataclass(frozen=True, slots=True)
class Wanted:
    """What successive clips show: each entry is the name of a question that is true of the whole clip, or
    None for anything.

    Attributes:
        clips: Of long clips. Their number is coprime to four, the number of shares of a clip that have
            events.
        shorts: Of the eight short scenes of a clip.
    """

    clips: tuple[str | None, ...] = (None,)
    shorts: tuple[str | None, ...] = (None,) * (FRAMES // SHORT)


def part_of(truth: scenes.Truth, frames: Tensor) -> scenes.Truth:
    """Return the truth of some frames, in their order, as of a window that begins with the first of them."""
    picked = {
        field.name: getattr(truth, field.name)[:, frames]
        for field in fields(scenes.Truth)
        if field.name in _PER_FRAME
    }
    rest = {
        field.name: getattr(truth, field.name)
        for field in fields(scenes.Truth)
        if field.name not in _PER_FRAME and field.name != "times"
    }
    return scenes.Truth(times=truth.times[:, frames], **picked, **rest)


def joined(truths: list[scenes.Truth]) -> scenes.Truth:
    """Join truths of equal length into one batch."""
    return scenes.Truth(
        **{field.name: torch.cat([getattr(t, field.name) for t in truths]) for field in fields(scenes.Truth)}
    )


def product_masks(pixels: Tensor, stride: int, together: int = 1) -> Tensor:
    """Return the keep masks of the product's default policy, in strides of ``stride`` samples. The pixels are
    not passed through a codec, whose noise is small at this size.

    Args:
        pixels: [T, 3, 112, 112] in 0..1.
        stride: Samples of a stride.
        together: Frames that the model encodes as one, with one mask.

    Returns:
        bool [T / together, 16].
    """
    cells = vlm.SIZE // vlm.PATCH
    grid = PatchGrid.merged(cells, cells, vlm.PATCH, cells // vlm.CELLS, together)
    pictures = (pixels.permute(0, 2, 3, 1).clamp(0, 1) * 255).round().byte().numpy()
    keep = []
    carry: Carry | None = None
    for begin in range(0, len(pictures), stride):
        samples = [Sample(picture) for picture in pictures[begin : begin + stride]]
        masks, carry = prune_block(samples, grid, PrunePolicy(), carry)
        keep += [mask.keep for mask in masks]
    return torch.from_numpy(np.stack(keep)).flatten(1)


def chosen(  # noqa: PLR0917
    wanted: tuple[str | None, ...],
    seconds: float,
    frames: int,
    seed: int,
    grade: float = 0.75,
    candidates: int = CANDIDATES,
) -> scenes.Scene:
    """Draw one scene for each entry of ``wanted``: a question that is true of the whole clip, or None for any
    scene. The scenes are chosen among ``candidates`` that are drawn without pictures. If none fits, any scene
    is taken. ``grade`` as in :func:`watchbench.scenes.sample`.
    """
    drawn = scenes.sample(candidates, seconds, seed, grade)
    yes, known = answers(scenes.observe(drawn, torch.arange(frames) * training.STEP_S).truth)
    true = (yes & known)[:, -1]
    free = list(range(candidates))
    rows = []
    for name in wanted:
        fit = [row for row in free if name is None or true[row, NAMES.index(name)]]
        row = (fit or free)[0]  # if none fits, any scene will do
        free.remove(row)
        rows.append(row)
    return scenes.some_of(drawn, torch.tensor(rows))


def keep(path: Path, drawn: dict[str, Any]) -> None:
    """Write a drawing atomically, even if another process writes the same one."""
    fresh = path.with_suffix(f".{os.getpid()}")
    torch.save(drawn, fresh)
    fresh.replace(path)


class ClipStore:
    """Clips by number. Each depends only on the seed, the eye, ``wanted`` and its number."""

    def __init__(self, model: Any, folder: Path, seed: int, wanted: Wanted = Wanted()) -> None:
        """``folder`` keeps the clips, in a subfolder for each eye (tower and projector) and each
        ``wanted``.
        """
        self.model, self.seed, self.wanted = model, seed, wanted
        self.together = vlm.form_of(model).frames
        wishes = hashlib.sha256(repr(wanted).encode()).hexdigest()[:12]
        self.folder = folder / f"{vlm.eye_digest(model)}-{wishes}-{seed}"
        self.folder.mkdir(parents=True, exist_ok=True)

    def clip(self, number: int) -> Clip:
        """Read a clip of one scene, or draw, encode and keep it."""
        # Events are in the first 20, 40, 60 or 80 s, so windows of any length have busy and quiet parts.
        wish = self.wanted.clips[number % len(self.wanted.clips)]
        return self._stored(f"{number:06d}", number, (wish,), FRAMES, (number % 4 + 1) / 4)

    def shorts(self, number: int) -> Clip:
        """Read a clip of eight scenes of 20 frames, whose events are denser, or draw, encode and keep it."""
        return self._stored(f"s{number:06d}", 5 * 10**6 + number, self.wanted.shorts, SHORT, 1.0)

    def _stored(
        self, name: str, number: int, wishes: tuple[str | None, ...], frames: int, busy: float
    ) -> Clip:
        path = self.folder / f"{name}.pt"
        if not path.is_file():
            keep(path, self._draw(number, wishes, frames, busy))
        stored = torch.load(path, weights_only=True)
        return Clip(stored["dense"], tuple(stored["pruned"]), scenes.Truth(**stored["truth"]))

    @torch.no_grad()
    def _draw(self, number: int, wishes: tuple[str | None, ...], frames: int, busy: float) -> dict[str, Any]:
        seed = self.seed * 10**7 + number
        seconds = frames * training.STEP_S * busy
        if any(wishes):
            scene = chosen(wishes, seconds, frames, seed)
        else:
            scene = scenes.sample(len(wishes), seconds, seed)
        times = torch.arange(frames) * training.STEP_S
        now = scenes.observe(scene, times)
        drawn = drawing.render(scene, times, vlm.SIZE, now, pasted=training.composite(scene))
        clips = drawn.permute(0, 1, 4, 2, 3).contiguous()
        pixels = clips.flatten(0, 1)
        pruned = []
        for stride in STRIDES:
            keep = torch.cat([product_masks(clip, stride, self.together) for clip in clips])
            pruned.append((self._tokens(pixels, keep), keep))
        truth = {field.name: getattr(now.truth, field.name).clone() for field in fields(scenes.Truth)}
        return {"dense": self._tokens(pixels, None), "pruned": pruned, "truth": truth}

    def _tokens(self, pixels: Tensor, keep: Tensor | None) -> Tensor:
        device, parts = next(self.model.parameters()).device, []
        for i in range(0, len(pixels), 40):
            rows = slice(i // self.together, (i + 40) // self.together)
            kept = None if keep is None else keep[rows].to(device)
            with device:
                parts.append(vlm.see(self.model, pixels[i : i + 40].to(device), kept).cpu())
        return torch.cat(parts).bfloat16()
