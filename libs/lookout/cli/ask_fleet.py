"""`lookout ask --fleet`: questions about the past of a fleet's cameras, answered by recall."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import grpc
from google.protobuf.json_format import MessageToDict

from lookout.cli.connect import find_bootstrap, grpc_security
from lookout.cli.formats import local_time
from lookout.cli.options import CliError
from lookout.cli.output import TerminalConsole, echo, say
from lookout.cli.times import parse_span
from lookout.structured import shares_text
from lookout.wire.shares import shares_of

if TYPE_CHECKING:
    from lookout.v1.memory_pb2 import AskSummary, CameraAnswer

_WAIT_S = 600.0


def ask_fleet(
    question: str,
    *,
    camera: str,
    since: str | None,
    until: str | None,
    text: bool | None,
    words: int,
    as_json: bool,
    bootstrap: str | None = None,
    recall: str | None = None,
) -> None:
    """Ask recall, and print its answers.

    Raises:
        CliError: No recall service is known, it does not answer, or it rejects the question.
    """
    from lookout.runtime.net import Channels
    from lookout.v1 import memory_pb2_grpc
    from lookout.v1.memory_pb2 import AskRequest

    begin_ms, end_ms = parse_span(since or "start", until or "now")
    address, security = recall_of(bootstrap, recall)
    request = AskRequest(
        question=question,
        cameras=camera,
        text=text,
        words=words,
        since_us=None if begin_ms is None else begin_ms * 1000,
        until_us=None if end_ms is None else end_ms * 1000,
    )
    channel = Channels(security).open(address, [("grpc.enable_retries", 0)])
    stub: Any = memory_pb2_grpc.RecallServiceStub(channel)  # type: ignore[no-untyped-call]
    console = TerminalConsole(stderr=True)
    streamed: set[str] = set()
    try:
        with console.status("looking for chapters") as status:
            for response in stub.Ask(request, timeout=_WAIT_S):
                match response.WhichOneof("part"):
                    case "progress" if response.progress.total:
                        progress = response.progress
                        status.update(
                            f"{progress.stage}: {progress.camera} ({progress.done + 1} of {progress.total})"
                        )
                    case "text" if not as_json:
                        streamed.add(response.text.camera)
                        echo(response.text.piece, nl=False)
                    case "answer":
                        _show(response.answer, as_json, response.answer.camera in streamed)
                    case "summary":
                        _summary(response.summary, as_json)
    except grpc.RpcError as error:
        raise CliError(failure(error, address)) from None
    finally:
        channel.close()


def recall_of(bootstrap: str | None, recall: str | None) -> tuple[str, Any]:
    """Return recall's address and the security settings of a channel to it.

    Raises:
        CliError: No recall service is known.
    """
    from lookout.local import RECALL, running_fleets

    given = recall or os.environ.get("LOOKOUT_RECALL")
    if given and bootstrap is None:
        return given, grpc_security("")
    fleet_address = find_bootstrap(bootstrap)
    for fleet in running_fleets():
        port = next((port for name, port in fleet.grpc.items() if name.startswith(f"{RECALL}-")), None)
        if fleet.bootstrap == fleet_address and port is not None:
            return given or f"127.0.0.1:{port}", grpc_security(fleet_address)
    if given:
        return given, grpc_security(fleet_address)
    raise CliError(
        "no recall service is known: start a fleet with `lookout up --memory 2h`, or give its address with "
        "--recall"
    )


def failure(error: Any, address: str) -> str:
    """Return a message that says why recall rejected a request or did not answer it."""
    code, detail = error.code(), error.details()
    if code in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND):
        return str(detail)
    return f"recall at {address}: {code.name} {detail}"


def _show(answer: CameraAnswer, as_json: bool, streamed: bool) -> None:
    if as_json:
        echo(json.dumps(MessageToDict(answer, preserving_proto_field_name=True)))
        return
    if streamed:
        echo()
    elif answer.HasField("text"):
        echo(answer.text)
    name = f"camera {answer.camera}"
    if answer.HasField("p_yes"):
        echo(f"{name}: p(yes) = {answer.p_yes:.3f}{', with a small budget' if answer.cheap else ''}")
        if answer.answers:
            echo(shares_text(shares_of(answer.answers)))
    else:
        echo(name)
    if answer.cheap:
        return
    best = sorted(answer.moments, key=lambda moment: -moment.weight)[:5]
    moments = ", ".join(
        f"{local_time(m.time_us)} ({m.weight:.0%})" for m in sorted(best, key=lambda m: m.time_us)
    )
    echo(f"based on: {moments or 'nothing'}")
    covered = "; ".join(f"{local_time(r.begin_us)} to {local_time(r.end_us)}" for r in answer.covered)
    echo(f"covered: {covered or 'nothing'}")
    for missing in answer.missing:
        echo(f"could not be read: {missing}")
    cost = answer.cost
    echo(
        f"cost: {cost.question_tokens} rows over {cost.memory_tokens:.0f} tokens of memory in each layer; "
        f"{cost.fetched_bytes / 1e6:.1f} MB in {cost.fetches} round trips, {cost.cached_ranges} ranges "
        f"cached; {cost.flops / 1e9:.2f} GFLOP; {cost.list_s * 1000:.0f} ms to find the chapters, "
        f"{cost.first_token_s * 1000:.0f} ms to the first token"
    )


def _summary(summary: AskSummary, as_json: bool) -> None:
    if as_json:
        echo(json.dumps({"summary": MessageToDict(summary, preserving_proto_field_name=True)}))
        return
    if summary.cameras > 1:
        echo(f"{summary.cameras} cameras, {summary.answered} asked with the full budget")
    for reason in summary.not_asked:
        say(TerminalConsole(stderr=True), "not asked: {}", reason)
