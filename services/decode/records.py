"""Converts decoded segments to messages."""

import numpy as np

from lookout.services.decode.settings import DecodeSettings
from lookout.v1 import frames_pb2
from lookout.v1.lineage_pb2 import RecordRef
from lookout.video.motion import Basis, Geometry
from lookout.video.segments import DecodedSegment, SampledFrame

_BASIS = {
    Basis.VECTORS: frames_pb2.Frame.BASIS_VECTORS,
    Basis.LUMA: frames_pb2.Frame.BASIS_LUMA,
    Basis.NONE: frames_pb2.Frame.BASIS_NEW,
}


def fill_segment(
    record: frames_pb2.FramesRecord,
    decoded: DecodedSegment,
    segment: RecordRef,
    *,
    settings: DecodeSettings,
    first: bool,
) -> None:
    """Write a decoded segment into a record. `first`: whether the segment opens its epoch."""
    body = record.segment
    body.segment.CopyFrom(segment)
    body.end_us = decoded.end_stream_us
    body.start_us = max(0, decoded.end_stream_us - (decoded.facts.end_us - decoded.facts.first_us))
    body.frames.extend(_frame(sampled) for sampled in decoded.frames)
    if first and body.frames:
        # Motion is relative to the previous frame, which the first frame does not have.
        body.frames[0].basis = frames_pb2.Frame.BASIS_NEW
    body.picture.CopyFrom(_picture(decoded.geometry, settings))
    body.facts.CopyFrom(_facts(decoded))
    body.facts.gather = "" if settings.gather is None else settings.gather.rule.value


def _frame(sampled: SampledFrame) -> frames_pb2.Frame:
    info, motion = sampled.info, sampled.motion
    frame = frames_pb2.Frame(
        time_us=sampled.stream_us,
        sample=sampled.slot,
        index=info.index,
        key=info.key or info.picture.intra,
        picture_type=info.picture.name if info.picture.name in ("I", "P", "B") else "?",
        corrupt=info.corrupt,
        basis=_BASIS[motion.basis if motion is not None else Basis.LUMA],
    )
    if motion is not None and motion.v is not None:
        frame.motion = np.ascontiguousarray(motion.v, "<f2").tobytes()
    if motion is not None and motion.r is not None:
        frame.residual = np.ascontiguousarray(motion.r, "<f2").tobytes()
    return frame


def _picture(geometry: Geometry, settings: DecodeSettings) -> frames_pb2.Picture:
    model = settings.input
    return frames_pb2.Picture(
        coded_width=geometry.width,
        coded_height=geometry.height,
        rotation=geometry.rotation,
        width=geometry.out_width,
        height=geometry.out_height,
        patch=model.patch,
        rows=model.rows,
        cols=model.cols,
        fit=settings.fit.value,
    )


def _facts(decoded: DecodedSegment) -> frames_pb2.SegmentFacts:
    facts = decoded.facts
    return frames_pb2.SegmentFacts(
        container=facts.container,
        codec=facts.codec,
        fps=facts.fps,
        decoded=facts.decoded,
        corrupt=facts.corrupt,
        leading_lost=facts.leading_lost,
        bytes=facts.bytes,
        has_vectors=facts.has_vectors,
        first_pts=facts.first_us / 1e6,
        last_pts=facts.end_us / 1e6,
    )
