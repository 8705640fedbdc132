"""Decodes segments, and recordings from unknown sources, in confined processes.

Names are imported lazily, when first used, because a process should have loaded few modules before it is
confined.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lookout.lazy import lazy_names

if TYPE_CHECKING:
    from lookout.video.sandbox.confined_reader import SandboxedReader as SandboxedReader
    from lookout.video.sandbox.live import camera_segments as camera_segments
    from lookout.video.sandbox.opening import downloaded as downloaded, open_recording as open_recording
    from lookout.video.sandbox.pool import (
        SandboxError as SandboxError,
        SandboxPool as SandboxPool,
        SandboxSettings as SandboxSettings,
    )
    from lookout.video.sandbox.survey import inspect as inspect, inspect_all as inspect_all

__getattr__ = lazy_names(__name__)
