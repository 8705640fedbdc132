"""Floating-point operations of transformers, counted from shapes: the one home of these formulas.

A multiply-add counts as 2. Norms, activations and softmax are not counted. Vision towers, engines and
benches count with these functions, so that their numbers can be added and compared.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from torch import nn


def linear_weights(modules: Iterable[nn.Module]) -> int:
    """Weights of every linear layer inside `modules`, biases apart."""
    return sum(
        part.in_features * part.out_features
        for module in modules
        for part in module.modules()
        if isinstance(part, nn.Linear)
    )


def products(rows: int, weights: int) -> int:
    """`rows` rows through matrices of `weights` weights in all."""
    return 2 * rows * weights


def attention(pairs: int, width: int) -> int:
    """Scores and weighted values of `pairs` query-key pairs; `width` is heads x head size."""
    return 4 * width * pairs


def causal_pairs(rows: int, before: int = 0) -> int:
    """Query-key pairs of `rows` rows that see `before` earlier rows, each other's past, and themselves."""
    return rows * before + rows * (rows + 1) // 2


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderShape:
    """The numbers of a language model that costs depend on.

    Attributes:
        layers: Decoder layers.
        heads: Query heads; `kv_heads` key heads; `head_dim` the size of one.
        hidden: The width of a row.
        linear: Weights of one layer's projections and MLP.
    """

    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    hidden: int
    linear: int

    @property
    def row_numbers(self) -> int:
        """Numbers of KV of one row over all layers."""
        return 2 * self.layers * self.kv_heads * self.head_dim

    @property
    def inner(self) -> int:
        """The MLP's width: `linear` without the projections of attention, over its three matrices."""
        attention = 2 * self.hidden * (self.heads + self.kv_heads) * self.head_dim
        return (self.linear - attention) // (3 * self.hidden)

    @property
    def pair_flops(self) -> int:
        """One query-key pair in one layer."""
        return attention(1, self.heads * self.head_dim)

    def flops(self, rows: int, pairs: int) -> int:
        """`rows` rows through all layers, with `pairs` query-key pairs in each layer."""
        return self.layers * (products(rows, self.linear) + attention(pairs, self.heads * self.head_dim))
