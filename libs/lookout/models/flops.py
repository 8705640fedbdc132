"""Computes the floating-point operations (FLOPs) of transformers from shapes.

A multiply-add counts as 2. Norms, activations and softmax are not counted. Vision towers, engines and
benchmarks must all use these functions, so that their numbers can be added and compared.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from torch import nn


def linear_weights(modules: Iterable[nn.Module]) -> int:
    """Return the number of weights, without biases, of all linear layers inside `modules`."""
    return sum(
        part.in_features * part.out_features
        for module in modules
        for part in module.modules()
        if isinstance(part, nn.Linear)
    )


def products(rows: int, weights: int) -> int:
    """Return the FLOPs to multiply `rows` rows by matrices with `weights` weights in total."""
    return 2 * rows * weights


def attention(pairs: int, width: int) -> int:
    """Return the FLOPs of attention (scores and weighted values) for `pairs` query-key pairs. `width` is the
    number of heads times the size of a head."""
    return 4 * width * pairs


def causal_pairs(rows: int, before: int = 0) -> int:
    """Return the number of query-key pairs of `rows` consecutive rows in causal attention. Each row attends
    to `before` earlier rows, to the preceding ones of `rows`, and to itself."""
    return rows * before + rows * (rows + 1) // 2


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderShape:
    """The dimensions of a language model on which its costs depend.

    Attributes:
        layers: Number of decoder layers.
        heads: Number of query heads.
        kv_heads: Number of key and value heads.
        head_dim: Size of one head.
        hidden: Width of a row.
        linear: Number of weights of one layer's projections and MLP.
    """

    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    hidden: int
    linear: int

    @property
    def row_numbers(self) -> int:
        """Number of numbers in the KV of one row, over all layers."""
        return 2 * self.layers * self.kv_heads * self.head_dim

    @property
    def inner(self) -> int:
        """The MLP's width, derived from the weights in `linear` that do not belong to attention: three
        matrices of `hidden` x width."""
        attention = 2 * self.hidden * (self.heads + self.kv_heads) * self.head_dim
        return (self.linear - attention) // (3 * self.hidden)

    @property
    def pair_flops(self) -> int:
        """FLOPs of one query-key pair in one layer."""
        return attention(1, self.heads * self.head_dim)

    def flops(self, rows: int, pairs: int) -> int:
        """Return the FLOPs to compute `rows` rows in all layers, with `pairs` query-key pairs in each
        layer."""
        return self.layers * (products(rows, self.linear) + attention(pairs, self.heads * self.head_dim))
