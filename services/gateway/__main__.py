"""`python -m lookout.services.gateway`: the HTTP API over a fleet's topics."""

from __future__ import annotations

from lookout.errors import StartupError
from lookout.past.erasures import join, live_fence
from lookout.runtime.observe import logs
from lookout.runtime.worker import Context, serve
from lookout.services.gateway.app import make_app
from lookout.services.gateway.history.ingest import Ingest
from lookout.services.gateway.history.retention import Retention
from lookout.services.gateway.masks import MaskKeeper
from lookout.services.gateway.media.keeping import Keeping
from lookout.services.gateway.parts import make_parts
from lookout.services.gateway.periodic import PeriodicTask
from lookout.services.gateway.reports import ScheduledReports, note_outages
from lookout.services.gateway.serving import HttpServer
from lookout.services.gateway.settings import GatewaySettings

_START_S = 30.0


def add(context: Context[GatewaySettings]) -> None:
    """Open the database and serve.

    Raises:
        StartupError: The database, the port or a certificate cannot be used.
    """
    parts = make_parts(context.settings)
    context.on_close(parts.database.close)
    if parts.provider is not None:
        context.on_close(parts.provider.close)
    context.on_close(parts.media.close)
    context.health.block("history", "the history is still reading its tables")
    context.supervisor.start("history", parts.ingest.run)
    context.supervisor.start("events", parts.feed.run)
    context.supervisor.start("live", parts.live.run)
    if parts.keeping is not None:
        _keep(context, parts.keeping)
    if parts.uploads is not None:
        _repeat(
            context, "uploads", PeriodicTask(parts.uploads.sweep, 3600.0, "old uploads cannot be removed now")
        )
    read = parts.ingest.caught_up
    if context.settings.report_times:
        _repeat(
            context,
            "reports",
            PeriodicTask(ScheduledReports(parts).write, 5.0, "a report cannot be written now", read),
        )
    agents = PeriodicTask(
        lambda: note_outages(parts), 10.0, "agents' reports on outages cannot be stored now", read
    )
    _repeat(context, "agents", agents)
    masks = PeriodicTask(MaskKeeper(parts).write, 2.0, "masks cannot be rewritten now", read)
    _repeat(context, "masks", masks)
    retention = Retention(parts.database, context.settings)
    _repeat(context, "retention", PeriodicTask(retention.remove, 600.0, "old history cannot be removed now"))
    context.supervisor.start("history-ready", lambda: _tell_ready(context, parts.ingest))
    server = HttpServer(make_app(parts), context.settings)
    thread = context.supervisor.start("http", server.run)
    if context.settings.http_cert_file is not None:
        context.supervisor.start("certificate", server.follow_certificate)

    def stop() -> None:
        parts.feed.stop()
        parts.live.stop()
        parts.ingest.stop()
        server.stop()
        thread.join(10.0)

    context.on_close(stop)
    if not server.await_start(_START_S):
        context.supervisor.check()
        raise StartupError(f"the HTTP server did not start within {_START_S:g} s")
    logs.get("gateway").info("serving", port=server.port)


def _keep(context: Context[GatewaySettings], keeping: Keeping) -> None:
    """Start the removal of kept evidence: by age, and by erasures."""
    _, erasures = live_fence(context)
    # All gateways share the store, so only one of them needs to erase and confirm.
    join(context, erasures, {"kept evidence": keeping.erase}, stays=True, member="kept-evidence")
    _repeat(
        context,
        "kept-evidence",
        PeriodicTask(keeping.sweep, 15.0, "kept evidence cannot be stored or removed now"),
    )


def _repeat(context: Context[GatewaySettings], name: str, task: PeriodicTask) -> None:
    context.supervisor.start(name, task.run)
    context.on_close(task.stop)


def _tell_ready(context: Context[GatewaySettings], ingest: Ingest) -> None:
    ingest.caught_up.wait()
    context.health.clear("history")


if __name__ == "__main__":
    serve("gateway", GatewaySettings, add)
