"""Lookout: vision-language models over live camera fleets, at a fraction of the usual compute.

    import lookout

    with lookout.Pipeline(questions=["Is anyone lying on the ground?"]) as pipeline:
        for verdict in pipeline.watch("clip.mp4"):
            print(verdict.time, verdict.question, verdict.p_yes)

    found = lookout.analyze("recording.mp4", ["Is a vehicle in view?"])

Importing the package loads neither torch nor FFmpeg nor Kafka: each is loaded on first use.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from lookout.errors import LookoutError
from lookout.lazy import lazy_names

if TYPE_CHECKING:
    from lookout.recordings.analysis import Analysis, AnalysisError, AnalysisSettings, analyze
    from lookout.streams.pipeline import Pipeline, PipelineError, Verdict
    from lookout.streams.session import Session, SessionAnswer, SessionError
    from lookout.video.files import VideoReader
    from lookout.video.segments import CodecError

    __version__: str

__all__ = [
    "Analysis",
    "AnalysisError",
    "AnalysisSettings",
    "CodecError",
    "LookoutError",
    "Pipeline",
    "PipelineError",
    "Session",
    "SessionAnswer",
    "SessionError",
    "Verdict",
    "VideoReader",
    "__version__",
    "analyze",
]


# OpenMP reads this when torch is imported. By default, threads spin while they wait for one another; under
# load they take the core of the thread for which they wait.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

_find = lazy_names(__name__)


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("lookout-fleet")
    return _find(name)


def __dir__() -> list[str]:
    return __all__
