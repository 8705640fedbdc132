"""The model of the bench, its settings, and how a memory is fed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bench.memory.policies import Choice, Flat, FlatReader
from bench.memory.streams import FRAMES, Played, Spec, play
from bench.shapes import QWEN_7B
from lookout.models import TINY
from lookout.models.engines import load_engine
from lookout.models.engines.transformers import TransformersEngine
from lookout.models.engines.transformers.memory import LayerTrace, MemoryAnswer, ask, key_bias
from lookout.models.families import load_tower
from lookout.models.vision import Tower
from lookout.past.memory import (
    PRESETS,
    BornBlock,
    CameraMemory,
    KVShape,
    MemorySettings,
    Predictor,
    Snapshot,
)
from watchbench.questions import BY_NAME, PRODUCT

RESIDENT = 4 << 20
OURS, MOSAIC = (replace(PRESETS[name].memory, resident_bytes=RESIDENT) for name in ("default", "mosaic"))
RETRIEVAL, MOSAIC_RETRIEVAL = (PRESETS[name].retrieval for name in ("default", "mosaic"))
BUDGET = RETRIEVAL.frames
SEVEN_B = KVShape(QWEN_7B.layers, QWEN_7B.kv_heads, QWEN_7B.head_dim, 1, torch.bfloat16)
TEXTS = {name: BY_NAME[name].text for name in PRODUCT}


class World:
    """The model, and where results are kept."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self.tower: Tower = load_tower(TINY)
        self.engine: TransformersEngine = load_engine(TINY, budget_bytes=1 << 30)

    def stream(self, spec: Spec) -> Played:
        """A stream, played once and kept."""
        return play(spec, self.tower, self.engine, self.out / "streams")

    def memory(self, played: Played, settings: MemorySettings = OURS) -> CameraMemory:
        """An empty memory for a stream."""
        model = self.engine.model
        return CameraMemory(self.engine.kv_shape, played.prefix, settings, bias=key_bias(model))

    def ask(self, shot: Snapshot, question: str, **more: Any) -> MemoryAnswer:
        """One answer with the bench's budgets."""
        return ask(self.engine, shot, question, **{"retrieval": RETRIEVAL, **more})

    def read(
        self, shot: Snapshot, question: str, flat: Flat, choose: Choice, **more: Any
    ) -> tuple[MemoryAnswer, list[np.ndarray]]:
        """One answer that reads what `choose` names of the flat history."""
        readers: list[FlatReader] = []

        def make(traces: Sequence[LayerTrace]) -> FlatReader:
            readers.append(FlatReader(flat, choose, traces))
            return readers[-1]

        answer = self.ask(shot, question, reader=make, predictor=Predictor.NONE, **more)
        return answer, readers[0].read_tokens


def feed(
    memory: CameraMemory, blocks: Sequence[BornBlock], world: World | None = None, every: int = 150
) -> None:
    """Feed blocks; with a world, a question every `every` frames, whose fetches the memory hears of."""
    asked = 0
    for number, block in enumerate(blocks):
        memory.add(block)
        if world is not None and (number + 1) * FRAMES % every < FRAMES and memory.visual is not None:
            text = TEXTS[PRODUCT[asked % len(PRODUCT)]]
            answer = world.ask(memory.snapshot(), text, resident=memory.residency.__contains__)
            memory.settle(answer.fetched)
            asked += 1
