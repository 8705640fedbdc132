"""The presets of every command. A preset sets which patches are kept and how windows reuse KV."""

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
    """The settings of a preset. `masks`: which patches are kept; `windows`: which KV is reused."""

    masks: PrunePolicy
    windows: WindowSettings


PRESETS: Mapping[str, PresetSettings] = MappingProxyType(
    {name.value: PresetSettings(masks, WINDOW_PRESETS[name.value]) for name, masks in PRUNING_PRESETS.items()}
)
"""The presets by name.

`default`: patches whose pixels changed are kept, and some rows at the window's front are recomputed.
`faithful`: as the default, but more rows are recomputed, and their number grows with the window.
`codecsight`: motion vectors and anchors as in the paper (CodecSight, sections 3.2 to 3.4). `strides`: patches
are kept as in the default, and each stride is asked about in a separate prompt."""


def preset_of(name: str) -> PresetSettings:
    """Return a preset by its name.

    Raises:
        PresetError: No preset has that name.
    """
    if not isinstance(name, str) or name not in PRESETS:
        raise PresetError(f"preset {name!r} is unknown: choose one of {', '.join(PRESETS)}")
    return PRESETS[name]
