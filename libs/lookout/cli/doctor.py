"""`lookout doctor`: checks every dependency, address and topic, and says what to do."""

from __future__ import annotations

import json
import os
import platform
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from http.client import HTTPException
from importlib import metadata
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from lookout.cli import cluster_doctor
from lookout.cli.connect import LibraryErrors, client_options, find_bootstrap, grpc_security
from lookout.cli.options import BootstrapOption, CliError, refuse_given
from lookout.cli.output import TerminalConsole, echo
from lookout.local import LocalError, running_fleets
from lookout.local.addresses import cache_folder
from lookout.local.jars import locked_jars
from lookout.local.java import find_java
from lookout.local.kcat import kcat_fault
from lookout.local.readiness import ask_ready
from lookout.local.redis import find_redis_server
from lookout.models import ModelError
from lookout.runtime.fleet_checks import CheckResult, State, kafka_checks, redis_check
from lookout.runtime.kafka_clients import AdminClient
from lookout.runtime.net import Channels, RedisSecurity, load_connections
from lookout.runtime.net.serving import serving_fault

_ANSWER_S = 10.0
_ROOM_GB = 2.0


def doctor(
    context: typer.Context,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")] = False,
    redis_url: Annotated[
        str | None,
        typer.Option("--redis", envvar="LOOKOUT_REDIS", help="Redis's URL.  [default: the running fleet's]"),
    ] = None,
    bootstrap: BootstrapOption = None,
    kubernetes: Annotated[
        bool, typer.Option("--kubernetes", help="Check a Kubernetes cluster instead of this machine.")
    ] = False,
    namespace: Annotated[
        str | None,
        typer.Option(
            "--namespace",
            "-n",
            help="With --kubernetes: where the release is or will be.  [default: default]",
            show_default=False,
        ),
    ] = None,
    cluster: Annotated[
        str | None, typer.Option("--context", help="With --kubernetes: a context of the kubeconfig.")
    ] = None,
    model: Annotated[
        Path | None,
        typer.Option("--model", help="Also check whether this checkpoint fits on this machine's GPU."),
    ] = None,
) -> None:
    """Check software, addresses, topics and services of this machine, or of a cluster.

    The exit code is 1 if something is wrong.
    """
    if kubernetes:
        here = ("bootstrap", "redis_url", "model")
        refuse_given(context, here, "works only for this machine: omit it with --kubernetes")
        findings = list(cluster_doctor.findings(cluster_doctor.Target(namespace or "default", cluster)))
    else:
        refuse_given(context, ("namespace", "cluster"), "works only for a cluster: give --kubernetes as well")
        findings = [
            *_software(),
            *_model(model),
            *_kafka(bootstrap),
            *_redis(redis_url, bootstrap),
            *_services(),
        ]
    if as_json:
        for problem in findings:
            echo(json.dumps(asdict(problem)))
    else:
        _print(findings)
    if any(finding.state is State.BAD for finding in findings):
        raise typer.Exit(1)


def _print(findings: list[CheckResult]) -> None:
    marks = {State.GOOD: "[green]✓[/]", State.NOTE: "[yellow]○[/]", State.BAD: "[red]✗[/]"}
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for finding in findings:
        advice = f"\n[dim]→ {escape(finding.advice)}[/]" if finding.advice else ""
        table.add_row(marks[finding.state], finding.about, escape(finding.found) + advice)
    console = TerminalConsole()
    console.print(table)
    bad = sum(finding.state is State.BAD for finding in findings)
    console.print(
        f"\n[red]{bad} problem{'s' if bad > 1 else ''} to fix[/]" if bad else "\n[green]no problems[/]"
    )


def _software() -> Iterator[CheckResult]:
    good = sys.version_info >= (3, 11)
    yield CheckResult(
        "Python",
        State.GOOD if good else State.BAD,
        platform.python_version(),
        "" if good else "Lookout needs Python 3.11 or newer",
    )
    yield _package("model runtime", "torch")
    yield _package("model code", "transformers")
    yield _trial("Java for a local Kafka", _java_text)
    yield _jars()
    yield _trial("Redis for a local fleet", lambda: str(find_redis_server()))
    if (fault := kcat_fault()) is not None:
        yield CheckResult("kcat", State.NOTE, "too old for a fleet with a password", fault)
    yield _accelerator()
    yield _disk()


def _java_text() -> str:
    java = find_java()
    return f"{java.major} ({java.path})"


def _package(about: str, package: str) -> CheckResult:
    try:
        return CheckResult(about, State.GOOD, f"{package} {metadata.version(package)}")
    except metadata.PackageNotFoundError:
        return CheckResult(about, State.BAD, f"{package} is missing", "pip install 'lookout-fleet[model]'")


def _trial(about: str, find: Callable[[], str]) -> CheckResult:
    try:
        return CheckResult(about, State.GOOD, find())
    except LocalError as error:
        return CheckResult(
            about, State.NOTE, "none", f"{error} (only `lookout up` and `lookout demo` need it)"
        )


def _jars() -> CheckResult:
    folders = [path for path in cache_folder().glob("kafka-*") if path.is_dir()]
    if any(len(list(path.glob("*.jar"))) == len(locked_jars()) for path in folders):
        return CheckResult("Kafka's jars", State.GOOD, f"{len(locked_jars())} in {cache_folder()}")
    return CheckResult(
        "Kafka's jars", State.NOTE, "not fetched yet", "the first local fleet fetches them (45 MB)"
    )


def _accelerator() -> CheckResult:
    try:
        import torch
    except ImportError:
        return CheckResult("GPU", State.NOTE, "unknown (no torch)")
    if torch.cuda.is_available():
        return CheckResult("GPU", State.GOOD, torch.cuda.get_device_name(0))
    return CheckResult("GPU", State.NOTE, "none: models run on the CPU, which the demo's model is made for")


def _model(folder: Path | None) -> Iterator[CheckResult]:
    if folder is None:
        return
    from lookout.models.engines.fit import memory_text

    about = "memory of the model"
    try:
        yield CheckResult(about, State.GOOD, memory_text(folder))
    except ModelError as error:
        yield CheckResult(about, State.BAD, str(error), "prefill would not start with this model on this GPU")


def _disk() -> CheckResult:
    import tempfile

    folder = tempfile.gettempdir()
    free = shutil.disk_usage(folder).free / 1e9
    if free >= _ROOM_GB:
        return CheckResult("room for a local fleet", State.GOOD, f"{free:.0f} GB in {folder}")
    return CheckResult(
        "room for a local fleet",
        State.BAD,
        f"{free:.1f} GB in {folder}",
        "make room, or set TMPDIR to another disk",
    )


def _kafka(given: str | None) -> Iterator[CheckResult]:
    try:
        address = find_bootstrap(given)
    except CliError as error:
        yield CheckResult("Kafka", State.NOTE, "no address", str(error))
        return
    complaints = LibraryErrors()
    yield from kafka_checks(
        AdminClient(client_options(address, complaints)),
        address,
        last_error=lambda: complaints.last,
        advice="is it up, and may this machine reach it? (`lookout up` starts one here)",
        answer_s=_ANSWER_S,
    )


def _redis(given: str | None, bootstrap: str | None) -> Iterator[CheckResult]:
    fleets = running_fleets()
    # If several fleets run, choose the fleet whose Kafka is checked.
    kafka = bootstrap or os.environ.get("LOOKOUT_KAFKA")
    own = [fleet.redis_url for fleet in fleets if kafka is None or fleet.bootstrap == kafka]
    url = given or (own[0] if len(own) == 1 else None)
    environ = next(
        (fleet.environment() for fleet in fleets if fleet.redis_url == url and fleet.own_redis), None
    )
    if url is None:
        yield CheckResult(
            "Redis", State.NOTE, "no address", "to check a Redis, give --redis URL or LOOKOUT_REDIS"
        )
        return
    yield redis_check(lambda: load_connections(RedisSecurity, environ), url, _ANSWER_S)


def _services() -> Iterator[CheckResult]:
    for fleet in running_fleets():
        yield CheckResult(
            "local fleet",
            State.GOOD,
            f"process {fleet.pid}, Kafka {fleet.bootstrap}, logs in {fleet.folder}/logs",
        )
        channels = Channels(grpc_security(fleet.bootstrap))
        for name, port in sorted(fleet.metrics.items()):
            advice = f"see its log: {os.path.join(fleet.folder, 'logs', f'{name}.log')}"
            yield _ready(name, port, advice)
            if name in fleet.grpc:
                yield _callable(name, f"127.0.0.1:{fleet.grpc[name]}", channels, advice)


def _ready(name: str, port: int, advice: str) -> CheckResult:
    about = f"service {name}"
    try:
        waiting_for = ask_ready(port, _ANSWER_S)
    except (OSError, HTTPException) as error:
        return CheckResult(about, State.BAD, f"does not answer: {error}", advice)
    if waiting_for is not None:
        return CheckResult(about, State.BAD, f"not ready: {waiting_for}", advice)
    return CheckResult(about, State.GOOD, f"ready, metrics on port {port}")


def _callable(name: str, address: str, channels: Channels, advice: str) -> CheckResult:
    """Check that a service answers the gRPC calls by which services fetch tensors from each other."""
    about = f"calls of {name}"
    with channels.open(address) as channel:
        fault = serving_fault(channel, _ANSWER_S)
    if fault is not None:
        return CheckResult(about, State.BAD, f"gRPC at {address}: {fault}", advice)
    return CheckResult(about, State.GOOD, f"gRPC answers at {address}")
