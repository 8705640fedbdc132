"""`python -m lookout.services.recall`: answers questions about cameras' past over gRPC."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import transformers

from lookout.errors import StartupError
from lookout.models import listed_questions
from lookout.models.engines.transformers import TransformersEngine, load_engine
from lookout.models.families import load_tower
from lookout.models.families.inference import inference_only
from lookout.models.vision import Tower
from lookout.models.windows import Planner, StrideBlock
from lookout.past.backtests import PastWindows
from lookout.past.chapters.announcing import ScenesDirectory
from lookout.past.chapters.landmarks import LandmarkReader
from lookout.past.chapters.reading import ChapterSources, Holders
from lookout.past.erasures import Fence, join, live_fence
from lookout.past.find.finding import Finder
from lookout.past.find.moments import Hidden
from lookout.past.find.pictures import PictureEncoder
from lookout.past.find.records import KafkaRecords
from lookout.past.memory import HistoryError
from lookout.runtime.observe import traced
from lookout.runtime.store import Directory, Node
from lookout.runtime.store.signing import AddressSigner
from lookout.runtime.tenants import open_usage
from lookout.runtime.worker import Context, checked_model, loading, serve
from lookout.services.recall.asking import Asker
from lookout.services.recall.searching import Finders, FleetMemory
from lookout.services.recall.servicer import RecallService
from lookout.services.recall.settings import RecallSettings
from lookout.streams.chains import load_block, windows_of
from lookout.streams.stages.masks import live_masks
from lookout.text import public_url
from lookout.v1.erasures_pb2 import Erasure
from lookout.v1.lineage_pb2 import STAGE_TOKENS
from lookout.v1.tokens_pb2 import TokensRecord

if TYPE_CHECKING:
    from lookout.past.chapters.durable import DurableTier


def add(context: Context[RecallSettings]) -> None:
    """Load the model and serve questions.

    Raises:
        StartupError: The model or the durable tier cannot be used.
    """
    settings = context.settings
    os.nice(settings.niceness)  # live cameras' windows on the same CPU take precedence
    folder, digest = checked_model(settings, settings.model_dir)
    fence, erasures = live_fence(context)
    masks = live_masks(context)
    directory = Directory(settings.redis_url, settings.store, settings, AddressSigner.of(settings))
    client = settings.redis_client(
        settings.redis_url,
        socket_timeout=settings.store.redis_timeout_s,
        socket_connect_timeout=settings.store.redis_timeout_s,
        retry=None,
    )
    landmarks = LandmarkReader(directory, client, digest)
    sources = _sources(context, directory, ScenesDirectory(directory, client))
    for close in (directory.close, client.close, sources.close):
        context.on_close(close)
    asker = Asker(
        _engine(settings, folder),
        sources,
        model_digest=digest,
        cache_bytes=settings.cache_bytes,
        foresee=settings.device != "cpu",  # on a CPU, prefetching would compete with computing
        fence=fence,
        masks=masks,
    )

    def erase(erasure: Erasure) -> int:
        landmarks.forget(erasure.camera)
        return asker.erase(erasure.camera)

    join(context, erasures, {"cache": erase}, stays=False)

    def hidden(camera: str, begin_us: int, end_us: int) -> bool:
        return fence.hides(camera, begin_us, end_us) is not None or begin_us < masks.since_us(camera)

    finders = _finders(context, folder, asker, landmarks, fence=fence, hidden=hidden)
    service = RecallService(asker, settings, context.metrics, finders)
    context.grpc.add(service.register, service.NAME)
    context.supervisor.start("landmarks", landmarks.read_ahead)


def _engine(settings: RecallSettings, folder: Path) -> TransformersEngine:
    transformers.utils.logging.disable_progress_bar()
    with loading(folder), inference_only():
        return load_engine(folder, settings.device, getattr(torch, settings.dtype))


def _tower(settings: RecallSettings, folder: Path) -> Tower:
    """Load the vision tower, which only searches by an uploaded picture need."""
    with inference_only():
        return load_tower(folder, device=settings.device, dtype=getattr(torch, settings.dtype))


def _finders(
    context: Context[RecallSettings],
    folder: Path,
    asker: Asker,
    landmarks: LandmarkReader,
    *,
    fence: Fence,
    hidden: Hidden,
) -> Finders:
    """Return a factory of finders; each search gets its own readers."""
    settings, engine = context.settings, asker.engine
    replicas: dict[int, Sequence[str]] = {STAGE_TOKENS: settings.token_replicas}
    node = Node(settings.store, settings.redis_url, replicas=replicas, security=settings)
    context.on_close(node.close)
    planner = Planner(engine.layout, windows_of(settings))

    def load(record: TokensRecord) -> StrideBlock:
        return load_block(record, node.client, settings.step_us).block

    windows = PastWindows(settings, engine, planner, load, asker.model_digest, listed_questions(folder))
    pictures = PictureEncoder(lambda: _tower(settings, folder), settings)
    context.on_close(pictures.close)
    usage = open_usage(context, settings, ["searched"])

    @contextmanager
    def finder() -> Iterator[Finder]:
        with KafkaRecords(settings, planner, fence) as records:
            memory = FleetMemory(asker, landmarks)
            yield Finder(memory, records, windows, hidden, usage, pictures.block)

    return finder


def _sources(
    context: Context[RecallSettings], directory: Directory, scenes: ScenesDirectory
) -> ChapterSources:
    """Return the sources from which chapters are read."""
    settings = context.settings
    holders = Holders(settings, traced=traced)
    return ChapterSources(holders, directory, scenes, replicas=settings.holders, durable=_durable(settings))


def _durable(settings: RecallSettings) -> DurableTier | None:
    if settings.memory_url is None:
        return None
    from lookout.past.chapters.durable import DurableTier

    try:
        return DurableTier(settings.memory_url)
    except HistoryError as error:
        raise StartupError(f"LOOKOUT_MEMORY_URL={public_url(settings.memory_url)}: {error}") from error


if __name__ == "__main__":
    serve("recall", RecallSettings, add)
