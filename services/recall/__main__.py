"""`python -m lookout.services.recall`: questions about the past of cameras, over gRPC."""

from __future__ import annotations

import signal
import sys
import threading
from typing import Any

import torch
import transformers

from lookout.chapters.announcing import ScenesDirectory
from lookout.chapters.reading import ChapterSources, ChapterStore, Holders
from lookout.engines.transformers import TransformersEngine, load_engine
from lookout.errors import StartupError
from lookout.memory import HistoryError
from lookout.models.digest import folder_digest
from lookout.net import GrpcServer, public_url
from lookout.observe import Health, Metrics, Probes, logs, tracing
from lookout.outside_text import visible
from lookout.services.recall.asking import Asker
from lookout.services.recall.servicer import RecallService
from lookout.services.recall.settings import RecallSettings
from lookout.store import Directory
from lookout.store.signing import AddressSigner
from lookout.worker import check_digest, load_settings
from lookout.worker.startup import check_open_files, check_redis

STOPPED, MISCONFIGURED = 0, 2


def main() -> int:
    """Answer until SIGTERM. Returns the exit code."""
    try:
        settings = load_settings(RecallSettings)
        logs.setup("recall", settings.instance, settings.log_level, settings.log_human)
        tracing.setup("recall", settings.instance, settings.otlp_endpoint)
        check_open_files()
        check_redis(settings)
        health, metrics = Health(settings.stall_s), Metrics("recall")
        health.allow(settings.load_limit_s)
        probes = Probes(metrics, health, settings.metrics_port, settings.host)
        probes.start()
        digest = folder_digest(_folder(settings))
        check_digest(settings, digest)
        engine = _engine(settings)
        grpc = GrpcServer(settings.host, settings.grpc_port, security=settings)
        sources, close = _sources(settings)
    except StartupError as error:
        sys.stderr.write(visible(f"lookout recall: {error}\n"))
        return MISCONFIGURED
    asker = Asker(
        engine, sources, model_digest=digest, cache_bytes=settings.cache_bytes, foresee=settings.foresee
    )
    service = RecallService(asker, settings, metrics)
    grpc.add(service.register, service.NAME)
    grpc.start()
    stopped = threading.Event()

    def stop(_number: int, _frame: Any) -> None:
        stopped.set()

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    health.clear("worker")
    grpc.serving(True)
    logs.get("service").info("started", grpc=settings.address(grpc.port))
    while not stopped.wait(1.0):
        health.beat()
    grpc.stop()
    close()
    probes.stop()
    return STOPPED


def _folder(settings: RecallSettings) -> Any:
    if settings.model_dir is None or not settings.model_dir.is_dir():
        raise StartupError(f"LOOKOUT_MODEL_DIR={settings.model_dir}: give the folder of a model's checkpoint")
    return settings.model_dir


def _engine(settings: RecallSettings) -> TransformersEngine:
    transformers.utils.logging.disable_progress_bar()
    try:
        return load_engine(_folder(settings), settings.device, getattr(torch, settings.dtype), budget_bytes=1)
    except (OSError, ValueError, RuntimeError) as error:
        raise StartupError(
            f"LOOKOUT_MODEL_DIR={settings.model_dir}: the model does not load: {error}"
        ) from error


def _sources(settings: RecallSettings) -> tuple[ChapterSources, Any]:
    """Where chapters are read, and what ends that."""
    directory = Directory(settings.redis_url, settings.store, settings, AddressSigner.of(settings))
    client = settings.redis_client(
        settings.redis_url,
        socket_timeout=settings.store.redis_timeout_s,
        socket_connect_timeout=settings.store.redis_timeout_s,
        retry=None,
    )
    holders = Holders(settings, traced=tracing.traced, list_s=settings.list_s, read_s=settings.read_s)
    sources = ChapterSources(
        holders,
        directory,
        ScenesDirectory(directory, client),
        replicas=settings.holders,
        durable=_durable(settings),
    )

    def close() -> None:
        sources.close()
        client.close()
        directory.close()

    return sources, close


def _durable(settings: RecallSettings) -> ChapterStore | None:
    if settings.memory_url is None:
        return None
    from lookout.chapters.durable import DurableTier

    try:
        return DurableTier(settings.memory_url)
    except HistoryError as error:
        raise StartupError(f"LOOKOUT_MEMORY_URL={public_url(settings.memory_url)}: {error}") from error


if __name__ == "__main__":
    sys.exit(main())
