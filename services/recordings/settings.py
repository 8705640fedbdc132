"""Settings of recordings."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from lookout.store import StoreSettings
from lookout.worker import FetchSettings, Listed, WindowPlanSettings


class RecordingsSettings(FetchSettings, WindowPlanSettings):
    """What recordings adds to every service's settings; each field is `LOOKOUT_<FIELD>`."""

    model_dir: Path | None = Field(None, description="folder of the checkpoint that answers")
    recording_roots: Listed = Field(
        (), description="folders whose files may be asked about, comma-separated; empty: none"
    )
    recording_stores: Listed = Field(
        (),
        description="object stores, or folders of them, whose objects may be asked about, comma-separated: "
        "s3://bucket/folder (gs, az); credentials as in AWS_ACCESS_KEY_ID",
    )
    fetch_bytes: int = Field(
        512 << 20,
        ge=1,
        description="bytes that are fetched for a part; the whole recording, into the temporary folder, "
        "where its host serves no ranges",
    )
    uri_timeout_s: float = Field(
        600.0, gt=0, description="limit of seconds for one fetch; a range has 60 at most"
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
    store: StoreSettings = Field(
        default_factory=StoreSettings, description="how back-tests fetch the tokens of windows"
    )
