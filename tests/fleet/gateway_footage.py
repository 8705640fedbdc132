"""Footage of a test: segments in a real Kafka, and the frames records that decode's handler makes of them."""

from __future__ import annotations

import io

import av
import numpy as np
from confluent_kafka import Message

from lookout.runtime.kafka_clients import Producer
from lookout.runtime.store import TensorStore
from lookout.runtime.worker import Record
from lookout.services.decode.handler import DecodeHandler
from lookout.services.decode.settings import DecodeSettings
from lookout.v1.frames_pb2 import FramesRecord
from lookout.v1.lineage_pb2 import RecordRef
from lookout.v1.tokens_pb2 import TokensRecord
from lookout.video.segments import Segment, SoftwareDecoder, cut
from lookout.wire import FRAMES, SEGMENTS, TOKENS, headers
from tests.unit.services.decode_case import Segments


def noise(seconds: int, size: tuple[int, int]) -> bytes:
    """A clip that cannot be compressed; 10 pictures a second, a keyframe each second."""
    width, height = size
    buffer, random = io.BytesIO(), np.random.default_rng(1)
    with av.open(buffer, "w", format="mpegts") as out:
        stream = out.add_stream("libx264", rate=10, options={"crf": "1", "preset": "ultrafast"})
        stream.width, stream.height, stream.gop_size = width, height, 10
        for _ in range(10 * seconds):
            pixels = random.integers(0, 256, (height, width, 3), np.uint8)
            out.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        out.mux(stream.encode())
    return buffer.getvalue()


class FilmedCamera:
    """A camera that publishes, and decode.

    Args:
        kafka: Bootstrap servers.
        camera: Its id.
        begin_ms: When it was filmed, Unix milliseconds.
        tenant: Whose it is.
        settings: Of decode.

    Attributes:
        segments: What was published.
        frames: Frames records and where they are.
    """

    def __init__(self, kafka: str, camera: str, begin_ms: int, tenant: str = "", **settings: object) -> None:
        self.camera, self.begin_ms, self.tenant = camera, begin_ms, tenant
        self.segments: list[Segment] = []
        self.frames: list[tuple[RecordRef, FramesRecord]] = []
        self._producer = Producer({"bootstrap.servers": kafka, "message.max.bytes": 16 << 20})
        given = {"mode": "local", **settings}
        decode = DecodeSettings(**given)  # type: ignore[arg-type]
        self._decode = DecodeHandler(decode, SoftwareDecoder(), TensorStore(decode.store), Segments())
        self._state = self._decode.load(camera, None)

    def film(self, clip: bytes, target_s: float = 1.0, after_ms: int = 0) -> None:
        """Publish a clip in segments, `after_ms` later than the camera's begin."""
        for piece in cut(io.BytesIO(clip), target_s=target_s):
            at_ms = self.begin_ms + after_ms + piece.start_us // 1000
            self.publish(piece.data, at_ms)
            self.segments.append(piece)

    def publish(self, value: bytes, at_ms: int, **more: str) -> None:
        """Publish one segment."""
        named = {headers.CAPTURED_AT: str(at_ms), **more}
        if self.tenant:
            named[headers.TENANT] = self.tenant
        pairs = headers.encode(named)
        message = self._write(SEGMENTS.name, value, pairs)
        partition, offset = message.partition() or 0, message.offset() or 0
        arrived_ms = message.timestamp()[1]
        record = Record(SEGMENTS.name, partition, offset, self.camera, value, pairs, arrived_ms)
        for output in self._decode.handle(self._state, record).outputs:
            if output.topic == FRAMES.name:
                written = self._write(FRAMES.name, output.value or b"", output.headers)
                ref = RecordRef(
                    topic=FRAMES.name, partition=written.partition() or 0, offset=written.offset() or 0
                )
                made = FramesRecord.FromString(output.value or b"")
                if made.HasField("segment"):
                    self.frames.append((ref, made))

    def write_tokens(self, record: TokensRecord, partition: int) -> None:
        """Write what prune-encode would say of the camera."""
        self._write(TOKENS.name, record.SerializeToString(), [], partition)

    def _write(self, topic: str, value: bytes, pairs: headers.Headers, partition: int = -1) -> Message:
        messages: list[Message] = []
        self._producer.produce(
            topic,
            key=self.camera,
            value=value,
            headers=list(pairs),
            partition=partition,
            on_delivery=lambda error, message: messages.append(message) if error is None else None,
        )
        self._producer.flush(30)
        return messages[0]
