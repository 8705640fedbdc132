"""Stride blocks, window plans, policies, positions: which KV a window reuses and which it computes."""

from lookout.windows.idle import BlockChange, IdleState
from lookout.windows.planner import WHOLE, Planner, WindowSettings, reuses_frames, with_digest
from lookout.windows.positions import FramePositions, PositionRule, RunningPositions, VideoPositions
from lookout.windows.presets import DEFAULT_PRESET, PRESETS
from lookout.windows.rotary import Rotary
from lookout.windows.types import (
    NEWLINE,
    PREFIX,
    VISUAL,
    Departed,
    EncodedFrame,
    LabelPolicy,
    LabelStyle,
    Layout,
    Policy,
    PositionRangeError,
    PromptPart,
    RowRange,
    Selection,
    StrideBlock,
    WindowError,
    WindowPlan,
    ranges_of,
    rows_in,
)

__all__ = [
    "DEFAULT_PRESET",
    "NEWLINE",
    "PREFIX",
    "PRESETS",
    "VISUAL",
    "WHOLE",
    "BlockChange",
    "Departed",
    "EncodedFrame",
    "FramePositions",
    "IdleState",
    "LabelPolicy",
    "LabelStyle",
    "Layout",
    "Planner",
    "Policy",
    "PositionRangeError",
    "PositionRule",
    "PromptPart",
    "Rotary",
    "RowRange",
    "RunningPositions",
    "Selection",
    "StrideBlock",
    "VideoPositions",
    "WindowError",
    "WindowPlan",
    "WindowSettings",
    "ranges_of",
    "reuses_frames",
    "rows_in",
    "with_digest",
]
