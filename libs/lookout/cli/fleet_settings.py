"""Settings of a local fleet, checked before any part of it starts."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from lookout.cli.options import CliError
from lookout.errors import StartupError
from lookout.local import CAMERA_AGENT, GATEWAY, RECALL, RECORDINGS_DECODE, RECORDINGS_ROLES
from lookout.local.fleet import service_module
from lookout.text import clean
from lookout.wire import CANARY, CANARY_STAGES, NOTIFY, Stage

if TYPE_CHECKING:
    from lookout.runtime.worker import ServiceSettings


def settings_of_services(
    common: Mapping[str, str], own: Mapping[str, Mapping[str, str]], services: Collection[str]
) -> dict[str, dict[str, str]]:
    """Return the settings of every service. Each common setting goes to all services that have it.

    Args:
        common: Settings without a service's name.
        own: Settings of one service, by its name.
        services: Services that will run.

    Raises:
        CliError: No service has a setting of this name, a value is wrong, or the service does not run.
    """
    for service in own:
        if service not in services:
            names = ", ".join(f"{service}.{name}" for name in own[service])
            raise CliError(f"--set {clean(names, 60)}: {service} does not run; {_WITH[service]}")
    from lookout.runtime.worker import load_settings
    from lookout.runtime.worker.retired_settings import retired

    kinds = {service: _kind(service) for service in services}
    for name in common:
        if not any(_has(kind, name) for kind in kinds.values()):
            if (instead := retired(name)) is not None:
                raise CliError(f"--set {name}: this setting was removed: {instead}")
            raise CliError(f"--set {clean(name, 60)}: no service has such a setting{_similar(name, kinds)}")
    settings = {}
    for service, kind in kinds.items():
        shared = {name: value for name, value in common.items() if _has(kind, name)}
        settings[service] = {**shared, **own.get(service, {})}
        environment = {f"LOOKOUT_{name.upper()}": value for name, value in settings[service].items()}
        try:
            load_settings(kind, {"LOOKOUT_MODE": "local", **environment})
        except StartupError as error:
            raise CliError(f"--set: {service}: {error}") from None
    return settings


def settings_of_replay(
    folder: Path, common: Mapping[str, str], own: Mapping[str, Mapping[str, str]]
) -> dict[str, dict[str, str]]:
    """Return a fleet's settings, given as for `lookout up`, for a command that recomputes the fleet's past.

    Args:
        folder: Folder of the model.
        common: Settings without a service's name.
        own: Settings of one service, by its name. Only those of stages are used, since other services do not
            affect the computation.

    Raises:
        CliError: No stage has such a setting, or a value is wrong.
    """
    stages = {stage: values for stage, values in own.items() if stage in set(Stage)}
    return settings_of_services({"model_dir": str(folder), **common}, stages, tuple(Stage))


_WITH = {
    GATEWAY: "only `lookout up` starts it",
    CAMERA_AGENT: "only `lookout up` starts it",
    NOTIFY.name: "only `lookout up` starts it",
    RECALL: "give --memory",
    **dict.fromkeys(RECORDINGS_ROLES, "give --recordings"),
    RECORDINGS_DECODE: "give --recordings, and recordings.ahead above 0",
    **dict.fromkeys(CANARY_STAGES, "give --canary"),
}


def _has(kind: type[ServiceSettings], name: str) -> bool:
    """Whether a service has a setting; for a nested setting such as `store__memory_bytes`, whether it has the
    record `store`.
    """
    return name.split("__", maxsplit=1)[0] in kind.model_fields


def _similar(name: str, kinds: Mapping[str, type[ServiceSettings]]) -> str:
    names = sorted({field for kind in kinds.values() for field in kind.model_fields})
    close = difflib.get_close_matches(name[:60], names, n=1, cutoff=0.65)
    return f"; did you mean {close[0]}?" if close else ""


def _kind(service: str) -> type[ServiceSettings]:
    """Return the class of a service's settings, which is in the module `settings` of the service's
    package."""
    from lookout.runtime.worker import ServiceSettings

    name = "recordings" if service in (*RECORDINGS_ROLES, RECORDINGS_DECODE) else service
    module = service_module(name.removeprefix(f"{CANARY}-"))
    name = f"{module}.settings"
    if importlib.util.find_spec(name) is None:
        return ServiceSettings
    kinds = vars(importlib.import_module(name)).values()
    return next(
        kind
        for kind in kinds
        if isinstance(kind, type) and issubclass(kind, ServiceSettings) and kind.__module__ == name
    )
