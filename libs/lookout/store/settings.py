"""Settings of the tensor store, its directory and its peers."""

from pathlib import Path
from typing import Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

__all__ = ["CHUNK_BYTES", "StoreSettings"]

MIB = 1 << 20
CHUNK_BYTES = MIB


class StoreSettings(BaseModel):
    """Budgets in bytes, times in seconds. `spool` is a folder of this process alone; none: no disk tier."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    memory_bytes: int = Field(default=512 * MIB, gt=0, description="tensors in process memory")
    disk_bytes: int = Field(default=2048 * MIB, ge=0, description="tensors in the spool folder")
    spool: Path | None = Field(default=None, description="folder of the disk tier")
    reserve_bytes: int = Field(default=128 * MIB, gt=0, description="kept apart for tensors made on request")
    reserve_workers: int = Field(default=2, gt=0, description="threads that make tensors again for peers")
    unread_bytes: int = Field(default=384 * MIB, gt=0, description="unread tensors before producing pauses")
    unread_seconds: float = Field(
        default=120.0, gt=0, description="unread stream time of a camera before producing pauses"
    )
    camera_bytes: int = Field(
        default=128 * MIB, gt=0, description="unread tensors of one camera before it must wait"
    )
    camera_wait_s: float = Field(
        default=120.0,
        ge=0,
        description="seconds that a camera over camera_bytes waits before it is left out",
    )
    redis_timeout_s: float = Field(default=0.5, gt=0, description="an answer from the directory")
    redis_retry_s: float = Field(
        default=1.0, gt=0, description="a pause before a failed directory is asked again"
    )
    lease_s: float = Field(default=10.0, gt=0, description="a pod that does not renew is gone after this")
    entry_s: float = Field(default=600.0, gt=0, description="life of a directory entry; holders renew it")
    peer_bytes: int = Field(default=256 * MIB, gt=0, description="bytes on their way to one peer at a time")
    tensor_bytes: int = Field(default=1024 * MIB, gt=0, description="the largest tensor a peer may send")
    fetch_s: float = Field(default=10.0, gt=0, description="deadline of a fetch from a holder")
    materialize_s: float = Field(default=60.0, gt=0, description="deadline of having a tensor made")

    @model_validator(mode="after")
    def _budgets_fit(self) -> Self:
        room = self.memory_bytes + (self.disk_bytes if self.spool else 0)
        if self.unread_bytes > room:
            raise ValueError(
                f"unread_bytes ({self.unread_bytes}) exceeds what the store can hold ({room}): "
                "unread tensors are never evicted, so raise memory_bytes or disk_bytes, or lower unread_bytes"
            )
        return self
