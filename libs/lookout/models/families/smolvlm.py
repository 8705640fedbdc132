"""SmolVLM2: pixel shuffle of 3x3 or 4x4 patches, one position per row, the time as every frame's label."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from lookout.models.families.types import Family, ModelInput, Prompt, square

if TYPE_CHECKING:
    from lookout.models.vision.base import BaseTower

_INTRODUCTION = "You are provided the following series of{} frames from a{} video.\n"


class SmolVLM(Family):
    """The record of the family.

    The stock prompt states the number of frames and the length of the video. In Lookout, all windows of a
    stream share the KV before their frames, and the first windows are shorter, so these numbers are omitted.
    """

    name = "smolvlm"
    prompt = Prompt(
        video="<video>",
        before=_INTRODUCTION.format("", ""),
        after="\n\n",
        frame_open="<fake_token_around_image><global-img>",
        frame_close="<fake_token_around_image>",
        label={"counts": "clock", "head": "\nFrame from ", "width": 2, "point": ":", "tail": ":"},
        answers=(" Yes", " No"),  # a word after "Assistant:" includes the space before it
    )
    usual = ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
    language_model: ClassVar[str] = "text_model"
    placeholders = ("image_token_id",)
    prints_times = True

    def input(self, vision: Mapping[str, Any]) -> ModelInput:
        """The size that the checkpoint fixes."""
        height, width = square(vision.get("image_size", 512))
        return ModelInput(width, height, square(vision.get("patch_size", 16))[0])

    def tower(self) -> type[BaseTower]:
        """SigLIP with pixel shuffle."""
        from lookout.models.families.towers.smolvlm import SmolVLMTower

        return SmolVLMTower

    def video_template(self) -> str:
        """The stock processor's template, because that of published folders handles only pictures."""
        from transformers.models.smolvlm.processing_smolvlm import DEFAULT_CHAT_TEMPLATE

        return str(DEFAULT_CHAT_TEMPLATE)

    def stock_prompt(self, text: str) -> str:
        """The stock prompt without the number of frames and the length of the video."""
        numbers = re.escape(_INTRODUCTION).replace(r"\{\}", " [^\n]+?")
        return re.sub(numbers, _INTRODUCTION.format("", ""), text)
