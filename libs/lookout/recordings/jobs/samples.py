"""Packs the decoded frames of a part into one array for another process, and reads such an array.

The array has the length of the metadata, the metadata (`PartSamples`), and the frames' pixels.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

import numpy as np
from google.protobuf.message import DecodeError

from lookout.errors import LookoutError
from lookout.recordings.jobs.outcomes import reason_text
from lookout.v1.lineage_pb2 import STAGE_SAMPLES, TensorRef
from lookout.v1.recordings_pb2 import PartSamples, RecordingPart
from lookout.video.files import FileFrame, Gap, RecordingReader, Sampling
from lookout.video.files.clipping import RecordingClip
from lookout.video.files.parallel import DecodeWork
from lookout.video.files.recording import SamplingPlan, broken_off, gaps_of
from lookout.video.motion.types import U8, Picture
from lookout.video.segments.sampling import Pick


class SamplesError(LookoutError):
    """Packed samples cannot be read, or are not those of the part."""


_COUNT = 8  # number of bytes at the beginning that state the length of the metadata


def samples_ref(part: RecordingPart, size: tuple[int, int]) -> TensorRef:
    """Return the reference under which a part's packed samples are stored. Its id is a digest of the
    recording, the samples, and the size (height, width) of the model's input."""
    asked = part.settings
    end_s = asked.end_s if asked.HasField("end_s") else None
    facts = (part.uri, part.mark, part.span.first, part.span.stop, asked.fps, asked.start_s, end_s, *size)
    digest = hashlib.blake2b(repr(facts).encode(), digest_size=16).hexdigest()
    return TensorRef(id=f"samples/{digest}", stage=STAGE_SAMPLES, camera=part.job)


def pack_samples(sampling: Sampling, picks: Sequence[Pick], size: tuple[int, int]) -> U8:
    """Decode samples and return them packed into one array, uint8.

    Args:
        sampling: Yields the decoded frames.
        picks: The requested samples.
        size: (height, width) of a frame in pixels.
    """
    facts = PartSamples(height=size[0], width=size[1])
    pixels = np.empty((len(picks), *size, 3), np.uint8)
    with sampling:
        for row, frame in enumerate(sampling):
            pixels[row] = frame.pixels
            facts.frames.add(
                place=frame.position, key=frame.key, picture=int(frame.picture), corrupt=frame.corrupt
            )
        lost = sampling.lost
    for place, pick in enumerate(picks):
        if pick.pts in lost:
            facts.lost.add(place=place, reason=reason_text(lost[pick.pts]))
    head = facts.SerializeToString()
    parts = (len(head).to_bytes(_COUNT, "little"), head)
    return np.concatenate([np.frombuffer(b"".join(parts), np.uint8), pixels[: len(facts.frames)].reshape(-1)])


class SampledReader(RecordingReader):
    """A reader of a recording whose samples of one part are already decoded.

    Args:
        reader: The recording, which stays open.
        data: The array from `pack_samples`.
    """

    def __init__(self, reader: RecordingReader, data: U8) -> None:
        # The base class's constructor is not called, because it would sort the times of a long recording
        # again for every part.
        self.facts, self.table = reader.facts, reader.table
        self._order, self._times = reader._order, reader._times
        self._reader, self._data = reader, data

    @property
    def size(self) -> tuple[int, int]:
        """(height, width) in pixels of the upright picture, from the first frame that can be decoded."""
        return self._reader.size

    def close(self) -> None:
        """Do nothing: there is nothing to close."""

    def _sampling(self, plan: SamplingPlan) -> Sampling:
        return _PackedSampling(self._reader, self._data, plan.picks, plan.size)

    def _clip(self, start_us: int, end_us: int, max_bytes: int) -> RecordingClip:
        return self._reader.clip(start_us, end_us, max_bytes=max_bytes)


class _PackedSampling(Sampling):
    """The frames of packed samples.

    Raises:
        SamplesError: The packed samples do not match the picks.
    """

    def __init__(
        self, reader: RecordingReader, data: U8, picks: Sequence[Pick], size: tuple[int, int]
    ) -> None:
        self._recording, self._picks = reader.facts, picks
        head = int.from_bytes(data[:_COUNT].tobytes(), "little")
        begin = _COUNT + head
        try:
            self._facts = PartSamples.FromString(data[_COUNT:begin].tobytes())
        except DecodeError as error:
            raise SamplesError(f"the packed samples of a part cannot be read: {error}") from error
        count, places = len(self._facts.frames), [frame.place for frame in self._facts.frames]
        rising = all(before < after for before, after in pairwise(places))
        known = {int(picture) for picture in Picture}
        if (
            (self._facts.height, self._facts.width) != size
            or data.size != begin + count * size[0] * size[1] * 3
            or not rising
            or max((*places, *(loss.place for loss in self._facts.lost)), default=-1) >= len(picks)
            or any(frame.picture not in known for frame in self._facts.frames)
        ):
            raise SamplesError("the packed samples do not match the part's size, samples or number of pixels")
        self._pixels = data[begin:].reshape(count, *size, 3)

    def __len__(self) -> int:
        return len(self._picks)

    def __iter__(self) -> Iterator[FileFrame]:
        for row, frame in enumerate(self._facts.frames):
            pick = self._picks[frame.place]
            yield FileFrame(
                position=frame.place,
                index=pick.index,
                slot=pick.slot,
                time_us=pick.time_us,
                key=frame.key,
                picture=Picture(frame.picture),
                corrupt=frame.corrupt,
                pixels=self._pixels[row],
            )

    @property
    def gaps(self) -> tuple[Gap, ...]:
        return gaps_of(self._picks, self.lost, self._recording.duration_us) + broken_off(self._recording)

    @property
    def lost(self) -> Mapping[int, str]:
        return {self._picks[loss.place].pts: loss.reason for loss in self._facts.lost}

    @property
    def work(self) -> DecodeWork:
        return DecodeWork(packets=self._recording.frames, missing=len(self._facts.lost))

    @property
    def busy_s(self) -> float:
        return 0.0

    def close(self) -> None:
        """Do nothing: there is nothing to close."""
