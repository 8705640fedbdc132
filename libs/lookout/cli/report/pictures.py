"""Pictures for the page: as filmed (from segments) and as the model saw them (from the store)."""

from __future__ import annotations

import base64
import io
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
from confluent_kafka import KafkaException
from PIL import Image

from lookout.cli.connect import client_options, grpc_security
from lookout.cli.report.run import CameraRun, EvidenceFrame, Place, place_of
from lookout.errors import RecordsGoneError, TransientError
from lookout.rules.masks import Masks
from lookout.runtime.store import Peers, Rows, StoreError, StoreSettings, TensorClient
from lookout.runtime.worker import Record
from lookout.runtime.worker.record_reader import RecordReader
from lookout.runtime.worker.topic_reader import ClientOptions
from lookout.streams import filmed_pictures
from lookout.v1.frames_pb2 import FramesRecord
from lookout.v1.lineage_pb2 import STAGE_FRAMES
from lookout.video.motion import Fit
from lookout.video.sandbox import open_recording
from lookout.video.segments import CodecError
from lookout.wire import WireError, received

U8 = npt.NDArray[np.uint8]
T = TypeVar("T")

WIDTH = 448
_QUALITY = 78
#: seconds that unavailable pictures may cost in total, shared equally by the page's cameras
PATIENCE_S = 120.0
#: seconds: a camera's minimum share; then the limits for reading a record, fetching a tensor and recomputing
#: a tensor
_LEAST_S = 1.0
_ANSWER_S = 5.0


def data_uri(pixels: U8, quality: int = _QUALITY) -> str:
    """Encode a picture as a data URL (JPEG). pixels: uint8 [height, width, 3], RGB."""
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "JPEG", quality=quality, optimize=True)
    return "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode()


class _Patience(StoreSettings):
    """Time limits for fetching a page's pictures, which are shorter than those of a stage."""

    fetch_s: ClassVar[float] = 5.0
    materialize_s: ClassVar[float] = 20.0


class RecordFetcher:
    """Reads single records from Kafka: segments, from which pictures are decoded."""

    def __init__(self, bootstrap: str) -> None:
        self._reader = RecordReader(ClientOptions(client_options(bootstrap)), "lookout-report")

    def read(self, place: Place) -> Record | None:
        """Return the record at a place; None if it is gone."""
        topic, partition, offset = place
        try:
            return self._reader.read(topic, partition, [offset], _ANSWER_S)[0]
        except (RecordsGoneError, TransientError, KafkaException):
            return None

    def close(self) -> None:
        self._reader.close()


class Pictures(Protocol):
    """The source of the pictures of shots; unavailable pictures are omitted."""

    def filmed(self, camera: CameraRun, shots: Sequence[EvidenceFrame]) -> Mapping[EvidenceFrame, U8]:
        """Pictures as filmed, at the page's size: uint8 [height, width, 3], RGB."""
        ...

    def seen(self, camera: CameraRun, shots: Sequence[EvidenceFrame]) -> Mapping[EvidenceFrame, U8]:
        """The model's input: uint8 [height, width, 3], RGB."""
        ...


class Album:
    """Fetches the pictures of shots; unavailable pictures are omitted from the page.

    Args:
        bootstrap: Kafka's address, for the segments' bytes.
        decoders: gRPC addresses of decode, for the model's own pixels; empty: only pictures as filmed.
        masks: The cameras' privacy masks.
        cameras: Number of cameras on the page, which share `PATIENCE_S`. References to missing records
            cost time. A camera that has used up its share of the time gets no further pictures.
    """

    def __init__(
        self, bootstrap: str, decoders: Sequence[str] = (), cameras: int = 1, *, masks: Masks
    ) -> None:
        from lookout.video.sandbox.pool import SandboxPool, SandboxSettings

        self._records, self._masks = RecordFetcher(bootstrap), masks
        self._sandbox = SandboxPool(1, SandboxSettings())
        self._peers = Peers(_Patience(), security=grpc_security(bootstrap))
        self._share_s = max(_LEAST_S, PATIENCE_S / max(1, cameras))
        self._lost_s: defaultdict[str, float] = defaultdict(float)  # wasted seconds, by camera
        self._tensors = TensorClient(self._peers, replicas={STAGE_FRAMES: list(decoders)})
        self._decoders = list(decoders)

    def filmed(self, camera: CameraRun, shots: Iterable[EvidenceFrame]) -> dict[EvidenceFrame, U8]:
        """Decode pictures as filmed, at the page's size; each segment is decoded once."""
        pictures: dict[EvidenceFrame, U8] = {}
        for place, group in self._by_record(camera, shots).items():
            record = camera.frames[place]
            pictures.update(self._tried(camera, partial(self._decode, record, group)) or {})
        return pictures

    def seen(self, camera: CameraRun, shots: Iterable[EvidenceFrame]) -> dict[EvidenceFrame, U8]:
        """Fetch rows of the model's input from decode's tensor store, which recomputes evicted tensors."""
        pictures: dict[EvidenceFrame, U8] = {}
        if not self._decoders:
            return pictures
        for place, group in self._by_record(camera, shots).items():
            ordered = sorted({shot.row for shot in group})
            rows: Rows = [(row, row + 1) for row in ordered]
            pixels = self._tried(camera, partial(self._fetch, camera.frames[place], rows))
            if pixels is not None:
                pictures.update({shot: pixels[ordered.index(shot.row)] for shot in group})
        return pictures

    def _tried(self, camera: CameraRun, get: Callable[[], T | None]) -> T | None:
        """Return the result of `get`; if it is None or fails, charge the time to the camera."""
        if self._lost_s[camera.id] >= self._share_s:
            return None
        since = time.monotonic()
        try:
            result = get()
        except (StoreError, CodecError):
            result = None
        if result is None:
            self._lost_s[camera.id] += time.monotonic() - since
        return result

    def _by_record(
        self, camera: CameraRun, shots: Iterable[EvidenceFrame]
    ) -> dict[Place, list[EvidenceFrame]]:
        """Group shots by their frames record; records that the run lacks are read from Kafka."""
        groups: dict[Place, list[EvidenceFrame]] = {}
        for shot in shots:
            if shot.input not in camera.frames:
                record = self._tried(camera, partial(self._frames, camera, shot.input))
                if record is not None:
                    camera.frames[shot.input] = record
            if shot.input in camera.frames:
                groups.setdefault(shot.input, []).append(shot)
        return groups

    def _frames(self, camera: CameraRun, place: Place) -> FramesRecord | None:
        """Read a frames record of a camera; None if Kafka no longer has it."""
        read = self._records.read(place)
        if read is None:
            return None
        try:
            record = received(FramesRecord, read)
        except WireError:
            return None
        # If the topic was deleted and created again, another camera's record may be at this offset.
        return record if record.HasField("segment") and record.camera == camera.id else None

    def close(self) -> None:
        self._records.close()
        self._sandbox.close()
        self._peers.close()

    def _fetch(self, record: FramesRecord, rows: Rows) -> Any:
        ref = record.segment.pixels
        for address in self._decoders:
            try:
                return self._peers.get(address, ref, rows)
            except StoreError:
                continue
        return self._tensors.fetch(ref, record, rows).array

    def _decode(
        self, record: FramesRecord, shots: Sequence[EvidenceFrame]
    ) -> Mapping[EvidenceFrame, U8] | None:
        segment = self._records.read(place_of(record.segment.segment))
        if segment is None:
            return None
        rows = {shot.row for shot in shots}
        mask = self._masks.shown(record.camera, record.labels.masks).mask
        pictures = filmed_pictures(self._sandbox, segment.value, record.segment, rows, WIDTH, mask=mask)
        return {shot: pictures[shot.row] for shot in shots if shot.row in pictures}


class FootageAlbum:
    """Pictures from video files.

    Args:
        files: The file of each camera; times of shots are relative to the file's start.
        sandbox: Whether to decode in sandboxed processes.
    """

    def __init__(self, files: Mapping[str, Path], sandbox: bool = True) -> None:
        self._files, self._sandbox = files, sandbox

    def filmed(self, camera: CameraRun, shots: Sequence[EvidenceFrame]) -> dict[EvidenceFrame, U8]:
        """Decode pictures as filmed, at the page's size."""
        if not shots or camera.id not in self._files:
            return {}
        try:
            with open_recording(str(self._files[camera.id]), sandbox=self._sandbox) as reader:
                size = _shown(reader.facts.width, reader.facts.height)
                samples = reader.read(times_us=[shot.time_us for shot in shots], size=size, fit=Fit.CONTAIN)
        except CodecError:
            return {}
        return dict(zip(shots, samples.pixels, strict=True))

    def seen(self, camera: CameraRun, shots: Sequence[EvidenceFrame]) -> dict[EvidenceFrame, U8]:
        """Return an empty mapping, because the model's input of a file is not kept."""
        return {}


def _shown(width: int, height: int) -> tuple[int, int]:
    """Return height and width of a file's pictures on the page."""
    scale = min(1.0, WIDTH / width)
    return max(2, round(height * scale)), max(2, round(width * scale))
