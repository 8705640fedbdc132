"""The open epoch of one camera, its checkpoint, and what this process alone has seen of it."""

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
#: longest time between two ticks that counts as watched, seconds
# Four ticks: a busy process may miss some.
_WATCHED_S = 2.0


@dataclass(slots=True)
class Seen:
    """What this process has seen of a camera; never restored.

    Attributes:
        lines: The time lines that its segments follow.
        quiet_s: Seconds of silence that were watched.
        ticked_at: Unix seconds of the tick before; None: none since the newest segment.
        warned_until: Monotonic seconds until which a warning is not repeated, by its subject.
    """

    lines: TimeLines = field(default_factory=TimeLines)
    quiet_s: float = 0.0
    ticked_at: float | None = None
    warned_until: dict[str, float] = field(default_factory=dict)

    def heard(self) -> None:
        """The camera sent something: its silence begins again."""
        self.quiet_s, self.ticked_at = 0.0, None

    def watch(self, now: float) -> float:
        """Watch the silence at a tick (`now`: Unix seconds); its length so far, seconds.

        The first tick after a segment only marks the time: how long nobody had looked before it is not known.
        """
        if self.ticked_at is not None:
            # Not more than one tick's time at once: while the process stood still nobody watched the camera.
            self.quiet_s += min(max(0.0, now - self.ticked_at), _WATCHED_S)
        self.ticked_at = now
        return self.quiet_s


@dataclass(frozen=True, slots=True)
class OpenEpoch:
    """Where a camera's stream stands.

    Attributes:
        stream: The epoch as far as it is written.
        usage: What the camera used of its quota.
        left_out: Segments left out that no dead letter counts yet.
        left_out_why: Why the newest of them was, where this process left it out.
        reconfigured: The epoch was written under another configuration: the next segment ends it.
        health: Whether the camera shows what it should.
        seen: What this process has seen.
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
        """The unit of a checkpoint. Samples and blocks of two configurations do not mix."""
        return cls(
            Stream.of(message),
            Usage.of(message.quota),
            LeftOutCount.of(message.quota),
            # Kept until a segment is written: other records write checkpoints of the new settings before it.
            reconfigured=config_changed or message.reconfigured,
            health=health_state.unpack(message.health) if message.HasField("health") else CameraHealth(),
        )

    def message(self) -> DecodeState:
        """The checkpoint."""
        message = self.stream.message()
        message.reconfigured = self.reconfigured
        message.quota.CopyFrom(self.usage.message())
        self.left_out.fill(message.quota)
        if self.health.seen_s:
            message.health.CopyFrom(health_state.pack(self.health))
        return message

    def leaving_out(self, record: Record, until_ms: int, why: str = "") -> "OpenEpoch":
        """The unit after a segment that is left out; with `why` it counts in the quota's dead letter."""
        self.seen.heard()
        unit = replace(self, stream=self.stream.heard(record, until_ms))
        return replace(unit, left_out=self.left_out.add(record), left_out_why=why) if why else unit

    def is_gone(self, now_ms: float, settings: DecodeSettings) -> bool:
        """Whether a camera without an open epoch stays away for long enough. One of which nothing could ever
        be decoded is forgotten once its quota begins again.
        """
        if not self.stream.epoch:
            return now_ms - self.usage.since_ms > settings.quota_interval_s * 1000
        days, heard_ms = settings.forget_after_days, max(self.stream.heard_ms, self.stream.arrived_ms)
        return days is not None and now_ms - heard_ms > days * _DAY_MS
