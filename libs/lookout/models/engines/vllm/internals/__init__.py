"""The only code that imports vLLM: four modules behind this package.

It is written for the one version in `VERSION`. If another version is installed, `tests/vllm/test_contract.py`
lists what has changed.

- `model`: the language half of a checkpoint as a vLLM model, its input buffers and its rotation.
- `scheduler`: how many leading rows of a request are external, and which rows of which window a step has.
- `worker`: places stored KV, recomputes refreshed ranges, captures what windows compute, and has the calls
  that the engine makes to every rank.
- `backend`: one vLLM engine; requests in, logits out.

How it works, in the order of a step:
1. The engine sends a window's inputs to every worker (`collective_rpc`), then sends a request with plain
   token ids.
2. The scheduler's side determines how many leading rows come from the stream's KV, and tells the workers
   which rows of which window are in the step.
3. Before the forward pass, the worker rotates stored keys to their new positions, writes them into the
   request's pages, and recomputes the refreshed ranges. Each range is a separate sequence over the same
   block table, so every row sees the rows up to itself.
4. `WindowModel.forward` replaces the runner's positions and embeddings by the plan's positions and the
   visual embeddings.
5. Keys and values that a window computes are captured where the attention layers write them, and kept
   un-rotated.
   un-rotated.
"""

import os

os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
# Select the runner that has `input_batch` and `attn_groups`; GPU platforms default to another one.
os.environ.setdefault("VLLM_USE_V2_MODEL_RUNNER", "0")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")

from lookout.models.engines.vllm.internals.backend import (
    VERSION as VERSION,
    Backend as Backend,
    EngineCall as EngineCall,
    EngineOutput as EngineOutput,
    installed_version as installed_version,
)
from lookout.models.engines.vllm.internals.model import ARCHITECTURE as ARCHITECTURE, renamed as renamed
