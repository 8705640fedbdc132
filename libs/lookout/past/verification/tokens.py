"""Computes tokens again in this process: decodes segments from Kafka, prunes them as recorded, and encodes
them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self

import torch

from lookout.models.families import load_tower
from lookout.models.windows import StrideBlock
from lookout.runtime.store import Peers, StoreSettings, TensorClient, TensorStore
from lookout.runtime.worker import RecordReader, load_settings
from lookout.services.decode.handler import DecodeHandler
from lookout.services.decode.settings import DecodeSettings
from lookout.services.prune_encode.encoder import Encoder
from lookout.services.prune_encode.handler import PruneEncodeHandler
from lookout.services.prune_encode.settings import PruneEncodeSettings
from lookout.streams.chains import load_block
from lookout.streams.stages.masks import read_masks_now
from lookout.v1.tokens_pb2 import TokensRecord
from lookout.video.sandbox import SandboxPool, SandboxSettings

_MEMORY_BYTES = 256 << 20


class TokensFromKafka:
    """Computes the blocks of tokens records without pods, by running the code of decode and prune-encode
    here.

    Args:
        model: Folder of the fleet's model.
        model_digest: Digest of the fleet's model.
        common: Settings of every service (`bootstrap`, `fps`, ...).
        own: Settings of single services, by service name (`decode`, `prune-encode`).
    """

    def __init__(
        self, model: Path, model_digest: str, common: dict[str, Any], own: dict[str, dict[str, Any]]
    ) -> None:
        shared = {"mode": "local", "redis_url": "redis://127.0.0.1:1", "model_dir": model, **common}
        decode = load_settings(DecodeSettings, {}, **{**shared, **own.get("decode", {})})
        prune = load_settings(PruneEncodeSettings, {}, **{**shared, **own.get("prune-encode", {})})
        self._step_us = prune.step_us
        store = TensorStore(StoreSettings(memory_bytes=_MEMORY_BYTES, unread_bytes=_MEMORY_BYTES))
        self._client = TensorClient(Peers(StoreSettings()), None, store)
        self._records = RecordReader(decode)
        self._pool = SandboxPool(
            1, SandboxSettings(memory=decode.decoder_memory, modules=("lookout.pruning",))
        )
        tower = load_tower(model, device=prune.device, dtype=getattr(torch, prune.dtype))
        self._encoder = Encoder(tower, prune.batch)
        self._decode = DecodeHandler(decode, self._pool, store, self._records, masks=read_masks_now(decode))
        self._prune = PruneEncodeHandler(
            prune, self._encoder, store, self._client, self._records, model_digest=model_digest
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._encoder.close()
        self._pool.close()
        self._records.close()

    def load(self, record: TokensRecord) -> StrideBlock:
        """Return the stride block of a tokens record.

        Raises:
            LineageBrokenError: The record's segments are past their retention or were erased.
        """
        return load_block(record, self._client, self._step_us).block
