"""`lookout memory rebuild`: recomputes chapters whose holders are lost, from Kafka."""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from lookout.cli.commands import log_plainly
from lookout.cli.model import DeviceOption, ModelOption, find_model
from lookout.cli.options import BootstrapOption, CliError, PresetOption, SettingOption
from lookout.cli.output import TerminalConsole, echo, say
from lookout.cli.times import PAST

if TYPE_CHECKING:
    from lookout.past.chapters.reading import ChapterSources
    from lookout.past.memory import Chapter
    from lookout.past.verification import Rebuilt

_LATEST_MS = 1 << 62


def rebuild(
    camera: Annotated[str, typer.Option("--camera", "-c", help="Camera id or pattern ('yard-*').")],
    since: Annotated[str, typer.Option(help=f"{PAST}.")] = "24h",
    until: Annotated[str, typer.Option(help=f"now, or {PAST}.")] = "now",
    to: Annotated[
        str | None,
        typer.Option(
            help="Durable tier of the fleet: s3://bucket/prefix, or a folder.  [default: LOOKOUT_MEMORY_URL]"
        ),
    ] = None,
    holder: Annotated[
        list[str] | None,
        typer.Option(help="gRPC address of a prefill pod; repeat.  [default: those of the local fleet]"),
    ] = None,
    model: ModelOption = None,
    device: DeviceOption = None,
    preset: PresetOption = "default",
    setting: SettingOption = None,
    bootstrap: BootstrapOption = None,
) -> None:
    """Recompute lost chapters while Kafka still holds their segments, and put them into the durable tier.

    Windows are recomputed in the same chains as in the fleet. Give the settings of the fleet with
    --preset and --set.
    """
    from lookout.cli.connect import check_reachable, find_bootstrap, grpc_security, kafka_settings
    from lookout.cli.fleet_settings import settings_of_replay
    from lookout.cli.times import parse_span
    from lookout.cli.up import parse_settings
    from lookout.wire import TOKENS

    url = _tier(to)
    begin_ms, end_ms = parse_span(since, until)
    folder = find_model(model)
    settings = settings_of_replay(folder, *parse_settings(setting or [], preset, device))
    address = find_bootstrap(bootstrap)
    check_reachable(address, TOKENS.name)
    log_plainly()
    # Imported after the quick checks, because models take seconds to import.
    from lookout.models.families.inference import inference_only
    from lookout.past.chapters.durable import DurableTier
    from lookout.past.chapters.reading import ChapterSources, Holders
    from lookout.past.verification import rebuild_chapters
    from lookout.streams.chains import PastScope

    tier = DurableTier(url)
    sources = ChapterSources(
        Holders(grpc_security(address)), replicas=holder or _holders(address), durable=tier
    )

    try:
        scope = PastScope(camera, begin_ms or 0, end_ms or _LATEST_MS)
        connection = kafka_settings(address)
        present = partial(_present, sources)
        with inference_only():
            rebuilt = rebuild_chapters(folder, address, scope, tier, present, common=connection, own=settings)
    finally:
        sources.close()
    echo(_sentence(rebuilt))


def _present(sources: ChapterSources, name: str) -> list[Chapter]:
    """Return a camera's available chapters; print why other chapters are missing."""
    resolved = sources.find(name, None, None).get(name)
    console = TerminalConsole(stderr=True)
    for cause in resolved.missing if resolved is not None else ():
        say(console, "{}: {}", name, cause)
    return [] if resolved is None else resolved.chapters


def _sentence(rebuilt: Rebuilt) -> str:
    return (
        f"blocks rebuilt: {rebuilt.blocks}, in chapters: {rebuilt.chapters}; past the retention of Kafka: "
        f"{rebuilt.gone}"
    )


def _tier(given: str | None) -> str:
    if url := given or os.environ.get("LOOKOUT_MEMORY_URL"):
        return url
    raise CliError("name the fleet's durable tier with --to, or in LOOKOUT_MEMORY_URL")


def _holders(bootstrap: str) -> list[str]:
    """Return the gRPC addresses of prefill in the local fleet whose Kafka has this address."""
    from lookout.local import running_fleets

    return [
        f"127.0.0.1:{port}"
        for fleet in running_fleets()
        if fleet.bootstrap == bootstrap
        for name, port in fleet.grpc.items()
        if name.startswith("prefill-")
    ]
