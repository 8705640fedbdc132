"""Attention of scattered rows: one registered function that the stock layers call with un-rotated K and V.

The layers get the identity rotation, so the keys that reach `Pass.update` are un-rotated. `update` writes the
computed rows into the stream's KV and returns a handle. The attention function rotates the window's K once,
in float32, and lets every chunk of rows see the rows up to its own. The cost depends on the rows computed,
because a chunk of neighbouring rows reads no key after its last row.

Time on a CPU for 302 scattered of 3 040 rows, relative to one masked call: chunks of neighbours 0.63, fixed
chunks of 128 rows 0.75, FlexAttention (compiled) 1.95. Consecutive rows (the `front` policy, a new block)
need no mask at all: accelerators get one causal call aligned to the last row. CPU kernels can only align to
the first row, and there chunks take 0.7 to 0.9 of the time of one causal call over padded rows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.nn import functional

from lookout.models.engines.transformers.kv import StreamKV
from lookout.models.engines.transformers.question_kv import QuestionKV
from lookout.models.windows.rotary import Angles, Rotary

NAME = "lookout_window"
CHUNK = 128
FEW = 16
GAP = 16
IN_CACHE = 1 << 20
"""Number of attention weights that fit in a CPU's cache."""


@dataclass(slots=True, eq=False)
class Chunk:
    """Rows [start, stop) of a stream's computed rows; they see the first `limit` rows of the window.

    `mask` is additive [rows, limit]. None: the chunk consists of the last of the first `limit` rows, without
    a gap, so attention is causal.
    """

    start: int
    stop: int
    limit: int
    mask: torch.Tensor | None


@dataclass(slots=True, eq=False)
class StreamPass:
    """One stream's part of a packed pass: window rows [offset, offset + computed), then its questions' rows.

    `past` has the KV of these questions' rows from earlier passes, and receives the KV of this pass. `ends`
    are the question rows whose attention to the window's rows is summed over layers and heads into
    `attention`, float32 [ends, window rows].
    """

    kv: StreamKV
    rows: torch.Tensor
    angles: Angles
    chunks: list[Chunk]
    question_rows: int
    question_angles: Angles
    question_mask: torch.Tensor | None
    past: QuestionKV | None = None
    ends: torch.Tensor | None = None
    attention: torch.Tensor | None = None
    offset: int = 0
    fresh: torch.Tensor | None = None

    @property
    def computed(self) -> int:
        """Window rows in the pass at the current layer."""
        return int(self.rows.shape[0])

    @property
    def size(self) -> int:
        """All rows in the pass at the current layer."""
        return self.computed + self.question_rows


class LayerCache(ABC):
    """The cache object that the stock layers see. It computes their attention, with un-rotated keys."""

    __slots__ = ()

    def update(
        self, key: torch.Tensor, value: torch.Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[Handle, torch.Tensor]:
        """Return a handle in place of K; called by the stock attention module."""
        return Handle(self, key[0], layer_idx), value

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Part of the cache protocol; positions are explicit here."""
        return 0

    @abstractmethod
    def attend(
        self, layer: int, key: torch.Tensor, query: torch.Tensor, value: torch.Tensor, scaling: float
    ) -> torch.Tensor:
        """Compute the attention of a layer.

        Args:
            layer: Its number.
            key: [kv_heads, rows, head_dim], un-rotated.
            query: [heads, rows, head_dim], un-rotated.
            value: [1, kv_heads, rows, head_dim].
            scaling: Factor of the scores.

        Returns:
            [rows, heads, head_dim].
        """


@dataclass(frozen=True, slots=True, eq=False)
class Handle:
    """Stands in for K on the way from `LayerCache.update` to the attention function."""

    owner: LayerCache
    key: torch.Tensor
    layer: int


@dataclass(slots=True, eq=False)
class Pass(LayerCache):
    """Streams packed into one sequence [1, heads, rows, head_dim]."""

    streams: list[StreamPass]
    layers: int = 0
    _layer: int = field(default=0)

    def pack(self) -> None:
        """Recompute the streams' offsets after a stream's rows changed."""
        offset = 0
        for stream in self.streams:
            stream.offset = offset
            offset += stream.size

    def update(
        self, key: torch.Tensor, value: torch.Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[Handle, torch.Tensor]:
        """Write the computed rows of every stream; called by the stock attention module."""
        for stream in self.streams:
            part = slice(stream.offset, stream.offset + stream.computed)
            stream.kv.keys[layer_idx].index_copy_(1, stream.rows, key[0, :, part])
            stream.kv.values[layer_idx].index_copy_(1, stream.rows, value[0, :, part])
        return Handle(self, key[0], layer_idx), value

    def attend(
        self, layer: int, key: torch.Tensor, query: torch.Tensor, value: torch.Tensor, scaling: float
    ) -> torch.Tensor:
        """See `LayerCache.attend`."""
        out = torch.empty(
            (query.shape[1], query.shape[0], query.shape[2]), dtype=query.dtype, device=query.device
        )
        for stream in self.streams:
            self._window(stream, layer, key, query, out, scaling, value)
        return out

    def _window(  # noqa: PLR0917
        self,
        stream: StreamPass,
        layer: int,
        key: torch.Tensor,
        query: torch.Tensor,
        out: torch.Tensor,
        scaling: float,
        value: torch.Tensor,
    ) -> None:
        if stream.size == 0:
            return
        n, begin, middle = stream.kv.rows, stream.offset, stream.offset + stream.computed
        end = middle + stream.question_rows
        keys = Rotary.rotate(stream.kv.keys[layer][:, :n], stream.angles)
        values = stream.kv.values[layer][:, :n]
        if stream.computed:
            cos, sin = stream.angles
            angles = (cos.index_select(0, stream.rows), sin.index_select(0, stream.rows))
            queries = Rotary.rotate(query[:, begin:middle], angles)
            for chunk in stream.chunks:
                visible = slice(0, chunk.limit)
                out[begin + chunk.start : begin + chunk.stop] = sdpa(
                    queries[:, chunk.start : chunk.stop],
                    keys[:, visible],
                    values[:, visible],
                    chunk.mask,
                    scaling,
                )
        if stream.question_rows:
            question = slice(middle, end)
            queries = Rotary.rotate(query[:, question], stream.question_angles)
            own = Rotary.rotate(key[:, question], stream.question_angles)
            own_values = value[0, :, question]
            if stream.past is not None:
                own, own_values = stream.past.joined(layer, own, own_values)
            keys = torch.cat([keys, own], 1)
            values = torch.cat([values, own_values], 1)
            out[question] = sdpa(queries, keys, values, stream.question_mask, scaling)
            if stream.ends is not None:
                self._add_weights(stream, stream.ends, queries, keys, scaling)

    @staticmethod
    def _add_weights(
        stream: StreamPass, ends: torch.Tensor, queries: torch.Tensor, keys: torch.Tensor, scaling: float
    ) -> None:
        """Add the attention of each question's last row to the window's rows."""
        assert stream.question_mask is not None
        last = queries.index_select(1, ends)
        heads, rows, size = last.shape
        together = last.reshape(keys.shape[0], -1, size)  # the query heads of a KV head, one after the other
        score = torch.bmm(together, keys.transpose(1, 2)).float().view(heads, rows, -1) * scaling
        score += stream.question_mask.index_select(0, ends)
        weight = score.softmax(-1)[..., : stream.kv.rows].sum(0)
        stream.attention = weight if stream.attention is None else stream.attention + weight


def sdpa(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None, scaling: float
) -> torch.Tensor:
    """Grouped-query attention of [heads, rows, d] over [kv_heads, keys, d]; returns [rows, heads, d].

    Without a mask, the query rows are the last of the key rows, in order, and attention is causal.
    """
    heads, rows, size = query.shape
    groups = heads // key.shape[0]
    wide = (key.shape[0], groups, key.shape[1], size)
    causal = mask is None and rows == key.shape[1]
    if mask is None and not causal:
        from torch.nn.attention.bias import causal_lower_right  # imports torch's compiler

        mask = causal_lower_right(rows, key.shape[1])
    result = functional.scaled_dot_product_attention(
        query.view(key.shape[0], groups, rows, size),
        key[:, None].expand(wide),
        value[:, None].expand(wide),
        attn_mask=mask,
        is_causal=causal,
        scale=scaling,
    )
    return result.reshape(heads, rows, size).transpose(0, 1)


def few_rows(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor, scaling: float
) -> torch.Tensor:
    """Compute `sdpa` for the few rows of a question.

    On a CPU this takes two matrix products, in which the rows of all query heads of a KV head are stacked,
    with the softmax in at least float32. The fused kernel reads the keys once for every query head and takes
    1.2 to 2.6 times as long.
    """
    if query.device.type != "cpu":
        return sdpa(query, key, value, mask, scaling)
    heads, rows, size = query.shape
    kv_heads, count = key.shape[:2]
    together = (query * scaling).view(kv_heads, -1, size)
    # With a long history, one KV head at a time, so that its attention weights stay in the cache.
    step = 1 if together[..., 0].numel() * count > IN_CACHE else kv_heads
    out = torch.empty_like(together)
    for head in range(0, kv_heads, step):
        span = slice(head, head + step)
        score = torch.bmm(together[span], key[span].transpose(1, 2)).view(step, -1, rows, count)
        score += mask
        weight = score.softmax(-1, dtype=torch.promote_types(score.dtype, torch.float32)).to(value.dtype)
        torch.bmm(weight.view(step, -1, count), value[span], out=out[span])
    return out.view(heads, rows, size).transpose(0, 1)


def additive(seen: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Convert a boolean mask (True = seen) to an additive mask of `dtype`; done once for all layers."""
    return torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill_(~seen, float("-inf"))


def chunks_of(
    rows: torch.Tensor,
    host: Sequence[int] | None,
    n: int,
    dtype: torch.dtype,
    *,
    unbroken: bool | None = None,
) -> list[Chunk]:
    """Divide scattered rows into chunks.

    Args:
        rows: The rows to compute, int64, ascending.
        host: The same rows on the host. None: the rows were chosen on the device; every chunk reads the whole
            window.
        n: Rows of the window.
        dtype: Data type of the masks.
        unbroken: Whether consecutive rows form one chunk without a mask; None: on every device but the CPU.
    """
    if host is not None and len(host) == n:
        return [Chunk(0, n, n, None)]
    split = rows.device.type != "cpu" if unbroken is None else unbroken
    places = torch.arange(n, device=rows.device)
    chunks: list[Chunk] = []
    for start, stop in cuts(host, int(rows.shape[0]), split):
        limit = n if host is None else host[stop - 1] + 1
        if split and host is not None and host[stop - 1] - host[start] == stop - 1 - start:
            chunks.append(Chunk(start, stop, limit, None))
            continue
        visible = places[None, :limit] <= rows[start:stop, None]
        chunks.append(Chunk(start, stop, limit, additive(visible, dtype)))
    return chunks


def cuts(host: Sequence[int] | None, count: int, unbroken: bool = False) -> list[tuple[int, int]]:
    """Cut `count` ascending rows where a gap begins.

    A gap does not cut off a chunk of fewer than `FEW` rows, because every call has a fixed cost. No chunk has
    more than `CHUNK` rows, because it reads up to its last row. With `unbroken`, `CHUNK` or more consecutive
    rows form one chunk, however long.
    """
    out: list[tuple[int, int]] = []
    start = 0
    long = _long_runs(host, count) if unbroken and host is not None else {}
    row = 0
    while row < count:
        if row in long:
            if row > start:
                out.append((start, row))
            out.append((row, long[row]))
            start = row = long[row]
            continue
        row += 1
        gap = row == count or (host is not None and host[row] - host[row - 1] > GAP)
        if row == count or row - start >= CHUNK or (gap and row - start >= FEW):
            out.append((start, row))
            start = row
    return out


def _long_runs(host: Sequence[int], count: int) -> dict[int, int]:
    """Start and stop of every run of at least `CHUNK` consecutive rows."""
    runs: dict[int, int] = {}
    start = 0
    for row in range(1, count + 1):
        if row == count or host[row] != host[row - 1] + 1:
            if row - start >= CHUNK:
                runs[start] = row
            start = row
    return runs


def window_attention(  # noqa: PLR0917 (the signature is transformers')
    module: torch.nn.Module,
    query: torch.Tensor,
    key: Any,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """The function that the stock attention modules call; `key` is the handle from `LayerCache.update`."""
    if not isinstance(key, Handle):
        raise TypeError(f"{NAME} attention needs a window pass as its cache, not {type(key).__name__}")
    return key.owner.attend(key.layer, key.key, query[0], value, scaling)[None], None


def attend_through(config: Any) -> None:
    """Make the stock layers of a configuration call `window_attention`."""
    from transformers import AttentionInterface  # imports every optional part of the stock models

    AttentionInterface.register(NAME, window_attention)
    config._attn_implementation = NAME
