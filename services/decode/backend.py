"""Chooses the decoder: FFmpeg in sandboxed processes, or NVDEC on an NVIDIA GPU."""

import time
from collections.abc import Callable
from typing import Literal

import structlog

from lookout.errors import StartupError
from lookout.streams.filmed import SegmentDecoder
from lookout.video.segments import CodecError, DecodedSegment, DecodeRequest, Reason

Backend = Literal["software", "nvdec", "auto"]

_log = structlog.get_logger(__name__)


class TimedDecoder:
    """A decoder that reports how many seconds each segment took.

    Args:
        decoder: The decoder that does the work.
        busy: Called after each segment with the seconds that it took.
    """

    def __init__(self, decoder: SegmentDecoder, busy: Callable[[float], object]) -> None:
        self._decoder, self._busy = decoder, busy

    def decode(self, segment: bytes, request: DecodeRequest) -> DecodedSegment:
        """Decode a segment and report the time taken.

        Raises:
            CodecError: The bytes cannot be decoded.
        """
        begin = time.perf_counter()
        try:
            return self._decoder.decode(segment, request)
        finally:
            self._busy(time.perf_counter() - begin)


class NvdecOrSoftware:
    """Decodes with NVDEC, and in software if this GPU does not support the codec."""

    def __init__(self, nvdec: SegmentDecoder, software: SegmentDecoder) -> None:
        self._nvdec, self._software = nvdec, software

    def decode(self, segment: bytes, request: DecodeRequest) -> DecodedSegment:
        """Decode a segment on the GPU if it supports the codec, else in software.

        Raises:
            CodecError: The bytes cannot be decoded.
        """
        try:
            return self._nvdec.decode(segment, request)
        except CodecError as error:
            if error.reason is not Reason.NO_DECODER:
                raise
            _log.info("decoding a segment in software", reason=error.detail)
            return self._software.decode(segment, request)


def _nvdec() -> SegmentDecoder:
    from lookout.video.segments.nvdec import NvdecDecoder

    return NvdecDecoder()


def choose_decoder(
    wanted: Backend, software: SegmentDecoder, nvdec: Callable[[], SegmentDecoder] = _nvdec
) -> tuple[SegmentDecoder, str]:
    """Return the decoder for the setting `decoder`, and its back end's name; log the choice and the reason.

    Args:
        wanted: `software`; `nvdec`, which must work here; or `auto`: NVDEC if it works.
        software: the sandboxed decoder.
        nvdec: makes the NVDEC decoder. Raises CodecError if it cannot run.

    Raises:
        StartupError: `wanted` is `nvdec`, but NVDEC cannot run here; the message says why.
    """
    if wanted == "software":
        _log.info("decoding in software", reason="LOOKOUT_BACKEND=software")
        return software, "software"
    try:
        decoder = nvdec()
    except CodecError as error:
        if wanted == "nvdec":
            raise StartupError(f"LOOKOUT_BACKEND=nvdec: {error.detail}") from error
        _log.warning("decoding in software", reason=error.detail)
        return software, "software"
    _log.info("decoding with NVDEC", reason=f"LOOKOUT_BACKEND={wanted}")
    return (decoder if wanted == "nvdec" else NvdecOrSoftware(decoder, software)), "nvdec"
