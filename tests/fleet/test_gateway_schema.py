"""Schemathesis against a real gateway: no answer of 5xx, none that the document does not describe."""

from __future__ import annotations

import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from lookout.local import KafkaServer
from tests.eventually import eventually
from tests.fleet.gateway_case import gateway
from tests.fleet.gateway_records import alert, publish, verdict, watch

pytestmark = [pytest.mark.fleet, pytest.mark.long]
CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"


@pytest.mark.timeout(1800)
def test_every_answer_is_documented(own_kafka: KafkaServer, redis_url: str, tmp_path: Path) -> None:
    with ExitStack() as stack:
        process = gateway(stack, tmp_path, own_kafka.bootstrap, redis_url, {"calls_per_minute": "1000000"})
        publish(
            own_kafka.bootstrap,
            [watch(), *(alert("gate", number) for number in range(3)), verdict("gate", 0)],
        )
        with process.signed_in() as client:
            eventually(lambda: client.get("/v1/incidents").json().get("incidents"))
            made = client.post("/v1/tokens", json={"name": "fuzz", "role": "administrator"}).json()
        command = [
            *(str(Path(sys.executable).with_name("schemathesis")), "run", f"{process.url}/openapi.json"),
            *("--header", f"Authorization: Bearer {made['secret']}"),
            *("--checks", CHECKS, "--phases", "examples,coverage,fuzzing"),
            *("--max-examples", "15", "--seed", "1", "--exclude-path", "/v1/events", "--no-color"),
            *("--exclude-path-regex", "^/v1/session", "--generation-database", "none"),
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
        assert done.returncode == 0, done.stdout[-12_000:] + done.stderr[-2000:]
        log = process.service.log.read_text()
        assert "a call failed" not in log, log[-4000:]
