"""`python -m lookout.services.prune_encode`: reads frames.v1, writes tokens.v1."""

import torch

from lookout.errors import StartupError
from lookout.models.families import load_tower
from lookout.models.families.inference import inference_only
from lookout.models.vision import VisionError
from lookout.past.erasures import join, live_fence
from lookout.runtime.observe import traced
from lookout.runtime.store import Node, store_numbers
from lookout.runtime.worker import Context, checked_model, loading, main
from lookout.services.prune_encode.encoder import Encoder
from lookout.services.prune_encode.handler import PruneEncodeHandler
from lookout.services.prune_encode.metrics import tower_numbers
from lookout.services.prune_encode.settings import PruneEncodeSettings
from lookout.streams.stages.masks import live_masks
from lookout.v1.lineage_pb2 import STAGE_FRAMES, STAGE_TOKENS
from lookout.wire import Stage


def make_handler(context: Context[PruneEncodeSettings]) -> PruneEncodeHandler:
    """Build the handler, its vision tower, its tensor store and its access to pixels."""
    settings = context.settings
    folder, model = checked_model(settings, settings.model_dir, tower_only=True)
    with loading(folder, "the vision tower"), inference_only():
        tower = load_tower(folder, device=settings.device, dtype=getattr(torch, settings.dtype))
    encoder = Encoder(tower, settings.batch, context.supervisor, context.metrics.computing())
    context.on_close(encoder.close)
    node = Node(
        settings.store,
        settings.redis_url,
        traced=traced,
        replicas={STAGE_FRAMES: settings.frame_replicas},
        security=settings,
    )
    context.on_close(node.close)
    fence, erasures = live_fence(context, settings.store.spool)
    live_masks(context, node.store.forget_camera)
    try:
        handler = PruneEncodeHandler(
            settings, encoder, node.store, node.client, context.rereader, model_digest=model, fence=fence
        )
    except VisionError as error:
        raise StartupError(f"LOOKOUT_INPUT_WIDTH, LOOKOUT_INPUT_HEIGHT: {error}") from error
    steps = {"tensors": lambda erasure: node.store.forget_camera(erasure.camera)}
    join(context, erasures, steps, stays=settings.store.spool is not None)
    context.grpc.add(node.service.register, node.service.NAME)
    context.downstream(Stage.PREFILL, node.store.consumed_all)
    node.join(STAGE_TOKENS, settings.instance, context.address, context.supervisor)
    context.metrics.show(lambda: tower_numbers(encoder))
    context.metrics.show(lambda: store_numbers(node.store))
    return handler


if __name__ == "__main__":
    main(Stage.PRUNE_ENCODE, PruneEncodeSettings, make_handler)
