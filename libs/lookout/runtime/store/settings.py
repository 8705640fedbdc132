"""Settings of the tensor store, its directory and its peers."""

from pathlib import Path
from typing import ClassVar, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

MIB = 1 << 20
# Below gRPC's default message limit of 4 MiB, with room for the other fields.
CHUNK_BYTES = MIB


class StoreSettings(BaseModel):
    """Budgets in bytes, times in seconds. `spool` is a folder that no other process uses; unset: no disk
    tier.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    memory_bytes: int = Field(
        default=512 * MIB,
        gt=0,
        description="maximum bytes of tensors in process memory; raise it, within the pod's limit, for more "
        "cameras",
    )
    disk_bytes: int = Field(
        default=2048 * MIB,
        ge=0,
        description="maximum bytes of tensors in the spool folder; raise it to bridge longer outages of the "
        "next stage",
    )
    spool: Path | None = Field(
        default=None,
        description="folder of the disk tier, a different one for each instance; unset: no disk tier",
    )
    unread_bytes: int = Field(
        default=384 * MIB,
        gt=0,
        description="bytes of unread tensors at which the stage pauses; at most memory and disk of the store "
        "together",
    )
    lease_s: float = Field(
        default=10.0,
        gt=0,
        description="seconds without renewal after which an instance counts as gone; raise it if Redis may "
        "be unavailable for longer",
    )

    # Not settings, because nobody could choose better values:
    fetch_s: ClassVar[float] = 10.0
    """Seconds for one fetch from a holder."""
    materialize_s: ClassVar[float] = 60.0
    """Seconds to wait for another instance to recompute a tensor."""
    reserve_workers: ClassVar[int] = 2
    """Threads that recompute tensors for other instances."""
    unread_seconds: ClassVar[float] = 120.0
    """Unread stream time of a camera, in seconds, at which its partition pauses."""
    camera_wait_s: ClassVar[float] = 120.0
    """Seconds that a camera over camera_bytes waits before its segments or blocks are skipped."""
    redis_timeout_s: ClassVar[float] = 0.5
    """Seconds to wait for an answer of the directory."""
    redis_retry_s: ClassVar[float] = 1.0
    """Seconds until a failed directory is asked again."""
    entry_s: ClassVar[float] = 600.0
    """Seconds until a directory entry expires; holders renew it."""
    peer_bytes: ClassVar[int] = 256 * MIB
    """Maximum bytes in transfer to one instance at a time."""
    tensor_bytes: ClassVar[int] = 1024 * MIB
    """Maximum bytes of a tensor that another instance may send."""

    @property
    def reserve_bytes(self) -> int:
        """Bytes reserved for tensors that are recomputed on request: a quarter of the memory."""
        return self.memory_bytes // 4

    @property
    def camera_bytes(self) -> int:
        """Unread bytes at which a camera must wait: a third of `unread_bytes`, so that one camera cannot fill
        the store.
        """
        return self.unread_bytes // 3

    @model_validator(mode="after")
    def _budgets_fit(self) -> Self:
        room = self.memory_bytes + (self.disk_bytes if self.spool else 0)
        if self.unread_bytes > room:
            raise ValueError(
                f"unread_bytes ({self.unread_bytes}) exceeds what the store can hold ({room}): "
                "unread tensors are never evicted, so raise memory_bytes or disk_bytes, or lower unread_bytes"
            )
        return self
