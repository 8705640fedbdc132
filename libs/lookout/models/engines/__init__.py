"""Engines, which execute window plans. All have the same requests and the same cost report."""

from pathlib import Path
from typing import TYPE_CHECKING

import torch

from lookout.models.engines.types import (
    Answer as Answer,
    AskingEngine as AskingEngine,
    AttendedFrame as AttendedFrame,
    Cost as Cost,
    DeviceError as DeviceError,
    Engine as Engine,
    EngineError as EngineError,
    MemoryBudgetError as MemoryBudgetError,
    PlanError as PlanError,
    PositionError as PositionError,
    Question as Question,
    StreamFailedError as StreamFailedError,
    StreamLostError as StreamLostError,
    StreamMemory as StreamMemory,
    TextSettings as TextSettings,
    UnsupportedModelError as UnsupportedModelError,
    WindowAnswer as WindowAnswer,
    WindowRequest as WindowRequest,
)

if TYPE_CHECKING:
    from lookout.models.engines.transformers import TransformersEngine


def load_engine(
    checkpoint: Path | str,
    device: str | torch.device = "cpu",
    dtype: torch.dtype | str | None = None,
    *,
    budget_bytes: int | None = None,
    spill_dir: Path | str | None = None,
    rows_per_pass: int = 16384,
) -> "TransformersEngine":
    """Load the transformers engine of a checkpoint (`lookout.models.engines.transformers.load_engine`)."""
    from lookout.models.engines.transformers import load_engine as load

    return load(
        checkpoint,
        device,
        dtype,
        budget_bytes=budget_bytes,
        spill_dir=spill_dir,
        rows_per_pass=rows_per_pass,
    )
