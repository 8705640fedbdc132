"""Vision towers on kept patches; `lookout.models.families.load_tower` loads the `Tower` of a checkpoint."""

from lookout.models.vision.types import (
    FrameInput as FrameInput,
    FrameTokens as FrameTokens,
    Grid as Grid,
    Tower as Tower,
    VisionError as VisionError,
)
