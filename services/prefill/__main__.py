"""`python -m lookout.services.prefill`: tokens.v1 in, verdicts.v1 out."""

from collections.abc import Sequence
from pathlib import Path

import torch
import transformers

from lookout.engines import Engine, load_engine
from lookout.errors import StartupError
from lookout.models.digest import folder_digest
from lookout.observe import traced
from lookout.rules import watch_fault
from lookout.services.prefill.batcher import Batcher
from lookout.services.prefill.handler import PrefillHandler
from lookout.services.prefill.loading import BlockCache, BlockLoader
from lookout.services.prefill.metrics import Numbers, audit_histogram
from lookout.services.prefill.settings import PrefillSettings
from lookout.services.prefill.watches import Watches
from lookout.store import Node, StoreNumbers
from lookout.streams import ChainRule, ChainRunner
from lookout.v1.lineage_pb2 import STAGE_TOKENS
from lookout.windows import Planner
from lookout.wire import WATCHES, Stage
from lookout.wire.limits import ALL_WATCHES
from lookout.worker import Context, check_digest, main


def make_handler(context: Context[PrefillSettings]) -> PrefillHandler:
    """The handler with its model, its watches and its way to the tokens."""
    settings = context.settings
    if settings.model_dir is None or not settings.model_dir.is_dir():
        raise StartupError(f"LOOKOUT_MODEL_DIR={settings.model_dir}: give the folder of a model's checkpoint")
    model = folder_digest(settings.model_dir)
    check_digest(settings, model)
    try:
        engine = _engine(settings, settings.model_dir)
    except (OSError, ValueError, RuntimeError) as error:
        raise StartupError(
            f"LOOKOUT_MODEL_DIR={settings.model_dir}: the model does not load: {error}"
        ) from error
    batcher = Batcher(
        engine, settings.batch, settings.key_batch, context.supervisor, context.metrics.computing()
    )
    context.on_close(batcher.close)
    replicas: dict[int, Sequence[str]] = {STAGE_TOKENS: settings.token_replicas}
    node = Node(settings.store, settings.redis_url, traced=traced, replicas=replicas, security=settings)
    context.on_close(node.close)
    table = context.table(WATCHES.name, check=watch_fault, limit=ALL_WATCHES)
    watches = Watches(table.view)
    context.health.note("crowded_cameras", watches.crowded)
    planner = Planner(engine.layout, settings.windows)
    runner = ChainRunner(ChainRule(planner, settings.reuse, settings.audit_limit), batcher)
    cache = BlockCache(settings.block_bytes)
    audits = audit_histogram(context.metrics.registry)
    handler = PrefillHandler(
        settings,
        watches,
        BlockLoader(node.client, cache, settings.step_us, settings.give_up_s),
        runner,
        log=context.rereader,
        model_digest=model,
        wait_for_watches=table.at_least,
        on_audit=audits.observe,
    )
    context.metrics.registry.register(Numbers(batcher, cache))
    context.metrics.registry.register(StoreNumbers(node.store))
    return handler


def _engine(settings: PrefillSettings, folder: Path) -> Engine:
    if settings.engine == "vllm":
        from lookout.engines import vllm

        return vllm.load_engine(
            folder,
            dtype=settings.dtype,
            budget_bytes=settings.kv_bytes,
            max_rows=settings.window_rows,
            max_batched_rows=settings.batch_rows,
            kv_cache_bytes=settings.block_table_bytes,
            eager=not settings.cuda_graphs,
        )
    transformers.utils.logging.disable_progress_bar()
    return load_engine(
        folder,
        settings.device,
        getattr(torch, settings.dtype),
        budget_bytes=settings.kv_bytes,
        spill_dir=settings.kv_spill_dir,
        rows_per_pass=settings.batch_rows,
    )


if __name__ == "__main__":
    main(Stage.PREFILL, PrefillSettings, make_handler)
