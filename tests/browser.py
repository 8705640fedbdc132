"""A page in a real Chromium, over its DevTools protocol."""

from __future__ import annotations

import base64
import itertools
import json
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from websockets.sync.client import ClientConnection, connect

from tests.eventually import eventually
from tests.local_http import open_local

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


class Browser:
    """One page."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket, self._numbers = socket, itertools.count(1)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """A command of the protocol, and its result."""
        number = next(self._numbers)
        self._socket.send(json.dumps({"id": number, "method": method, "params": parameters}))
        while (reply := json.loads(self._socket.recv(60))).get("id") != number:
            pass
        assert "error" not in reply, reply
        return dict(reply["result"])

    def evaluate(self, expression: str) -> Any:
        """The value of an expression in the page; a promise is awaited."""
        reply = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in reply, reply["exceptionDetails"]
        return reply["result"].get("value")

    @contextmanager
    def tab(self, url: str) -> Iterator[Browser]:
        """Another tab of the same browser."""
        target = self.call("Target.createTarget", url=url)["targetId"]
        host = self._socket.request.headers["Host"] if self._socket.request else ""
        with connect(f"ws://{host}/devtools/page/{target}", max_size=None, proxy=None) as socket:
            yield Browser(socket)
        self.call("Target.closeTarget", targetId=target)

    def resize(self, width: int, height: int) -> None:
        """Give the window a size, in CSS pixels; a narrow one is a phone's."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )

    def go(self, url: str) -> None:
        """Load an address, and whatever it leads to."""
        self.call("Page.navigate", url=url)
        eventually(
            lambda: (
                self.evaluate("document.readyState") == "complete"
                and self.evaluate("location.href") != "about:blank"
            )
        )

    def reload(self) -> None:
        """Load the page again. Returns once the new document is loaded: before, scripts see the old one."""
        self.call("Page.enable")
        self._socket.send(json.dumps({"id": next(self._numbers), "method": "Page.reload"}))
        while json.loads(self._socket.recv(240)).get("method") != "Page.loadEventFired":
            pass

    def open(self, path: Path, width: int = 1280, height: int = 900) -> None:
        """Load a file."""
        self.resize(width, height)
        self.call("Page.navigate", url=path.resolve().as_uri())
        eventually(
            lambda: (
                self.evaluate("document.readyState") == "complete"
                and self.evaluate("location.href") == path.resolve().as_uri()
            )
        )

    def click(self, selector: str, across: float = 0.5) -> None:
        """Click into an element, `across` of its width from the left."""
        box = self.evaluate(
            "(element => { element.scrollIntoView({block: 'center', behavior: 'instant'}); "
            "const box = element.getBoundingClientRect(); return [box.x, box.y, box.width, box.height]; })"
            f"(document.querySelector({json.dumps(selector)}))"
        )
        place = {"x": box[0] + across * box[2], "y": box[1] + box[3] / 2, "button": "left", "clickCount": 1}
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, **place)

    def drag(self, selector: str, begin: float, end: float) -> None:
        """Drag through an element, from and to shares of its width; the pointer stays where it ends."""
        box = self.evaluate(
            "(box => [box.x, box.y, box.width, box.height])"
            f"(document.querySelector({json.dumps(selector)}).getBoundingClientRect())"
        )
        x, y = [box[0] + share * box[2] for share in (begin, end)], box[1] + box[3] / 2
        steps = (("mouseMoved", x[0]), ("mousePressed", x[0]), ("mouseMoved", x[1]), ("mouseReleased", x[1]))
        for kind, place in steps:
            button = "none" if place == x[0] and kind == "mouseMoved" else "left"
            self.call("Input.dispatchMouseEvent", type=kind, x=place, y=y, button=button, clickCount=1)

    def point(self, selector: str, across: float) -> None:
        """Move the pointer onto an element, at a share of its width."""
        box = self.evaluate(
            "(box => [box.x, box.y, box.width, box.height])"
            f"(document.querySelector({json.dumps(selector)}).getBoundingClientRect())"
        )
        self.call(
            "Input.dispatchMouseEvent", type="mouseMoved", x=box[0] + across * box[2], y=box[1] + box[3] / 2
        )

    def screenshot(self, path: Path) -> None:
        """What the window shows."""
        data = self.call("Page.captureScreenshot", format="png")["data"]
        path.write_bytes(base64.b64decode(data))


@contextmanager
def browser(folder: Path) -> Iterator[Browser]:
    """A Chromium with its profile in a folder.

    Args:
        folder: Empty, for the profile.
    """
    assert CHROMIUM is not None
    command = [CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--mute-audio", "--no-first-run"]
    command += [
        "--disable-dev-shm-usage",
        "--remote-debugging-port=0",
        f"--user-data-dir={folder}",
        "about:blank",
    ]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        note = folder / "DevToolsActivePort"
        eventually(lambda: note.is_file() and len(note.read_text().split()) == 2)
        port = note.read_text().split()[0]
        with open_local(f"http://127.0.0.1:{port}/json/list", timeout=30) as reply:
            address = next(t for t in json.load(reply) if t["type"] == "page")["webSocketDebuggerUrl"]
        with connect(address, max_size=None, proxy=None) as socket:
            yield Browser(socket)
    finally:
        process.terminate()
        process.wait(30)
