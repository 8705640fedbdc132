"""InternVL3: pixel shuffle, one position per row, a label "Frame1: " before every frame."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from lookout.models.families.types import Family, ModelInput, Prompt, square

if TYPE_CHECKING:
    import torch

    from lookout.models.vision.base import BaseTower


class InternVL(Family):
    """The record of the family."""

    name = "internvl"
    prompt = Prompt(
        video="<video>\n",
        frame_open="<img>",
        frame_close="</img>\n",
        label={"counts": "frames", "head": "Frame", "width": 3, "tail": ": "},
    )
    usual = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    placeholders = ("image_token_id",)

    def input(self, vision: Mapping[str, Any]) -> ModelInput:
        """The size that the checkpoint fixes."""
        height, width = square(vision.get("image_size", 448))
        return ModelInput(width, height, square(vision.get("patch_size", 14))[0])

    def tower(self) -> type[BaseTower]:
        """InternVL's ViT with a class token."""
        from lookout.models.families.towers.internvl import InternVLTower

        return InternVLTower

    def stock_inputs(self, given: dict[str, Any], visual: torch.Tensor) -> dict[str, Any]:
        """The same tensors under the names for images, because the model takes video frames as images."""
        if "pixel_values_videos" in given:
            given["pixel_values"] = given.pop("pixel_values_videos").flatten(0, 1)
        return given
