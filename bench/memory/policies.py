"""What ours is compared with, at an equal budget of tokens a layer: each chooses rows of one flat history."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from lookout.models.engines.transformers.memory import LayerContext, LayerTrace, clock
from lookout.past.memory import BornBlock, CameraMemory, Transfer


@dataclass
class Flat:
    """The visible history in order of time: per layer keys and values [tokens, width] (un-rotated; a row is
    contiguous, so that scoring is one product of a matrix and a vector), and each token's frame and place."""

    keys: list[torch.Tensor]
    values: list[torch.Tensor]
    frames: np.ndarray
    places: np.ndarray
    heads: int

    @classmethod
    def of(cls, blocks: Sequence[BornBlock]) -> Flat:
        layers, heads = blocks[0].keys.shape[:2]
        first = np.cumsum([0, *(block.frames for block in blocks)])
        frames = np.concatenate([b.frame + start for b, start in zip(blocks, first[:-1], strict=True)])

        def rows(name: str, layer: int) -> torch.Tensor:
            return torch.cat([getattr(b, name)[layer].transpose(0, 1).flatten(1) for b in blocks])

        keys, values = ([rows(name, layer) for layer in range(layers)] for name in ("keys", "values"))
        return cls(keys, values, frames, np.concatenate([b.places for b in blocks], 1), heads)

    @property
    def count(self) -> int:
        return len(self.frames)

    def until(self, tokens: int) -> Flat:
        """The first tokens only; shares memory."""
        return Flat(
            [k[:tokens] for k in self.keys],
            [v[:tokens] for v in self.values],
            self.frames[:tokens],
            self.places[:, :tokens],
            self.heads,
        )

    def rows(self, layer: int, chosen: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values [kv_heads, n, d] of some tokens."""
        index = torch.from_numpy(chosen)
        told = (x.index_select(0, index) for x in (self.keys[layer], self.values[layer]))
        keys, values = (x.view(len(chosen), self.heads, -1).transpose(0, 1) for x in told)
        return keys, values


Choice = Callable[[int, torch.Tensor], np.ndarray]


@dataclass
class FlatReader:
    """Reads the tokens that `choose(layer, mean query)` names, ascending. On a link each is a copy of its
    own; neighbours are one copy."""

    flat: Flat
    choose: Choice
    traces: Sequence[LayerTrace]
    read_tokens: list[np.ndarray] = field(default_factory=list)

    def foresee(self, layer: int, query: torch.Tensor) -> None:
        """Nothing is fetched ahead."""

    def read(self, layer: int, query: torch.Tensor) -> LayerContext | None:
        trace, begun = self.traces[layer], clock()
        rows = self.choose(layer, query)
        chosen = clock()
        self.read_tokens.append(rows)
        if not len(rows):
            return None
        keys, values = self.flat.rows(layer, rows)
        trace.retrieve_s, trace.move_s, trace.tokens = chosen - begun, clock() - chosen, len(rows)
        size = 2 * keys.numel() * keys.element_size()
        copies = 1 + int((np.diff(rows) != 1).sum())
        trace.transfer = Transfer(late_bytes=size, late_copies=copies)
        frames, places = self.flat.frames[rows], self.flat.places[:, rows]
        return LayerContext([(keys, values)], frames, places, len(rows))


def top(scores: torch.Tensor, budget: int) -> np.ndarray:
    """The places of the best scores, ascending. A partition takes a quarter of the time of `topk`."""
    if budget >= len(scores):
        return np.arange(len(scores))
    return np.sort(np.argpartition(scores.float().numpy(), -budget)[-budget:])


def frame_tokens(flat: Flat, frames: np.ndarray, budget: int) -> np.ndarray:
    """All tokens of some frames, at most the budget."""
    wanted = np.zeros(int(flat.frames[-1]) + 1, bool)
    wanted[frames] = True
    return np.flatnonzero(wanted[flat.frames])[:budget]


def everything(flat: Flat) -> Choice:
    return lambda layer, query: np.arange(flat.count)


def newest(flat: Flat, budget: int) -> Choice:
    return lambda layer, query: np.arange(max(0, flat.count - budget), flat.count)


def uniform_frames(flat: Flat, frames: int, budget: int) -> Choice:
    picked = np.unique(np.linspace(0, flat.frames[-1], frames).round().astype(int))
    rows = frame_tokens(flat, picked, budget)
    return lambda layer, query: rows


def random_frames(flat: Flat, frames: int, budget: int, seed: int) -> Choice:
    number = int(flat.frames[-1]) + 1
    picked = np.random.default_rng(seed).choice(number, min(frames, number), replace=False)
    rows = frame_tokens(flat, picked, budget)
    return lambda layer, query: rows


def _scores(flat: Flat, layer: int, query: torch.Tensor) -> torch.Tensor:
    keys = flat.keys[layer]
    # As a product of matrices: in bfloat16 half the time of a product with a vector.
    return (query.to(keys.dtype)[None] @ keys.T)[0]


def token_level(flat: Flat, budget: int) -> Choice:
    """ReKV at token level: the tokens whose keys score best against the mean query."""
    return lambda layer, query: top(_scores(flat, layer, query), budget)


def frame_level(flat: Flat, frames: int, budget: int) -> Choice:
    """ReKV at frame level: the frames whose mean keys score best."""
    number = int(flat.frames[-1]) + 1
    sizes = torch.from_numpy(np.bincount(flat.frames, minlength=number)).clamp(min=1)
    where = torch.from_numpy(flat.frames)
    means = []
    for keys in flat.keys:
        total = torch.zeros(number, keys.shape[1])
        for some, rows in zip(where.split(1 << 16), keys.split(1 << 16), strict=True):
            total.index_add_(0, some, rows.float())
        means.append(total / sizes[:, None])

    def choose(layer: int, query: torch.Tensor) -> np.ndarray:
        return frame_tokens(flat, top(means[layer] @ query.float(), frames), budget)

    return choose


def agnostic(flat: Flat, proxy: Sequence[torch.Tensor], budget: int) -> Choice:
    """StreamMem-style: a fixed budget kept whatever is asked, by score against a proxy query (that of the
    prompt's own question tail). The proxy is constant, so keeping the best of old and new at every block
    ends with the best of all."""
    kept = [top(_scores(flat, layer, one), budget) for layer, one in enumerate(proxy)]
    return lambda layer, query: kept[layer]


def compressed(flat: Flat, proxy: Sequence[torch.Tensor], budget: int, keep: float = 0.5) -> Choice:
    """LiveVLM's scheme: every block is compressed to the share of tokens that score best against the proxy
    query, then tokens are retrieved from what remains."""
    step = max(1, int((flat.frames < 16).sum()))
    held = []
    for layer, one in enumerate(proxy):
        scores = _scores(flat, layer, one)
        parts = [
            start + top(scores[start : start + step], max(1, round(keep * len(scores[start : start + step]))))
            for start in range(0, flat.count, step)
        ]
        held.append(np.concatenate(parts))
    keys = [flat.keys[layer][torch.from_numpy(rows)] for layer, rows in enumerate(held)]

    def choose(layer: int, query: torch.Tensor) -> np.ndarray:
        return held[layer][top(keys[layer] @ query, budget)]

    return choose


SMOOTHING = 0.5
"""Share of a token's importance that comes from the layer above. The descriptions of HERMES at hand name the
step and not its constant."""


def hermes(flat: Flat, proxy: Sequence[torch.Tensor], budget: int) -> Choice:
    """HERMES (arXiv 2601.14724): a fixed budget in every layer, kept block by block, whatever is asked.

    A token's importance is its recency in the first third of the layers (a forgetting curve, which here
    falls to 1/e over the budget), its attention to a proxy query in the last third, and in between a mixture
    that moves from one to the other; then it is smoothed from the deepest layer to the first. What is
    evicted does not come back. Two parts of it are left out: the mean of the evicted tokens that deep layers
    keep, and its numbering of positions, in place of which the memory's is used.
    """
    layers, width = len(flat.keys), flat.keys[0].shape[1]
    deep = np.clip(np.linspace(-1, 2, layers), 0, 1)
    attended = []
    for layer, query in enumerate(proxy):
        scores = _scores(flat, layer, query).float() * (width / flat.heads) ** -0.5
        attended.append(np.exp((scores - scores.max()).numpy()))
    held = [np.zeros(0, np.int64)] * layers
    step = max(1, int((flat.frames < 16).sum()))
    for start in range(0, flat.count, step):
        end = min(flat.count, start + step)
        age = np.exp((np.arange(end) - end) / budget)
        above = np.zeros(0)
        for layer in reversed(range(layers)):
            own = (1 - deep[layer]) * age + deep[layer] * attended[layer][:end]
            above = own if not above.size else (1 - SMOOTHING) * own + SMOOTHING * above
            rows = np.concatenate([held[layer], np.arange(start, end)])
            held[layer] = rows[top(torch.from_numpy(above[rows]), budget)]
    return lambda layer, query: held[layer]


def random_clusters(memory: CameraMemory, budget: int, seed: int) -> Choice:
    """Whole clusters of ours, drawn by a seed until the budget is full."""
    draw = np.random.default_rng(seed)
    rows = []
    for layer in range(memory.shape.layers):
        clusters, left, taken = memory.clusters(layer), budget, []
        for place in draw.permutation(len(clusters)):
            if clusters[place].count <= left:
                taken.append(clusters[place].slab.tokens)
                left -= clusters[place].count
        rows.append(np.sort(np.concatenate(taken)))
    return lambda layer, query: rows[layer]


def given(rows: Sequence[np.ndarray]) -> Choice:
    """Rows per layer chosen beforehand (exact top-k, from the attention over everything)."""
    return lambda layer, query: rows[layer]
