"""Questions about the past: a camera's memory read inside attention (Mosaic).

Only the question's rows run through the layers. In every layer, their query selects clusters, which are
placed between the prefix and the window. Nothing of the question is stored.
"""

from lookout.models.engines.born import (
    born_block as born_block,
    frame_embeddings as frame_embeddings,
    prefix_of as prefix_of,
)
from lookout.models.engines.transformers.key_bias import key_bias as key_bias
from lookout.models.engines.transformers.memory.answers import (
    AskCost as AskCost,
    MemoryAnswer as MemoryAnswer,
    ask as ask,
    ask_many as ask_many,
)
from lookout.models.engines.transformers.memory.clock import Clock as Clock, clock as clock
from lookout.models.engines.transformers.memory.reading import (
    LayerContext as LayerContext,
    LayerTrace as LayerTrace,
)
