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
        (), description="folders whose files may be asked about, comma-separated; empty: none"
    )
    recording_stores: Listed = Field(
        (),
        description="object stores, or folders of them, whose objects may be asked about, comma-separated: "
        "s3://bucket/folder (gs, az); credentials as in AWS_ACCESS_KEY_ID, or AWS_ACCESS_KEY_ID_FILE",
    )
    fetch_bytes: int = Field(
        512 << 20,
        ge=1,
        description="most bytes fetched for a part, or for the whole recording, into the temporary folder, "
        "if its host serves no ranges",
    )
    #: time limit of one fetch in seconds; fetching a range may take 60 at most
    uri_timeout_s: ClassVar[float] = 600.0
    decoders: int | None = Field(
        None, ge=1, le=1024, description="decoding processes of a part; unset: the cores that it may use"
    )
    ahead: int = Field(
        0,
        ge=0,
        le=16,
        description="parts whose pixels decode pods make while this one answers another; 0: it decodes its "
        "parts itself, while it prefills them",
    )
    samples_replicas: Listed = Field(
        (),
        description="addresses of decode pods of recordings, comma-separated; in addition to those that the "
        "directory knows",
    )
    #: the `nice` value of workers, which yield to other processes of their machine
    niceness: ClassVar[int] = 10
    threads: int = Field(1, ge=1, le=256, description="jobs planned, or outcomes collected, at the same time")
    job_quotas: JobQuotas = Field(
        default_factory=dict,
        description="the most that a tenant's jobs may use together while they run, by tenant, as JSON; * is "
        'every other one: {"*": {"jobs": 20, "parts": 5000, "seconds": 86400, "questions": 200}}; unset: any '
        "amount",
    )
    work_limit_s: float = Field(
        7200.0,
        gt=1,
        description="seconds that a part may take; then it has no answer, and a process that cannot stop the "
        "work ends (exit code 1)",
    )
    store: StoreSettings = Field(
        default_factory=StoreSettings,
        description="how pixels of parts, and tokens of back-tests' windows, are fetched and held",
    )

    @model_validator(mode="after")
    def _one_thread_a_part(self) -> Self:
        # One thread answers a part; each of the others fetches the pixels of a later part.
        if self.ahead:
            object.__setattr__(self, "threads", 1 + self.ahead)
        return self
