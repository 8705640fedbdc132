"""The size of a campaign: the shape of a 7B for a GPU, a tiny one that proves the steps on a CPU."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Any, Final

import torch

from bench.windows import model
from lookout.models.engines.transformers import TransformersEngine
from lookout.models.families import load_tower
from lookout.models.vision import Tower
from tests.tiny_models import checkpoint


@dataclass(frozen=True, slots=True)
class Scale:
    """How large the steps are.

    Attributes:
        shape: Language model: a name in `bench.windows.SHAPES`.
        device: Where it runs.
        vision: Overrides of the vision tower's configuration.
        pixels: Height and width of a frame of the tower.
        grid: Tokens of a frame, (rows, columns).
        streams: Windows in one batch, by measurement.
        recording: Frames of the recording, one a second.
        history: Frames of the memory, one in two seconds.
        memory_layers: Decoder layers of the memory's model: its clusters are made on the host.
        windows: Slides that are measured.
        clips: Rendered clips of the trained model.
        steps: Training steps of each stage.
        families: Tiny checkpoints of the oracles; empty: all.
    """

    shape: str
    device: torch.device
    vision: dict[str, Any]
    pixels: int
    grid: tuple[int, int]
    streams: tuple[int, ...]
    recording: int
    history: int
    memory_layers: int
    windows: int
    clips: int
    steps: int
    families: tuple[str, ...] = ()

    @property
    def dtype(self) -> torch.dtype:
        """Of weights and KV."""
        return torch.float32 if self.device.type == "cpu" else torch.bfloat16

    def engine(self, layers: int | None = None) -> TransformersEngine:
        """A random language model of the shape, made on the device."""
        return model(self.shape, self.device, self.dtype, layers=layers)

    def tower(self) -> Tower:
        """A random vision tower of the shape, made on the device."""
        from transformers import AutoConfig, AutoModel

        config = AutoConfig.from_pretrained(checkpoint("internvl"))
        for name, value in self.vision.items():
            setattr(config.vision_config, name, value)
        config.text_config.num_hidden_layers, config.text_config.layer_types = 0, []
        with self.device:
            stock = AutoModel.from_config(config, dtype=self.dtype)
        return load_tower(stock, size=(self.pixels, self.pixels))


#: InternViT-300M (bench/shapes.py), the tower of InternVL3-8B
VIT_300M: Final = {
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "image_size": [448, 448],
}
SCALES: Final = {
    "7b": Scale("7b", torch.device("cuda"), VIT_300M, 448, (7, 14), (1, 8, 32), 3600, 1800, 2, 5, 64, 200),
    "tiny": Scale(
        "tiny", torch.device("cpu"), {}, 112, (6, 6), (1, 2), 32, 160, 2, 1, 1, 1, families=("internvl",)
    ),
}


def scale_of(shape: str, device: str) -> Scale:
    """The scale of a shape on a device."""
    return replace(SCALES[shape], device=torch.device(device))


class Stopwatch:
    """Wall seconds on a device: what was sent to it is finished before the clock is read."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._start = self.now()

    def now(self) -> float:
        """The clock, after the device's work."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return time.perf_counter()

    def lap(self) -> float:
        """Seconds since the last lap."""
        start, self._start = self._start, self.now()
        return self._start - start


def peak_bytes(device: torch.device) -> int | None:
    """The most bytes that were allocated on a GPU; None on a CPU."""
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None
