"""Fetches and decodes segments, and decodes them again if their pixels were lost."""

import time
from collections.abc import Callable
from functools import partial

import google_crc32c
import numpy as np
from google.protobuf.message import Message

from lookout.errors import BadRecordError, TransientError
from lookout.past.erasures import Fence
from lookout.rules.masks import AppliedMask, Masks
from lookout.runtime.net.fetch import UriFetcher, uri_of
from lookout.runtime.store import Array, LineageBrokenError, TensorNotMadeError
from lookout.runtime.worker import Record, RecordSource, digest
from lookout.services.decode.away_hosts import AwayHosts
from lookout.services.decode.settings import DecodeSettings
from lookout.services.decode.stream import Stream
from lookout.streams import decode_request
from lookout.streams.filmed import SegmentDecoder
from lookout.streams.stages import check_lineage, lineage_record
from lookout.v1.frames_pb2 import FramesRecord
from lookout.v1.lineage_pb2 import STAGE_FRAMES, TensorRef
from lookout.video.motion import Fit
from lookout.video.segments import CodecError, DecodedSegment, DecodeRequest, Expected, Reason, Tail
from lookout.wire import Stage, headers, tensor_id

#: reasons of decoder errors that are not the segment's fault
_UNAVAILABLE = frozenset({Reason.UNAVAILABLE, Reason.CLOSED})


class SegmentReader:
    """Fetches and decodes segments. Thread-safe.

    Args:
        settings: Decode's settings.
        decoder: Decodes segments.
        records: Rereads a segment's record from Kafka.
        fence: The erasures in force.
        backend: Name of the decoder's back end. It is part of the digest, because another decoder may
            give different pixels.
        masks: The cameras' privacy masks; None: nothing is hidden.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        settings: DecodeSettings,
        decoder: SegmentDecoder,
        records: RecordSource,
        fence: Fence,
        backend: str,
        *,
        masks: Masks | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings, self._records = settings, records
        self.decoder, self.fence, self.masks = decoder, fence, masks or Masks()
        self._uris = UriFetcher(
            settings.uri_schemes,
            settings.uri_hosts,
            settings.uri_networks,
            settings.segment_bytes,
            settings.uri_timeout_s,
        )
        self._hosts = AwayHosts(self._uris.fetch, clock)
        #: digest of everything that the pixels depend on
        self.pixels = digest(settings.input.width, settings.input.height, settings.fit.value, backend)

    def fetch(self, record: Record) -> bytes:
        """Return the bytes of a segment's container, from the record itself or from its URI.

        Raises:
            BadRecordError: The URI is not allowed, its host does not have the bytes, or its host has been
                unresponsive for too long.
            TransientError: The host is not responding at the moment; retry later.
        """
        return self._bytes(record, partial(self._hosts.fetch, record.camera))

    @staticmethod
    def _bytes(record: Record, fetch: Callable[[str], bytes]) -> bytes:
        kind = headers.text(record.headers, headers.CONTENT_TYPE) or ""
        if kind.split(";")[0].strip().lower() == headers.URI_LIST:
            return fetch(uri_of(record.value))
        return record.value

    def decode(self, value: bytes, hidden: AppliedMask, continues: Stream | None = None) -> DecodedSegment:
        """Decode a segment.

        Args:
            value: The container's bytes.
            hidden: The privacy mask for its pictures.
            continues: The epoch that the segment may continue; None: the segment begins one.

        Raises:
            BadRecordError: The segment cannot be used.
            TransientError: No decoder is available.
        """
        settings, expected = self._settings, None
        if continues is not None:
            expected = Expected(
                epoch_us=continues.origin_us,
                next_us=continues.next_us,
                early_us=round(settings.overlap_s * 1e6),
                late_us=settings.window_us,
            )
        request = decode_request(
            settings.input.width,
            settings.input.height,
            gather=settings.gather,
            grid=settings.grid,
            fit=settings.fit,
            expected=expected,
            first_slot=0 if continues is None else continues.next_sample,
            # The frame nearest to the last grid point may be the first frame of the next segment.
            tail=Tail.LEAVE,
            limits=settings.limits,
            mask=hidden.mask,
        )
        return self._decoded(value, request)

    def reference(self, message: FramesRecord) -> TensorRef:
        """Return the tensor reference for the pixels of a segment's record."""
        body, camera, epoch = message.segment, message.camera, message.epoch
        made_by = ".".join(
            (self.pixels, *message.labels.masks, str(body.segment.partition), str(body.segment.offset))
        )
        return TensorRef(
            id=tensor_id(Stage.DECODE, camera, epoch, body.start_us, made_by),
            stage=STAGE_FRAMES,
            camera=camera,
            epoch=epoch,
            config_digest=self.pixels,
            segments=[body.segment],
            input=body.segment,
        )

    def materialize(self, ref: TensorRef, record: Message) -> Array:
        """Decode a segment again and return the pixels of the frames that its record lists.

        Raises:
            LineageBrokenError: The segment is gone, gives different pixels, or its camera's masks have
                changed.
            TensorNotMadeError: The segment's host is not responding at the moment.
            TransientError: Kafka or the decoders are not available.
        """
        message = check_lineage(ref, record, FramesRecord, "segment", self.fence)
        body = message.segment
        hidden = self.masks.again(message.camera, message.labels.masks)
        if hidden is None:
            raise LineageBrokenError(
                f"{ref.id}: the camera's masks have changed since its pixels were decoded"
            )
        source = lineage_record(self._records, body.segment, ref)
        request = decode_request(
            body.picture.width,
            body.picture.height,
            grid=self._settings.grid,
            fit=Fit(body.picture.fit),
            # By index, not by time, so that the frames are the same even if the sampling has changed.
            frames=tuple(frame.index for frame in body.frames),
            limits=self._settings.limits,
            mask=hidden.mask,
        )
        try:
            pixels = self._decoded(self._fetch_again(ref, source), request).pixels
        except BadRecordError as error:
            raise LineageBrokenError(f"{ref.id}: {error}") from error
        if ref.length and google_crc32c.value(np.ascontiguousarray(pixels).tobytes()) != ref.crc32c:
            raise LineageBrokenError(f"{ref.id}: the segment gives different pixels than before")
        return pixels

    def _fetch_again(self, ref: TensorRef, source: Record) -> bytes:
        """Return the bytes of a segment whose pixels are decoded again. If its host does not respond, only
        this tensor fails.
        """
        try:
            return self._bytes(source, self._uris.fetch)
        except TransientError as error:
            raise TensorNotMadeError(f"{ref.id}: {error}") from error

    def _decoded(self, value: bytes, request: DecodeRequest) -> DecodedSegment:
        try:
            return self.decoder.decode(value, request)
        except CodecError as error:
            if error.reason in _UNAVAILABLE:
                raise TransientError(str(error)) from error
            raise BadRecordError(error.reason.value, error.detail) from error
