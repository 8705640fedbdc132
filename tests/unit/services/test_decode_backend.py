"""Which decoder runs, and that the reason is told."""

from __future__ import annotations

from typing import NoReturn

import pytest

from lookout.errors import StartupError
from lookout.services.decode.backend import NvdecOrSoftware, choose_decoder
from lookout.video.segments import CodecError, DecodedSegment, DecodeRequest, Reason, SoftwareDecoder
from tests.unit.video.segments.clips import encode

REQUEST = DecodeRequest(32, 32, vectors=False)


def missing() -> NoReturn:
    raise CodecError(Reason.UNAVAILABLE, "no NVIDIA driver")


class FakeNvdec:
    """Stands for a GPU that decodes nothing but what it is told; its results are software's."""

    def __init__(self, reason: Reason | None = None) -> None:
        self.reason, self.calls = reason, 0

    def decode(self, segment: bytes, request: DecodeRequest) -> DecodedSegment:
        self.calls += 1
        if self.reason is not None:
            raise CodecError(self.reason, "this GPU does not decode it")
        return SoftwareDecoder().decode(segment, request)


def test_software_is_used_where_nvdec_cannot_run(capsys: pytest.CaptureFixture[str]) -> None:
    software = SoftwareDecoder()
    assert choose_decoder("software", software, missing) == (software, "software")
    assert choose_decoder("auto", software, missing) == (software, "software")
    assert "no NVIDIA driver" in capsys.readouterr().out
    with pytest.raises(StartupError, match="LOOKOUT_BACKEND=nvdec: no NVIDIA driver"):
        choose_decoder("nvdec", software, missing)


def test_nvdec_is_used_where_it_runs() -> None:
    gpu = FakeNvdec()
    assert choose_decoder("nvdec", SoftwareDecoder(), lambda: gpu) == (gpu, "nvdec")
    decoder, name = choose_decoder("auto", SoftwareDecoder(), lambda: gpu)
    assert name == "nvdec"
    assert decoder.decode(encode(frames=10), REQUEST).frames
    assert gpu.calls == 1


def test_what_the_gpu_does_not_decode_software_does_and_errors_pass() -> None:
    data = encode(frames=10)
    assert NvdecOrSoftware(FakeNvdec(Reason.NO_DECODER), SoftwareDecoder()).decode(data, REQUEST).frames
    with pytest.raises(CodecError, match="unreadable"):
        NvdecOrSoftware(FakeNvdec(Reason.UNREADABLE), SoftwareDecoder()).decode(data, REQUEST)
