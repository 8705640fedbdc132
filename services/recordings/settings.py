"""Settings of recordings."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from lookout.worker import Listed, ModelSettings


class RecordingsSettings(ModelSettings):
    """What recordings adds to every service's settings; each field is `LOOKOUT_<FIELD>`."""

    model_dir: Path | None = Field(None, description="folder of the checkpoint that answers")
    recording_roots: Listed = Field(
        (), description="folders whose files may be asked about, comma-separated; empty: none"
    )
    decoders: int | None = Field(
        None, ge=1, le=1024, description="decoding processes of a part; unset: the machine's cores"
    )
    niceness: int = Field(
        10, ge=0, le=19, description="how far parts give way to other processes of their machine (nice)"
    )
    threads: int = Field(1, ge=1, le=256, description="jobs planned, or outcomes collected, at the same time")
    work_limit_s: float = Field(
        7200.0,
        gt=1,
        description="seconds that a part may take; then it has no answer, and a process that cannot stop the "
        "work ends (exit code 1)",
    )
