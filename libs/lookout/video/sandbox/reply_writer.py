"""Writes the replies of a decoder process: a short message of scalars (`sandbox.proto`), and raw planes in
the shared output, in an order that the message's kind determines."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from lookout.video.files.begin import begin_numbers
from lookout.video.motion.types import Basis
from lookout.video.sandbox import sandbox_pb2 as pb
from lookout.video.sandbox.exchange import write_all
from lookout.video.segments.inspection import Inspection
from lookout.video.segments.types import CodecError, DecodedSegment, Reason, SampledFrame, Segment

if TYPE_CHECKING:
    from lookout.video.files.clipping import RecordingClip
    from lookout.video.sandbox.recording_jobs import SampleResult, TableResult
    from lookout.video.segments.types import JoinedClip

BASES = {Basis.VECTORS: pb.BASIS_VECTORS, Basis.LUMA: pb.BASIS_LUMA, Basis.NONE: pb.BASIS_NONE}
REASONS: dict[Reason, pb.Reason] = {
    reason: pb.Reason.Value(f"REASON_{reason.name}")  # type: ignore[misc]
    for reason in Reason
}
WORK = ("packets", "fed", "skipped", "frames", "painted", "runs", "seeks", "repaired", "missing")
TEXT_BYTES = 20_000
"""Maximum bytes of a text; longer texts lose their beginning."""

Plane = np.ndarray | bytes
Footage: TypeAlias = "tuple[Segment, ...] | TableResult | SampleResult | RecordingClip | JoinedClip | bytes"
Result: TypeAlias = "DecodedSegment | Inspection | Footage"


class ReplyWriter:
    """Writes the replies of one process.

    Args:
        output: The shared output.
    """

    def __init__(self, output: int) -> None:
        self._output = output

    def ready(self, confinement: str) -> bytes:
        """Return the reply that says that the process is confined and accepts jobs."""
        return pb.Reply(ready=pb.Ready(confinement=confinement)).SerializeToString()

    def refusal(self, number: int, error: CodecError) -> bytes:
        """Return the reply that says that the input cannot be decoded."""
        refusal = pb.Refusal(reason=REASONS[error.reason], detail=_text(error.detail))
        return pb.Reply(number=number, refusal=refusal).SerializeToString()

    def bug(self, number: int, trace: str) -> bytes:
        """Return the reply that says that the code in the process failed."""
        return pb.Reply(number=number, bug=pb.Bug(trace=_text(trace))).SerializeToString()

    def result(self, number: int, result: Result) -> bytes:
        """Return the reply with a job's result, and write its planes into the shared output.

        Raises:
            CodecError: A number of the result exceeds 64 bits.
        """
        try:
            reply, planes = _reply(result)
        except (ValueError, OverflowError) as error:
            raise CodecError(Reason.UNREADABLE, f"its numbers exceed 64 bits ({error})") from None
        reply.number = number
        os.ftruncate(self._output, 0)
        offset = 0
        for plane in planes:
            data = memoryview(plane) if isinstance(plane, bytes) else _bytes_of(plane)
            write_all(self._output, data, offset)
            offset += len(data)
        return reply.SerializeToString()


def _bytes_of(plane: np.ndarray) -> memoryview:
    return np.ascontiguousarray(plane).reshape(-1).view(np.uint8).data


def _reply(result: Result) -> tuple[pb.Reply, Iterable[Plane]]:
    if isinstance(result, DecodedSegment):
        return _decoded(result)
    if isinstance(result, Inspection):
        return pb.Reply(inspected=_inspected(result)), ()
    return _footage(result)


def _footage(result: Footage) -> tuple[pb.Reply, Iterable[Plane]]:
    if isinstance(result, bytes):
        return pb.Reply(masked=pb.Masked(bytes=len(result))), [result]
    if isinstance(result, tuple):
        pieces = [
            pb.Piece(
                bytes=len(piece.data),
                start_us=piece.start_us,
                duration_us=piece.duration_us,
                frames=piece.frames,
                container=piece.container,
                jump=piece.jump,
            )
            for piece in result
        ]
        return pb.Reply(pieces=pb.Pieces(pieces=pieces)), [piece.data for piece in result]
    from lookout.video.files.clipping import RecordingClip
    from lookout.video.sandbox.recording_jobs import TableResult
    from lookout.video.segments.types import JoinedClip

    if isinstance(result, RecordingClip):
        return _clip(result)
    if isinstance(result, JoinedClip):
        return _joined(result)
    return _table(result) if isinstance(result, TableResult) else _samples(result)


def _decoded(decoded: DecodedSegment) -> tuple[pb.Reply, list[Plane]]:
    facts = decoded.facts
    fields = {name: getattr(facts, name) for name in pb.Facts.DESCRIPTOR.fields_by_name}
    message = pb.Decoded(
        frames=[_frame(frame) for frame in decoded.frames],
        facts=pb.Facts(**fields),
        mirror=decoded.geometry.mirror,
        end_stream_us=decoded.end_stream_us,
    )
    planes: list[Plane] = [decoded.pixels]
    for frame in decoded.frames:
        motion = frame.motion
        grids = () if motion is None else (motion.v, motion.r)
        planes += [np.asarray(grid, np.float16) for grid in grids if grid is not None]
    return pb.Reply(decoded=message), planes


def _frame(frame: SampledFrame) -> pb.Frame:
    info, motion = frame.info, frame.motion
    return pb.Frame(
        index=info.index,
        time_us=info.time_us,
        picture=int(info.picture),
        key=info.key,
        corrupt=info.corrupt,
        interlaced=info.interlaced,
        width=info.width,
        height=info.height,
        jump=info.jump,
        basis=pb.BASIS_UNSPECIFIED if motion is None else BASES[motion.basis],
        with_v=motion is not None and motion.v is not None,
        with_r=motion is not None and motion.r is not None,
    )


def _inspected(found: Inspection) -> pb.Inspected:
    names = [name for name in pb.Inspected.DESCRIPTOR.fields_by_name if name not in ("reason", "error")]
    message = pb.Inspected(**{name: getattr(found, name) for name in names})
    if found.reason:
        message.reason, message.error = REASONS[Reason(found.reason)], _text(found.error)
    return message


def _table(found: TableResult) -> tuple[pb.Reply, list[Plane]]:
    table, stream = found.table, found.stream
    message = pb.Table(
        container=stream.container,
        codec=stream.codec,
        width=stream.width,
        height=stream.height,
        packets=len(table),
        time_base_num=table.time_base.numerator,
        time_base_den=table.time_base.denominator,
        fps_num=table.fps.numerator,
        fps_den=table.fps.denominator,
        stamped=table.stamped,
        reordered=table.reordered,
        damage=_text(stream.damage),
        listed=stream.listed,
        promised_us=stream.promised_us,
        upright_width=found.size[1],
        upright_height=found.size[0],
    )
    if stream.begins is not None:
        message.begins_us, message.begins_offset_min = begin_numbers(stream.begins)
    flags = [flag.astype(np.uint8) for flag in (table.key, table.clean, table.discard)]
    return pb.Reply(table=message), [table.pts, table.dts, table.size, *flags]


def _clip(clip: RecordingClip) -> tuple[pb.Reply, list[Plane]]:
    message = pb.Clip(
        bytes=len(clip.data),
        start_us=clip.start_us,
        end_us=clip.end_us,
        frames=clip.frames,
        container=clip.container,
    )
    return pb.Reply(clip=message), [clip.data]


def _joined(clip: JoinedClip) -> tuple[pb.Reply, list[Plane]]:
    message = pb.Joined(
        bytes=len(clip.data),
        codec=clip.codec,
        codecs=clip.codecs,
        width=clip.width,
        height=clip.height,
        frames=clip.frames,
        spans=[pb.Span(at_us=span.at_us, start_us=span.start_us, end_us=span.end_us) for span in clip.spans],
        end_us=clip.end_us,
    )
    return pb.Reply(joined=message), [clip.data]


def _samples(result: SampleResult) -> tuple[pb.Reply, list[Plane]]:
    message = pb.Samples(
        samples=[
            pb.Sample(pick=frame.position, key=frame.key, corrupt=frame.corrupt, picture=int(frame.picture))
            for frame in result.frames
        ],
        **{name: getattr(result.work, name) for name in WORK},
    )
    return pb.Reply(samples=message), [frame.pixels for frame in result.frames]


def _text(text: str) -> str:
    """Return the end of a text, limited to `TEXT_BYTES`, as valid UTF-8 for a protobuf string."""
    return text.encode("utf-8", "replace")[-TEXT_BYTES:].decode("utf-8", "ignore")
