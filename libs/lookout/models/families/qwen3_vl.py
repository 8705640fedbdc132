"""Qwen3-VL: every frame is a separate grid after a label with its time; DeepStack features."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from lookout.models.families.qwen import QwenVL
from lookout.models.families.types import Prompt, TextModel

if TYPE_CHECKING:
    from lookout.models.vision.base import BaseTower
    from lookout.models.windows.positions import PositionRule


class Qwen3VL(QwenVL):
    """The record of the family."""

    name = "qwen3_vl"
    prompt = Prompt(
        video="<|vision_start|><|video_pad|><|vision_end|>",
        frame_open="<|vision_start|>",
        frame_close="<|vision_end|>",
        label={"counts": "seconds", "head": "<", "width": 3, "point": ".", "tail": " seconds>"},
    )
    usual = ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
    # vLLM's registry lists only the whole model, so the class of its language model, which accepts DeepStack
    # features, is named here.
    text_models: ClassVar[Mapping[str, TextModel]] = {
        "qwen3_vl_text": TextModel(
            "Qwen3ForCausalLM", "vllm.model_executor.models.qwen3_vl", "Qwen3LLMForCausalLM"
        )
    }
    interleaved = True
    prints_times = True
    patch = 16

    def tower(self) -> type[BaseTower]:
        """The family's ViT with DeepStack mergers."""
        from lookout.models.families.towers.qwen3_vl import Qwen3Tower

        return Qwen3Tower

    def positions(self, config: Mapping[str, Any]) -> PositionRule:
        """One grid per frame."""
        from lookout.models.windows.positions import FramePositions

        return FramePositions(self.limit(config))

    def deepstack(self, vision: Any) -> int:
        """One level for each tower layer whose features are used."""
        return len(getattr(vision, "deepstack_visual_indexes", ()))

    def stock_prompt(self, text: str) -> str:
        """The stock prompt without the second pair of marks that transformers 5.10 and later put around the
        whole video."""
        inner = re.sub(r"<\|vision_start\|>(?=<\d+\.\d seconds>)", "", text)
        return inner.replace("<|vision_end|><|vision_end|>", "<|vision_end|>")
