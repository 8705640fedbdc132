"""Inspection of a file: container, codec, frames, anchors, vectors, damage."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

from lookout.video.segments.types import CodecError, Limits, Reason

INSPECT_LIMITS = Limits(bytes=1 << 40, seconds=7 * 86_400.0, frames=2_000_000)


@dataclass(frozen=True, slots=True)
class Inspection:
    """Facts about one file. `error` is empty for a file that can be published as it is.

    anchors: I-pictures; vectors: frames with motion vectors; blocks: mean number of vectors of these frames;
    motion: basis of motion, vectors or luma; seconds: from the first frame to the end of the last.
    """

    path: str
    bytes: int = 0
    container: str = ""
    codec: str = ""
    profile: str = ""
    width: int = 0
    height: int = 0
    rotation: int = 0
    fps: float = 0.0
    seconds: float = 0.0
    timed: bool = True
    packets: int = 0
    frames: int = 0
    keyframes: int = 0
    anchors: int = 0
    vectors: int = 0
    blocks: float = 0.0
    motion: str = ""
    corrupt: int = 0
    refused: int = 0
    leading_lost: int = 0
    jumps: int = 0
    sizes: int = 0
    interlaced: int = 0
    reason: str = ""
    error: str = ""

    @property
    def ok(self) -> bool:
        """Whether the inspection found no error."""
        return not self.error

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for tables and JSON."""
        return asdict(self)

    def to_json(self) -> str:
        """Return one line of JSON."""
        return json.dumps(self.to_dict(), ensure_ascii=False)


def inspect_file(path: str, file: BinaryIO | None = None) -> Inspection:
    """Decode a whole file in this process and report its facts. Use `survey.inspect` for files of unknown
    origin.

    Args:
        path: The file's name, and its location unless `file` is given.
        file: The open file.
    """
    facts: dict[str, Any] = {"path": path}
    try:
        with file or Path(path).open("rb") as source:
            facts["bytes"] = source.seek(0, 2)
            _count(source, facts)
    except CodecError as error:
        facts |= {"reason": error.reason.value, "error": error.detail}
    except OSError as error:
        facts |= {"reason": Reason.UNREADABLE.value, "error": f"cannot be read ({error.strerror or error})"}
    return Inspection(**facts)


def _count(file: Any, facts: dict[str, Any]) -> None:
    from lookout.video.motion.side_data import side_data
    from lookout.video.segments.container import Video, ticks_to_us
    from lookout.video.segments.decoded_frame import DecodedFrame
    from lookout.video.segments.decoder import Counts, mean_step
    from lookout.video.segments.timeline import JUMP_US, Timeline

    with Video(file, limits=INSPECT_LIMITS, recording=True) as video:
        counts, timeline = Counts(), Timeline(video.fps, JUMP_US)
        facts |= {
            "container": video.container,
            "codec": video.codec,
            "profile": str(video.context.profile or ""),
        }
        facts |= {"motion": "vectors" if video.has_vectors else "luma"}
        first_key, timed, with_vectors, blocks = True, False, 0, 0

        def frames() -> Iterator[Any]:
            nonlocal first_key, timed
            for packet in video.packets():
                first_key = first_key and (counts.packets > 0 or packet.is_keyframe)
                timed = timed or packet.pts is not None
                counts.packet(packet, hidden=video.hides(packet))
                yield from video.decode(packet)
            yield from video.decode(None)

        for frame in frames():
            shot = DecodedFrame.of(frame)
            counts.shot(shot)
            stamp = shot.pts
            timeline.add(ticks_to_us(stamp, video.time_base) if timed and stamp is not None else None)
            if not facts.get("width"):
                facts |= {"width": frame.width, "height": frame.height, "rotation": shot.turn()[0]}
            side = side_data(frame, "MOTION_VECTORS") if video.has_vectors else None
            with_vectors += side is not None
            blocks += len(side) if side is not None else 0
        facts |= {
            "fps": round(1e6 / mean_step(timeline.times, timeline.nominal_us), 3),
            "seconds": round(timeline.end_us / 1e6, 3),
            "timed": timed,
            "packets": counts.packets,
            "frames": len(timeline.times),
            "keyframes": counts.keyframes,
            "anchors": counts.intra,
            "vectors": with_vectors,
            "blocks": round(blocks / with_vectors, 1) if with_vectors else 0.0,
            "corrupt": counts.corrupt,
            "refused": video.refused,
            "leading_lost": counts.leading_lost,
            "jumps": len(video.clock.jumps) if video.clock is not None else 0,
            "sizes": len(counts.sizes),
            "interlaced": counts.interlaced,
        }
        _refuse_unreadable(video, counts, timeline, first_key)


def _refuse_unreadable(video: Any, counts: Any, timeline: Any, first_key: bool) -> None:
    if not timeline.times:
        raise CodecError(
            Reason.NO_FRAMES, f"{counts.packets} packets gave no frame ({video.damage or 'no reason given'})"
        )
    if not first_key:
        raise CodecError(
            Reason.NO_KEYFRAME, "the file does not start at a keyframe; `lookout publish` begins at its first"
        )
