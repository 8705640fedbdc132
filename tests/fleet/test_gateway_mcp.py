"""An agent asks the gateway by the official client of the Model Context Protocol."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from lookout.local import KafkaServer
from lookout.v1.alerts_pb2 import Alert
from tests.eventually import eventually
from tests.fleet.gateway_case import gateway
from tests.fleet.gateway_footage import FilmedCamera
from tests.fleet.gateway_records import BEGIN_MS, QUESTION, alert, publish, records, verdict
from tests.unit.video.segments.clips import encode

if TYPE_CHECKING:
    from mcp import ClientSession

pytestmark = [pytest.mark.fleet, pytest.mark.long, pytest.mark.filterwarnings("ignore::DeprecationWarning")]
READING = {"cameras", "incidents", "coverage", "picture", "clip", "answer", "find", "report"}
WRITING = {"ask", "act"}


@asynccontextmanager
async def session_of(url: str, secret: str) -> AsyncIterator[ClientSession]:
    """An agent that shows a token."""
    # Where they are used: the client takes a second of a CPU, and every worker imports this file.
    from mcp import ClientSession
    from mcp.client.streamable_http import create_mcp_http_client, streamable_http_client

    headers = {"authorization": f"Bearer {secret}"}
    async with (
        create_mcp_http_client(headers=headers) as http,
        streamable_http_client(f"{url}/mcp/", http_client=http) as (read, write, *_),
        ClientSession(read, write) as session,
    ):
        await session.initialize()
        yield session


async def called(url: str, secret: str, tool: str, **arguments: object) -> Any:
    """What a tool answers."""
    async with session_of(url, secret) as session:
        return await session.call_tool(tool, arguments)


def text_of(result: Any) -> str:
    """Its text."""
    return "".join(getattr(part, "text", "") for part in result.content)


def test_an_agent_sees_and_does_what_its_token_may(
    own_kafka: KafkaServer, redis_url: str, tmp_path: Path
) -> None:
    with ExitStack() as stack:
        process = gateway(stack, tmp_path, own_kafka.bootstrap, redis_url)
        camera = FilmedCamera(own_kafka.bootstrap, "gate", BEGIN_MS - 10_000)
        camera.film(encode("ts", "libx264", frames=300, size=(352, 96), speed=1))
        opened = alert("gate", 0, Alert.KIND_CLOSED)
        ref, record = next(pair for pair in camera.frames if pair[1].segment.start_us >= 12_000_000)
        opened.evidence.add(record=ref, row=1).time.FromMicroseconds(
            record.segment.frames[1].time_us + record.wall_offset_us
        )
        publish(own_kafka.bootstrap, [opened, verdict("gate", 0)])
        client = stack.enter_context(process.signed_in())
        eventually(lambda: client.get("/v1/incidents").json().get("incidents"))
        eventually(lambda: client.get("/v1/cameras").json().get("cameras"))
        viewer, other, operator = (
            client.post("/v1/tokens", json={"name": f"agent-{number}", **more}).json()["secret"]
            for number, more in enumerate(
                ({"role": "viewer"}, {"role": "operator", "tenants": ["south"]}, {"role": "operator"})
            )
        )

        def call(secret: str, tool: str, **arguments: object) -> Any:
            return asyncio.run(called(process.url, secret, tool, **arguments))

        async def names() -> set[str]:
            async with session_of(process.url, viewer) as session:
                return {tool.name for tool in (await session.list_tools()).tools}

        async def together() -> list[str]:
            calls = [called(process.url, secret, "incidents") for secret in (viewer, other) * 4]
            return [text_of(result) for result in await asyncio.gather(*calls)]

        # The first calls of all, at once: each has its own caller's answer.
        assert [QUESTION in text for text in asyncio.run(together())] == [True, False] * 4
        assert asyncio.run(names()) == READING | WRITING
        assert QUESTION in text_of(call(viewer, "incidents"))
        assert "gate / lying: answered 10 s" in text_of(call(viewer, "coverage"))

        (image,) = call(viewer, "picture", incident=opened.incident).content
        expected = client.get(f"/v1/incidents/{opened.incident}/picture.jpg").content
        assert (image.mime_type, base64.b64decode(image.data)) == ("image/jpeg", expected)
        at = opened.start.ToJsonString()
        (image,) = call(viewer, "picture", camera="gate", time=at).content
        assert base64.b64decode(image.data) == client.get(f"/v1/cameras/gate/frames/{at}.jpg").content
        (link,) = call(viewer, "clip", incident=opened.incident).content
        answer = httpx.get(str(link.uri), headers={"authorization": f"Bearer {viewer}"})
        assert answer.content == client.get(f"/v1/incidents/{opened.incident}/clip.mp4").content
        assert (link.mime_type, link.size) == ("video/mp4", len(answer.content))
        (link,) = call(viewer, "clip", camera="gate", since=at, until=opened.end.ToJsonString()).content
        assert httpx.get(str(link.uri), headers={"authorization": f"Bearer {viewer}"}).status_code == 200

        refused = call(viewer, "act", incident=opened.incident, kind="claim")
        assert (refused.is_error, "needs the role operator" in text_of(refused)) == (True, True)
        refused = call(viewer, "ask", question=QUESTION)
        assert (refused.is_error, "needs the role operator" in text_of(refused)) == (True, True)
        done = call(operator, "act", incident=opened.incident, kind="claim", note="by an agent")
        assert not done.is_error, text_of(done)
        assert client.get(f"/v1/incidents/{opened.incident}").json()["assignee"] == "agent-2"
        asked = call(operator, "ask", question="Is the gate open?", camera="gate", since=at)
        assert not asked.is_error, text_of(asked)
        (job,) = client.get("/v1/backtests").json()["jobs"]
        assert job["request"]["backtest"]["watch"]["question"] == "Is the gate open?"
        assert '"waiting"' in text_of(call(viewer, "answer", job=job["request"]["id"]))

        for tool, arguments in (
            ("cameras", {}),
            ("incidents", {}),
            ("coverage", {}),
            ("picture", {"incident": opened.incident}),
            ("picture", {"camera": "gate", "time": at}),
            ("clip", {"incident": opened.incident}),
            ("clip", {"camera": "gate", "since": at, "until": opened.end.ToJsonString()}),
            ("act", {"incident": opened.incident, "kind": "note", "note": "x"}),
            ("answer", {"job": job["request"]["id"]}),
        ):
            hidden = call(other, tool, **arguments)
            shown = [part for part in hidden.content if part.type != "text"]
            assert not shown, (tool, arguments)
            if tool in ("cameras", "incidents", "coverage"):
                assert "gate" not in text_of(hidden), tool
            else:
                assert hidden.is_error, (tool, text_of(hidden))
        assert httpx.post(f"{process.url}/mcp/", json={}).status_code == 401
        looks = [entry.value() or b"" for entry in records(own_kafka.bootstrap, "audit.v1")]
        for action, actor in (
            ("picture.view", "agent-0"),
            ("incident.claim", "agent-2"),
            ("job.ask", "agent-2"),
        ):
            assert [look for look in looks if action.encode() in look and actor.encode() in look], action
            assert all(b"127.0.0.1" in look for look in looks if action.encode() in look)
