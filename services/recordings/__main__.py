"""`python -m lookout.services.recordings plan|parts|reduce|decode`: answers questions about recordings in
jobs.
"""

from __future__ import annotations

import os
import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from google.protobuf.message import DecodeError

from lookout.models.families import model_input
from lookout.models.families.inference import inference_only
from lookout.past.backtests.answers import Hidden, hidden_by
from lookout.past.erasures import read_fence
from lookout.recordings.analysis import AnalysisSettings
from lookout.recordings.analysis.cutting import trained_frames
from lookout.recordings.jobs import Sources
from lookout.runtime.net.fetch import UriFetcher
from lookout.runtime.observe import logs, traced
from lookout.runtime.store import Node, StoreError
from lookout.runtime.worker import Context, Handler, checked_model, loading, main, model_folder, serve
from lookout.runtime.worker.service import MISCONFIGURED, MakeHandler
from lookout.runtime.worker.topic_reader import tried_again
from lookout.services.recordings.quotas import RunningJobs
from lookout.services.recordings.settings import RecordingsSettings
from lookout.text import visible
from lookout.v1.lineage_pb2 import STAGE_SAMPLES
from lookout.v1.recordings_pb2 import PlanState
from lookout.v1.state_pb2 import Checkpoint
from lookout.wire import PARTS, PLAN, REDUCE, Flow, WireError, from_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from lookout.models.windows import Layout
    from lookout.recordings.analysis import Analyzer
    from lookout.runtime.store import Array, TensorClient
    from lookout.services.recordings.running import Ahead
    from lookout.streams.chains import ChainRange
    from lookout.v1.recordings_pb2 import RecordingPart

_log = logs.get("recordings")


def plan(context: Context[RecordingsSettings]) -> Handler[Any]:
    """Build the handler that turns requests into plans."""
    from lookout.services.recordings.planning import PlanHandler

    settings = context.settings
    folder = model_folder(settings.model_dir)  # planning needs only the model's configuration and tokenizer

    def part_frames(how: AnalysisSettings) -> int:
        frames = how.part_frames or trained_frames(folder)
        return frames if frames is not None else _counted_frames(folder, how)

    def ranges(since_ms: int, until_ms: int) -> Mapping[int, ChainRange]:
        from lookout.streams.chains import token_ranges

        with tried_again():
            return token_ranges(settings, since_ms, until_ms)

    reach_s = (2 * settings.key_every + settings.window_blocks) * settings.stride_s
    handler = PlanHandler(
        context.rereader,
        folder,
        part_frames,
        _sources(context),
        ranges=ranges,
        reach_s=reach_s,
        stride_s=settings.stride_s,
        quotas=settings.job_quotas,
        running_jobs=_running_jobs(context),
        retry_limit_s=settings.retry_limit_s,
    )
    context.on_close(handler.close)
    return handler


def parts(context: Context[RecordingsSettings]) -> Handler[Any]:
    """Build the handler that turns parts into outcomes."""
    from lookout.services.recordings.past import PastParts, kafka_log, tensor_node
    from lookout.services.recordings.running import PartsHandler

    settings = context.settings
    os.nice(settings.niceness)  # live cameras' windows on the same CPU take precedence
    folder, digest = checked_model(settings, settings.model_dir)
    analyzer = _analyzer(folder, settings.device, settings.dtype)
    with loading(folder), inference_only():
        analyzer.load()
    plans = context.table(PLAN.state.name, kept=1)
    node = tensor_node(settings)
    context.on_close(node.close)
    past = PastParts(
        settings, analyzer, digest, node.client, log=kafka_log(settings), hidden=erased_now(settings)
    )
    handler = PartsHandler(
        analyzer,
        _sources(context),
        partitions=context.partitions,
        model_digest=digest,
        cancelled=lambda job: is_cancelled(plans.newest(job)),
        past=past,
        ahead=_ahead(node.client, analyzer) if settings.ahead else None,
        decoders=settings.decoders,
    )
    context.on_close(handler.close)
    return handler


def reduce(context: Context[RecordingsSettings]) -> Handler[Any]:
    """Build the handler that turns outcomes into further parts, and finally into answers."""
    from lookout.services.recordings.reducing import ReduceHandler

    settings = context.settings
    return ReduceHandler(
        context.rereader,
        partitions=context.partitions,
        most_parts=2 * context.partitions,
        running_jobs=_running_jobs(context),
        hidden=erased_now(settings),
    )


def decode(context: Context[RecordingsSettings]) -> None:
    """Serve parts' pixels to the workers that will answer the parts."""
    from lookout.services.recordings.sampling import SamplesMaker

    settings = context.settings
    os.nice(settings.niceness)
    folder, _ = checked_model(settings, settings.model_dir, tower_only=True)
    size = model_input(folder)
    maker = SamplesMaker(_sources(context), (size.height, size.width), settings.decoders)
    node = Node(settings.store, settings.redis_url, traced=traced, security=settings)
    node.store.makes(STAGE_SAMPLES, maker.make)
    context.on_close(maker.close)
    context.on_close(node.close)
    context.grpc.add(node.service.register, node.service.NAME)
    node.join(STAGE_SAMPLES, settings.instance, context.address, context.supervisor)


def _ahead(client: TensorClient, analyzer: Analyzer) -> Ahead:
    """Return a function that fetches a part's pixels from decode pods; the function returns None if none has
    them.
    """
    from lookout.recordings.jobs.samples import samples_ref

    grid = analyzer.tower.grid

    def pixels(part: RecordingPart) -> Array | None:
        try:
            return client.fetch(samples_ref(part, (grid.height, grid.width)), part).array
        except StoreError as error:  # the worker then decodes the part itself, and reports faults
            _log.info(
                "no decode pod can give a part's pixels", job=part.job, part=part.number, error=str(error)
            )
            return None

    return pixels


ROLES: Final[dict[str, tuple[Flow, MakeHandler[RecordingsSettings]]]] = {
    "plan": (PLAN, plan),
    "parts": (PARTS, parts),
    "reduce": (REDUCE, reduce),
}


def is_cancelled(row: bytes | None) -> bool:
    """Return whether the checkpoint of a job's plan says that the job is cancelled.

    The checkpoint decides and not the newest request, because anybody may write a request with the job's id.
    """
    state = PlanState()
    try:
        from_bytes(row or b"", Checkpoint).own.Unpack(state)
    except (WireError, DecodeError):
        return False
    return state.cancelled


def erased_now(settings: RecordingsSettings) -> Callable[[], Hidden]:
    """Return a function that reads the current erasures from Kafka."""

    def erased() -> Hidden:
        with tried_again():
            return hidden_by(read_fence(settings))

    return erased


def _running_jobs(context: Context[RecordingsSettings]) -> RunningJobs:
    """Follow the running jobs. Only each job's newest state is kept in memory, since a state grows with the
    job's parts.
    """
    return RunningJobs(context.table(REDUCE.state.name, kept=1))


def _counted_frames(folder: Path, how: AnalysisSettings) -> int:
    from lookout.recordings.analysis.sizing import part_frames

    return part_frames(folder, _layout(folder), how)


@cache
def _layout(folder: Path) -> Layout:
    from lookout.models.families import load_layout

    return load_layout(folder)


def _analyzer(folder: Path, device: str, dtype: str) -> Analyzer:
    from lookout.recordings.analysis import Analyzer

    return Analyzer(folder, device=device, dtype=dtype)


def _sources(context: Context[RecordingsSettings]) -> Sources:
    settings = context.settings
    fetcher = UriFetcher(
        settings.uri_schemes,
        settings.uri_hosts,
        settings.uri_networks,
        settings.fetch_bytes,
        settings.uri_timeout_s,
    )
    return Sources(settings.recording_roots, fetcher=fetcher, stores=settings.recording_stores)


if __name__ == "__main__":
    if sys.argv[1:] == ["decode"]:
        serve("recordings-decode", RecordingsSettings, decode)
    if sys.argv[1:] not in [[role] for role in ROLES]:
        sys.stderr.write(visible(f"lookout recordings: give one of {', '.join(ROLES)}, decode\n"))
        sys.exit(MISCONFIGURED)
    flow, make_handler = ROLES[sys.argv[1]]
    main(flow, RecordingsSettings, make_handler)
