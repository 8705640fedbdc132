"""A search at a fleet's recall, from Python."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from lookout.runtime.net import Channels, without_security
from lookout.v1 import memory_pb2_grpc
from lookout.v1.memory_pb2 import FindRequest, FindResponse

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
    share: float = 0.1,
    anyway: bool = False,
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
        since_us=None if since is None else round(since.timestamp() * 1e6),
        until_us=None if until is None else round(until.timestamp() * 1e6),
        limit=limit,
        threshold=threshold,
        share=share,
        anyway=anyway,
    )
    channel = Channels(security or without_security()).open(recall, [("grpc.enable_retries", 0)])
    stub: Any = memory_pb2_grpc.RecallServiceStub(channel)  # type: ignore[no-untyped-call]
    call = stub.Find(request, timeout=timeout_s)
    try:
        yield from call
    finally:
        call.cancel()
        channel.close()
