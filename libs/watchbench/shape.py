"""The sizes of the tiny model."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of the network."""

    vision: int = 128
    vision_layers: int = 4
    text: int = 192
    text_layers: int = 6
    text_heads: int = 6
    kv_heads: int = 2
    intermediate: int = 512
