"""`lookout erase`: erases a camera, or a time range of it, everywhere."""

from __future__ import annotations

import json
import os
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from confluent_kafka import KafkaException
from confluent_kafka.admin import ConfigResource, ResourceType

from lookout.administration import erasure_requests
from lookout.administration.writing import this_user
from lookout.cli.connect import (
    check_reachable,
    check_signs,
    client_options,
    erasure_signer,
    find_bootstrap,
    has_topic,
    read_erasures,
    reading,
    send_and_confirm,
)
from lookout.cli.options import BootstrapOption, CliError, Position, refuse_given
from lookout.cli.output import TerminalConsole, echo, say
from lookout.cli.times import parse_span
from lookout.past.erasures.records import member_key
from lookout.runtime.kafka_clients import AdminClient
from lookout.runtime.worker.growth import decode_state
from lookout.text import clean
from lookout.v1.erasures_pb2 import Erasure
from lookout.wire import ERASURES, LABELS, PIPELINE, Stage, all_topics, is_camera_id, to_json

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    from lookout.past.erasures.signing import ErasureSigner

ReceiptOption = Annotated[
    str | None,
    typer.Option(
        "--receipt", metavar="ID", help="Print the signed receipt of an erasure.", show_default=False
    ),
]
KeyOption = Annotated[
    Path | None,
    typer.Option(
        help="Ed25519 key (PEM) that signs receipts; created if missing.  "
        "[default: LOOKOUT_RECEIPT_KEY, else one in Lookout's data folder]",
        show_default=False,
    ),
]
CheckOption = Annotated[
    Path | None,
    typer.Option("--check", metavar="FILE", help="Check the signature of a receipt.", show_default=False),
]
GoneOption = Annotated[
    str | None,
    typer.Option(
        "--gone",
        metavar="INSTANCE",
        help="Stop waiting for an instance whose disk is lost.",
        show_default=False,
    ),
]

_ANSWER_S = 10.0
#: options that are allowed with --check, --gone and --receipt, which erase nothing
_TAKES = {"check": ("check",), "gone": ("gone", "bootstrap"), "receipt": ("receipt", "key", "bootstrap")}
_KEY_FILE = "receipt-key.pem"


def erase(
    context: typer.Context,
    camera: Annotated[
        str | None,
        typer.Option(
            "--camera", "-c", help="The camera's id; patterns are not accepted.", show_default=False
        ),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(
            help="How long ago (90m, 2d), or an ISO time.  [default: everything]", show_default=False
        ),
    ] = None,
    until: Annotated[
        str | None,
        typer.Option(help="How long ago, or an ISO time.  [default: now]", show_default=False),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before erasing.")] = False,
    wait: Annotated[float, typer.Option(min=0.0, help="Seconds to wait for all confirmations.")] = 120.0,
    receipt: ReceiptOption = None,
    key: KeyOption = None,
    check: CheckOption = None,
    gone: GoneOption = None,
    bootstrap: BootstrapOption = None,
) -> None:
    """Erase a camera, or a time range of it, everywhere, and get a signed receipt.

    It is removed from memories, tensors, the durable tier, Redis and caches.

    Services confirm in `erasures.v1`. Records that Kafka still holds are fenced until their retention ends:
    they are not decoded, replayed, verified or shown again. An erasure cannot be undone.
    """
    for name, value in {"check": check, "gone": gone, "receipt": receipt}.items():
        if value is not None:
            others = [option for option in context.params if option not in _TAKES[name]]
            refuse_given(context, others, f"cannot be given with --{name}")
    if check is not None:
        _check(check)
        return
    if receipt is None:
        refuse_given(context, ("key",), "signs receipts: give --receipt as well")
    address = find_bootstrap(bootstrap)
    check_reachable(address, ERASURES.name)
    if gone is not None:
        _stop_waiting_for(address, gone)
    elif receipt is not None:
        _print_receipt(address, receipt, _key(key))
    else:
        _erase(address, camera, since, until, yes=yes, wait_s=wait)


def _confirm(question: str) -> None:
    """Ask before erasing.

    Raises:
        CliError: Standard input is not a terminal, so nobody can answer.
        typer.Abort: The answer is no.
    """
    try:
        typer.confirm(question, abort=True, err=True)
    except typer.Abort:
        if not sys.stdin.isatty():
            raise CliError("not confirmed, so nothing was erased; in scripts give --yes") from None
        raise


def _erase(
    address: str, camera: str | None, since: str | None, until: str | None, *, yes: bool, wait_s: float
) -> None:
    if camera is None:
        raise CliError("give the camera to erase with --camera, or an erasure's id with --receipt")
    if not is_camera_id(camera):
        raise CliError(f"--camera {clean(camera)!r} is not a camera id; patterns cannot be erased")
    requests = _requests(address, camera, *parse_span(since or "start", until or "now", ahead=True))
    scope = "everything" if requests[0].whole else "this range"
    if not yes:
        _confirm(f"Erase {scope} of camera {clean(camera)} for ever?")
    signer = _signer(address)
    for request in requests:
        signer.sign(request)
    # Labels are removed first. If that fails, no erasure was requested yet, and the same command can be
    # repeated.
    _remove_labels(address, requests)
    send_and_confirm(address, ERASURES.name, {request.id: to_json(request) for request in requests})
    console = TerminalConsole(stderr=True)
    for request in requests:  # printed at once, because receipts are found by id
        echo(request.id)
    for request in requests[1:]:
        text = "the camera's clock is ahead: its footage from {} to {} is erased as well (erasure {})"
        say(console, text, _utc(request.begin_us), _utc(request.end_us), request.id)
    deadline = time.monotonic() + wait_s
    waiting = {name for request in requests for name in _wait(address, request.id, deadline)}
    if waiting:
        say(
            console,
            "not confirmed yet: {}. They continue; check later with --receipt",
            ", ".join(sorted(waiting)),
        )
        raise typer.Exit(1)
    for request in requests:
        say(
            console,
            "all services have confirmed; `lookout erase --receipt {}` prints the receipt",
            request.id,
        )


def _requests(address: str, camera: str, begin_ms: int | None, end_ms: int | None) -> list[Erasure]:
    """Build the requests of an erasure (`erasure_requests`)."""
    return erasure_requests(
        camera,
        None if begin_ms is None else begin_ms * 1000,
        None if end_ms is None else end_ms * 1000,
        this_user(),
        lambda name: _newest_epoch(address, name),
    )


def _newest_epoch(address: str, camera: str) -> tuple[int, int] | None:
    """Return the begin and end of a camera's newest epoch in Unix microseconds, from decode's checkpoint;
    None if unknown.
    """
    span: tuple[int, int] | None = None
    with reading(address, [PIPELINE[Stage.DECODE].state.name], Position(oldest=True)) as reader:
        for message in reader.until_now():
            state = decode_state(message) if message.key() == camera.encode() else None
            if state is not None and state.epoch:
                span = state.wall_offset_us, state.wall_offset_us + state.watermark_us
    return span


def _utc(time_us: int) -> str:
    return datetime.fromtimestamp(time_us / 1e6, UTC).isoformat(timespec="seconds")


def _stop_waiting_for(address: str, instance: str) -> None:
    """Stop waiting for an instance.

    Raises:
        CliError: No erasure waits for this instance.
    """
    signer, members = _signer(address), read_erasures(address).members
    if instance not in members:
        names = ", ".join(clean(name, 60) for name in sorted(members)) or "none"
        raise CliError(
            f"--gone: no erasure waits for an instance {clean(instance, 60)}; erasures wait for: {names}"
        )
    member = members[instance]
    member.left, member.announced_us = True, max(member.announced_us + 1, int(time.time() * 1e6))
    signer.sign(member)
    send_and_confirm(address, ERASURES.name, {member_key(instance): to_json(member)})
    say(TerminalConsole(stderr=True), "erasures no longer wait for {}", instance)


def _signer(address: str) -> ErasureSigner:
    """Return the signer of erasures, and check that this machine has the fleet's token (`check_signs`)."""
    signer = erasure_signer(address)
    check_signs(address, signer)
    return signer


def _remove_labels(address: str, requests: list[Erasure]) -> None:
    """Remove the labels of the time to be erased."""
    from lookout.cli.label import remove_labels

    if not has_topic(address, LABELS.name):
        return  # a fleet of an earlier release
    for request in requests:
        remove_labels(address, request)


def _wait(address: str, identity: str, deadline: float) -> list[str]:
    """Wait for confirmations until `deadline` (monotonic clock); return the instances that have not
    confirmed.
    """
    with TerminalConsole(stderr=True).status("waiting for confirmations"):
        while True:
            try:
                waiting = [member.instance for member in read_erasures(address).open_at(identity)]
            except (CliError, KafkaException):  # a short outage of Kafka, during which services wait as well
                if time.monotonic() > deadline:
                    raise
                continue
            if not waiting or time.monotonic() > deadline:
                return waiting
            time.sleep(0.5)


def _print_receipt(address: str, identity: str, key: Ed25519PrivateKey) -> None:
    from lookout.past.erasures.receipt import receipt_of, signed

    log = read_erasures(address)
    erasure = log.erasures.get(identity)
    receipt = receipt_of(
        log,
        identity,
        retention_ms=_retention(address, erasure),
        checkpoints={} if erasure is None else _checkpoints(address, erasure.camera),
        window_us=_window_us(),
        now_us=int(time.time() * 1e6),
        checked=erasure_signer(address).signs,
    )
    echo(json.dumps(signed(receipt, key), indent=1, ensure_ascii=False))


def _window_us() -> int:
    """Return the length of a window in microseconds, from the services' environment variables if set,
    otherwise the default.
    """
    from lookout.runtime.worker import ServiceSettings, load_settings

    names = ("LOOKOUT_WINDOW_S", "LOOKOUT_STRIDE_S", "LOOKOUT_MODEL_DIR")
    environment = {name: os.environ[name] for name in names if name in os.environ}
    settings = load_settings(ServiceSettings, environment, mode="local", instance="cli")
    return round(settings.window_s * 1e6)


def _check(path: Path) -> None:
    from lookout.past.erasures.receipt import check_receipt

    try:
        if path.exists() and not path.is_file():
            raise ValueError("not a regular file")
        receipt = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise CliError(f"{path}: not a receipt: {error}") from None
    if not isinstance(receipt, dict):
        raise CliError(f"{path}: not a receipt")
    echo(f"the signature is valid; signed with the key {check_receipt(receipt)}")


def _key(path: Path | None) -> Ed25519PrivateKey:
    """Return the key that signs receipts; create it if the file does not exist.

    Raises:
        CliError: The file cannot be read, or does not contain an Ed25519 key.
    """
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        NoEncryption,
        PrivateFormat,
        load_pem_private_key,
    )

    file = path or _default_key()
    if not file.exists():
        fresh = Ed25519PrivateKey.generate()
        data = fresh.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as out:
            out.write(data)
        say(TerminalConsole(stderr=True), "a new key that signs receipts was written to {}; keep it", file)
        return fresh
    try:
        key = load_pem_private_key(file.read_bytes(), password=None)
    except (OSError, ValueError, TypeError) as error:
        raise CliError(f"{file}: the key cannot be read: {error}") from None
    if not isinstance(key, Ed25519PrivateKey):
        raise CliError(f"{file}: not an Ed25519 key, which receipts need")
    return key


def _default_key() -> Path:
    import platformdirs

    given = os.environ.get("LOOKOUT_RECEIPT_KEY")
    return Path(given) if given else Path(platformdirs.user_data_dir("lookout")) / _KEY_FILE


def _retention(address: str, erasure: Erasure | None) -> dict[str, int | None]:
    """Return, by topic, the milliseconds after the erased time for which the topic keeps cameras' records;
    None: for ever.
    """
    names = [topic.name for topic in all_topics() if topic.pipeline and not topic.compacted]
    admin: Any = AdminClient(client_options(address))
    resources = [ConfigResource(ResourceType.TOPIC, name) for name in names]
    out: dict[str, int | None] = {}
    for resource, future in admin.describe_configs(resources, request_timeout=_ANSWER_S).items():
        kept = int(future.result()["retention.ms"].value)
        out[resource.name] = None if kept < 0 else kept
    if erasure is not None and LABELS.compact_within_ms:
        # Deleted on request, but Kafka keeps the records until it closes the log segment with the deletion
        # and compacts it.
        passed_ms = max(0, erasure.requested_us - erasure.end_us) // 1000
        out[LABELS.name] = passed_ms + 2 * LABELS.compact_within_ms
    return out


def _checkpoints(address: str, camera: str) -> dict[str, bool]:
    """Return, by state topic, whether it has a checkpoint of the camera."""
    topics = [flow.state.name for flow in PIPELINE.values()]
    out = dict.fromkeys(topics, False)
    with reading(address, topics, Position(oldest=True)) as reader:
        for message in reader.until_now():
            if message.key() == camera.encode():
                out[str(message.topic())] = bool(message.value())
    return out
