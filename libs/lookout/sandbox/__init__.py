"""Decoding in processes that can do nothing else: segments, and recordings from unknown sources.

Everything is imported when it is first named: a process that is to be confined imports little before it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lookout.lazy import lazy_names

if TYPE_CHECKING:
    from lookout.sandbox.confined_reader import SandboxedReader
    from lookout.sandbox.opening import downloaded, open_recording
    from lookout.sandbox.pool import SandboxError, SandboxPool, SandboxSettings
    from lookout.sandbox.survey import inspect, inspect_all

_LAZY = {
    "SandboxError": "pool",
    "SandboxPool": "pool",
    "SandboxSettings": "pool",
    "SandboxedReader": "confined_reader",
    "downloaded": "opening",
    "inspect": "survey",
    "inspect_all": "survey",
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


__getattr__ = lazy_names(__name__, _LAZY)
