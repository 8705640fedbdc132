"""`lookout demo` as a person runs it: alerts, shares, one page, nothing left; and when it is cut short."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import psutil
import pytest

from tests.eventually import eventually

pytestmark = [pytest.mark.fleet, pytest.mark.long, pytest.mark.timeout(1200)]


def start(out: Path, scratch: Path, *more: str) -> subprocess.Popen[str]:
    words = [sys.executable, "-m", "lookout.cli", "demo", "--out", str(out), *more]
    return subprocess.Popen(
        words,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "TMPDIR": str(scratch), "COLUMNS": "160"},
    )


def family(pid: int) -> list[psutil.Process]:
    return psutil.Process(pid).children(recursive=True)


def test_the_demo_ends_with_the_path_of_its_page(tmp_path: Path) -> None:
    scratch, broken = tmp_path / "scratch", tmp_path / "footage"
    scratch.mkdir()
    broken.mkdir()
    (broken / "broken.mp4").write_bytes(b"\0" * 2000)
    page = tmp_path / "out" / "page.html"
    demo = start(page, scratch, "--footage", str(broken))
    said = demo.communicate(timeout=1100)[0]
    assert demo.returncode == 0, said
    assert said.rstrip().splitlines()[-1] == str(page)
    assert "broken.mp4" in said
    assert re.search(r"demo-room +48 +24 +\d+ +\d+ ?% +\d+ ?%", said), said  # the shares never computed
    payload = re.search(r'<script id="data" type="application/json">(.*?)</script>', page.read_text(), re.S)
    assert payload is not None
    data = json.loads(payload[1])
    cameras = {camera["id"]: camera for camera in data["cameras"]}
    assert {"demo-room", "demo-carpark", "demo-doorway"} <= set(cameras)
    for camera in cameras.values():
        assert len(camera["lanes"]) == 5
        assert 0 < camera["patches_saved"] < 1
        assert 0 < camera["tokens_saved"] < 1
        assert any(shot["filmed"] and shot["seen"] for shot in camera["shots"])
        for lane in camera["lanes"]:
            answered = [point for point in lane["points"] if point[2] is not None]
            assert len(answered) == camera["windows"]
    assert list(scratch.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_demo_that_is_cut_short_leaves_no_process(tmp_path: Path, number: signal.Signals) -> None:
    demo = start(tmp_path / "page.html", tmp_path)
    children = eventually(lambda: demo.poll() is None and len(found := family(demo.pid)) >= 6 and found)
    demo.send_signal(number)
    demo.communicate(timeout=120)
    gone, left = psutil.wait_procs(children, timeout=60)
    assert left == []
    assert len(gone) == len(children)
    if number != signal.SIGKILL:
        assert [path.name for path in tmp_path.iterdir()] == []


def test_a_demo_that_keeps_running_ends_in_the_gateway(tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    demo = start(tmp_path / "page.html", scratch, "--keep")
    said: list[str] = []
    try:
        assert demo.stdout is not None
        link = ""
        while not link:
            line = demo.stdout.readline()
            assert line, "".join(said)
            said.append(line)
            link = line.strip() if "/sign-in/" in line else ""
        url = link.partition("/sign-in/")[0]
        with httpx.Client(base_url=url, timeout=60.0) as client:
            assert client.get(link).status_code == 303
            incidents = eventually(lambda: client.get("/v1/incidents").json().get("incidents"))
            assert {"demo-room", "demo-carpark", "demo-doorway"} >= {each["camera"] for each in incidents}
            for incident in incidents:
                path = f"/v1/incidents/{incident['id']}"
                picture, clip = (client.get(f"{path}/{what}") for what in ("picture.jpg", "clip.mp4"))
                assert (picture.status_code, clip.status_code) == (200, 200), (picture.text, clip.text)
                patches = client.get(f"{path}/picture.jpg", params={"overlay": "patches"})
                assert patches.status_code == 200, patches.text
            assert client.get("/v1/session").json()["searches"] is True
            client.headers["x-csrf-token"] = client.get("/v1/session").json()["csrf"]
            watch = {"question": "Is anyone lying on the ground?", "cameras": ["demo-room"]}
            tried = client.post("/v1/backtests", json={"backtest": {"watch": watch}}).json()
            path = f"/v1/backtests/{tried['request']['id']}"
            eventually(lambda: client.get(path).json().get("state") == "done", seconds=300.0)
            assert client.get(path).json()["answers"]["backtest"]["incidents"]
        demo.send_signal(signal.SIGINT)
        rest = demo.communicate(timeout=300)[0]
        assert demo.returncode == 0, rest
        assert rest.rstrip().splitlines()[-1] == str(tmp_path / "page.html")
    finally:
        if demo.poll() is None:
            demo.send_signal(signal.SIGINT)
            demo.communicate(timeout=300)
