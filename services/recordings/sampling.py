"""Runs in decode pods for recordings: decodes a part's pixels for the worker that will answer the part."""

from __future__ import annotations

from google.protobuf.message import Message

from lookout.recordings import RecordingError
from lookout.recordings.analysis import AnalysisError
from lookout.recordings.analysis.cutting import picks_of
from lookout.recordings.jobs import JobError, SourceError, Sources, settings_of
from lookout.recordings.jobs.samples import pack_samples, samples_ref
from lookout.runtime.store import LineageBrokenError
from lookout.runtime.store.tensors import Array
from lookout.services.recordings.opening import OpenedRecording
from lookout.v1.lineage_pb2 import TensorRef
from lookout.v1.recordings_pb2 import RecordingPart
from lookout.video.segments import CodecError


class SamplesMaker:
    """Makes tensors of the stage `samples`.

    Args:
        sources: Opens recordings.
        size: (height, width) of the model's input.
        decoders: Number of decoding processes; None: as many as this process may use cores.
    """

    def __init__(self, sources: Sources, size: tuple[int, int], decoders: int | None) -> None:
        self._recording, self._size = OpenedRecording(sources, decoders), size

    def make(self, ref: TensorRef, record: Message) -> Array:
        """Decode a part's pixels.

        Raises:
            LineageBrokenError: The pixels cannot be decoded here. The worker then decodes the part itself and
                reports faults.
        """
        if not isinstance(record, RecordingPart) or samples_ref(record, self._size).id != ref.id:
            raise LineageBrokenError(
                f"{ref.id} is not a tensor of this part, or has another model's input size"
            )
        with self._recording.turn():
            try:
                return self._made(record)
            except (CodecError, SourceError, AnalysisError, RecordingError, JobError) as error:
                self._recording.close()
                raise LineageBrokenError(str(error)) from error
            except BaseException:
                self._recording.close()
                raise

    def close(self) -> None:
        """End the decoder processes."""
        self._recording.close()

    def _made(self, part: RecordingPart) -> Array:
        settings = settings_of(part.settings, self._recording.decoders)
        source, reader = self._recording.open(part)
        picks = picks_of(reader, settings)[part.span.first : part.span.stop]
        sampling = reader.sample(picks=picks, size=self._size, fit=settings.fit, threads=settings.threads)
        pixels = pack_samples(sampling, picks, self._size)
        source.check()
        return pixels
