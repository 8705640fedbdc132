"""The scheduler's side: which leading rows of a request are external, and what a step tells the workers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorMetadata


@dataclass(frozen=True, slots=True)
class Share:
    """Rows [start, stop) of one request in a step. Rows [low, high) are loaded before the step; low equals
    high if none are loaded."""

    request: str
    window: str
    held: str
    ask: bool
    newline: tuple[int, ...]
    start: int
    stop: int
    low: int
    high: int
    pages: tuple[int, ...]


@dataclass
class StepMeta(KVConnectorMetadata):  # type: ignore[misc]
    """What the scheduler tells the workers about one step."""

    shares: list[Share] = field(default_factory=list)
    scheduled: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class _Tracked:
    """What the scheduler's side remembers about one request."""

    window: str
    held: str
    load: int
    ask: bool
    newline: tuple[int, ...]
    pages: list[int] = field(default_factory=list)
    pending: tuple[int, int] = (0, 0)


class SchedulerSide:
    """Tracks the requests of windows on their way through vLLM's scheduler."""

    def __init__(self) -> None:
        self.requests: dict[str, _Tracked] = {}

    def new(self, request: Any) -> None:
        """Remember the parameters of a new request."""
        parameters = (request.kv_transfer_params or {}).get("lookout")
        if parameters is not None:
            self.requests[request.request_id] = _Tracked(
                parameters["window"],
                parameters["held"],
                parameters["load"],
                parameters["ask"],
                tuple(parameters["newline"]),
            )

    def matched(self, request: Any, num_computed_tokens: int) -> tuple[int, bool]:
        """Return how many rows come from the stream's KV, not counting the window's leading rows that are
        still cached."""
        tracked = self.requests.get(request.request_id)
        if tracked is None:
            return 0, False
        end = min(tracked.load, request.num_tokens - 1)
        tracked.pending = (num_computed_tokens, max(end, num_computed_tokens))
        return max(0, end - num_computed_tokens), False

    def allocated(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        """Remember the pages of a request that is about to run."""
        tracked = self.requests.get(request.request_id)
        if tracked is None:
            return
        tracked.pages = list(blocks.get_block_ids()[0])
        if not num_external_tokens:
            tracked.pending = (0, 0)

    def step(self, scheduler_output: Any) -> StepMeta:
        """Describe a step for the workers: the rows of each window in it."""
        start: dict[str, int] = {}
        for new in scheduler_output.scheduled_new_reqs:
            start[new.req_id] = new.num_computed_tokens
            if new.req_id in self.requests:
                self.requests[new.req_id].pages = list(new.block_ids[0])
        old = scheduler_output.scheduled_cached_reqs
        for place, request in enumerate(old.req_ids):
            start[request] = old.num_computed_tokens[place]
            new_pages = old.new_block_ids[place]
            if request in self.requests and new_pages:
                pages = [] if request in old.resumed_req_ids else self.requests[request].pages
                self.requests[request].pages = [*pages, *new_pages[0]]
        meta = StepMeta(scheduled=dict(scheduler_output.num_scheduled_tokens))
        for request, count in meta.scheduled.items():
            tracked = self.requests.get(request)
            if tracked is None:
                continue
            low, high = tracked.pending
            tracked.pending = (0, 0)
            first = start[request]
            meta.shares.append(
                Share(
                    request,
                    tracked.window,
                    tracked.held,
                    tracked.ask,
                    tracked.newline,
                    first,
                    first + count,
                    low,
                    high,
                    tuple(tracked.pages),
                )
            )
        return meta

    def finished(self, request: Any) -> None:
        """Forget a request."""
        self.requests.pop(request.request_id, None)
