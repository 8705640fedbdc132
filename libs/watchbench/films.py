"""Asks about films of unseen rendered cameras as the product does: encoded video, Lookout's decoder, two
frames a second, windows of at most ten seconds.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from watchbench import cameras, encode, model as vlm, scenes
from watchbench.questions import BY_NAME

FRAMES, STEP_S = 20, 0.5
# Scenes from 900 000 000 on were evaluated during training; these are for the final evaluation only.
HELD_BACK = 910_000_000


def decode(path: Path) -> tuple[Tensor, Tensor]:
    """Decode a file with Lookout's decoder: pixels [n, 3, 112, 112] in 0..1, times [n] in seconds."""
    from lookout.streams import decode_request
    from lookout.video.segments import SoftwareDecoder

    request = decode_request(vlm.SIZE, vlm.SIZE)
    result = SoftwareDecoder().decode(path.read_bytes(), request)
    pixels = torch.from_numpy(result.pixels.copy())
    times = torch.tensor([frame.stream_us / 1e6 for frame in result.frames])
    return pixels.permute(0, 3, 1, 2).float() / 255, times


@torch.no_grad()
def ask(
    model: Any, pixels: Tensor, names: tuple[str, ...], ends: tuple[int, ...], keep: Tensor | None = None
) -> Tensor:
    """p(yes) [ends, questions] after frames ``ends`` of one clip [T, 3, 112, 112].

    ``keep`` as in :func:`watchbench.model.see`.
    """
    tokens, frames = vlm.see(model, pixels, keep), vlm.form_of(model).frames
    asked = [vlm.Asked(BY_NAME[name].text, end // frames) for end in ends for name in names]
    reading = vlm.answer(model, tokens[None], asked, None if keep is None else keep[None])
    return reading.answers[0].softmax(-1)[:, 0].view(len(ends), len(names))


def rendered_clips(
    count: int,
    folder: Path,
    first: int,
    frames: int = FRAMES,
    drawn: Callable[[int, float, int], scenes.Scene] = scenes.sample,
) -> Iterator[tuple[Path, scenes.Scene]]:
    """Yield unseen random cameras of ``frames`` samples, with seeds from ``first`` on.

    They are rendered at 448 x 448, encoded in various ways, and kept in ``folder``. ``drawn`` draws a batch
    of scenes, given its size, the seconds and the seed.
    """
    seconds = frames * STEP_S
    for i, seed in enumerate(range(first, first + count)):
        scene = drawn(1, seconds, seed)
        path = folder / f"{i:04d}-{cameras.LOOK}-{frames}-{_digest(scene)}.mp4"
        if not path.is_file():
            how = encode.varied(seed)
            encode.write(cameras.frames(scene, seconds), path, cameras.FPS, how)
        yield path, scene


def _digest(scene: scenes.Scene) -> str:
    """Return a digest of everything that happens in the scene."""
    tables = (scene.people, scene.vehicles, scene.objects, scene.furniture, scene.look, scene.slow)
    seen = hashlib.sha256(scene.tall.numpy().tobytes() + scene.horizon.numpy().tobytes())
    for table in tables:
        for name in sorted(table):
            seen.update(table[name].contiguous().numpy().tobytes())
    return seen.hexdigest()[:12]
