"""`python -m lookout.services.prefill`: reads tokens.v1, writes verdicts.v1."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING

import torch
import transformers

from lookout.errors import StartupError
from lookout.models.engines import Engine, load_engine
from lookout.models.engines.asked import question_fault
from lookout.models.engines.born import KeepsRows
from lookout.models.families import load_tokenizer
from lookout.models.families.inference import inference_only
from lookout.models.windows import Planner
from lookout.past.chapters import ChapterAnnouncer, MemoryLimits, MemoryService
from lookout.past.erasures import Fence, Step, join, live_fence
from lookout.past.memory import HistoryError, Keep, MemorySettings
from lookout.past.memory.chapters import ChapterFolder, ChapterRules
from lookout.rules import watch_fault
from lookout.runtime.fairness import FairShares
from lookout.runtime.observe import logs, traced
from lookout.runtime.store import Announcer, Directory, Node, store_numbers
from lookout.runtime.store.signing import AddressSigner
from lookout.runtime.tenants import TenantUsage, open_fleet_shares, open_usage
from lookout.runtime.worker import Context, checked_model, loading, main
from lookout.services.prefill.asking import WindowAsker
from lookout.services.prefill.batcher import Batcher, KeyRoom
from lookout.services.prefill.handler import PrefillHandler
from lookout.services.prefill.loading import BlockCache, BlockLoader
from lookout.services.prefill.metrics import audit_histogram, engine_numbers
from lookout.services.prefill.remembering import Captures, ChapterLanes, memory_numbers
from lookout.services.prefill.settings import PrefillSettings
from lookout.services.prefill.shares import DeviceShares, share_numbers
from lookout.services.prefill.sizing import kv_bytes
from lookout.services.prefill.watches import Watches
from lookout.streams import ChainRule, ChainRunner
from lookout.text import public_url
from lookout.v1.erasures_pb2 import Erasure
from lookout.v1.lineage_pb2 import STAGE_CHAPTERS, STAGE_TOKENS
from lookout.wire import WATCHES, Stage
from lookout.wire.limits import ALL_WATCHES

if TYPE_CHECKING:
    from lookout.past.chapters.durable import Uploader


def make_handler(context: Context[PrefillSettings]) -> PrefillHandler:
    """Build the handler, its model, its watches and its access to tokens."""
    settings = context.settings
    folder, model = checked_model(settings, settings.model_dir)
    with loading(folder):
        engine = _engine(settings, folder)
    fence, erasures = live_fence(context, settings.memory_dir if settings.memory else None)
    memory = _memory(context, engine, model, fence, idle := Event())
    tenants = open_usage(context, settings, ("questions", "device_s"))
    shares = _shares(context, tenants)
    batcher = Batcher(
        engine,
        settings.batch,
        KeyRoom(rows=settings.batch_rows, delay_s=settings.key_delay_s),
        context.supervisor,
        context.metrics.computing(),
        after=None if memory is None else memory.lanes.captures.after,
        idle=idle,
        tenants=shares,
    )
    context.on_close(batcher.close)
    node = _node(context)
    table = context.table(WATCHES.name, check=watch_fault, limit=ALL_WATCHES)
    watches = Watches(table.view)
    context.health.note("crowded_cameras", watches.crowded)
    planner = Planner(engine.layout, settings.windows)
    runner = ChainRunner(ChainRule(planner, settings.reuse, settings.audit_limit), batcher)
    cache = BlockCache(settings.block_bytes)
    asker = WindowAsker(
        settings,
        BlockLoader(node.client, cache, settings.step_us, settings.give_up_s),
        runner,
        model_digest=model,
        on_audit=audit_histogram(context.metrics.registry).observe,
        tenants=tenants,
        shares=shares,
        folder=folder,
        fault=partial(question_fault, tokenizer=load_tokenizer(folder), layout=engine.layout),
    )
    handler = PrefillHandler(
        settings,
        watches,
        asker,
        records=context.rereader,
        model_digest=model,
        wait_for_watches=table.at_least,
        memory=None if memory is None else memory.lanes,
        fence=fence,
    )
    steps: dict[str, Step] = {"windows": lambda erasure: _free(erasure.camera, batcher, cache)}
    if memory is not None:
        steps |= memory.steps()
    # Before announcing: footage that was erased while this instance was down must not be announced again.
    join(context, erasures, steps, stays=memory is not None)
    if memory is not None:
        memory.start()
    context.metrics.show(lambda: engine_numbers(batcher, cache, engine.kv_budget))
    context.metrics.show(lambda: store_numbers(node.store))
    context.metrics.show(lambda: (*share_numbers(shares.numbers()), *handler.device_seconds.numbers()))
    return handler


def _shares(context: Context[PrefillSettings], tenants: TenantUsage) -> DeviceShares:
    """Set up how tenants share the device."""
    device = FairShares(context.settings.quotas.weight)
    open_fleet_shares(context, device)
    return DeviceShares(device, tenants)


def _node(context: Context[PrefillSettings]) -> Node:
    """Set up the access to tokens."""
    settings = context.settings
    replicas: dict[int, Sequence[str]] = {STAGE_TOKENS: settings.token_replicas}
    node = Node(settings.store, settings.redis_url, traced=traced, replicas=replicas, security=settings)
    context.on_close(node.close)
    return node


def _free(camera: str, batcher: Batcher, cache: BlockCache) -> int:
    """Drop a camera's KV and cached blocks; return the number of streams with cached blocks. The camera's
    next window is a key window without the erased blocks.
    """
    batcher.forget_camera(camera)
    return cache.forget_camera(camera)


@dataclass(slots=True)
class _Memory:
    """The memory of committed windows, and what announces it to readers.

    Attributes:
        lanes: Writes chapters.
        scenes: Announces the chapters' cluster indexes in Redis.
        lease: Keeps this instance registered in Redis as a holder of chapters.
        uploader: Copies sealed chapters to the durable tier; None: there is none.
    """

    lanes: ChapterLanes
    scenes: ChapterAnnouncer
    lease: Announcer
    uploader: Uploader | None

    def start(self) -> None:
        """Start announcing and uploading chapters. Call this after pending erasures are done."""
        self.lease.start()
        self.scenes.start()
        if self.uploader is not None:
            self.uploader.start()

    def steps(self) -> dict[str, Step]:
        """Return the steps that erase a range, in order. The disk comes first, so that erased footage is not
        uploaded or announced again.
        """
        steps: dict[str, Step] = {"chapters": lambda request: self.lanes.erase(*_range(request))}
        if self.uploader is not None:
            uploader = self.uploader
            steps["durable tier"] = lambda request: uploader.erase(*_range(request))
        steps["directory"] = lambda request: self.scenes.erase(request.camera)
        return steps


def _range(request: Erasure) -> tuple[str, int, int]:
    return request.camera, request.begin_us, request.end_us


def _memory(
    context: Context[PrefillSettings], engine: Engine, model: str, fence: Fence, idle: Event
) -> _Memory | None:
    """Set up the memory of committed windows; return None if it is off. `idle` is set while no window is
    computed.
    """
    settings = context.settings
    if settings.memory is None:
        return None
    if not isinstance(engine, KeepsRows):
        raise StartupError(f"LOOKOUT_MEMORY={settings.memory}: engine {settings.engine} cannot export KV")
    rules = ChapterRules(
        Keep.parse(settings.memory),
        settings.memory_disk_bytes,
        settings.memory_chapter_s,
        settings.memory_chapter_bytes,
    )
    try:
        folder = ChapterFolder(
            settings.memory_dir,
            rules,
            engine.kv_shape,
            settings=MemorySettings(window=settings.window_blocks),
            bias=engine.key_bias,
            about={
                "model": str(settings.model_dir),
                "model_digest": model,
                "stride_us": settings.stride_us,
                "writer": settings.instance,
            },
        )
    except OSError as error:
        raise StartupError(f"LOOKOUT_MEMORY_DIR={settings.memory_dir}: {error.strerror}") from error
    lanes = ChapterLanes(
        Captures(engine, settings.step_us),
        folder,
        lanes=settings.memory_lanes,
        queue_bytes=settings.memory_queue_bytes,
        fence=fence,
        supervisor=context.supervisor,
    )
    lease, scenes = _announcers(context, folder, idle)
    uploader = _uploader(context, folder)
    context.metrics.show(lambda: memory_numbers(lanes, 0 if uploader is None else uploader.failed))
    # Runs before serving and uploading end, so that chapters sealed at the end are uploaded too.
    context.on_close(lanes.close)
    return _Memory(lanes, scenes, lease, uploader)


def _uploader(context: Context[PrefillSettings], folder: ChapterFolder) -> Uploader | None:
    """Set up the upload of sealed chapters to the durable tier; return None if it is off."""
    url = context.settings.memory_url
    if url is None:
        return None
    from lookout.past.chapters.durable import DurableTier, Uploader

    try:
        uploader = Uploader(DurableTier(url), folder, supervisor=context.supervisor)
    except HistoryError as error:
        raise StartupError(f"LOOKOUT_MEMORY_URL={public_url(url)}: {error}") from error
    context.on_close(uploader.stop)
    return uploader


def _announcers(
    context: Context[PrefillSettings], folder: ChapterFolder, idle: Event
) -> tuple[Announcer, ChapterAnnouncer]:
    """Serve the chapters to recall; return the announcers of this holder and of its chapters, not yet
    started.
    """
    settings = context.settings
    limits = MemoryLimits(readers=settings.memory_readers)
    service = MemoryService(folder, limits, lambda: idle.wait(settings.memory_yield_s))
    context.grpc.add(service.register, service.NAME)
    signer = AddressSigner.of(settings)
    directory = Directory(settings.redis_url, settings.store, settings, signer)
    client = settings.redis_client(
        settings.redis_url,
        socket_timeout=settings.store.redis_timeout_s,
        socket_connect_timeout=settings.store.redis_timeout_s,
        retry=None,
    )
    lease = Announcer(
        directory,
        STAGE_CHAPTERS,
        settings.instance,
        context.address,
        lambda: (),
        supervisor=context.supervisor,
    )
    scenes = ChapterAnnouncer(
        directory,
        client,
        folder,
        settings.instance,
        camera_bytes=settings.memory_redis_bytes,
        supervisor=context.supervisor,
        entry_s=settings.store.entry_s,
    )
    for close in (directory.close, client.close, lease.stop, scenes.stop):
        context.on_close(close)
    return lease, scenes


def _engine(settings: PrefillSettings, folder: Path) -> Engine:
    budget = kv_bytes(settings, folder)
    logs.get("prefill").info(
        "the model's memory", device=settings.place, dtype=settings.dtype, kv_bytes=budget
    )
    if settings.engine == "vllm":
        from lookout.models.engines import vllm

        return vllm.load_engine(
            folder,
            dtype=settings.dtype,
            budget_bytes=budget,
            max_rows=settings.window_rows,
            max_batched_rows=settings.batch_rows,
            eager=not settings.cuda_graphs,
        )
    transformers.utils.logging.disable_progress_bar()
    with inference_only():
        return load_engine(
            folder,
            settings.device,
            getattr(torch, settings.dtype),
            budget_bytes=budget,
            spill_dir=settings.kv_spill_dir,
            rows_per_pass=settings.batch_rows,
        )


if __name__ == "__main__":
    main(Stage.PREFILL, PrefillSettings, make_handler)
