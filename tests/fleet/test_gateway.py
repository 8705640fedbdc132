"""The gateway as a process over a real Kafka."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.fleet.gateway_case import GatewayProcess, gateway

pytestmark = pytest.mark.fleet


@pytest.fixture(scope="module")
def process(kafka: str, redis_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    with ExitStack() as stack:
        yield gateway(stack, tmp_path_factory.mktemp("gateway"), kafka, redis_url)


def test_only_health_is_public(process: GatewayProcess) -> None:
    with process.client() as client:
        assert client.get("/healthz").text == "ok\n"
        document = client.get("/openapi.json").json()
        for path, methods in document["paths"].items():
            for method in methods:
                answer = client.request(method, path.replace("{", "").replace("}", ""))
                # Without a provider nobody can sign in there.
                expected = 200 if path == "/healthz" else 404 if path.startswith("/oidc/") else 401
                assert answer.status_code == expected, (method, path, answer.text)


def test_a_link_signs_in_once(process: GatewayProcess) -> None:
    secret = process.sign_in_file.read_text()
    with process.client() as first, process.client() as second:
        assert first.get(f"/sign-in/{secret}").status_code == 303
        assert first.get("/v1/session").json()["role"] == "administrator"
        problem = second.get(f"/sign-in/{secret}")
        assert problem.status_code == 401
        assert "lookout sign-in" in problem.json()["detail"]
        assert second.get("/v1/session").status_code == 401


def test_a_change_without_the_csrf_token_is_refused(process: GatewayProcess) -> None:
    with process.signed_in() as client:
        token = client.headers.pop("x-csrf-token")
        assert client.delete("/v1/session").status_code == 403
        client.headers["x-csrf-token"] = token
        assert client.delete("/v1/session").status_code == 204
        assert client.get("/v1/session").status_code == 401


def test_answers_carry_headers_for_browsers(process: GatewayProcess) -> None:
    with process.client() as client:
        headers = client.get("/healthz").headers
        assert "default-src 'none'" in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"


def test_a_large_body_is_refused(process: GatewayProcess) -> None:
    with process.client() as client:
        answer = client.post("/v1/session", content=b" " * (2 << 20))
        assert answer.status_code == 413
        assert answer.headers["content-type"] == "application/problem+json"
