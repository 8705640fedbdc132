"""Encodes jobs for decoder processes: the pool writes them as JSON, and the process reads them.

A process may trust its jobs, because they come from the pool. The pool does not trust replies: it checks
these messages (`sandbox.proto`) field by field.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any, Final, Protocol, Self, runtime_checkable

from lookout.video.motion.geometry import Fit
from lookout.video.motion.hiding import MaskLayer, PictureMask
from lookout.video.motion.types import Gather
from lookout.video.segments.sampling import Expected, Pick, SamplingGrid, Tail
from lookout.video.segments.types import (
    ClipSegment,
    CodecError,
    CutRequest,
    DecodeRequest,
    JoinRequest,
    Limits,
    MaskRequest,
    Reason,
)


@dataclass(frozen=True, slots=True)
class InspectRequest:
    """Decode a file and report what it contains. size: bytes of the file."""

    path: str
    size: int


@dataclass(frozen=True, slots=True)
class TableRequest:
    """Build the packet table of a file. size: bytes of the file."""

    path: str
    size: int


@dataclass(frozen=True, slots=True)
class SampleRequest:
    """Decode some frames of a file. size: (height, width) in pixels."""

    path: str
    picks: tuple[Pick, ...]
    size: tuple[int, int]
    fit: Fit


@dataclass(frozen=True, slots=True)
class ClipRequest:
    """Cut a range of a file into a separate file, see `lookout.video.files.clipping.clip`."""

    path: str
    start_us: int
    end_us: int
    max_bytes: int


Request = (
    DecodeRequest
    | InspectRequest
    | CutRequest
    | TableRequest
    | SampleRequest
    | ClipRequest
    | JoinRequest
    | MaskRequest
)


@runtime_checkable
class PortableGather(Gather, Protocol):
    """A gather that a decoder process can recreate. Its class must be at the top level of its module."""

    @property
    def grid(self) -> tuple[int, int]:
        """(rows, cols) of every motion grid."""

    def to_json(self) -> str:
        """Return the gather's settings."""

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Create a gather with these settings."""


@dataclass(frozen=True, slots=True)
class DecoderJob:
    """A job for a decoder process.

    Attributes:
        request: The request.
        size: Bytes of the segment in the shared input.
        with_file: Whether a descriptor follows through the socket.
    """

    request: Request
    size: int = 0
    with_file: bool = False


_REQUESTS: Final = (
    *(DecodeRequest, InspectRequest, CutRequest, TableRequest, SampleRequest, ClipRequest, JoinRequest),
    *(MaskRequest, SamplingGrid, Expected, Limits, Pick, ClipSegment, PictureMask, MaskLayer, Fit, Tail),
)
#: the classes that occur in requests, by name
_KINDS: Final[dict[str, type]] = {kind.__name__: kind for kind in _REQUESTS}


def job_message(number: int, job: DecoderJob) -> bytes:
    """Encode a job as a message. The bytes in its request are not in the message but in the shared input, one
    after the other.

    Args:
        number: Number of the job within the process, which the reply repeats.
        job: The job.

    Raises:
        CodecError: With REQUEST: the gather cannot be sent.
    """
    return f"{number} {json.dumps([_plain(job.request), job.size, job.with_file])}".encode()


def job_number(message: bytes) -> int:
    """Return the number of a job, even if the job cannot be decoded."""
    return int(message.split(b" ", 1)[0])


def read_job(message: bytes, read: Callable[[int, int], bytes]) -> DecoderJob:
    """Decode a job.

    Args:
        message: A message from `job_message`.
        read: Given a byte count and an offset, returns those bytes of the shared input.

    Raises:
        LookupError: The gather's module was not imported before the process was confined.
    """
    request, size, with_file = json.loads(message.split(b" ", 1)[1])
    place = 0

    def take(count: int) -> bytes:
        nonlocal place
        place += count
        return read(count, place - count)

    return DecoderJob(_object(request, take), size, with_file)


def _plain(value: Any) -> Any:
    """Convert a part of a request to JSON types. Tuples become lists, and objects carry the name of their
    class.
    """
    if value is None or type(value) in (bool, int, float, str):
        return value
    return [_plain(part) for part in value] if isinstance(value, tuple) else _named(value)


def _named(value: Any) -> dict[str, Any]:
    kind = type(value)
    if isinstance(value, bytes):
        return {"kind": "bytes", "size": len(value)}
    if isinstance(value, PortableGather):
        return {"kind": "gather", "class": [kind.__module__, kind.__qualname__], "settings": value.to_json()}
    if kind.__name__ not in _KINDS:
        raise CodecError(
            Reason.REQUEST, f"{kind.__name__} has no to_json and from_json, so a sandbox cannot recreate it"
        )
    if isinstance(value, StrEnum):
        return {"kind": kind.__name__, "value": value.value}
    return {"kind": kind.__name__, **{part.name: _plain(getattr(value, part.name)) for part in fields(value)}}


def _object(value: Any, take: Callable[[int], bytes]) -> Any:
    if isinstance(value, list):
        return tuple(_object(part, take) for part in value)
    if not isinstance(value, dict):
        return value
    name = value.pop("kind")
    if name == "bytes":
        return take(value["size"])
    if name == "gather":
        module, qualified = value["class"]
        return _gather(module, qualified, value["settings"])
    parts = {field: _object(part, take) for field, part in value.items()}
    kind = _KINDS[name]
    return kind(parts["value"]) if issubclass(kind, StrEnum) else kind(**parts)


def _gather(module: str, name: str, settings: str) -> Gather:
    # Not imported here, because a confined process may not open files.
    imported = sys.modules.get(module)
    if imported is None:
        raise LookupError(f"{module} must be listed in the modules of SandboxSettings")
    gather: Gather = getattr(imported, name).from_json(settings)
    return gather
