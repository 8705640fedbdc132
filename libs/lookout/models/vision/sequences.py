"""Attention inside segments of one packed sequence: frames of any length, from any camera, in one batch.

The stock towers call the attention function that their configuration names. This one is registered under
`NAME`; the word "flash" in it makes the Qwen towers pass on the whole packed sequence and its boundaries
instead of one call per segment. Without active segments it is plain scaled dot-product attention, so a
tower's own forward pass is unchanged.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention

NAME = "lookout_flash_segments"


@dataclass(frozen=True, slots=True)
class Sequences:
    """Consecutive segments of a packed sequence that attend only to themselves.

    `cumulative` is int32 [n + 1] on the host; `index` has, for each distinct length, the rows of all segments
    of that length, int64 [count, length] on the device.
    """

    lengths: tuple[int, ...]
    cumulative: torch.Tensor
    on_device: torch.Tensor
    index: tuple[torch.Tensor, ...]
    device: torch.device

    @classmethod
    def of(cls, lengths: Sequence[int], device: torch.device) -> Sequences:
        """Build segments of these lengths, in order; a segment may be empty."""
        cumulative = torch.zeros(len(lengths) + 1, dtype=torch.int32)
        cumulative[1:] = torch.tensor(lengths, dtype=torch.int32).cumsum(0)
        starts = cumulative[:-1].long()
        sizes = torch.tensor(lengths)
        index = tuple(
            (starts[sizes == length][:, None] + torch.arange(length)).to(device)
            for length in sorted(set(lengths) - {0})
        )
        return cls(tuple(lengths), cumulative, cumulative.to(device), index, device)

    @property
    def longest(self) -> int:
        """Rows of the longest segment."""
        return max(self.lengths)

    @property
    def pairs(self) -> int:
        """Query-key pairs that attention computes."""
        return sum(length * length for length in self.lengths)


_active: ContextVar[tuple[Sequences, ...]] = ContextVar("lookout_segments", default=())


@contextmanager
def attending(*segments: Sequences) -> Iterator[None]:
    """Limit attention to these segments within the context. A layer that passes boundaries gets the segments
    with the same boundaries."""
    token = _active.set(segments)
    try:
        yield
    finally:
        _active.reset(token)


def _chosen(boundaries: torch.Tensor | None) -> Sequences:
    active = _active.get()
    # Compare by identity, because the stock layer passes on the very tensor that it was given.
    return next((entry for entry in active if entry.cumulative is boundaries), active[0])


def attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None = None,
    *,
    scaling: float | None = None,
    cu_seq_lens_q: torch.Tensor | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Bidirectional attention of query, key and value [batch, heads, rows, dim]; returns [batch, rows, heads,
    dim]."""
    if not _active.get():
        if cu_seq_lens_q is None:
            return scaled_dot_product_attention(
                query, key, value, attn_mask=attention_mask, scale=scaling
            ).transpose(1, 2).contiguous(), None
        lengths = (cu_seq_lens_q[1:] - cu_seq_lens_q[:-1]).tolist()
        segments = Sequences.of(lengths, query.device)
    else:
        segments = _chosen(cu_seq_lens_q)
    if query.is_cuda and query.dtype in (torch.float16, torch.bfloat16):
        from torch.nn.attention.varlen import varlen_attn  # imports torch's compiler

        q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))
        edges, longest = segments.on_device, segments.longest
        out = varlen_attn(q, k, v, edges, edges, longest, longest, scale=scaling)
        assert isinstance(out, torch.Tensor)
        return out[None], None
    return _by_length(query[0], key[0], value[0], segments, scaling)[None], None


def _by_length(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, segments: Sequences, scaling: float | None
) -> torch.Tensor:
    """Attend with one dense call per segment length, without padding; [heads, rows, dim] -> [rows, heads,
    dim]."""
    heads, rows, dim = query.shape
    if len(segments.index) == 1:
        count, length = segments.index[0].shape
        # If all segments have the same length, a view suffices, without the copies that indexing makes.
        q, k, v = (x.view(heads, count, length, dim).transpose(0, 1) for x in (query, key, value))
        out = scaled_dot_product_attention(q, k, v, scale=scaling)
        return out.transpose(1, 2).reshape(rows, heads, dim)
    out = query.new_empty(rows, heads, dim)
    for index in segments.index:
        q, k, v = (x[:, index].transpose(0, 1) for x in (query, key, value))
        part = scaled_dot_product_attention(q, k, v, scale=scaling)
        out[index] = part.transpose(1, 2)
    return out


def attend_through(config: Any) -> None:
    """Make the stock layers of a configuration call `attend`."""
    from transformers import AttentionInterface  # imports every optional part of the stock models

    AttentionInterface.register(NAME, attend)
    config._attn_implementation = NAME
