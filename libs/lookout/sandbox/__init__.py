"""Decoding in processes that can do nothing else: segments, and recordings from unknown sources.

Whatever needs FFmpeg is imported when it is first named.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from lookout.sandbox.pool import SandboxError, SandboxPool, SandboxSettings
from lookout.sandbox.survey import inspect, inspect_all

if TYPE_CHECKING:
    from lookout.sandbox.confined_reader import SandboxedReader
    from lookout.sandbox.opening import downloaded, open_recording

_NEEDS_FFMPEG = {
    "SandboxedReader": "confined_reader",
    "downloaded": "opening",
    "open_recording": "opening",
}

__all__ = [
    "SandboxError",
    "SandboxPool",
    "SandboxSettings",
    "SandboxedReader",
    "downloaded",
    "inspect",
    "inspect_all",
    "open_recording",
]


def __getattr__(name: str) -> Any:
    if name not in _NEEDS_FFMPEG:
        raise AttributeError(f"lookout.sandbox has no {name!r}")
    return getattr(import_module(f"lookout.sandbox.{_NEEDS_FFMPEG[name]}"), name)
