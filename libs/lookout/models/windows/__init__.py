"""Plans windows: which KV a window reuses, which rows it computes, and at which positions.

Plans are plain data. Only `Rotary` imports torch, and only when it is first used, so a command that rejects
its input does not spend time on loading torch.
"""

from typing import TYPE_CHECKING

from lookout.lazy import lazy_names
from lookout.models.windows.idle import BlockChange as BlockChange, IdleState as IdleState
from lookout.models.windows.layout import Layout as Layout
from lookout.models.windows.planner import (
    WHOLE as WHOLE,
    Planner as Planner,
    WindowSettings as WindowSettings,
    held_window as held_window,
    reuses_frames as reuses_frames,
    with_digest as with_digest,
)
from lookout.models.windows.positions import (
    RunningPositions as RunningPositions,
    VideoPositions as VideoPositions,
)
from lookout.models.windows.presets import DEFAULT_PRESET as DEFAULT_PRESET, PRESETS as PRESETS
from lookout.models.windows.types import (
    NEWLINE as NEWLINE,
    PREFIX as PREFIX,
    VISUAL as VISUAL,
    EncodedFrame as EncodedFrame,
    LabelStyle as LabelStyle,
    Policy as Policy,
    PositionRangeError as PositionRangeError,
    PromptPart as PromptPart,
    RowPolicy as RowPolicy,
    RowRange as RowRange,
    Selection as Selection,
    StrideBlock as StrideBlock,
    WindowError as WindowError,
    WindowPlan as WindowPlan,
    ranges_of as ranges_of,
    rows_in as rows_in,
)

if TYPE_CHECKING:
    from lookout.models.windows.rotary import Rotary as Rotary

__getattr__ = lazy_names(__name__)
