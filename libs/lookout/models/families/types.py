"""What Lookout knows about a model family. Needs no torch, because decode reads input sizes here."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray

    from lookout.models.vision.base import BaseTower
    from lookout.models.vision.types import Grid
    from lookout.models.windows.positions import PositionRule

Colour = tuple[float, float, float]


@dataclass(frozen=True, slots=True)
class ModelInput:
    """Width and height of a picture, and the side of a patch, in pixels."""

    width: int
    height: int
    patch: int

    @property
    def rows(self) -> int:
        """Patch rows; a remainder smaller than a patch is ignored."""
        return self.height // self.patch

    @property
    def cols(self) -> int:
        """Patch columns."""
        return self.width // self.patch


@dataclass(frozen=True, slots=True)
class Prompt:
    """What a family's processor writes in place of the video in the chat template.

    Attributes:
        video: The text that stands for the video in the rendered template.
        before: Text before the first frame, in place of the video; `after`: text after the last one.
        frame_open: Text before the visual tokens of every frame; `frame_close`: text after them.
        label: Strings of the label before every frame (`lookout.models.families.layout.label_style`).
        newline: Whether the model's learned newline follows the last frame.
        answers: Yes and no as they follow the prompt, each one token.
    """

    video: str
    before: str = ""
    after: str = ""
    frame_open: str = ""
    frame_close: str = ""
    label: Mapping[str, Any] | None = None
    newline: bool = False
    answers: tuple[str, str] = ("Yes", "No")


@dataclass(frozen=True, slots=True)
class TextModel:
    """vLLM's class for a language model.

    Attributes:
        architecture: The class's architecture in vLLM's registry.
        module: The module of a class that is not in the registry and is configured like `architecture`;
            `name` is that class.
    """

    architecture: str
    module: str = ""
    name: str = ""


PLAIN_TEXT: Mapping[str, TextModel] = {
    "qwen2": TextModel("Qwen2ForCausalLM"),
    "qwen3": TextModel("Qwen3ForCausalLM"),
    "llama": TextModel("LlamaForCausalLM"),
}
"""The language models of families without a specific one, by transformers' `model_type`."""


class Family(ABC):
    """One model family. To add one, write a subclass in a separate file and add a line to the registry.

    Attributes:
        name: The `model_type` in its `config.json`.
        prompt: What the family's processor writes around frames.
        usual: Mean and standard deviation of colours in the family's published processors.
        text_models: The language models that the family may have, by transformers' `model_type`.
        language_model: The attribute of the stock model's `model` that is the language model.
        newline_weights: Names of the learned newline's weight, if the prompt has one.
        interleaved: Whether the rotation's axes alternate over the frequencies.
        placeholders: Configuration attributes that may state the token of visual rows; the first one present
            is used.
        prints_times: Whether the stock processor prints the frames' times into the prompt.
        has_processor: Whether transformers has the family's processor.
    """

    name: ClassVar[str]
    prompt: ClassVar[Prompt]
    usual: ClassVar[tuple[Colour, Colour]]
    text_models: ClassVar[Mapping[str, TextModel]] = PLAIN_TEXT
    language_model: ClassVar[str] = "language_model"
    newline_weights: ClassVar[tuple[str, ...]] = ()
    interleaved: ClassVar[bool] = False
    placeholders: ClassVar[tuple[str, ...]] = ("video_token_id", "video_token_index", "image_token_id")
    prints_times: ClassVar[bool] = False
    has_processor: ClassVar[bool] = True

    @abstractmethod
    def input(self, vision: Mapping[str, Any]) -> ModelInput:
        """Return the input size that the tower takes by default, from the configuration's `vision_config`.

        Raises:
            TypeError: A size is neither a number nor a list of two numbers.
            ValueError: A size is text that is not a number.
            IndexError: A size is a list of fewer than two numbers.
        """

    @abstractmethod
    def tower(self) -> type[BaseTower]:
        """Return the class of the vision tower."""

    def register(self) -> None:
        """Register classes with transformers, if it does not know the family. Call this before loading a
        folder of the family."""
        return

    def positions(self, config: Mapping[str, Any]) -> PositionRule:
        """Return how a checkpoint with this configuration numbers positions; by default one per row."""
        from lookout.models.windows.positions import RunningPositions

        return RunningPositions(self.limit(config))

    @staticmethod
    def limit(config: Mapping[str, Any]) -> int:
        """Return the first position beyond the model's range."""
        return int(config["text_config"].get("max_position_embeddings", 32768))

    def deepstack(self, vision: Any) -> int:
        """Return how many levels of visual features are added after the first layers; `vision` is the
        configuration."""
        return 0

    def video_template(self) -> str | None:
        """Return the chat template that the stock processor uses for videos, whatever the folder contains;
        None: the folder's template."""
        return None

    # What the stock processor and model do; `lookout model check` compares Lookout with it.

    def stock_pixels(self, pixels: torch.Tensor, grid: Grid) -> torch.Tensor:
        """Return normalised frames [n, 3, height, width], reordered like the stock processor's values."""
        return pixels

    def stock_prompt(self, text: str) -> str:
        """Return the stock prompt without what some transformers versions add to it."""
        return text

    def stock_inputs(self, given: dict[str, Any], visual: torch.Tensor) -> dict[str, Any]:
        """Return the stock processor's tensors as the stock model takes them; `visual` marks the visual rows,
        bool [1, rows]."""
        return given

    def frame_inputs(self, processor: Any, video: NDArray[np.uint8]) -> dict[str, Any]:
        """Return what the stock model takes for frames uint8 [n, height, width, 3]. Families without a
        processor define this; `processor` is their stock image processor."""
        raise AssertionError(f"{self.name} has no processor, so it must define frame_inputs")

    def stock_positions(
        self, whole: Any, ids: torch.Tensor, visual: torch.Tensor, stock: Mapping[str, Any]
    ) -> torch.Tensor:
        """Return the stock model's positions [axes, rows] for a prompt, ids int64 [1, rows]."""
        import torch

        return torch.arange(ids.shape[1])[None]


def square(value: Any) -> tuple[int, int]:
    """Return (height, width) from a pair, or from one number for both."""
    first, second = (value[0], value[1]) if isinstance(value, list) else (value, value)
    return int(first), int(second)
