"""Base of the Qwen-VL families: any input size, pairs of frames, three axes of positions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from lookout.models.families.types import Family, ModelInput

if TYPE_CHECKING:
    import torch

    from lookout.models.vision.types import Grid

SIDE = 448
"""Side in pixels of the square that Lookout gives to a tower that takes any size."""


class QwenVL(Family):
    """Base of the Qwen-VL records. `patch` is the side of a patch if the configuration has none."""

    patch: ClassVar[int]

    def input(self, vision: Mapping[str, Any]) -> ModelInput:
        """The size that Lookout chooses, because the tower takes any. A checkpoint trained with another size
        states it as `image_size` in its vision configuration; published checkpoints have no such entry."""
        side = int(vision.get("image_size", SIDE))
        return ModelInput(side, side, int(vision.get("patch_size", self.patch)))

    def stock_pixels(self, pixels: torch.Tensor, grid: Grid) -> torch.Tensor:
        """The pixels of pairs of frames, divided into groups of patches."""
        time, merge, patch = grid.temporal, grid.merge, grid.patch
        cut = pixels.view(
            -1, time, 3, grid.rows // merge, merge, patch, grid.cols // merge, merge, patch
        )  # t, time, c, r, m, p, c, m, p
        return cut.permute(0, 3, 6, 4, 7, 2, 1, 5, 8).reshape(-1, 3 * time * patch * patch)

    def stock_inputs(self, given: dict[str, Any], visual: torch.Tensor) -> dict[str, Any]:
        """The tensors, and which rows belong to a video, which the model also needs."""
        return {**given, "mm_token_type_ids": visual.int() * 2}

    def stock_positions(
        self, whole: Any, ids: torch.Tensor, visual: torch.Tensor, stock: Mapping[str, Any]
    ) -> torch.Tensor:
        """The positions from the model's `get_rope_index`."""
        import torch

        extra = {}
        if "second_per_grid_ts" in stock:
            extra["second_per_grid_ts"] = torch.as_tensor(stock["second_per_grid_ts"])
        kinds = visual.int() * 2
        positions: torch.Tensor = whole.model.get_rope_index(
            ids, kinds, video_grid_thw=stock["video_grid_thw"], **extra
        )[0]
        return positions[:, 0]
