"""Vision towers on kept patches: `load_tower` gives a `Tower` for a checkpoint of any supported family."""

from lookout.vision.load import load_tower
from lookout.vision.types import FrameInput, FrameTokens, Grid, Tower, VisionError

__all__ = ["FrameInput", "FrameTokens", "Grid", "Tower", "VisionError", "load_tower"]
