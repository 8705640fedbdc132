"""A camera's open block, and its checkpoint."""

from dataclasses import dataclass, field
from typing import Self

from lookout.pruning import Carry
from lookout.services.prune_encode.blocks import BlockRecord
from lookout.v1.cameras_pb2 import CameraLabels
from lookout.v1.lineage_pb2 import CAUSE_LATE, CAUSE_UNSPECIFIED, Cause, Sampling
from lookout.v1.state_pb2 import PruneState

#: maximum number of characters of the reason for missing samples, in checkpoints and blocks
REASON_CHARS = 200


@dataclass(frozen=True, slots=True)
class Missing:
    """Why samples are missing: `cause` is for programs, `reason` for people (may be empty)."""

    cause: "Cause"
    reason: str


@dataclass(frozen=True, slots=True)
class OpenBlock:
    """The open block of an epoch, and the state that later blocks need.

    Attributes:
        epoch: The epoch's number; 0: no epoch has begun.
        wall_us: The newest record's clock offset (Unix time minus stream time), microseconds.
        sampling: Sample rate, stride and window of the epoch.
        block: Index of the open block.
        records: The records that contain frames of the open block.
        carry: What pruning carries over from earlier blocks to compare the next frames with; None: nothing.
        watermark_us: Stream time up to which the epoch is covered.
        ended: Whether a gap ended the epoch.
        missing: Why samples of the open block are missing; None: unknown.
        late_block: The block that was open when the newest late segment arrived; None: none has.
        labels: The newest record's labels; None: the defaults.
    """

    epoch: int = 0
    wall_us: int = 0
    sampling: Sampling = field(default_factory=Sampling)
    block: int = 0
    records: tuple[BlockRecord, ...] = ()
    carry: Carry | None = None
    watermark_us: int = 0
    ended: bool = False
    missing: Missing | None = None
    late_block: int | None = None
    labels: CameraLabels | None = None

    @property
    def running(self) -> bool:
        """Whether an epoch has begun and not ended."""
        return self.epoch > 0 and not self.ended

    def why_missing(self, index: int) -> Missing | None:
        """Return why a block has fewer frames than samples; None if the reason is unknown.

        When a late segment arrives, its blocks are already closed, so they lack its frames. A late segment is
        therefore given as the reason for missing frames in blocks up to one window later.
        """
        if self.missing is not None:
            return self.missing
        if self.late_block is None or index > self.late_block + self.sampling.window_blocks:
            return None
        return Missing(
            CAUSE_LATE,
            "late: the camera's segments arrive out of order, after later segments were processed",
        )

    @classmethod
    def of(cls, message: PruneState, sampling: Sampling) -> Self:
        """Build the state from a checkpoint, without its records. `sampling` is used if the checkpoint has
        none.
        """
        incomplete = message.missing_cause != CAUSE_UNSPECIFIED or message.missing
        return cls(
            epoch=message.epoch,
            wall_us=message.wall_offset_us,
            sampling=message.sampling if message.sampling.step_us else sampling,
            block=message.block,
            watermark_us=message.watermark_us,
            ended=message.any and message.last_block >= message.block,
            missing=Missing(message.missing_cause, message.missing) if incomplete else None,
            # Needed even without open frames: if segments end where blocks end, only the carry-over remains.
            carry=Carry.unpack(message.active),
            late_block=message.late_block - 1 if message.late_block else None,
            labels=message.labels if message.HasField("labels") else None,
        )

    def message(self) -> PruneState:
        """Return the checkpoint."""
        written = self.block + (1 if self.ended else 0)
        return PruneState(
            epoch=self.epoch,
            wall_offset_us=self.wall_us,
            block=self.block,
            offsets=[record.ref.offset for record in self.records],
            active=self.carry.pack() if self.carry is not None else b"",
            last_block=max(0, written - 1),
            any=written > 0,
            watermark_us=self.watermark_us,
            sampling=self.sampling,
            missing=self.missing.reason if self.missing else "",
            missing_cause=self.missing.cause if self.missing else CAUSE_UNSPECIFIED,
            late_block=0 if self.late_block is None else self.late_block + 1,
            labels=self.labels,
        )
