"""Settings for sampling streams and cutting them into blocks and windows, which all stages must share."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self

from pydantic import Field, model_validator
from pydantic_settings import BaseSettings

from lookout.models import TINY, SamplingNumbers, window_defaults
from lookout.v1.lineage_pb2 import Sampling

#: replaced by the value from the model's folder
_UNSET: Any = None


class SamplingSettings(BaseSettings, SamplingNumbers):
    """Sample rate, stride and window, with the numbers that follow from them.

    Unset values come from the model's folder (`lookout.models.window_defaults`); without a folder, from the
    model that is bundled with Lookout.
    """

    model_dir: Path | None = Field(None, description="folder of the model's checkpoint")
    fps: float = Field(
        _UNSET,
        validate_default=False,
        gt=0,
        le=60,
        description="samples per second of stream time; raise it for events shorter than a second: the cost "
        "grows in proportion; unset: as model_dir says, else 2",
    )
    stride_s: float = Field(
        _UNSET,
        validate_default=False,
        gt=0,
        description="seconds between two answers, by which a window slides; shorter strides answer sooner "
        "and cost more; unset: as model_dir says, else 8",
    )
    window_s: float = Field(
        _UNSET,
        validate_default=False,
        gt=0,
        description="length of a window in seconds, which is how far back an answer looks; KV memory grows "
        "with it; unset: as model_dir says, else 40",
    )

    @model_validator(mode="after")
    def _whole_numbers(self) -> Self:
        own = window_defaults(TINY if self.model_dir is None else self.model_dir)
        names = {}
        for name in ("fps", "stride_s", "window_s"):
            if getattr(self, name) is None:
                object.__setattr__(self, name, getattr(own, name))
                names[name] = f"LOOKOUT_{name.upper()}={getattr(own, name):g} (not set, so the model's)"
            else:
                names[name] = f"LOOKOUT_{name.upper()}={getattr(self, name):g}"
        self.check(names)
        return self

    @property
    def shared(self) -> dict[str, str]:
        """The values that all instances of a stage must share, for `Handler.shared_settings`."""
        return {"fps": f"{self.fps:g}", "stride": f"{self.stride_s:g}", "window": f"{self.window_s:g}"}

    @property
    def sampling(self) -> Sampling:
        """The sampling as records carry it."""
        return Sampling(
            step_us=self.step_us, block_samples=self.block_samples, window_blocks=self.window_blocks
        )


def sampling_text(sampling: Sampling) -> str:
    """Return a description of a sampling, such as `2 FPS, blocks of 4 samples, windows of 5 blocks`."""
    rate = 1_000_000 / sampling.step_us if sampling.step_us else 0
    blocks = f"blocks of {sampling.block_samples} samples, windows of {sampling.window_blocks} blocks"
    return f"{rate:g} FPS, {blocks}"
