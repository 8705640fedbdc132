"""Pruning settings that decode and prune-encode share, and presets that set several of them."""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum
from typing import Annotated, Final, Literal, Self

from pydantic import AfterValidator, BaseModel, Field, WithJsonSchema, model_validator

from lookout.pruning.masks import MaskPolicy, PrunePolicy
from lookout.pruning.policies import POLICIES, PolicyError, keeping_everything, policy_of


class Preset(StrEnum):
    """Names of groups of settings that belong together."""

    DEFAULT = "default"
    FAITHFUL = "faithful"  # the default's masks, and windows that recompute more
    CODECSIGHT = "codecsight"  # masks and windows of the CodecSight paper
    STRIDES = "strides"  # the default's masks, and windows that hold no KV


MOST_ANCHOR_SAMPLES: Final = 10_000  # an upper limit for schemas; strides have fewer samples
_MASKS: Final = {
    Preset.FAITHFUL: "default",
    Preset.STRIDES: "default",
}  # presets whose policy has another name


def masks_of(preset: str) -> str:
    """Return the name in `POLICIES` of a preset's policy.

    Raises:
        ValueError: There is no preset of that name.
    """
    return _MASKS.get(Preset(preset), preset)


PRESETS: Final[dict[Preset, PrunePolicy]] = {
    preset: policy
    for preset in Preset
    if isinstance(policy := POLICIES[masks_of(preset.value)].policy, PrunePolicy)
}
PRESET_WORDS: Final = (
    "default, faithful (smaller errors than the default, more arithmetic), codecsight (as in the paper), "
    "strides (each stride asked alone, for a third of the arithmetic)"
)
"""Description of the presets, for descriptions of settings."""


def _known(name: str) -> str:
    policy_of(name)
    return name


PolicyName = Annotated[
    str, AfterValidator(_known), WithJsonSchema({"type": "string", "enum": list(POLICIES)})
]


def preset_policy(name: str) -> PrunePolicy:
    """Return the policy of a preset.

    Raises:
        ValueError: There is no preset of that name.
    """
    return PRESETS[Preset(name)]


class PruningSettings(BaseModel):
    """Settings of pruning. Unset ones come from the preset."""

    preset: Literal["default", "faithful", "codecsight", "strides"] = Field(
        "default", description=f"settings that belong together: {PRESET_WORDS}"
    )
    pruning: PolicyName | None = Field(
        None,
        description=f"policy that decides which patches are kept: {', '.join(POLICIES)}; unset: the "
        "preset's policy",
    )
    anchor_samples: int | None = Field(
        None,
        ge=1,
        le=MOST_ANCHOR_SAMPLES,
        description="maximum number of samples between anchors (frames that are encoded whole) within a "
        "stride; if it exceeds a stride's samples, each stride has one anchor; unset: the preset's value",
    )
    prune: bool = Field(True, description="prune patches; false keeps every patch, for comparison")

    @model_validator(mode="after")
    def _parameters_fit(self) -> Self:
        if self.anchor_samples is not None and not isinstance(self._base, PrunePolicy):
            raise PolicyError(f"pruning policy {self.pruning!r} has no anchor_samples: leave it unset")
        return self

    @property
    def _base(self) -> MaskPolicy:
        return policy_of(self.pruning or masks_of(self.preset))

    @property
    def policy(self) -> MaskPolicy:
        """The policy that these settings describe."""
        base = self._base
        if self.anchor_samples is not None and isinstance(base, PrunePolicy):
            base = replace(base, anchor_samples=self.anchor_samples)
        return base if self.prune else keeping_everything(base)
