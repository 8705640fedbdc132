"""The console in Chromium with a thousand cameras: `make bench-console`.

It runs a real gateway and a real Kafka. The history of 1 000 cameras, with 100 000 incidents, is written into
the gateway's tables before it starts.

- `first_paint_ms`: from the navigation until the wall shows cameras, with an empty cache (median).
- `incident_ms`: from writing an alert until its line is on the screen (median).
- `scroll_fps`: pictures per second while the wall scrolls from end to end.
- `bundle_kb`: size of what a browser loads, compressed.
- `axe_serious`: number of serious problems that axe finds in the views, light and dark.

The last line is JSON.
"""

from __future__ import annotations

import argparse
import gzip
import json
import statistics
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from bench.gateway import fill_incidents, ingest, messages
from lookout.administration import Writer
from lookout.local import KafkaServer, RedisServer
from lookout.services.gateway.console_files import BUILT
from lookout.services.gateway.history.database import Database
from lookout.wire import ALERTS, to_json
from tests.browser import Browser, browser
from tests.eventually import eventually
from tests.fleet.gateway_case import GatewayProcess, gateway
from tests.fleet.gateway_records import alert, publish, watch

VIEWS: Final = (
    "",
    "incidents",
    "watches",
    "watch",
    "start",
    "operations?tab=coverage",
    "cameras/camera-0007",
)
INCIDENTS: Final = 7
_SHOWN: Final = """
new MutationObserver((_, observer) => {
  if (document.querySelector(".camera") === null) return;
  observer.disconnect();
  requestAnimationFrame(() => (window.shown = performance.now()));
}).observe(document, {childList: true, subtree: true});
"""
_SCROLL: Final = """new Promise(done => {
  const begun = performance.now(), seconds = 3, height = document.documentElement.scrollHeight - innerHeight;
  let pictures = 0;
  const step = now => {
    pictures += 1;
    const share = (now - begun) / 1000 / seconds;
    if (share >= 1) return done(pictures / seconds);
    scrollTo(0, height * share);
    requestAnimationFrame(step);
  };
  requestAnimationFrame(step);
})"""
_AXE: Final = (
    "axe.run().then(r => r.violations.filter(v => ['serious', 'critical'].includes(v.impact)).length)"
)


def first_paint(page: Browser, process: GatewayProcess) -> float:
    """Milliseconds from the navigation until cameras are on the screen."""
    page.call("Network.setCacheDisabled", cacheDisabled=True)
    page.go(f"{process.url}/")
    eventually(lambda: page.evaluate("window.shown"))
    return float(page.evaluate("window.shown"))


def incident(page: Browser, writer: Writer, number: int) -> float:
    """Milliseconds from an alert's write until it is on the screen."""
    page.evaluate(
        f"""window.seen = new Promise(done => new MutationObserver((_, observer) => {{
  if (!document.body.innerText.includes("new-{number}-camera")) return;
  observer.disconnect();
  requestAnimationFrame(() => done(Date.now()));
}}).observe(document.body, {{childList: true, subtree: true, characterData: true}})); undefined"""
    )
    raised = alert(f"new-{number}-camera", 100 + number)
    begun = time.time()
    writer.write(ALERTS.name, {raised.camera: to_json(raised)})
    return float(page.evaluate("window.seen")) - 1000 * begun


def axe(page: Browser) -> int:
    """Serious findings on all views in both themes."""
    page.evaluate((BUILT.parent / "node_modules" / "axe-core" / "axe.min.js").read_text() + "; undefined")
    found = 0
    for view in VIEWS:
        page.evaluate(f"location.hash = '#/{view}'")
        for theme in ("light", "dark"):
            page.evaluate(f"document.documentElement.dataset.theme = {theme!r}")
            time.sleep(1.0)
            found += int(page.evaluate(_AXE))
    return found


def bundle_kb() -> float:
    """Kilobytes of everything a browser loads, compressed."""
    files = [BUILT / "index.html", *(BUILT / "assets").iterdir()]
    return sum(len(gzip.compress(file.read_bytes())) for file in files) / 1000


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--verdicts", type=int, default=100_000)
    options = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        kafka, redis = stack.enter_context(KafkaServer()), stack.enter_context(RedisServer())
        database = Database(f"sqlite:///{folder / 'history.db'}")
        database.migrate()
        ingest(database, messages(options.verdicts), 9000)
        fill_incidents(database, round(time.time() * 1000))
        database.close()
        process = gateway(stack, folder, kafka.bootstrap, redis.url)
        publish(kafka.bootstrap, [watch(), *(alert(f"camera-{number:04d}", number) for number in range(100))])
        page = stack.enter_context(browser(folder / "profile"))
        page.call("Page.enable")
        page.call("Page.addScriptToEvaluateOnNewDocument", source=_SHOWN)
        page.resize(1440, 900)
        page.go(f"{process.url}/sign-in/{process.sign_in_file.read_text()}")
        painted = [first_paint(page, process) for _ in range(5)]
        fps = float(page.evaluate(_SCROLL))
        page.evaluate("location.hash = '#/incidents'")
        eventually(lambda: page.evaluate("document.querySelectorAll('li a').length === 100"))
        writer = Writer({"bootstrap.servers": kafka.bootstrap})  # connected: the record counts, no connection
        writer.write(ALERTS.name, {"before": to_json(alert("before", 99))})
        shown = [incident(page, writer, number) for number in range(INCIDENTS)]
        figures = {
            "first_paint_ms": round(statistics.median(painted)),
            "incident_ms": round(statistics.median(shown)),
            "scroll_fps": round(fps, 1),
            "bundle_kb": round(bundle_kb(), 1),
            "axe_serious": axe(page),
        }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
