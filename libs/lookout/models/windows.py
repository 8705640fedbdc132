"""How a model's windows are cut where no setting says otherwise: `lookout_windows.json` in its folder."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Final

from lookout.models.errors import ModelError

__all__ = ["WINDOWS_FILE", "WindowDefaults", "window_defaults"]

#: beside config.json: {"fps": 2, "stride_s": 2, "window_s": 10}; each entry may be left out
WINDOWS_FILE: Final = "lookout_windows.json"


@dataclass(frozen=True, slots=True)
class WindowDefaults:
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
        for name in ("fps", "stride_s", "window_s"):
            if not 0 < getattr(self, name) < float("inf"):
                raise ValueError(f"{name}={getattr(self, name):g} must be above 0")
        if not _is_whole(self.stride_s * self.fps):
            raise ValueError(
                f"stride_s={self.stride_s:g} holds {self.stride_s * self.fps:g} samples at fps={self.fps:g}: "
                "make it a whole number"
            )
        if not _is_whole(self.window_s / self.stride_s):
            raise ValueError(f"window_s={self.window_s:g} is not a multiple of stride_s={self.stride_s:g}")


def window_defaults(folder: Path) -> WindowDefaults:
    """What a checkpoint folder says about windows, else the defaults for published checkpoints.

    Args:
        folder: The checkpoint's folder.

    Raises:
        ModelError: The folder's file cannot be read, names an unknown entry, or its numbers do not fit
            together.
    """
    path = folder / WINDOWS_FILE
    if not path.is_file():
        return WindowDefaults()
    try:
        given = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ModelError(f"{path} cannot be read as JSON: {error}") from error
    known = [each.name for each in fields(WindowDefaults)]
    if not isinstance(given, dict) or not set(given) <= set(known):
        what = sorted(set(given) - set(known)) if isinstance(given, dict) else type(given).__name__
        raise ModelError(f"{path} holds {what}: an object with {', '.join(known)} is expected")
    for name, value in given.items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ModelError(f"{path}: {name} is {value!r}, not a number")
    try:
        return WindowDefaults(**{name: float(value) for name, value in given.items()})
    except (ValueError, OverflowError) as error:
        raise ModelError(f"{path}: {error}") from error


def _is_whole(number: float) -> bool:
    return number > 0.5 and abs(number - round(number)) < 1e-9
