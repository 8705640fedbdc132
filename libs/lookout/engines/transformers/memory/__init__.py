"""Questions about the past: a camera's memory read inside attention (Mosaic).

Only the question's rows run through the layers. In every layer their query selects clusters, which are placed
between the prefix and the window; nothing of the question is stored.
"""

from lookout.engines.born import born_block, frame_embeddings, prefix_of
from lookout.engines.transformers.key_bias import key_bias
from lookout.engines.transformers.memory.answers import AskCost, MemoryAnswer, ask
from lookout.engines.transformers.memory.clock import Clock, clock
from lookout.engines.transformers.memory.reading import (
    ClusterReader,
    LayerContext,
    LayerTrace,
    Observer,
    Reader,
)

__all__ = [
    "AskCost",
    "Clock",
    "ClusterReader",
    "LayerContext",
    "LayerTrace",
    "MemoryAnswer",
    "Observer",
    "Reader",
    "ask",
    "born_block",
    "clock",
    "frame_embeddings",
    "key_bias",
    "prefix_of",
]
