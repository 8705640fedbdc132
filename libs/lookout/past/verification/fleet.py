"""Loads what replaying a fleet's past needs: the fleet's settings, its model, and access to its tokens."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lookout.models.digest import folder_digest
from lookout.models.engines import Engine, load_engine
from lookout.models.windows import Planner
from lookout.past.verification.tokens import TokensFromKafka
from lookout.runtime.worker import load_settings
from lookout.services.prefill.settings import PrefillSettings
from lookout.services.prefill.sizing import kv_bytes
from lookout.streams.chains import LoadTokens


@dataclass(frozen=True, slots=True)
class FleetReplay:
    """Everything needed to replay a fleet's windows, for back-tests, verification and rebuilding chapters.

    Attributes:
        settings: Settings of the fleet's prefill service.
        model_digest: Digest of the fleet's model.
        engine: Computes windows in this process; it has no state of the fleet.
        planner: Plans windows with the fleet's settings.
        load: Returns the block of a tokens record.
    """

    settings: PrefillSettings
    model_digest: str
    engine: Engine
    planner: Planner
    load: LoadTokens


@contextmanager
def fleet_replay(
    model: Path,
    bootstrap: str,
    common: Mapping[str, Any] | None = None,
    own: Mapping[str, Mapping[str, Any]] | None = None,
) -> Iterator[FleetReplay]:
    """Load a fleet's model, and prepare to compute its tokens from segments in Kafka.

    Args:
        model: Folder of the fleet's model.
        bootstrap: Addresses of the Kafka brokers.
        common: Settings of the whole fleet that differ from the defaults.
        own: Settings of single services that differ from the defaults, by service name.

    Raises:
        LookoutError: The settings or the model cannot be used.
    """
    options = {"bootstrap": bootstrap, **(common or {})}
    theirs = {name: dict(values) for name, values in (own or {}).items()}
    settings = load_settings(
        PrefillSettings, {}, **{"mode": "local", "model_dir": model, **options, **theirs.get("prefill", {})}
    )
    digest = folder_digest(model)
    engine = load_engine(model, settings.device, settings.dtype, budget_bytes=kv_bytes(settings, model))
    planner = Planner(engine.layout, settings.windows)
    with closing(engine), TokensFromKafka(model, digest, options, theirs) as tokens:
        yield FleetReplay(settings, digest, engine, planner, tokens.load)
