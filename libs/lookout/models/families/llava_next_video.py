"""LLaVA-NeXT-Video: CLIP with a class token, average pooling of 2x2 patches, one position per row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from lookout.models.families.types import Family, ModelInput, Prompt, square

if TYPE_CHECKING:
    from lookout.models.vision.base import BaseTower


class LlavaNextVideo(Family):
    """The record of the family. The model uses its learned newline after still pictures, but never after a
    video."""

    name = "llava_next_video"
    prompt = Prompt(video="<video>")
    usual = ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711))

    def input(self, vision: Mapping[str, Any]) -> ModelInput:
        """The size that the checkpoint fixes."""
        side = square(vision.get("image_size", 336))[0]
        return ModelInput(side, side, square(vision.get("patch_size", 14))[0])

    def tower(self) -> type[BaseTower]:
        """CLIP with pooling."""
        from lookout.models.families.towers.llava_next_video import LlavaNextVideoTower

        return LlavaNextVideoTower
