"""Cuts frames records into stride blocks: decides which samples form a block, when it is closed, and what its
record contains.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lookout.errors import BadRecordError
from lookout.models.vision import FrameInput, Grid
from lookout.pruning import Sample, TemporalMask, luma, pack_mask, patch_luma, spread, unpack_mask
from lookout.runtime.worker import Record
from lookout.streams import empty_indices, frame_input
from lookout.v1 import frames_pb2, tokens_pb2
from lookout.v1.lineage_pb2 import RecordRef
from lookout.video.motion import Basis
from lookout.wire import WireError, received

_BASIS = {
    frames_pb2.Frame.BASIS_VECTORS: Basis.VECTORS,
    frames_pb2.Frame.BASIS_LUMA: Basis.LUMA,
    frames_pb2.Frame.BASIS_NEW: Basis.NONE,
}


@dataclass(frozen=True, slots=True)
class BlockRecord:
    """A frames record of the open block, and its place in the topic."""

    ref: RecordRef
    record: frames_pb2.FramesRecord


@dataclass(frozen=True, slots=True)
class Member:
    """A frame of a block: row `row` of the pixels that the record `held` refers to."""

    held: BlockRecord
    row: int

    @property
    def frame(self) -> frames_pb2.Frame:
        """The frame's facts."""
        return self.held.record.segment.frames[self.row]


def frames_of(record: Record) -> frames_pb2.FramesRecord:
    """Parse a record.

    Raises:
        BadRecordError: The record is malformed or has no epoch.
    """
    try:
        message = received(frames_pb2.FramesRecord, record)
    except WireError as error:
        raise BadRecordError("bad-frames", str(error)) from error
    if message.WhichOneof("body") is None or not message.epoch:
        raise BadRecordError("bad-frames", "the record has no epoch, or neither a segment nor an event")
    return message


def check_segment(record: frames_pb2.FramesRecord, grid: Grid, *, residual: bool = False) -> None:
    """Check the record of a decoded segment.

    Raises:
        BadRecordError: The record is inconsistent, was made for another model input, or lacks residuals
            although `residual` is set.
    """
    body, actual, expected = record.segment, input_of(record), input_needed(grid)
    if body.frames and actual != expected:
        raise BadRecordError(
            "wrong-input",
            f"the record was decoded for (height, width, patch, rows, cols) = {actual}, but this model "
            f"needs {expected}: give decode the same LOOKOUT_MODEL_DIR, or set its "
            f"LOOKOUT_INPUT_WIDTH={grid.width}, "
            f"LOOKOUT_INPUT_HEIGHT={grid.height} and LOOKOUT_PATCH={grid.patch}",
        )
    if body.frames and list(body.pixels.shape[:1]) != [len(body.frames)]:
        raise BadRecordError(
            "bad-frames",
            f"the record has pixels of shape {list(body.pixels.shape)} for {len(body.frames)} frames",
        )
    # float16, so two bytes per patch
    cells = grid.rows * grid.cols * 2
    for frame in body.frames:
        if frame.basis == frames_pb2.Frame.BASIS_VECTORS and len(frame.motion) != cells:
            raise BadRecordError(
                "bad-frames", f"a motion grid has {len(frame.motion)} bytes, but must have {cells}"
            )
    if residual and any(
        frame.basis == frames_pb2.Frame.BASIS_VECTORS and not frame.residual for frame in body.frames
    ):
        raise BadRecordError(
            "wrong-input",
            "the masks need residuals, which the record lacks: give decode the same LOOKOUT_PRUNING",
        )
    samples = [frame.sample for frame in body.frames]
    if samples != sorted(set(samples)):
        raise BadRecordError("bad-frames", f"samples are not in order: {samples[:20]}")


Input = tuple[int, int, int, int, int]


def input_of(record: frames_pb2.FramesRecord) -> Input:
    """Return (height, width, patch, rows, cols) of the model input that a record was decoded for."""
    picture = record.segment.picture
    return picture.height, picture.width, picture.patch, picture.rows, picture.cols


def input_needed(grid: Grid) -> Input:
    """Return (height, width, patch, rows, cols) of the model's input."""
    return grid.height, grid.width, grid.patch, grid.rows, grid.cols


def closed_before(end_us: int, step_us: int, samples: int) -> int:
    """Return the index of the first block that may still get frames when the stream is covered up to
    `end_us`.

    A sample may be up to half a step away from its grid point, so the grid cell in which the covered time
    ends is still open.
    """
    return ((end_us + step_us // 2) // step_us) // samples


def check_times(record: frames_pb2.FramesRecord, step_us: int) -> None:
    """Check the times of a record.

    Raises:
        BadRecordError: The record ends before it starts, or a sample is more than a step after its end.
    """
    body = record.segment
    last = max((frame.sample for frame in body.frames), default=0)
    if body.end_us < body.start_us or last * step_us > max(0, body.end_us) + step_us:
        raise BadRecordError(
            "bad-frames",
            f"stream time is {body.start_us} to {body.end_us} us, but samples reach {last * step_us} us",
        )


def blocks_between(
    held: Sequence[BlockRecord], block: int, first: int, samples: int, empty: int
) -> Iterator[int]:
    """Yield the indices in [block, first) of the blocks to write, which are the blocks with frames and the
    first `empty` blocks of each hole between these.
    """
    filled = {frame.sample // samples for source in held for frame in source.record.segment.frames}
    following = block
    for index in [*sorted(index for index in filled if block <= index < first), first]:
        yield from empty_indices(following, index, empty)
        if index < first:
            yield index
        following = index + 1


def first_whole(message: frames_pb2.FramesRecord, samples: int) -> int:
    """Return the index of the first block that begins with or after this record, for a canary that joins in
    the middle of an epoch.
    """
    frames = message.segment.frames
    return -(-frames[0].sample // samples) if frames else 0


def members(held: Sequence[BlockRecord], block: int, samples: int) -> list[Member]:
    """Return the frames of a block of `samples` grid points, in order. If two frames have the same grid
    point, the first one is used.
    """
    members: dict[int, Member] = {}
    for entry in held:
        for row, frame in enumerate(entry.record.segment.frames):
            if frame.sample // samples == block:
                members.setdefault(frame.sample, Member(entry, row))
    return [members[sample] for sample in sorted(members)]


def reaches(entry: BlockRecord, block: int, samples: int) -> bool:
    """Return whether a record has frames of `block` or of later blocks."""
    frames = entry.record.segment.frames
    return bool(frames) and frames[-1].sample // samples >= block


def sample_of(member: Member, pixels: npt.NDArray[np.uint8], grid: Grid) -> Sample:
    """Convert a frame to a sample for pruning."""
    frame = member.frame
    return Sample(
        pixels=pixels,
        basis=_BASIS.get(frame.basis, Basis.LUMA),
        v=_plane(frame.motion, grid),
        r=_plane(frame.residual, grid),
        intra=frame.key,
        corrupt=frame.corrupt,
    )


def _plane(data: bytes, grid: Grid) -> npt.NDArray[np.float16] | None:
    if len(data) != grid.rows * grid.cols * 2:
        return None
    return np.frombuffer(data, "<f2").astype(np.float16).reshape(grid.rows, grid.cols)


def inputs_of(
    patches: Sequence[tokens_pb2.TemporalPatch],
    pixels: Sequence[npt.NDArray[np.uint8]],
    grid: Grid,
) -> list[FrameInput]:
    """Return the tower's input: one pair of frame and keep mask for each temporal patch in a block's
    record.
    """
    return [
        frame_input(pixels, patch.frames, unpack_mask(patch.keep, grid.group_rows, grid.group_cols))
        for patch in patches
    ]


def describe(
    block: tokens_pb2.StrideBlock,
    chosen: Sequence[Member],
    pixels: Sequence[npt.NDArray[np.uint8]],
    masks: Sequence[TemporalMask],
    grid: Grid,
) -> None:
    """Write the frames, masks, patch counts and anchors' luma into a block's record."""
    inputs: list[RecordRef] = []
    for member in chosen:
        if member.held.ref not in inputs:
            inputs.append(member.held.ref)
        frame = member.frame
        block.frames.add(
            time_us=frame.time_us,
            sample=frame.sample,
            input=inputs.index(member.held.ref),
            row=member.row,
            key=frame.key,
            corrupt=frame.corrupt,
        )
    block.inputs.extend(inputs)
    for mask in masks:
        block.patches.add(
            frames=mask.frames,
            anchor=mask.anchor,
            keep=pack_mask(mask.keep),
            kept=mask.kept,
        )
        block.patches_encoded += int(spread(mask.keep, grid).sum())
    block.patches_total = grid.rows * grid.cols * len(masks)
    block.group_rows, block.group_cols = grid.group_rows, grid.group_cols
    anchors = [frame for mask in masks if mask.anchor for frame in dict.fromkeys(mask.frames)]
    # Used by prefill's idle gating, which has no pixels to compare.
    block.anchor_luma = b"".join(patch_luma(luma(pixels[frame]), grid).tobytes() for frame in anchors)
