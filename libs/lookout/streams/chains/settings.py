"""How windows are planned, from a service's settings."""

from __future__ import annotations

from dataclasses import replace

from lookout.models.presets import preset_of
from lookout.models.windows import PRESETS, LabelPolicy, WindowSettings
from lookout.runtime.worker import WindowPlanSettings


def windows_of(settings: WindowPlanSettings) -> WindowSettings:
    """How a service plans windows."""
    preset = preset_of(settings.preset).windows if settings.reuse else PRESETS["whole"]
    frames, surplus = settings.refresh_frames, settings.refresh_surplus
    return replace(
        preset.sampled(settings),
        key_every=settings.key_every,
        refresh_frames=preset.refresh_frames if frames is None else frames,
        refresh_share=preset.refresh_share if frames is None else None,
        refresh_surplus=preset.refresh_surplus if surplus is None else surplus,
        labels=preset.labels if settings.labels is None else LabelPolicy(settings.labels),
    )
