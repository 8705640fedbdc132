"""Presets, for every command: each names which patches are kept and how windows reuse KV."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from lookout.errors import LookoutError
from lookout.models.windows import PRESETS as WINDOW_PRESETS, WindowSettings
from lookout.pruning import PRESETS as PRUNING_PRESETS, PrunePolicy

DEFAULT = "default"


class PresetError(LookoutError, ValueError):
    """No preset has that name."""


@dataclass(frozen=True, slots=True)
class PresetSettings:
    """Settings that belong together: `masks` says which patches are kept, `windows` which KV is reused."""

    masks: PrunePolicy
    windows: WindowSettings


PRESETS: Mapping[str, PresetSettings] = MappingProxyType(
    {name.value: PresetSettings(masks, WINDOW_PRESETS[name.value]) for name, masks in PRUNING_PRESETS.items()}
)
"""`default`: pixels decide which patches are kept, and a run of rows from the window's front is recomputed.
`faithful`: the same with a longer run, which grows with the window. `codecsight`: the paper's motion vectors
and anchors (CodecSight, sections 3.2 to 3.4). `strides`: the default's masks, and each stride is asked about
on its own."""


def preset_of(name: str) -> PresetSettings:
    """Return a preset by its name.

    Raises:
        PresetError: No preset has that name.
    """
    if not isinstance(name, str) or name not in PRESETS:
        raise PresetError(f"preset {name!r} is unknown: choose one of {', '.join(PRESETS)}")
    return PRESETS[name]
