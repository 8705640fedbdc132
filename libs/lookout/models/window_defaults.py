"""A model's default sample rate, stride and window, from `lookout_windows.json` in its folder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Final

from lookout.models.errors import ModelError, SamplingError
from lookout.values import check_finite

SECOND_US = 1_000_000
#: limits of samples a second, and of seconds of a stride or window (1e6 s are eleven days)
LEAST: Final = 1e-6
MOST: Final = 1e6

#: next to config.json: {"fps": 2, "stride_s": 2, "window_s": 10}; each entry may be omitted
WINDOWS_FILE: Final = "lookout_windows.json"


class SamplingNumbers:
    """The numbers that follow from sample rate, stride and window. They are computed only here."""

    __slots__ = ()
    fps: float
    stride_s: float
    window_s: float

    @property
    def step_us(self) -> int:
        """Microseconds between two samples."""
        return round(SECOND_US / self.fps)

    @property
    def block_samples(self) -> int:
        """Samples of a stride block."""
        return round(self.stride_s * self.fps)

    @property
    def window_blocks(self) -> int:
        """Stride blocks of a window."""
        return round(self.window_s / self.stride_s)

    @property
    def stride_us(self) -> int:
        """Microseconds of a stride block."""
        return self.block_samples * self.step_us

    @property
    def window_us(self) -> int:
        """Microseconds of a window."""
        return self.window_blocks * self.stride_us

    def check(self, named: Mapping[str, str] | None = None) -> None:
        """Check that rate, stride and window fit together. `named` maps each field to its name in messages.

        Raises:
            SamplingError: They do not fit together.
        """
        values: dict[str, float] = {}
        for name in ("fps", "stride_s", "window_s"):
            label = (named or {}).get(name, name).partition("=")[0]
            values[name] = check_finite(label, getattr(self, name), SamplingError)
        shown = {name: f"{name}={value:g}" for name, value in values.items()} | dict(named or {})
        for name, value in values.items():
            if value <= 0:
                raise SamplingError(f"{shown[name]} must be above 0")
            if not LEAST <= value <= MOST:
                raise SamplingError(f"{shown[name]} must be from {LEAST:g} to {MOST:g}")
        if not _is_whole(self.stride_s * self.fps):
            raise SamplingError(
                f"{shown['stride_s']} has {self.stride_s * self.fps:g} samples at {shown['fps']}: "
                "choose values that give a whole number"
            )
        if not _is_whole(self.window_s / self.stride_s):
            raise SamplingError(f"{shown['window_s']} is not a multiple of {shown['stride_s']}")


@dataclass(frozen=True)
class WindowDefaults(SamplingNumbers):
    """Sample rate, stride and window (CodecSight, section 4: 40 s windows, 8 s strides, 2 frames a second).

    Attributes:
        fps: Samples a second of stream time.
        stride_s: Seconds by which a window slides; a whole number of samples.
        window_s: Seconds of a window; a whole number of strides.
    """

    fps: float = 2.0
    stride_s: float = 8.0
    window_s: float = 40.0

    def __post_init__(self) -> None:
        self.check()

    def changed(
        self, *, fps: float | None = None, stride_s: float | None = None, window_s: float | None = None
    ) -> WindowDefaults:
        """Return a copy with the given values; a value of None is not changed.

        Raises:
            SamplingError: The resulting values do not fit together.
        """
        changes = {"fps": fps, "stride_s": stride_s, "window_s": window_s}
        return replace(self, **{name: value for name, value in changes.items() if value is not None})


def window_defaults(folder: Path) -> WindowDefaults:
    """Return the window defaults in a checkpoint folder, else those for published checkpoints.

    Args:
        folder: The checkpoint's folder.

    Raises:
        ModelError: The folder's file cannot be read or has an unknown entry, or its values do not fit
            together.
    """
    path = folder / WINDOWS_FILE
    if not path.is_file():
        return WindowDefaults()
    try:
        entries = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ModelError(f"{path} cannot be read as JSON: {error}") from error
    names = [entry.name for entry in fields(WindowDefaults)]
    if not isinstance(entries, dict) or not set(entries) <= set(names):
        content = sorted(set(entries) - set(names)) if isinstance(entries, dict) else type(entries).__name__
        raise ModelError(f"{path} has {content}: give a JSON object with only {', '.join(names)}")
    for name, value in entries.items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ModelError(f"{path}: {name} must be a number, not {value!r}")
    try:
        return WindowDefaults(**{name: float(value) for name, value in entries.items()})
    except (ValueError, OverflowError) as error:
        raise ModelError(f"{path}: {error}") from error


def _is_whole(number: float) -> bool:
    return number > 0.5 and abs(number - round(number)) < 1e-9
