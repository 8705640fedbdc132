"""Qwen2-VL: full attention in the tower; all frames form one grid whose time axis counts frames."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from lookout.models.families.qwen import QwenVL
from lookout.models.families.types import Prompt, TextModel

if TYPE_CHECKING:
    from lookout.models.vision.base import BaseTower
    from lookout.models.windows.positions import PositionRule


class Qwen2VL(QwenVL):
    """The record of the family."""

    name = "qwen2_vl"
    prompt = Prompt(video="<|video_pad|>")
    usual = ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711))
    text_models: ClassVar[Mapping[str, TextModel]] = {"qwen2_vl_text": TextModel("Qwen2ForCausalLM")}
    patch = 14

    def tower(self) -> type[BaseTower]:
        """The family's ViT."""
        from lookout.models.families.towers.qwen2_vl import Qwen2Tower

        return Qwen2Tower

    def positions(self, config: Mapping[str, Any]) -> PositionRule:
        """One grid for the whole video; its time axis numbers the frames."""
        from lookout.models.windows.positions import NumberedPositions

        return NumberedPositions(self.limit(config))
