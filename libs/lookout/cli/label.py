"""`lookout label`: whether an incident, or the answer of a window, was right."""

from __future__ import annotations

import getpass
from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Annotated, Any, Final

import typer

from lookout.administration import label_rows
from lookout.cli.connect import check_reachable, find_bootstrap, read_erasures, reading, send_and_confirm
from lookout.cli.options import BootstrapOption, CliError, Position
from lookout.cli.output import TerminalConsole, say
from lookout.runtime.worker.record_reader import record_of
from lookout.text import clean
from lookout.v1.alerts_pb2 import Alert
from lookout.v1.erasures_pb2 import Erasure
from lookout.v1.labels_pb2 import Label
from lookout.v1.verdicts_pb2 import Verdict
from lookout.wire import (
    ALERTS,
    LABELS,
    VERDICTS,
    WireError,
    from_json,
    key_text,
    received,
)

#: minimum number of characters of an id
_LEAST: Final = 6


class Opinion(StrEnum):
    """A person's opinion of an incident; `none` removes it."""

    RIGHT = "right"
    WRONG = "wrong"
    NONE = "none"


def label(
    identity: Annotated[
        str,
        typer.Argument(
            metavar="INCIDENT",
            help="The id of an incident or a verdict, or its first characters as `lookout alerts` prints "
            "them.",
        ),
    ],
    opinion: Annotated[
        Opinion, typer.Argument(help="Whether the incident was right; none removes the label.")
    ],
    bootstrap: BootstrapOption = None,
) -> None:
    """Label an incident as right or wrong; `lookout backtest --labels` measures precision and recall."""
    address = find_bootstrap(bootstrap)
    check_reachable(address, LABELS.name)
    entry = _labelled(address, identity)
    entry.right = opinion is Opinion.RIGHT
    write_labels(address, [entry], remove=opinion is Opinion.NONE)
    console = TerminalConsole(stderr=True)
    say(console, "{} of camera {}: {}", entry.incident, entry.camera, opinion.value)


def write_labels(bootstrap: str, labels: Sequence[Label], *, remove: bool = False) -> None:
    """Publish labels, or remove them, and wait until Kafka has them.

    Args:
        bootstrap: Kafka's address.
        labels: The labels; a missing time or name of the labeller is filled in.
        remove: Remove the labels.

    Raises:
        CliError: Kafka rejects them.
    """
    rows = label_rows(labels, getpass.getuser(), remove=remove)
    send_and_confirm(bootstrap, LABELS.name, rows)


def read_labels(bootstrap: str) -> list[Label]:
    """Return the current labels, without labels of an erased time.

    Raises:
        CliError: Kafka does not answer, or has no topic of labels.
    """
    from lookout.past.erasures.fence import Fence

    check_reachable(bootstrap, LABELS.name)
    fence = Fence(read_erasures(bootstrap).erasures.values())
    rows: dict[bytes, Label] = {}
    with reading(bootstrap, [LABELS.name], Position(oldest=True)) as reader:
        for message in reader.until_now():
            rows.pop(message.key() or b"", None)
            try:
                entry = received(Label, record_of(message))
            except WireError:
                continue  # removed, or not a valid label
            if fence.hides(entry.camera, entry.start.ToMicroseconds(), entry.end.ToMicroseconds()) is None:
                rows[message.key() or b""] = entry
    return list(rows.values())


def remove_labels(bootstrap: str, erasure: Erasure) -> int:
    """Remove the labels of an erased time; return the number of labels removed.

    Args:
        bootstrap: Kafka's address.
        erasure: The camera and the time that are erased.
    """
    from lookout.past.erasures.fence import Fence

    fence = Fence([erasure])
    rows: dict[str, Any] = {}
    with reading(bootstrap, [LABELS.name], Position(oldest=True)) as reader:
        for message in reader.until_now():
            key = key_text(message.key())
            rows.pop(key, None)
            try:
                entry = from_json(message.value() or b"", Label)
            except WireError:
                continue
            if (
                fence.hides(entry.camera, entry.start.ToMicroseconds(), entry.end.ToMicroseconds())
                is not None
            ):
                rows[key] = None
    if rows:
        send_and_confirm(bootstrap, LABELS.name, rows)
    return len(rows)


def _labelled(bootstrap: str, identity: str) -> Label:
    """Return a label without an opinion for the incident or verdict whose id begins with `identity`.

    Raises:
        CliError: Kafka has no incident or verdict with such an id, or several.
    """
    if len(identity) < _LEAST:
        raise CliError(f"give at least {_LEAST} characters of the id, not {clean(identity, 40)!r}")
    for topic, kind in ((ALERTS.name, Alert), (VERDICTS.name, Verdict)):
        known: dict[str, Label] = {}
        with reading(bootstrap, [topic], Position(oldest=True)) as reader:
            for entry in _entries(reader.until_now(), kind):
                if entry.incident.startswith(identity):
                    known[entry.incident] = entry
        if len(known) > 1:
            raise CliError(f"{len(known)} ids begin with {clean(identity, 64)}: give more characters")
        if known:
            return next(iter(known.values()))
    raise CliError(
        f"no incident or verdict begins with {clean(identity, 64)}: `lookout alerts --since 24h` prints ids"
    )


def _entries(messages: Iterable[Any], kind: type[Alert] | type[Verdict]) -> Iterable[Label]:
    for message in messages:
        try:
            record = from_json(message.value() or b"", kind)
        except WireError:
            continue
        yield Label(
            camera=record.camera,
            watch=record.watch,
            incident=record.incident if isinstance(record, Alert) else record.id,
            question=record.question,
            start=record.start,
            end=record.end,
        )
