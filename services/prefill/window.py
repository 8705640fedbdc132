"""A camera's open window, and its checkpoint."""

from dataclasses import dataclass, field

from lookout.services.prefill.idle import Answered
from lookout.services.prefill.loading import WindowRecord
from lookout.streams import WindowChain
from lookout.streams.chains.gates import Gates
from lookout.streams.chains.verdicts import WindowTime
from lookout.v1.state_pb2 import PrefillState


@dataclass(frozen=True, slots=True)
class OpenWindow:
    """A camera's state before its next window.

    Attributes:
        chain: What the engine holds for the camera. Not in the checkpoint, so after a restart the camera
            begins with a key window.
        epoch: The epoch of `records`.
        records: The window's records, without the block that will close it.
        last: The newest decided window of `epoch`; None: none is decided.
        watches_offset: Offset up to which watches.v1 was read for the newest window.
        watermark_us: Stream time up to which `epoch` is decided.
        answered: The answers that idle windows may repeat; None: there are none. Not in the checkpoint.
        gates: The state of the watches' gates for the next window.
    """

    chain: WindowChain
    epoch: int = 0
    records: tuple[WindowRecord, ...] = ()
    last: int | None = None
    watches_offset: int = 0
    watermark_us: int = 0
    answered: Answered | None = None
    gates: Gates = field(default_factory=Gates)

    def is_decided(self, epoch: int, window: int) -> bool:
        """Return whether a window is already decided."""
        return epoch < self.epoch or (epoch == self.epoch and self.last is not None and window <= self.last)

    def message(self, longest_chain: int) -> PrefillState:
        """Return the checkpoint; `longest_chain` is the number of strides between key windows from the
        settings.
        """
        plan, key_every = self.chain.plan, self.chain.key_every
        return PrefillState(
            epoch=self.epoch,
            offsets=[member.offset for member in self.records],
            last_window=self.last or 0,
            any=self.last is not None,
            watches_offset=self.watches_offset,
            watermark_us=self.watermark_us,
            since_key=0 if plan is None else plan.since_key,
            key_every=0 if key_every == longest_chain else key_every,
            gates=self.gates.messages(),
        )


def window_time(records: tuple[WindowRecord, ...]) -> WindowTime:
    """Return the time of the window that closes with the last of these records."""
    newest = records[-1].record
    return WindowTime(
        newest.camera,
        newest.epoch,
        newest.wall_offset_us,
        newest.block.index,
        records[0].record.block.start_us,
        newest.block.end_us,
        newest.labels.tenant,
    )
