"""The console of a test: a real Chromium that is signed in, and what a person does in it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import httpx

from tests.browser import Browser, browser
from tests.eventually import eventually
from tests.fleet.gateway_case import GatewayProcess

_FAULTS: Final = """
window.faults = [];
addEventListener("securitypolicyviolation", event => faults.push(event.violatedDirective + event.blockedURI));
addEventListener("error", event => event.message && faults.push(event.message));
addEventListener("unhandledrejection", event => faults.push(String(event.reason)));
"""


@contextmanager
def faultless(profile: Path) -> Iterator[Browser]:
    """A page that notes its faults in `faults`; the profile is an empty folder."""
    with browser(profile) as opened:
        opened.call("Page.enable")
        opened.call("Page.addScriptToEvaluateOnNewDocument", source=_FAULTS)
        opened.resize(1280, 900)
        yield opened


@contextmanager
def console(process: GatewayProcess, client: httpx.Client, profile: Path) -> Iterator[Browser]:
    """A page with the session of a client.

    Args:
        process: Serves it.
        client: Whose cookies it takes.
        profile: An empty folder.
    """
    with faultless(profile) as opened:
        for cookie in client.cookies.jar:
            opened.call(
                "Network.setCookie", name=cookie.name, value=str(cookie.value), url=process.url, httpOnly=True
            )
        opened.go(f"{process.url}/")
        eventually(lambda: opened.evaluate("document.querySelector('main h1') !== null"))
        yield opened


def show(page: Browser, view: str) -> None:
    """Go to a view, and wait until it says nothing of loading."""
    page.evaluate(
        f"""new Promise(done => {{
  const before = location.href;
  location.hash = "#/{view}";
  if (location.href === before) done();
  else addEventListener("hashchange", () => setTimeout(done, 100), {{once: true}});
}})"""
    )
    eventually(lambda: not page.evaluate("document.querySelector('main').innerText.includes('Loading')"))


def reload(page: Browser) -> None:
    """Load the page again, and wait until it shows a view."""
    page.reload()
    eventually(lambda: page.evaluate("document.querySelector('main h1') !== null"))


def text(page: Browser) -> str:
    """What the page says."""
    return str(page.evaluate("document.body.innerText"))


def fill(page: Browser, label: str, value: str) -> None:
    """Write into the field of a label, once there is one."""
    script = f"""(() => {{
  const label = [...document.querySelectorAll("label")].find(one => one.innerText.startsWith({label!r}));
  const field = label?.querySelector("input, textarea, select");
  if (!field) return false;
  field.value = {json.dumps(value)};
  field.dispatchEvent(new Event(field.matches("select") ? "change" : "input", {{bubbles: true}}));
  return true;
}})()"""
    eventually(lambda: page.evaluate(script))


def tick(page: Browser, label: str) -> None:
    """Tick the box of a label, once there is one."""
    script = f"""(() => {{
  const labels = [...document.querySelectorAll("label")];
  const label = labels.find(one => one.innerText.trim().startsWith({label!r}));
  const box = label?.querySelector("input[type=checkbox]");
  if (box && !box.checked) box.click();
  return Boolean(box);
}})()"""
    eventually(lambda: page.evaluate(script))


def choose(page: Browser, file: Path) -> None:
    """Give a file to the page's only field for files."""
    field = "document.querySelector('input[type=file]')"
    eventually(lambda: page.evaluate(f"Boolean({field})"))
    found = page.call("Runtime.evaluate", expression=field)["result"]
    page.call("DOM.setFileInputFiles", objectId=found["objectId"], files=[str(file)])


def confirm(page: Browser, *, sure: bool) -> str:
    """Answer what the page asks before it does something, and return what it asked."""
    opened = "document.querySelector('dialog[open]')"
    eventually(lambda: page.evaluate(f"{opened} !== null"))
    asked = str(page.evaluate(f"{opened}.innerText"))
    page.evaluate(f"{opened}.querySelectorAll('button')[{int(sure)}].click()")
    eventually(lambda: page.evaluate(f"{opened} === null"))
    return asked


def press(page: Browser, name: str) -> None:
    """Press the button, or follow the link, of this name, once there is one."""
    script = f"""(() => {{
  const all = [...document.querySelectorAll("button:enabled, a")];
  const button = all.find(one => one.innerText.trim() === {name!r});
  button?.click();
  return Boolean(button);
}})()"""
    eventually(lambda: page.evaluate(script))
