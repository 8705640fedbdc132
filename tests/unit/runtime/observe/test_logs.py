"""Logs of clients and servers that repeat themselves."""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2_grpc
from grpc_health.v1.health import HealthServicer

from lookout.runtime.observe import logs


def test_a_client_that_repeats_itself_is_heard_once() -> None:
    quiet = logs.Quiet(60.0)
    said = [logging.LogRecord("kafka", 40, "", 0, "FAIL [%s] again", (n,), None) for n in range(5)]
    assert [quiet.filter(each) for each in said] == [True, False, False, False, False]
    assert quiet.filter(logging.LogRecord("kafka", 30, "", 0, "SESSTMOUT", None, None))


def test_requests_that_are_no_messages_do_not_fill_the_log(capsys: pytest.CaptureFixture[str]) -> None:
    logs.setup("decode", "decode-0")
    with ThreadPoolExecutor(1) as pool:
        server = grpc.server(pool)
        health_pb2_grpc.add_HealthServicer_to_server(HealthServicer(), server)
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            check = channel.unary_unary("/grpc.health.v1.Health/Check")
            for _ in range(20):
                with pytest.raises(grpc.RpcError, match="deserializing"):
                    check(b"\xff", timeout=30.0)
        server.stop(None).wait()
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_a_line_that_cannot_be_written_ends_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    logs.setup("prefill", "prefill-0")
    written: list[str] = []
    # The last error is of the file's end: what was not written is tried once more.
    with suppress(OSError), Path("/dev/full").open("w", buffering=1) as full:
        monkeypatch.setattr("sys.stderr", full)
        logs.get("chapters").warning("a block is not remembered")
        written.append("a warning")
    assert written
