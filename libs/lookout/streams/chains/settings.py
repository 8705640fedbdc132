"""Derives window settings from a service's settings."""

from __future__ import annotations

from dataclasses import replace

from lookout.models.presets import preset_of
from lookout.models.windows import PRESETS, WindowSettings
from lookout.runtime.worker import WindowPlanSettings


def windows_of(settings: WindowPlanSettings) -> WindowSettings:
    """Return the settings with which a service plans windows."""
    preset = preset_of(settings.preset).windows if settings.reuse else PRESETS["whole"]
    return replace(preset.sampled(settings), key_every=settings.key_every)
