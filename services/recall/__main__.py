"""`python -m lookout.services.recall`: questions about the past of cameras, over gRPC."""

from __future__ import annotations

import os
from pathlib import Path

import torch
import transformers

from lookout.errors import StartupError
from lookout.models.engines.transformers import TransformersEngine, load_engine
from lookout.models.families.inference import inference_only
from lookout.past.chapters.announcing import ScenesDirectory
from lookout.past.chapters.reading import ChapterSources, ChapterStore, Holders
from lookout.past.erasures import join, live_fence
from lookout.past.memory import HistoryError
from lookout.runtime.observe import traced
from lookout.runtime.store import Directory
from lookout.runtime.store.signing import AddressSigner
from lookout.runtime.worker import Context, checked_model, loading, serve
from lookout.services.recall.asking import Asker
from lookout.services.recall.servicer import RecallService
from lookout.services.recall.settings import RecallSettings
from lookout.text import public_url


def add(context: Context[RecallSettings]) -> None:
    """Load the model and serve questions.

    Raises:
        StartupError: the model or the durable tier cannot be used.
    """
    settings = context.settings
    os.nice(settings.niceness)  # windows of cameras come first where they share a processor
    folder, digest = checked_model(settings, settings.model_dir)
    fence, erasures = live_fence(context)
    asker = Asker(
        _engine(settings, folder),
        _sources(context),
        model_digest=digest,
        cache_bytes=settings.cache_bytes,
        foresee=settings.device != "cpu" if settings.foresee is None else settings.foresee,
        fence=fence,
    )
    join(context, erasures, {"cache": lambda erasure: asker.erase(erasure.camera)}, stays=False)
    service = RecallService(asker, settings, context.metrics)
    context.grpc.add(service.register, service.NAME)


def _engine(settings: RecallSettings, folder: Path) -> TransformersEngine:
    transformers.utils.logging.disable_progress_bar()
    with loading(folder), inference_only():
        return load_engine(folder, settings.device, getattr(torch, settings.dtype), budget_bytes=1)


def _sources(context: Context[RecallSettings]) -> ChapterSources:
    """Where chapters are read."""
    settings = context.settings
    directory = Directory(settings.redis_url, settings.store, settings, AddressSigner.of(settings))
    client = settings.redis_client(
        settings.redis_url,
        socket_timeout=settings.store.redis_timeout_s,
        socket_connect_timeout=settings.store.redis_timeout_s,
        retry=None,
    )
    holders = Holders(settings, traced=traced, list_s=settings.list_s, read_s=settings.read_s)
    sources = ChapterSources(
        holders,
        directory,
        ScenesDirectory(directory, client),
        replicas=settings.holders,
        durable=_durable(settings),
    )
    for close in (directory.close, client.close, sources.close):
        context.on_close(close)
    return sources


def _durable(settings: RecallSettings) -> ChapterStore | None:
    if settings.memory_url is None:
        return None
    from lookout.past.chapters.durable import DurableTier

    try:
        return DurableTier(settings.memory_url)
    except HistoryError as error:
        raise StartupError(f"LOOKOUT_MEMORY_URL={public_url(settings.memory_url)}: {error}") from error


if __name__ == "__main__":
    serve("recall", RecallSettings, add)
