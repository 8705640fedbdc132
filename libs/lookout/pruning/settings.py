"""The settings of pruning that decode and prune-encode share, and presets that stand for several of them."""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum
from typing import Any, Final, Literal

from pydantic import BaseModel, Field

from lookout.pruning.gather import GatherMethod
from lookout.pruning.masks import Accumulation, Anchors, Change, PrunePolicy

__all__ = ["PRESETS", "Preset", "PruningSettings", "preset_policy"]


class Preset(StrEnum):
    """Names of settings that belong together."""

    DEFAULT = "default"
    CODECSIGHT = "codecsight"  # the paper's


PRESETS: Final[dict[Preset, PrunePolicy]] = {
    Preset.DEFAULT: PrunePolicy(),
    Preset.CODECSIGHT: PrunePolicy(
        change=Change.VECTORS,
        rule=GatherMethod.UNION,
        tau=0.25,
        luma_tau=6.0,
        anchors=Anchors.GOP,
        accumulation=Accumulation.SINCE_ANCHOR,
    ),
}


def preset_policy(name: str) -> PrunePolicy:
    """The policy of a preset.

    Raises:
        ValueError: There is no preset of that name.
    """
    return PRESETS[Preset(name)]


class PruningSettings(BaseModel):
    """How patches are judged. What is unset comes from the preset."""

    preset: Literal["default", "codecsight"] = Field(
        "default", description="settings that belong together: default, codecsight (the paper's)"
    )
    change: Change | None = Field(
        None, description="what says that a patch changed: luma, vectors, vectors-luma; unset: the preset's"
    )
    gather_method: GatherMethod | None = Field(
        None, description="how motion vectors are gathered: union, signed-sum; unset: the preset's"
    )
    tau: float | None = Field(
        None,
        ge=0,
        description="motion, in pixels per sampling step, from which a patch counts as changed; "
        "unset: the preset's, or as measured",
    )
    alpha: float | None = Field(
        None, ge=0, description="weight of the residual, in pixels per grey level; unset: the preset's"
    )
    luma_tau: float | None = Field(
        None,
        ge=0,
        description="difference, in grey levels, from which a patch counts as changed; "
        "unset: learned from each camera's noise",
    )
    anchors: Anchors | None = Field(
        None, description="frames encoded whole: stride, gop; unset: the preset's"
    )
    accumulation: Accumulation | None = Field(
        None, description="what a patch is compared with: since-anchor, since-encoded; unset: the preset's"
    )
    prune: bool = Field(True, description="prune patches; false: keep every patch")

    @property
    def policy(self) -> PrunePolicy:
        """How patches are judged."""
        base = PRESETS[Preset(self.preset)]
        given: dict[str, Any] = {
            "change": self.change,
            "rule": self.gather_method,
            "tau": self.tau,
            "alpha": self.alpha,
            "luma_tau": self.luma_tau,
            "anchors": self.anchors,
            "accumulation": self.accumulation,
        }
        named = {name: value for name, value in given.items() if value is not None}
        if "rule" in named and "tau" not in named:
            named["tau"] = None  # a threshold belongs to its gathering method
        return replace(base, **named, everything=not self.prune)
