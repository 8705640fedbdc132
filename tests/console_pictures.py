"""`python -m tests.console_pictures LINK FOLDER`: pictures of every view of the console.

LINK is one that `lookout sign-in` prints. Every view is drawn at 1440 and 390 pixels, light and dark, with
what the fleet has. Ends with one line of JSON: how many pictures, which views are wider than the window.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from tests.browser import Browser, browser
from tests.eventually import eventually

SIZES: Final = ((1440, 900), (390, 844))
SETTLED_S: Final = 2.5


def views(page: Browser) -> dict[str, str]:
    """Every view's address after the #, by name; of those about one thing, the newest thing there is."""

    def first(path: str, field: str, name: str) -> str | None:
        value: Any = page.evaluate(f"fetch({path!r}).then(a => a.json()).then(a => a.{field}?.[0]?.{name})")
        return None if value is None else quote(str(value), safe="/")

    found = {
        "wall": "",
        "incidents": "incidents",
        "watches": "watches",
        "watch-new": "watch",
        "start": "start",
    }
    found |= {"recordings": "recordings", "find": "find", "report": "report?within=86400"}
    found |= {"notifications": "notifications"}
    found |= {
        f"operations-{tab}": f"operations?tab={tab}"
        for tab in ("fleet", "coverage", "costs", "usage", "letters", "erasures", "audit", "tokens")
    }
    if camera := first("/v1/cameras", "cameras", "id"):
        found["camera"] = f"cameras/{camera}"
    if incident := first("/v1/incidents?limit=1", "incidents", "id"):
        found["incident"] = f"incidents/{incident}"
    if job := first("/v1/recordings", "jobs", "request.id"):
        found["recording"] = f"recordings/{job}"
    if watch := first("/v1/watches", "watches", "watch.id"):
        found["watch"] = f"watch/{watch}"
    return found


def draw(page: Browser, folder: Path) -> dict[str, Any]:
    """Draw every view; what is wrong with some of them."""
    folder.mkdir(parents=True, exist_ok=True)
    wide: list[str] = []
    drawn = 0
    for name, address in views(page).items():
        for width, height in SIZES:
            page.resize(width, height)
            page.evaluate(f"location.hash = '#/{address}'")
            for theme in ("light", "dark"):
                preferred = [{"name": "prefers-color-scheme", "value": theme}]
                page.call("Emulation.setEmulatedMedia", features=preferred)
                time.sleep(SETTLED_S if theme == "light" else 0.5)
                page.screenshot(folder / f"{name}-{width}-{theme}.png")
                drawn += 1
            if page.evaluate("document.documentElement.scrollWidth > innerWidth"):
                wide.append(f"{name} at {width}")
    return {"pictures": drawn, "wider_than_the_window": wide}


def main() -> None:
    """Draw, and say what was drawn."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("link")
    parser.add_argument("folder", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as profile, browser(Path(profile)) as page:
        page.go(options.link)
        eventually(lambda: page.evaluate("document.querySelector('nav') !== null"))
        print(json.dumps(draw(page, options.folder)))


if __name__ == "__main__":
    main()
