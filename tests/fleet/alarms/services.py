"""`python -m tests.fleet.alarms.services STAGE FOLDER`: services whose fault cannot be caused from outside.

The controller is the real one without an election, as the API server of the tests serves Lookout's resources
alone, and it waits seconds for an answer, not ten minutes. Prefill is the real one with a fake fault of its
device: while FOLDER/device is there, its model raises what torch raises when a CUDA device fails.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

UNANSWERED_S = 5.0
BROKEN = "CUDA error: an illegal memory access was encountered"


def run_controller() -> None:
    """Lead until the process is ended."""
    from lookout.runtime.observe import Health, Metrics, Probes, logs
    from lookout.runtime.worker import load_settings
    from lookout.services.controller import metrics as resource_metrics
    from lookout.services.controller.__main__ import Controller
    from lookout.services.controller.cluster import connect
    from lookout.services.controller.settings import ControllerSettings

    resource_metrics.UNANSWERED_S = UNANSWERED_S  # type: ignore[misc]
    settings = load_settings(ControllerSettings)
    logs.setup("controller", settings.instance)
    connect(settings.kubeconfig)
    health, metrics = Health(), Metrics("controller")
    health.clear("worker")
    Probes(metrics, health, settings.metrics_port, settings.host).start()
    Controller(settings, health, metrics).lead()


def run_prefill(folder: Path) -> None:
    """Prefill, whose device fails while a file is there."""
    from lookout.runtime.worker import main
    from lookout.services.prefill import __main__ as module
    from lookout.services.prefill.settings import PrefillSettings
    from lookout.wire import Stage

    prefill: Any = module
    load: Callable[..., Any] = prefill.load_engine

    def failing(*arguments: Any, **options: Any) -> Any:
        engine = load(*arguments, **options)
        real = engine.run

        def run(*given: Any, **more: Any) -> Any:
            if (folder / "device").exists():
                raise RuntimeError(BROKEN)
            return real(*given, **more)

        engine.run = run
        return engine

    prefill.load_engine = failing
    main(Stage.PREFILL, PrefillSettings, prefill.make_handler)


if __name__ == "__main__":
    if sys.argv[1] == "controller":
        run_controller()
    else:
        run_prefill(Path(sys.argv[2]))
