"""`python -m lookout.services.decode`: reads camera.segments.v1, writes frames.v1."""

import time

from lookout.past.erasures import join, live_fence
from lookout.rules import asks_for_outages, watch_fault
from lookout.runtime.observe import traced
from lookout.runtime.store import Node, store_numbers
from lookout.runtime.tenants import open_usage
from lookout.runtime.worker import Context, main
from lookout.services.decode.backend import TimedDecoder, choose_decoder
from lookout.services.decode.handler import DecodeHandler
from lookout.services.decode.settings import DecodeSettings
from lookout.streams.stages.masks import live_masks
from lookout.v1.lineage_pb2 import STAGE_FRAMES
from lookout.video.sandbox import SandboxPool, SandboxSettings
from lookout.video.sandbox.confine import hide_memory
from lookout.wire import WATCHES, Stage
from lookout.wire.limits import ALL_WATCHES


def make_handler(context: Context[DecodeSettings]) -> DecodeHandler:
    """Build the handler, its decoders and its tensor store."""
    settings = context.settings
    sandbox = SandboxSettings(
        memory=settings.decoder_memory,
        cpu_s=settings.decoder_cpu_s,
        wall_s=settings.decoder_wall_s,
        modules=("lookout.pruning",),
    )
    # Before the first decoder starts: a compromised decoder must not read this process's memory.
    hide_memory()
    # One decoder more than threads, so that a peer's request for lost pixels never waits for the pipeline.
    pool = SandboxPool(settings.threads + 1, sandbox)
    context.on_close(pool.close)
    decoder, backend = choose_decoder(settings.backend, pool)
    decoder = TimedDecoder(decoder, context.metrics.computing(settings.threads))
    node = Node(settings.store, settings.redis_url, traced=traced, security=settings)
    context.on_close(node.close)
    fence, erasures = live_fence(context, settings.store.spool)
    tenants = open_usage(context, settings, ("bytes", "cameras"))
    watches = context.table(WATCHES.name, check=watch_fault, limit=ALL_WATCHES, kept=1)
    handler = DecodeHandler(
        settings,
        decoder,
        node.store,
        context.rereader,
        backend=backend,
        fence=fence,
        tenants=tenants,
        masks=live_masks(context, node.store.forget_camera),
        asks_for_outages=lambda *of: asks_for_outages(watches.view().history, time.time() * 1000, *of),
    )
    steps = {"tensors": lambda erasure: node.store.forget_camera(erasure.camera)}
    join(context, erasures, steps, stays=settings.store.spool is not None)
    context.grpc.add(node.service.register, node.service.NAME)
    context.downstream(Stage.PRUNE_ENCODE, node.store.consumed_all)
    node.join(STAGE_FRAMES, settings.instance, context.address, context.supervisor)
    context.metrics.show(lambda: store_numbers(node.store))
    return handler


if __name__ == "__main__":
    main(Stage.DECODE, DecodeSettings, make_handler)
