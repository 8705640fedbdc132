"""Vision towers on kept patches; `lookout.families.load_tower` gives the `Tower` of a checkpoint."""

from lookout.vision.types import FrameInput, FrameTokens, Grid, Tower, VisionError

__all__ = ["FrameInput", "FrameTokens", "Grid", "Tower", "VisionError"]
