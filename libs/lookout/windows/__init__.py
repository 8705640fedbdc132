"""Stride blocks, window plans, policies, positions: which KV a window reuses and which it computes."""

from lookout.windows.idle import BlockChange, IdleState
from lookout.windows.layout import LAYOUT_FILE, load_layout
from lookout.windows.planner import Planner, WindowSettings, with_digest
from lookout.windows.rotary import Rotary
from lookout.windows.types import (
    NEWLINE,
    PREFIX,
    VISUAL,
    EncodedFrame,
    LabelStyle,
    Layout,
    Policy,
    PositionRangeError,
    PositionRule,
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
    "LAYOUT_FILE",
    "NEWLINE",
    "PREFIX",
    "VISUAL",
    "BlockChange",
    "EncodedFrame",
    "IdleState",
    "LabelStyle",
    "Layout",
    "Planner",
    "Policy",
    "PositionRangeError",
    "PositionRule",
    "PromptPart",
    "Rotary",
    "RowRange",
    "Selection",
    "StrideBlock",
    "WindowError",
    "WindowPlan",
    "WindowSettings",
    "load_layout",
    "ranges_of",
    "rows_in",
    "with_digest",
]
