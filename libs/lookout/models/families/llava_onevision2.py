"""LLaVA-OneVision-2: any input size, a label with the time before every frame, a plain Qwen3."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from lookout.models.families.qwen import SIDE, QwenVL
from lookout.models.families.types import PLAIN_TEXT, ModelInput, Prompt, TextModel

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray

    from lookout.models.vision.base import BaseTower


class LlavaOnevision2(QwenVL):
    """The record of the family.

    transformers has no classes for this family, and a published folder contains its own as Python files.
    Lookout runs no code from a folder: it registers its own classes, which the tests compare with vLLM's.
    """

    name = "llava_onevision2"
    prompt = Prompt(
        video="<|vision_start|><|video_pad|><|vision_end|>",
        frame_open="<|vision_start|>",
        frame_close="<|vision_end|>",
        label={"counts": "seconds", "head": "<", "width": 3, "point": ".", "tail": " seconds>"},
    )
    usual = ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711))
    text_models: ClassVar[Mapping[str, TextModel]] = {"qwen3": PLAIN_TEXT["qwen3"]}
    placeholders = ("image_token_id",)
    prints_times = True
    has_processor = False
    patch = 14

    def input(self, vision: Mapping[str, Any]) -> ModelInput:
        """A square of whole tokens, because the tower takes any size."""
        patch = int(vision.get("patch_size", self.patch))
        token = patch * int(vision.get("spatial_merge_size", 2))
        if token <= 0:
            raise ValueError("patch_size and spatial_merge_size are not both positive")
        side = int(vision.get("image_size", SIDE)) // token * token
        return ModelInput(side, side, patch)

    def tower(self) -> type[BaseTower]:
        """The family's ViT, whose positions have three axes."""
        from lookout.models.families.towers.llava_onevision2 import LlavaOnevision2Tower

        return LlavaOnevision2Tower

    def register(self) -> None:
        """Register Lookout's classes for the family."""
        from lookout.models.families.towers.llava_onevision2_model import register

        register()

    def frame_inputs(self, processor: Any, video: NDArray[np.uint8]) -> dict[str, Any]:
        """Frames as separate pictures at time 0, as vLLM's frame backend gives them to the processor."""
        from lookout.models.families.towers.llava_onevision2_model import still_positions

        given = dict(processor(list(video), return_tensors="pt", do_resize=False))
        merge = int(processor.merge_size)
        return {**given, "patch_positions": still_positions(given["image_grid_thw"], merge)}

    def stock_inputs(self, given: dict[str, Any], visual: torch.Tensor) -> dict[str, Any]:
        """The same tensors: the model needs no others."""
        return given

    def stock_positions(
        self, whole: Any, ids: torch.Tensor, visual: torch.Tensor, stock: Mapping[str, Any]
    ) -> torch.Tensor:
        """One position per row."""
        import torch

        return torch.arange(ids.shape[1])[None]
