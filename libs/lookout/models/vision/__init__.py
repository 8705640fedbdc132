"""Vision towers that encode only kept patches; `lookout.models.families.load_tower` loads one."""

from lookout.models.vision.types import (
    FrameInput as FrameInput,
    FrameTokens as FrameTokens,
    Grid as Grid,
    Tower as Tower,
    VisionError as VisionError,
)
