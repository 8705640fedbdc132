"""Stride blocks, window plans, policies, positions: which KV a window reuses and which it computes."""

from lookout.windows.idle import Calm, Look
from lookout.windows.layout import LAYOUT_FILE, load_layout
from lookout.windows.planner import Planner, WindowSettings, seal
from lookout.windows.rotary import Rotary
from lookout.windows.types import (
    NEWLINE,
    PREFIX,
    VISUAL,
    Block,
    BlockFrame,
    LabelStyle,
    Layout,
    Policy,
    PositionRangeError,
    PositionRule,
    Run,
    Segment,
    Selection,
    WindowError,
    WindowPlan,
    rows_of,
    runs_of,
)

__all__ = [
    "LAYOUT_FILE",
    "NEWLINE",
    "PREFIX",
    "VISUAL",
    "Block",
    "BlockFrame",
    "Calm",
    "LabelStyle",
    "Layout",
    "Look",
    "Planner",
    "Policy",
    "PositionRangeError",
    "PositionRule",
    "Rotary",
    "Run",
    "Segment",
    "Selection",
    "WindowError",
    "WindowPlan",
    "WindowSettings",
    "load_layout",
    "rows_of",
    "runs_of",
    "seal",
]
