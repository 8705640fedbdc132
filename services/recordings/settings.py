"""Settings of recordings."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Self

from pydantic import Field, model_validator

from lookout.runtime.store import StoreSettings
from lookout.runtime.worker import FetchSettings, Listed, WindowPlanSettings
from lookout.services.recordings.quotas import JobQuotas


class RecordingsSettings(FetchSettings, WindowPlanSettings):
    """Settings of recordings in addition to every service's; each field is `LOOKOUT_<FIELD>`."""

    model_dir: Path | None = Field(None, description="folder of the checkpoint that answers")
    recording_roots: Listed = Field(
        (), description="folders whose files jobs may ask about, comma-separated; empty: none"
    )
    recording_stores: Listed = Field(
        (),
        description="object stores, or folders in them, whose objects jobs may ask about, comma-separated: "
        "s3://bucket/folder (gs, az); credentials as in AWS_ACCESS_KEY_ID, or AWS_ACCESS_KEY_ID_FILE",
    )
    fetch_bytes: int = Field(
        512 << 20,
        ge=1,
        description="maximum bytes fetched into the temporary folder: for one part, or for the whole "
        "recording if its host does not support ranges",
    )
    #: time limit of one fetch in seconds; fetching a range may take at most 60 s
    uri_timeout_s: ClassVar[float] = 600.0
    decoders: int | None = Field(
        None, ge=1, le=1024, description="decoding processes per part; unset: as many as it has cores"
    )
    ahead: int = Field(
        0,
        ge=0,
        le=16,
        description="parts whose pixels decode pods prepare while this instance answers another part; 0: "
        "this instance decodes its parts itself, while it prefills them",
    )
    samples_replicas: Listed = Field(
        (),
        description="gRPC addresses of the decode pods for recordings, comma-separated, in addition to those "
        "in the directory",
    )
    #: `nice` value of workers, so that they yield to other processes on their machine
    niceness: ClassVar[int] = 10
    threads: int = Field(1, ge=1, le=256, description="jobs planned, or outcomes collected, at the same time")
    job_quotas: JobQuotas = Field(
        default_factory=dict,
        description='limits by tenant, as JSON, on what running jobs of the tenant may use together: {"*": '
        '{"jobs": 20, "parts": 5000, "seconds": 86400, "questions": 200}}; * applies to every tenant that '
        "is not named; unset: no limit",
    )
    work_limit_s: float = Field(
        7200.0,
        gt=1,
        description="seconds that a compute thread may take for one record; then the record becomes a dead "
        "letter; if the work cannot be stopped, the process ends with exit code 1",
    )
    store: StoreSettings = Field(
        default_factory=StoreSettings,
        description="how pixels of parts, and tokens of back-tests' windows, are fetched and held",
    )

    @model_validator(mode="after")
    def _one_thread_a_part(self) -> Self:
        # One thread answers a part while each other thread fetches a later part's pixels.
        if self.ahead:
            object.__setattr__(self, "threads", 1 + self.ahead)
        return self
