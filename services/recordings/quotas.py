"""Limits what a tenant's running jobs may use together."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Annotated, Protocol

from google.protobuf.message import DecodeError
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_settings import NoDecode

from lookout.runtime.tenants import read_by_tenant
from lookout.runtime.tenants.quotas import OTHERS
from lookout.v1.recordings_pb2 import RecordingPlan, ReduceState
from lookout.v1.state_pb2 import Checkpoint
from lookout.wire import WireError, from_bytes, tenant_of


@dataclass(frozen=True, slots=True)
class Use:
    """How much of a quota jobs use.

    Attributes:
        jobs: Number of jobs.
        parts: Number of parts that the jobs were cut into.
        seconds: Seconds of footage, all recordings or cameras together.
        questions: Number of questions.
    """

    jobs: int = 0
    parts: int = 0
    seconds: float = 0.0
    questions: int = 0

    def __add__(self, other: Use) -> Use:
        """Return the sum of two uses."""
        return Use(*(getattr(self, row.name) + getattr(other, row.name) for row in fields(self)))


class JobQuota(BaseModel):
    """The most that a tenant's running jobs may use together; None: no limit."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    jobs: int | None = Field(default=None, ge=0)
    parts: int | None = Field(default=None, ge=0)
    seconds: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    questions: int | None = Field(default=None, ge=0)

    def fault(self, tenant: str, running: Use, job: Use) -> str | None:
        """Return why a job would exceed the tenant's quota; None if it would not.

        Args:
            tenant: The job's tenant.
            running: What the tenant's running jobs use.
            job: What this job needs.
        """
        for name in type(self).model_fields:
            limit, needed = getattr(self, name), getattr(job, name)
            if limit is not None and getattr(running, name) + needed > limit:
                return (
                    f"tenant {tenant}: {name}: this job needs {needed:g} and the {running.jobs} running jobs "
                    f"use {getattr(running, name):g}, but the quota is {limit:g} (LOOKOUT_JOB_QUOTAS): "
                    "ask for less, cancel a job, or wait until one ends"
                )
        return None


def _decoded(value: object) -> object:
    return read_by_tenant(value, JobQuota) if isinstance(value, str) else value


JobQuotas = Annotated[dict[str, JobQuota], NoDecode, BeforeValidator(_decoded)]


def quota_of(quotas: Mapping[str, JobQuota], tenant: str) -> JobQuota:
    """Return a tenant's quota; empty if none is set."""
    return quotas.get(tenant) or quotas.get(OTHERS) or JobQuota()


def use_of(plan: RecordingPlan) -> Use:
    """Return how much of its tenant's quota a planned job uses."""
    return Use(1, plan.parts, plan.seconds, len(plan.job.questions) or 1)


class Rows(Protocol):
    """The part of a table that is needed (`lookout.runtime.worker.Table`)."""

    def changes(self) -> set[str]: ...
    def newest(self, key: str) -> bytes | None: ...


class RunningJobs:
    """Sums what running jobs use, by tenant. Thread-safe.

    Args:
        table: The table of checkpoints of the role `reduce`.
    """

    def __init__(self, table: Rows) -> None:
        self._table, self._lock = table, threading.Lock()
        self._jobs: dict[str, tuple[str, Use]] = {}

    def running(self, tenant: str, without: str) -> Use:
        """Return what a tenant's running jobs use.

        Args:
            tenant: The tenant's name.
            without: The id of a job to leave out.
        """
        with self._lock:
            for job in self._table.changes():
                self._follow(job)
            rows = (row for job, row in self._jobs.items() if job != without)
            return sum((use for owner, use in rows if owner == tenant), Use())

    def begin(self, job: str, tenant: str, use: Use) -> None:
        """Count a job that is not yet in the checkpoints."""
        with self._lock:
            self._jobs[job] = tenant, use

    def _follow(self, job: str) -> None:
        state = _state_in(self._table.newest(job))
        if state.ended or not state.parts:
            self._jobs.pop(job, None)
        else:
            use = Use(1, state.parts, state.seconds, state.questions)
            self._jobs[job] = tenant_of(state.tenant), use


def _state_in(value: bytes | None) -> ReduceState:
    """Return the message in a checkpoint; empty if it cannot be read."""
    state = ReduceState()
    try:
        from_bytes(value or b"", Checkpoint).own.Unpack(state)
    except (WireError, DecodeError):  # the role that owns the checkpoint reports the error
        state.Clear()
    return state
