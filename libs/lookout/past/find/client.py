"""A search at a fleet's recall, from Python."""

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
    """Search what cameras of a fleet saw. Closing the iterator ends the search within one window.

    Args:
        question: One of yes or no; or several that hold one after the other, joined by ", then ".
        cameras: An id or a pattern with `*`, or several.
        since: Only windows that end from then on; a time without a zone is local.
        until: Only windows that end before.
        limit: The search ends with so many hits.
        recall: Recall's gRPC address (host:port).
        threshold: p(yes) of a hit's best window at least.
        share: The most windows that are computed, as a share of all windows of that time.
        anyway: Ask a question that the model was not trained for; hits then say `untrained`.
        like: Look where the past looks like this (`region`, `picture`); None: where the question says.
        security: Certificates and token of the fleet; None: neither.
        timeout_s: Seconds that the search may take; None: as many as it needs.

    Yields:
        Progress; hits as they are verified, a hit that grew under its number again; a summary at the end.

    Raises:
        grpc.RpcError: Recall does not answer, or refuses the search.
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
    """A part of a picture that the fleet has watched.

    Args:
        camera: Whose picture.
        at: When it was taken; a time without a zone is local.
        zone: Corners of the part, in shares of width and height; empty: all of it.
    """
    return PictureRegion(camera=camera, time_us=_unix_us(at), zone=_part(zone))


def picture(data: bytes, zone: Sequence[tuple[float, float]] = ()) -> PictureRegion:
    """A part of a picture of your own, which recall decodes in a confined process.

    Args:
        data: A JPEG of `PICTURE_BYTES` at most.
        zone: Corners of the part, in shares of width and height; empty: all of it.
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
    """The spans of a fleet's past that look most like a part of a picture. Nothing is verified.

    Args:
        like: The part of a picture (`region`, `picture`).
        cameras: An id or a pattern with `*`, or several.
        since: Only spans that end later; a time without a zone is local.
        until: Only spans that begin earlier.
        limit: Spans at most.
        recall: Recall's gRPC address (host:port).
        security: Certificates and token of the fleet; None: neither.
        timeout_s: Seconds that it may take.

    Raises:
        grpc.RpcError: Recall does not answer, or refuses.
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
