"""A camera's state: its open epoch, the checkpoint of it, and what only this process has observed."""

from dataclasses import dataclass, field, replace
from typing import Self

from lookout.runtime.worker import Record
from lookout.services.decode import health_state
from lookout.services.decode.lines import TimeLines
from lookout.services.decode.quota import LeftOutCount, Usage
from lookout.services.decode.settings import DecodeSettings
from lookout.services.decode.stream import Stream
from lookout.v1.state_pb2 import DecodeState
from lookout.video.health import CameraHealth

_DAY_MS = 86_400_000
#: longest time between two ticks that counts as observed, in seconds: four ticks, because a busy process may
#: miss some
_WATCHED_S = 2.0


@dataclass(slots=True)
class Seen:
    """What this process has observed of a camera; not part of the checkpoint.

    Attributes:
        lines: The time lines that the camera's segments follow.
        quiet_s: Seconds of observed silence.
        ticked_at: Unix seconds of the previous tick; None: no tick since the newest segment.
        warned_until: By warning, the monotonic time in seconds until which it is not repeated.
    """

    lines: TimeLines = field(default_factory=TimeLines)
    quiet_s: float = 0.0
    ticked_at: float | None = None
    warned_until: dict[str, float] = field(default_factory=dict)

    def heard(self) -> None:
        """End the silence, because the camera sent something."""
        self.quiet_s, self.ticked_at = 0.0, None

    def watch(self, now: float) -> float:
        """Add the time since the last tick to the silence; return the length of the silence so far in
        seconds.

        The first tick after a segment only stores `now` (Unix seconds), because the time before it was not
        observed.
        """
        if self.ticked_at is not None:
            # Capped, because nothing was observed while the process was suspended.
            self.quiet_s += min(max(0.0, now - self.ticked_at), _WATCHED_S)
        self.ticked_at = now
        return self.quiet_s


@dataclass(frozen=True, slots=True)
class OpenEpoch:
    """The state of a camera's stream.

    Attributes:
        stream: The part of the epoch that is written.
        usage: How much of its quota the camera has used.
        left_out: Skipped segments that no dead letter has reported yet.
        left_out_why: Why the newest of these was skipped; empty if another process skipped it.
        reconfigured: Whether the epoch was written under another configuration. If so, the next segment ends
            it.
        health: What is known about the health of the camera's pictures.
        seen: What only this process has observed.
    """

    stream: Stream = field(default_factory=Stream)
    usage: Usage = field(default_factory=Usage)
    left_out: LeftOutCount = field(default_factory=LeftOutCount)
    left_out_why: str = ""
    reconfigured: bool = False
    health: CameraHealth = field(default_factory=CameraHealth, compare=False)
    seen: Seen = field(default_factory=Seen, compare=False)

    @classmethod
    def of(cls, message: DecodeState, *, config_changed: bool) -> Self:
        """Build the state from a checkpoint.

        If `config_changed`, the next segment ends the epoch, so that samples and blocks of two configurations
        are not mixed.
        """
        return cls(
            Stream.of(message),
            Usage.of(message.quota),
            LeftOutCount.of(message.quota),
            # Stays set until a segment is written, because a checkpoint under the new settings may be
            # written before that.
            reconfigured=config_changed or message.reconfigured,
            health=health_state.unpack(message.health) if message.HasField("health") else CameraHealth(),
        )

    def message(self) -> DecodeState:
        """Return the checkpoint."""
        message = self.stream.message()
        message.reconfigured = self.reconfigured
        message.quota.CopyFrom(self.usage.message())
        self.left_out.fill(message.quota)
        if self.health.seen_s:
            message.health.CopyFrom(health_state.pack(self.health))
        return message

    def leaving_out(self, record: Record, until_ms: int, why: str = "") -> "OpenEpoch":
        """Return the state after a skipped segment that ends at `until_ms`. If `why` is given, the quota's
        next dead letter counts the segment.
        """
        self.seen.heard()
        unit = replace(self, stream=self.stream.heard(record, until_ms))
        return replace(unit, left_out=self.left_out.add(record), left_out_why=why) if why else unit

    def is_gone(self, now_ms: float, settings: DecodeSettings) -> bool:
        """Return whether a camera without an open epoch has been silent long enough to be forgotten.

        A camera that never opened an epoch is forgotten once its quota's interval is over.
        """
        if not self.stream.epoch:
            return now_ms - self.usage.since_ms > settings.quota_interval_s * 1000
        days, heard_ms = settings.forget_after_days, max(self.stream.heard_ms, self.stream.arrived_ms)
        return days is not None and now_ms - heard_ms > days * _DAY_MS
