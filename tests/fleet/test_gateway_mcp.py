"""An agent asks the gateway by the official client of the Model Context Protocol."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest
from mcp import ClientSession
from mcp.client.streamable_http import create_mcp_http_client, streamable_http_client

from lookout.local import KafkaServer
from tests.eventually import eventually
from tests.fleet.gateway_case import gateway
from tests.fleet.gateway_records import QUESTION, alert, publish, verdict

pytestmark = pytest.mark.fleet


async def asked(url: str, secret: str) -> dict[str, str]:
    """What each tool answers."""
    headers = {"authorization": f"Bearer {secret}"}
    async with (
        create_mcp_http_client(headers=headers) as http,
        streamable_http_client(f"{url}/mcp/", http_client=http) as (read, write, *_),
        ClientSession(read, write) as session,
    ):
        await session.initialize()
        answers = {}
        for tool in (await session.list_tools()).tools:
            result = await session.call_tool(tool.name, {})
            answers[tool.name] = "".join(getattr(part, "text", "") for part in result.content)
        return answers


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_an_agent_sees_what_its_token_may_see(own_kafka: KafkaServer, redis_url: str, tmp_path: Path) -> None:
    with ExitStack() as stack:
        process = gateway(stack, tmp_path, own_kafka.bootstrap, redis_url)
        publish(own_kafka.bootstrap, [alert("gate", 0), verdict("gate", 0)])
        with process.signed_in() as client:
            eventually(lambda: client.get("/v1/incidents").json().get("incidents"))
            eventually(lambda: client.get("/v1/cameras").json().get("cameras"))
            secrets = [
                client.post("/v1/tokens", json={"name": "agent", "role": "viewer", **more}).json()["secret"]
                for more in ({}, {"tenants": ["south"]})
            ]
        answers = asyncio.run(asked(process.url, secrets[0]))
        assert set(answers) == {"cameras", "incidents", "coverage"}
        assert QUESTION in answers["incidents"]
        assert "gate / lying: answered 10 s" in answers["coverage"]
        others = asyncio.run(asked(process.url, secrets[1]))
        assert not [text for text in others.values() if "gate" in text]
        assert httpx.post(f"{process.url}/mcp/", json={}).status_code == 401
