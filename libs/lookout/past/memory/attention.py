"""Attention of a question over slabs: gathered into one call, or as partial softmaxes that are merged."""

from __future__ import annotations

from collections.abc import Iterable

import torch

Partial = tuple[torch.Tensor, torch.Tensor]


def partial(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scaling: float,
    bias: torch.Tensor | None = None,
) -> Partial:
    """Attention over a part of the keys, not yet normalised over all of them.

    Args:
        query: [heads, rows, d], rotated.
        key: [kv_heads, n, d], rotated; `value` likewise.
        scaling: factor of the dot products.
        bias: additive, [n] or [rows, n]; -inf where a row does not see a key.

    Returns:
        The part's output [heads, rows, d] and the log of its summed weights [heads, rows].
    """
    kv_heads, _, size = key.shape
    grouped = query.view(kv_heads, -1, query.shape[1], size)
    score = torch.matmul(grouped, key[:, None].transpose(2, 3)) * scaling
    if bias is not None:
        score = score + bias
    total = torch.logsumexp(score, -1)
    weight = torch.exp(score - total.clamp(min=torch.finfo(total.dtype).min)[..., None])
    out = torch.matmul(weight, value[:, None])
    return out.reshape(query.shape), total.reshape(query.shape[:2])


def merged(parts: Iterable[Partial]) -> torch.Tensor:
    """Merge the parts of a split of the keys into attention over all of them, [heads, rows, d]."""
    outs, totals = zip(*parts, strict=True)
    weight = torch.stack(totals).softmax(0)
    return (torch.stack(outs) * weight[..., None]).sum(0)
