"""Time to the first token at the shape of a 7B: one layer of it, over an hour of history.

Weights are random: this measures time and says nothing about what is found. Keys have the geometry of the
trained tiny model: its keys, turned into the larger width by an orthonormal matrix, which keeps every cosine,
and some noise, since one frame of it has 22 tokens and one of a 7B's has 98.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from tqdm import tqdm

from bench.memory import policies
from bench.memory.policies import Choice, Flat, FlatReader
from bench.memory.streams import FRAMES, TUNING, Played
from bench.memory.timing import timed
from bench.memory.world import BUDGET, World
from bench.shapes import QWEN_7B
from lookout.models.engines.transformers import TransformersEngine
from lookout.models.engines.transformers.memory import LayerTrace, MemoryAnswer, ask
from lookout.models.engines.transformers.model import LanguageModel
from lookout.models.flops import linear_weights
from lookout.models.windows import Rotary
from lookout.past.memory import PRESETS, BornBlock, CameraMemory, Prefix

TOKENS = 98
"""Tokens of a frame: those of a 7B at 392 x 196 pixels, or of 448 x 448 pruned to .38."""
RATES = {"0.5": 1800, "1": 3600, "2": 7200}
"""Samples a second, and the frames of an hour at each; 2 is the default of the product, 0.5 the paper's."""
SAME = 0.97
"""Cosine of two tokens that stand for the same token of the tiny model, on average."""
QUESTION = "Has an object been left behind?"


def layer_of_7b(seed: int = 0) -> LanguageModel:
    """One decoder layer of Qwen2.5-7B's shape, bfloat16, random weights."""
    from transformers import Qwen2Config, Qwen2Model

    torch.manual_seed(seed)
    config = Qwen2Config(
        hidden_size=QWEN_7B.hidden,
        intermediate_size=18944,
        num_attention_heads=QWEN_7B.heads,
        num_key_value_heads=QWEN_7B.kv_heads,
        num_hidden_layers=1,
        vocab_size=1024,
        max_position_embeddings=32768,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6},
    )
    text: Any = Qwen2Model._from_config(config, dtype=torch.bfloat16).eval().requires_grad_(False)
    linear = linear_weights([text.layers[0]])
    assert linear == QWEN_7B.linear
    return LanguageModel(
        layers=text.layers,
        embedding=text.embed_tokens,
        norm=text.norm,
        head=torch.nn.Linear(QWEN_7B.hidden, 1024, bias=False, dtype=torch.bfloat16).requires_grad_(False),
        newline=None,
        rotary=Rotary.of(text.rotary_emb.inv_freq),
        family="internvl",
        heads=QWEN_7B.heads,
        kv_heads=QWEN_7B.kv_heads,
        head_dim=QWEN_7B.head_dim,
        hidden=QWEN_7B.hidden,
        linear=linear,
        limit=config.max_position_embeddings,
        deepstack=0,
        config=config,
    )


@dataclass
class Widened:
    """Blocks of a played stream at the larger width, each of its frames `often` times with fresh noise."""

    played: Played
    seed: int
    often: int = 4

    def blocks(self) -> Iterator[BornBlock]:
        """Born blocks of `FRAMES` frames, one layer, bfloat16."""
        width = QWEN_7B.kv_heads * QWEN_7B.head_dim
        draw = torch.Generator().manual_seed(self.seed)
        small = self.played.blocks[0].keys.shape[1] * self.played.blocks[0].keys.shape[3]
        turn = torch.linalg.qr(torch.randn(width, small, generator=draw))[0]
        number, step_us = 0, round(3600 * 1e6 / RATES["2"])
        frame = np.repeat(np.arange(FRAMES), TOKENS)
        places = np.tile(np.arange(TOKENS), FRAMES)[None]
        step = np.array([TOKENS], dtype=np.int64)
        for block in self.played.blocks:
            for one in range(block.frames):
                rows = torch.from_numpy(np.flatnonzero(block.frame == one))
                rows = rows[torch.arange(TOKENS) % len(rows)].repeat(FRAMES)
                look = block.embeddings[one].expand(FRAMES, -1)
                noise = torch.randn(look.shape, generator=draw) * 0.05 * look.std()
                data = [
                    self._wide(x[3].transpose(0, 1).flatten(1)[rows], turn, draw)
                    for x in (block.keys, block.values)
                ]
                yield BornBlock(
                    stream="shape/0",
                    index=number,
                    times_us=(number * FRAMES + np.arange(FRAMES)) * step_us,
                    embeddings=look + noise,
                    frame=frame,
                    places=places,
                    step=step,
                    extent=step,
                    keys=data[0],
                    values=data[1],
                )
                number += 1

    def _wide(self, small: torch.Tensor, turn: torch.Tensor, draw: torch.Generator) -> torch.Tensor:
        """[1, kv_heads, rows, head_dim] of rows [rows, small]."""
        x = small @ turn.T
        noise = torch.randn(x.shape, generator=draw) * x.norm(dim=1, keepdim=True) / x.shape[1] ** 0.5
        out = x + noise * (1 / SAME - 1) ** 0.5
        heads = out.view(len(out), QWEN_7B.kv_heads, QWEN_7B.head_dim).transpose(0, 1)
        return heads.to(torch.bfloat16).contiguous()[None]


def shape_times(world: World, seed: int) -> dict[str, Any]:
    """Seconds to the first token through one layer, by samples a second of an hour's history."""
    model = layer_of_7b(seed)
    engine = TransformersEngine(model, world.engine.layout, world.engine._tokenizer)
    played = world.stream(TUNING[seed % len(TUNING)])
    prefix = Prefix(np.arange(8)[None], *torch.randn(2, 1, 4, 8, 128).bfloat16())
    preset = PRESETS["default"]
    memory = CameraMemory(engine.kv_shape, prefix, preset.memory)
    rows, width = max(RATES.values()) * TOKENS, QWEN_7B.kv_heads * QWEN_7B.head_dim
    flat = Flat(
        [torch.empty(rows, width, dtype=torch.bfloat16)],
        [torch.empty(rows, width, dtype=torch.bfloat16)],
        np.repeat(np.arange(rows // TOKENS), TOKENS),
        np.tile(np.arange(TOKENS), rows // TOKENS)[None],
        QWEN_7B.kv_heads,
    )
    out: dict[str, Any] = {}
    done = 0
    blocks = Widened(played, seed).blocks()
    for rate, frames in RATES.items():
        left = range((frames - done) // FRAMES)
        for _ in tqdm(left, desc=f"an hour at {rate} a second", leave=False):
            block = next(blocks)
            part = slice(done * TOKENS, (done + FRAMES) * TOKENS)
            flat.keys[0][part] = block.keys[0].transpose(0, 1).flatten(1)
            flat.values[0][part] = block.values[0].transpose(0, 1).flatten(1)
            memory.add(block)
            done += FRAMES
        out[rate] = _times(engine, memory, flat.until(memory.snapshot().window[0].first_token))
    return out


def _times(engine: TransformersEngine, memory: CameraMemory, flat: Flat) -> dict[str, Any]:
    shot = memory.snapshot()
    budget = BUDGET * TOKENS

    def whole(*_: Any) -> None:
        """An observer makes the pass compute every row, as in the layers before the last."""

    def read(choose: Choice) -> MemoryAnswer:
        def make(traces: Sequence[LayerTrace]) -> FlatReader:
            return FlatReader(flat, choose, traces)

        return ask(engine, shot, QUESTION, reader=make, observer=whole)

    token, frame = policies.token_level(flat, budget), policies.frame_level(flat, BUDGET, budget)
    ways = timed(
        {
            "none": lambda: read(lambda layer, query: np.zeros(0, np.int64)),
            "token": lambda: read(token),
            "frame": lambda: read(frame),
            "ours": lambda: ask(engine, shot, QUESTION, observer=whole),
        }
    )
    size = memory.size()
    more = {"tokens": flat.count, "clusters": size.clusters, "visual": len(memory.layers[0].counts)}
    return {**ways, **more, "index_share": size.share, "key_bytes": flat.count * flat.keys[0].shape[1] * 2}
