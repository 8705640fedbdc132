"""Searches a fleet's past from Python by calling its recall service."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any

from lookout.past.find import SHARE
from lookout.runtime.net import Channels, without_security
from lookout.v1 import memory_pb2_grpc
from lookout.v1.memory_pb2 import (
    FindRequest,
    FindResponse,
    PictureRegion,
    SimilarRequest,
    SimilarResponse,
)
from lookout.v1.watches_pb2 import Zone

if TYPE_CHECKING:
    from lookout.runtime.net import GrpcSecurity


def find(
    question: str,
    cameras: str | Sequence[str] = "*",
    since: datetime | None = None,
    until: datetime | None = None,
    limit: int = 20,
    *,
    recall: str,
    threshold: float = 0.5,
    share: float = SHARE,
    anyway: bool = False,
    like: PictureRegion | None = None,
    security: GrpcSecurity | None = None,
    timeout_s: float | None = None,
) -> Iterator[FindResponse]:
    """Search what a fleet's cameras saw. Closing the iterator ends the search after at most one more window.

    Args:
        question: A yes/no question, or several joined by ", then " that must hold one after the other.
        cameras: An id or a pattern with `*`, or several of them.
        since: Only windows that end at this time or later; a time without a zone is local. None: all.
        until: Only windows that end before this time. None: up to now.
        limit: Number of hits after which the search ends.
        recall: Recall's gRPC address (host:port).
        threshold: Minimum p(yes) of a hit's best window.
        share: Maximum share of the windows in the time range to compute.
        anyway: Search even if the model was not trained for the question; hits then have `untrained` set.
        like: Rank spans by likeness to this region (`region`, `picture`); None: rank them by the question.
        security: Certificates and token of the fleet; None: neither.
        timeout_s: Seconds that the search may take; None: no limit.

    Yields:
        Progress messages, hits, and a summary at the end. A hit is yielded when it is verified, and again
        under the same number whenever it grows.

    Raises:
        grpc.RpcError: Recall does not answer, or rejects the search.
    """
    request = FindRequest(
        question=question,
        cameras=[cameras] if isinstance(cameras, str) else cameras,
        since_us=_unix_us(since),
        until_us=_unix_us(until),
        limit=limit,
        threshold=threshold,
        share=share,
        anyway=anyway,
        like=like,
    )
    with _recall(recall, security) as stub:
        call = stub.Find(request, timeout=timeout_s)
        try:
            yield from call
        finally:
            call.cancel()


def region(camera: str, at: datetime, zone: Sequence[tuple[float, float]] = ()) -> PictureRegion:
    """Return a region of a picture that a camera of the fleet took, to search by.

    Args:
        camera: Id of the camera.
        at: When the picture was taken; a time without a time zone is local.
        zone: Corners of the region as (x, y), each from 0 to 1; empty: the whole picture.
    """
    return PictureRegion(camera=camera, time_us=_unix_us(at), zone=_part(zone))


def picture(data: bytes, zone: Sequence[tuple[float, float]] = ()) -> PictureRegion:
    """Return a region of your own picture, to search by. Recall decodes the picture in a sandboxed process.

    Args:
        data: A JPEG of at most `PICTURE_BYTES` bytes.
        zone: Corners of the region as (x, y), each from 0 to 1; empty: the whole picture.
    """
    return PictureRegion(picture=data, zone=_part(zone))


def _part(zone: Sequence[tuple[float, float]]) -> Zone | None:
    points = [{"x": x, "y": y} for x, y in zone]
    return Zone(points=points) if points else None  # type: ignore[arg-type] # protobuf takes dicts


def similar(
    like: PictureRegion,
    cameras: str | Sequence[str] = "*",
    since: datetime | None = None,
    until: datetime | None = None,
    limit: int = 20,
    *,
    recall: str,
    security: GrpcSecurity | None = None,
    timeout_s: float = 60.0,
) -> SimilarResponse:
    """Return the spans of a fleet's past that look most like a region of a picture. No window is computed.

    Args:
        like: The region (`region`, `picture`).
        cameras: An id or a pattern with `*`, or several of them.
        since: Only spans that end after this time; a time without a zone is local. None: all.
        until: Only spans that begin before this time. None: all.
        limit: Maximum number of spans to return.
        recall: Recall's gRPC address (host:port).
        security: Certificates and token of the fleet; None: neither.
        timeout_s: Seconds that the call may take.

    Raises:
        grpc.RpcError: Recall does not answer, or rejects the call.
    """
    request = SimilarRequest(
        like=like,
        cameras=[cameras] if isinstance(cameras, str) else cameras,
        since_us=_unix_us(since),
        until_us=_unix_us(until),
        limit=limit,
    )
    with _recall(recall, security) as stub:
        response: SimilarResponse = stub.Similar(request, timeout=timeout_s)
        return response


@contextmanager
def _recall(address: str, security: GrpcSecurity | None) -> Iterator[Any]:
    channel = Channels(security or without_security()).open(address, [("grpc.enable_retries", 0)])
    try:
        yield memory_pb2_grpc.RecallServiceStub(channel)  # type: ignore[no-untyped-call]
    finally:
        channel.close()


def _unix_us(time: datetime | None) -> int | None:
    return None if time is None else round(time.timestamp() * 1e6)
