"""The controller as its leader runs it, until SIGTERM: the API server of `bench.scale` has no leases."""

from __future__ import annotations

import signal

from lookout.runtime.observe import Health, Metrics, logs
from lookout.runtime.worker import load_settings
from lookout.services.controller.__main__ import Controller
from lookout.services.controller.cluster import connect
from lookout.services.controller.settings import ControllerSettings


def main() -> None:
    """Lead."""
    settings = load_settings(ControllerSettings)
    logs.setup("controller", settings.instance, settings.log_level)
    connect(settings.kubeconfig)
    controller = Controller(settings, Health(stall_s=1e9), Metrics("controller"))
    signal.signal(signal.SIGTERM, lambda *_: controller.stop())
    controller.lead()


if __name__ == "__main__":
    main()
