"""Pictures for the page: as filmed (from segments) and as the model saw them (from the store)."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from confluent_kafka import TopicPartition
from PIL import Image

from lookout.cli.connect import client_options, grpc_security
from lookout.cli.report.run import CameraRun, EvidenceFrame, Place, place_of
from lookout.runtime.kafka_clients import Consumer
from lookout.runtime.store import Peers, Rows, StoreError, StoreSettings, TensorClient
from lookout.streams import filmed_pictures
from lookout.v1.frames_pb2 import FramesRecord
from lookout.v1.lineage_pb2 import STAGE_FRAMES
from lookout.video.motion import Fit
from lookout.video.sandbox import open_recording
from lookout.video.segments import CodecError
from lookout.wire import WireError, from_bytes, prefixed

U8 = npt.NDArray[np.uint8]

WIDTH = 448
_QUALITY = 78
_ANSWER_S = 20.0


def data_uri(pixels: U8, quality: int = _QUALITY) -> str:
    """Encode a picture as a data URL (JPEG). pixels: uint8 [height, width, 3], RGB."""
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "JPEG", quality=quality, optimize=True)
    return "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode()


class RecordFetcher:
    """Reads single records from Kafka: segments, from which pictures are decoded."""

    def __init__(self, bootstrap: str) -> None:
        self._consumer = Consumer(
            {
                **client_options(bootstrap),
                "group.id": prefixed("lookout-report"),
                "enable.auto.commit": False,
                # A record past its retention is an error at once; any other reset waits for the next record.
                "auto.offset.reset": "error",
                # One record is wanted, not those behind it: Kafka sends the first whatever its size.
                "fetch.message.max.bytes": 1 << 16,
            }
        )

    def read(self, place: Place) -> bytes | None:
        """The bytes of one record, or None if it is gone."""
        self._consumer.assign([TopicPartition(*place)])
        message = self._consumer.poll(_ANSWER_S)
        if message is None or message.error() or message.offset() != place[2]:
            return None
        return bytes(message.value() or b"")

    def close(self) -> None:
        self._consumer.close()


class Pictures(Protocol):
    """Where the page gets the pictures of shots; one that is not available is left out."""

    def filmed(self, camera: CameraRun, shots: Sequence[EvidenceFrame]) -> Mapping[EvidenceFrame, U8]:
        """Pictures at a size for people: uint8 [height, width, 3], RGB."""
        ...

    def seen(self, camera: CameraRun, shots: Sequence[EvidenceFrame]) -> Mapping[EvidenceFrame, U8]:
        """The model's input: uint8 [height, width, 3], RGB."""
        ...


class Album:
    """Fetches the pictures of shots. A picture that is not available is left out; the page does without it.

    Args:
        bootstrap: Kafka, for the segments' bytes.
        decoders: gRPC addresses of decode, for the model's own pixels; none: only as filmed.
    """

    def __init__(self, bootstrap: str, decoders: Sequence[str] = ()) -> None:
        from lookout.video.sandbox.pool import SandboxPool, SandboxSettings

        self._records = RecordFetcher(bootstrap)
        self._sandbox = SandboxPool(1, SandboxSettings())
        self._peers = Peers(StoreSettings(), security=grpc_security(bootstrap))
        self._tensors = TensorClient(self._peers, replicas={STAGE_FRAMES: list(decoders)})
        self._decoders = list(decoders)

    def filmed(self, camera: CameraRun, shots: Iterable[EvidenceFrame]) -> dict[EvidenceFrame, U8]:
        """Pictures from the segments' bytes, at a size for people, one decode a segment."""
        pictures: dict[EvidenceFrame, U8] = {}
        for place, group in self._by_record(camera, shots).items():
            record = camera.frames[place]
            try:
                pictures.update(self._decode(record, group))
            except CodecError:
                continue
        return pictures

    def seen(self, camera: CameraRun, shots: Iterable[EvidenceFrame]) -> dict[EvidenceFrame, U8]:
        """The model's input, by rows, from decode's tensor store; made again there if it was evicted."""
        pictures: dict[EvidenceFrame, U8] = {}
        if not self._decoders:
            return pictures
        for place, group in self._by_record(camera, shots).items():
            record = camera.frames[place]
            ordered = sorted({shot.row for shot in group})
            rows: Rows = [(row, row + 1) for row in ordered]
            try:
                pixels = self._fetch(record, rows)
            except StoreError:
                continue
            pictures.update({shot: pixels[ordered.index(shot.row)] for shot in group})
        return pictures

    def _by_record(
        self, camera: CameraRun, shots: Iterable[EvidenceFrame]
    ) -> dict[Place, list[EvidenceFrame]]:
        """Shots by their frames record; one that was not taken yet is read by its place."""
        groups: dict[Place, list[EvidenceFrame]] = {}
        for shot in shots:
            if shot.input not in camera.frames and (record := self._frames(camera, shot.input)) is not None:
                camera.frames[shot.input] = record
            if shot.input in camera.frames:
                groups.setdefault(shot.input, []).append(shot)
        return groups

    def _frames(self, camera: CameraRun, place: Place) -> FramesRecord | None:
        """A frames record of a camera; None where Kafka has none there any more."""
        data = self._records.read(place)
        if data is None:
            return None
        try:
            record = from_bytes(data, FramesRecord)
        except WireError:
            return None
        # A topic that was made again may have another camera's record at the same place.
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

    def _decode(self, record: FramesRecord, shots: Sequence[EvidenceFrame]) -> Mapping[EvidenceFrame, U8]:
        data = self._records.read(place_of(record.segment.segment))
        if data is None:
            return {}
        pictures = filmed_pictures(self._sandbox, data, record.segment, {shot.row for shot in shots}, WIDTH)
        return {shot: pictures[shot.row] for shot in shots if shot.row in pictures}


class FootageAlbum:
    """Pictures out of video files.

    Args:
        files: By camera; a shot's time is that of its file.
        sandbox: Read them in confined processes.
    """

    def __init__(self, files: Mapping[str, Path], sandbox: bool = True) -> None:
        self._files, self._sandbox = files, sandbox

    def filmed(self, camera: CameraRun, shots: Sequence[EvidenceFrame]) -> dict[EvidenceFrame, U8]:
        """Pictures at a size for people."""
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
        """Return nothing: the model's input of a file is not kept."""
        return {}


def _shown(width: int, height: int) -> tuple[int, int]:
    """Height and width at which people are shown a file's pictures."""
    scale = min(1.0, WIDTH / width)
    return max(2, round(height * scale)), max(2, round(width * scale))
