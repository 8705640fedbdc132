"""The commands of docs/gateway.md work as they stand on the page."""

from __future__ import annotations

import os
import re
import subprocess
from contextlib import ExitStack
from pathlib import Path

import pytest

from lookout.local import KafkaServer
from tests.eventually import eventually
from tests.fleet.gateway_case import gateway
from tests.fleet.gateway_records import alert, publish, verdict, watch

pytestmark = pytest.mark.fleet
PAGE = Path(__file__).parents[2] / "docs/gateway.md"


@pytest.mark.long
def test_the_examples_of_the_page_work(own_kafka: KafkaServer, redis_url: str, tmp_path: Path) -> None:
    blocks = [block for block in re.findall(r"```sh\n(.*?)```", PAGE.read_text(), re.S) if "curl" in block]
    assert len(blocks) == 4
    with ExitStack() as stack:
        process = gateway(stack, tmp_path, own_kafka.bootstrap, redis_url)
        publish(own_kafka.bootstrap, [watch(), alert("gate", 0), verdict("gate", 0)])
        with process.signed_in() as client:
            eventually(lambda: client.get("/v1/incidents").json().get("incidents"))
            eventually(lambda: client.get("/v1/cameras").json().get("cameras"))
            made = client.post("/v1/tokens", json={"name": "reader", "role": "administrator"}).json()
        environment = {**os.environ, "GATEWAY": process.url, "TOKEN": made["secret"]}
        for block in blocks:
            done = subprocess.run(
                ["bash", "-euo", "pipefail", "-c", block],
                env=environment,
                capture_output=True,
                text=True,
                check=False,
            )
            assert done.returncode == 0, (block, done.stdout, done.stderr)
