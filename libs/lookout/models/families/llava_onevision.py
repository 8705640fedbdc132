"""LLaVA-OneVision: SigLIP, bilinear pooling to half the grid, a learned newline after the video."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from lookout.models.families.types import Family, ModelInput, Prompt, square

if TYPE_CHECKING:
    from lookout.models.vision.base import BaseTower


class LlavaOnevision(Family):
    """The record of the family."""

    name = "llava_onevision"
    prompt = Prompt(video="<video>", newline=True)
    usual = ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
    newline_weights = ("model.image_newline", "image_newline")

    def input(self, vision: Mapping[str, Any]) -> ModelInput:
        """The size that the checkpoint fixes."""
        side = square(vision.get("image_size", 384))[0]
        return ModelInput(side, side, square(vision.get("patch_size", 14))[0])

    def tower(self) -> type[BaseTower]:
        """SigLIP with pooling."""
        from lookout.models.families.towers.llava_onevision import LlavaOnevisionTower

        return LlavaOnevisionTower
