"""The console where things fail: a slow link, two operators, a session that ends, Kafka that is away."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from lookout.local import KafkaServer
from lookout.services.gateway.console_files import BUILT
from tests.browser import CHROMIUM, Browser
from tests.eventually import eventually
from tests.fleet.console_case import console, fill, press, reload, show, text
from tests.fleet.gateway_case import GatewayProcess
from tests.fleet.gateway_records import alert, publish, watch

pytestmark = [
    pytest.mark.fleet,
    pytest.mark.long,
    pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium"),
    pytest.mark.skipif(not (BUILT / "index.html").exists(), reason="the console is not built: make console"),
]
INCIDENTS = 5


@pytest.fixture(scope="module")
def client(broker: KafkaServer, process: GatewayProcess) -> Iterator[httpx.Client]:
    publish(broker.bootstrap, [watch(), *(alert("gate", number) for number in range(INCIDENTS))])
    with process.signed_in() as signed_in:
        eventually(lambda: len(signed_in.get("/v1/incidents").json().get("incidents", [])) == INCIDENTS)
        yield signed_in


@pytest.fixture
def page(process: GatewayProcess, client: httpx.Client, tmp_path: Path) -> Iterator[Browser]:
    with console(process, client, tmp_path / "profile") as opened:
        yield opened


def state(client: httpx.Client, number: int) -> str:
    """Where an incident stands."""
    return str(client.get(f"/v1/incidents/{alert('gate', number).incident}").json()["state"])


def choose(page: Browser, number: int) -> None:
    """Open an incident."""
    show(page, f"incidents/{alert('gate', number).incident}")
    eventually(lambda: "Claim" in text(page))


def test_an_incident_is_handled_over_a_slow_link(page: Browser, client: httpx.Client) -> None:
    page.call("Network.enable")
    page.call(
        "Network.emulateNetworkConditions",
        offline=False,
        latency=400,
        downloadThroughput=125_000,  # 1 Mbit/s
        uploadThroughput=125_000,
    )
    page.call("Network.clearBrowserCache")
    reload(page)
    choose(page, 0)
    press(page, "Claim")
    eventually(lambda: state(client, 0) == "claimed")
    eventually(lambda: "claimed" in text(page))
    assert page.evaluate("faults") == []


def test_of_two_operators_the_second_is_told_what_the_first_did(page: Browser, client: httpx.Client) -> None:
    page.call("Network.enable")
    page.call("Network.setBlockedURLs", urls=["*/v1/events*"])  # news comes late
    reload(page)
    choose(page, 1)
    done = client.post(f"/v1/incidents/{alert('gate', 1).incident}/actions", json={"kind": "resolve"})
    assert done.status_code == 200
    press(page, "Acknowledge")
    eventually(lambda: page.evaluate("document.querySelector('[role=alert], [role=status].toast') !== null"))
    assert state(client, 1) == "resolved"
    eventually(lambda: "Reopen" in text(page))
    assert page.evaluate("faults") == []


def test_while_kafka_is_away_history_shows_and_changes_say_so(
    page: Browser, client: httpx.Client, broker: KafkaServer
) -> None:
    broker.kill()
    try:
        show(page, "incidents?state=any")  # one may be resolved
        eventually(lambda: page.evaluate("document.querySelectorAll('li a').length") == INCIDENTS)
        choose(page, 2)
        press(page, "Claim")
        eventually(lambda: "Kafka" in text(page))
        assert state(client, 2) == "new"
    finally:
        broker.start()
    # A person presses again until it works: the broker that is back needs a while.
    again = (
        "[...document.querySelectorAll('button:enabled')].find(b => b.innerText.trim() === 'Claim')?.click()"
    )
    eventually(lambda: page.evaluate(again) or state(client, 2) == "claimed", every=2.0)
    eventually(lambda: "claimed" in text(page))
    assert page.evaluate("faults") == []


def test_what_was_typed_outlives_the_session(
    page: Browser, client: httpx.Client, process: GatewayProcess
) -> None:
    choose(page, 3)
    fill(page, "Note", "a van, white, left at nine")
    with process.client(cookies=client.cookies, headers=client.headers) as elsewhere:
        assert elsewhere.delete("/v1/session").status_code == 204
    press(page, "Add note")
    eventually(lambda: "Your session has ended" in text(page))
    assert "lookout sign-in" in text(page)
    assert "Add note" not in text(page), "what the person saw is hidden"
    press(page, "Continue")
    eventually(lambda: "You are still signed out" in text(page))
    with process.signed_in() as again:
        for cookie in again.cookies.jar:
            page.call(
                "Network.setCookie", name=cookie.name, value=str(cookie.value), url=process.url, httpOnly=True
            )
        press(page, "Continue")
        eventually(lambda: "Add note" in text(page))
        press(page, "Add note")
        path = f"/v1/incidents/{alert('gate', 3).incident}"
        (note,) = eventually(lambda: again.get(path).json().get("actions"))
        assert note["note"] == "a van, white, left at nine"
    assert page.evaluate("faults") == []
