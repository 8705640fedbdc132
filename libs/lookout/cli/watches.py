"""`lookout watch`: the standing questions, kept in a compacted topic."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from lookout import models
from lookout.administration import Standing, change_watch, check_crowd, check_gate, standing_of
from lookout.administration.watches import checked
from lookout.cli.connect import check_reachable, find_bootstrap, grpc_security, reading, send_and_confirm
from lookout.cli.model import AnywayOption, admit_questions
from lookout.cli.options import BootstrapOption, CliError, Position, asked
from lookout.cli.output import TerminalConsole, echo, say
from lookout.rules import ASKED, RuleError, asks_strides
from lookout.rules.messages import rule_of
from lookout.rules.zones import parse_points
from lookout.structured import structure_of, structured
from lookout.text import clean
from lookout.v1.watches_pb2 import Gate, Point, Rule, ScheduleEntry, Watch, Zone
from lookout.wire import CAMERA_OFFLINE, NOTIFY, PRIORITIES, WATCHES, name_fault, to_json
from lookout.wire.limits import LEAST_THRESHOLD

app = typer.Typer(help="Manage standing questions: add, list, remove.", no_args_is_help=True)
out = TerminalConsole()
_BESIDE_ID = 60  # width of all columns of `list` except the id

CameraOption = Annotated[
    list[str] | None,
    typer.Option("--camera", "-c", help="Camera id or pattern ('yard-*'); repeat for more.  [default: all]"),
]
ThresholdOption = Annotated[
    float,
    typer.Option(help=f"p(yes) from which an answer is yes: {LEAST_THRESHOLD:g} to 1."),
]
ClearOption = Annotated[
    float | None,
    typer.Option(
        help="p(yes) below this counts as no, above 0; between the two nothing changes.  "
        "[default: --threshold]",
        show_default=False,
    ),
]
CooldownOption = Annotated[
    float, typer.Option(min=0.0, help="Seconds after an incident in which no new one opens.")
]
OfOption = Annotated[str, typer.Option("--of", help="K/N: yes in K of the last N windows.")]
ScheduleOption = Annotated[
    list[str] | None,
    typer.Option(
        help="Only at these times: 'mon-fri 22:00-06:00 Europe/Berlin' (without a zone: UTC); "
        "repeat for more.  [default: always]"
    ),
]
DescribeOption = Annotated[bool, typer.Option("--describe", help="Add a sentence when the answer is yes.")]
KeepOption = Annotated[
    bool, typer.Option("--keep", help="Gateways keep a picture and a clip of its incidents once they close.")
]
PriorityOption = Annotated[
    Literal["low", "normal", "high"],
    typer.Option(help="When the fleet falls behind, low is skipped first, high last."),
]
SeverityOption = Annotated[
    Literal["info", "warning", "critical"],
    typer.Option(help="How much its incidents matter to people (`lookout notify`)."),
]
TenantOption = Annotated[
    str, typer.Option(help="Ask only cameras of this tenant.  [default: of all tenants]", show_default=False)
]
ZoneOption = Annotated[
    list[str] | None,
    typer.Option(
        help="Only in these zones: 'door:0.1,0.2 0.4,0.2 0.4,0.9' (0..1, name:points); repeat for more."
    ),
]

GateOption = Annotated[
    str,
    typer.Option(
        metavar="ID",
        help="Ask only while this other watch of the camera answers yes.  [default: always]",
        show_default=False,
    ),
]
MotionOption = Annotated[
    bool, typer.Option("--gate-motion", help="Ask only while something moves, in its zones if it has any.")
]

VerifyOption = Annotated[
    bool, typer.Option("--verify", help="Ask a second model about each incident before anyone is told.")
]

VerifyWithOption = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        help="Ask this one of several second models (LOOKOUT_OPINION_URL).  [default: the first]",
        show_default=False,
    ),
]

AskedOption = Annotated[
    Literal["windows", "strides"] | None,
    typer.Option(
        "--asked",
        help="What the question is asked about: windows, or each stride alone, which costs less.  "
        "[default: windows]",
        show_default=False,
    ),
]

IdOption = Annotated[
    str | None,
    typer.Option("--id", help="Name of the watch.  [default: made from the question]", show_default=False),
]
AnswersOption = Annotated[
    str,
    typer.Option(
        help="Allowed answers instead of yes and no: 0..5, or 'open, ajar, closed'; with --when.",
        show_default=False,
    ),
]
WhenOption = Annotated[
    str,
    typer.Option(
        help="Which of --answers count as yes: 'count >= 3', or 'class in {open, ajar}'.", show_default=False
    ),
]

#: limit of the ids that an error names
NAMED = 20
_DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_SPAN = re.compile(
    r"(?:(?P<days>[a-z,\-]+)\s+)?(?P<start>\d\d:\d\d)-(?P<end>\d\d:\d\d)(?:\s+(?P<zone>\S+))?", re.I
)


def read_watches(bootstrap: str) -> dict[str, Watch]:
    """Return every watch in the topic, by id."""
    return standing_watches(bootstrap).watches


def standing_watches(bootstrap: str) -> Standing:
    """Return the watches in the topic. If a watch's newest record cannot be used, its previous record stays
    in force.
    """
    check_reachable(bootstrap, WATCHES.name)
    with reading(bootstrap, [WATCHES.name], Position(oldest=True)) as reader:
        return standing_of((message.key() or b"", message.value()) for message in reader.until_now())


def write_watches(bootstrap: str, watches: list[Watch]) -> None:
    """Publish watches and wait until Kafka has them.

    Raises:
        WatchError: A watch is not valid.
        CliError: Kafka rejects a record.
    """
    send_and_confirm(bootstrap, WATCHES.name, {watch.id: checked(watch) for watch in watches})


def _change(bootstrap: str, watch: Watch) -> None:
    """Write a watch under a version that no other record has (`change_watch`)."""
    change_watch(
        watch,
        lambda: standing_watches(bootstrap),
        lambda rows: send_and_confirm(bootstrap, WATCHES.name, rows),
    )


@app.command("add")
def add(
    question: Annotated[
        str,
        typer.Argument(help='A yes/no question, or one for --answers: "Is anyone lying on the ground?"'),
    ],
    identity: IdOption = None,
    camera: CameraOption = None,
    threshold: ThresholdOption = 0.5,
    clear: ClearOption = None,
    of: OfOption = "1/1",
    cooldown: CooldownOption = 0.0,
    schedule: ScheduleOption = None,
    zone: ZoneOption = None,
    describe: DescribeOption = False,
    keep: KeepOption = False,
    priority: PriorityOption = "normal",
    severity: SeverityOption = "warning",
    tenant: TenantOption = "",
    gate: GateOption = "",
    gate_motion: MotionOption = False,
    verify: VerifyOption = False,
    verify_with: VerifyWithOption = "",
    answers: AnswersOption = "",
    when: WhenOption = "",
    asked_of: AskedOption = None,
    anyway: AnywayOption = False,
    bootstrap: BootstrapOption = None,
) -> None:
    """Ask a question about every window of every camera (or of some), from now on.

    The same --id again changes the watch: its version grows, its open incidents close.
    """
    question = asked(_structured(question, answers, when))
    check_patterns(camera)
    rule = watch_rule(
        threshold=threshold, clear=clear, of=of, cooldown=cooldown, schedule=schedule, zone=zone
    )
    name, address = identity or slug(question), find_bootstrap(bootstrap)
    _admit(address, question, describe, anyway, suggest=asked_of is None)
    standing = standing_watches(address)
    existing = _replaced(standing.watches, name, None if identity else question)
    watch = Watch(
        id=name,
        version=standing.version_after(name),
        question=question,
        cameras=camera or [],
        rule=rule,
        describe=describe,
        keep=keep,
        priority=PRIORITIES[priority],
        severity=f"SEVERITY_{severity.upper()}",
        tenant=tenant,
        gate=gate_of(gate, gate_motion),
        verify=verify or bool(verify_with),
        verify_with=verify_with,
        asked=ASKED[asked_of or "windows"],
    )
    if existing:  # a first version also covers earlier footage; a change applies from now on
        watch.active_from.GetCurrentTime()
    _write(address, watch, standing.watches)


def _structured(question: str, answers: str, when: str) -> str:
    """Add --answers and --when to a question."""
    return structured(question, answers, when) if answers or when else question


def _write(address: str, watch: Watch, standing: Mapping[str, Watch]) -> None:
    """Check a new watch against the other watches and write it; print the watch, and advice about its
    question.
    """
    _check_others(address, watch, standing)
    _change(address, watch)
    where = f"{cameras_text(watch)}{priority_text(watch)}"
    said = "[green]✓[/] watch [bold]{}[/] version {}: “{}” on {}"
    say(out, said, watch.id, watch.version, watch.question, where)
    _advise(watch.question)


def check_patterns(patterns: list[str] | None) -> None:
    """Reject an empty --camera.

    Raises:
        CliError: A pattern is empty.
    """
    if patterns and not all(pattern.strip() for pattern in patterns):
        raise CliError("--camera is empty: give a camera or a pattern, or omit it for all cameras")


def gate_of(watch: str, motion: bool) -> Gate | None:
    """Return the gate that the options describe; None: the watch is always asked."""
    return Gate(watch=watch, motion=motion) if watch or motion else None


def gate_text(gate: Gate) -> str:
    """Describe what must hold before a watch is asked; empty without a gate."""
    conditions = [f"{gate.watch} answers yes"] if gate.watch else []
    conditions += ["something moves"] if gate.motion else []
    return f"while {' and '.join(conditions)}" if conditions else ""


def _advise(question: str) -> None:
    """Print advice if a question is not a yes/no question."""
    if advice := question_advice(question):
        say(TerminalConsole(stderr=True), "[yellow]{}[/]", advice)


def _admit(bootstrap: str, question: str, describe: bool, anyway: bool, suggest: bool) -> None:
    """Reject a question that the model of a fleet on this machine cannot answer or was not trained for. With
    `suggest`, say so if the model answers it equally well from strides.

    Raises:
        QuestionError: The question is rejected.
    """
    from lookout.local import running_fleets

    for fleet in running_fleets():
        if fleet.bootstrap == bootstrap and fleet.model and Path(fleet.model).is_dir():
            if describe:
                models.check_question(Path(fleet.model), question, text=True)
            admit_questions(Path(fleet.model), [question], anyway=anyway)
            if suggest and (share := models.strides_share(Path(fleet.model), question)) is not None:
                words = "strides answer this as well, at {} of the windows' cost in the language model{}: {}"
                only = " if all watches of a camera ask them"
                say(TerminalConsole(stderr=True), words, f"{share:.0%}", only, "--asked strides")
            return


def question_advice(question: str) -> str | None:
    """Return a warning if a question is not a yes/no question; otherwise None. Its watch gets answers in any
    case.
    """
    from lookout.models.questions import asks_yes_no

    if asks_yes_no(question):
        return None
    return (
        "this is not a yes/no question such as “Is anyone lying on the ground?”: the fleet compares yes "
        "with no nevertheless, but the model that comes with Lookout was not trained for that"
    )


def _check_others(bootstrap: str, watch: Watch, standing: Mapping[str, Watch]) -> None:
    """Check a new watch against the other watches, including its gate. If the fleet runs on this machine,
    also check the second model, which notify must know.

    Raises:
        WatchError: There are too many watches, or the watch names a gate or a second model that cannot be
            asked.
    """
    check_crowd(watch, standing)
    check_gate(watch, standing)
    if not watch.verify_with:
        return
    from lookout.administration.second_models import check_second_model
    from lookout.local import running_fleets

    for fleet in running_fleets():
        if fleet.bootstrap == bootstrap and (port := fleet.grpc.get(f"{NOTIFY.name}-0")):
            check_second_model(watch, grpc_security(bootstrap), f"127.0.0.1:{port}")


def _replaced(standing: Mapping[str, Watch], name: str, question: str | None) -> Watch | None:
    """Return the watch that a new watch of this name replaces; None if it replaces no watch.

    Args:
        standing: The watches by id.
        name: Id of the new watch.
        question: The new watch's question, if the id was made from it; None if the user gave the id.

    Raises:
        CliError: The generated id belongs to a watch with another question, or the id is not allowed for a
            new watch.
    """
    existing = standing.get(name)
    if not existing and (fault := name_fault(name)):
        raise CliError(f"--id: {fault}")
    if existing and question is not None and existing.question != question:
        raise CliError(
            f"watch {name} asks “{clean(existing.question)}”: name the new watch with --id, or change the "
            f"existing watch with --id {name}"
        )
    return existing


def watch_rule(
    *,
    threshold: float,
    of: str,
    clear: float | None = None,
    cooldown: float = 0.0,
    schedule: list[str] | None = None,
    zone: list[str] | None = None,
) -> Rule:
    """Return the rule that the options describe.

    Raises:
        CliError: An option cannot be read, or the rule is not valid.
    """
    if not LEAST_THRESHOLD <= threshold <= 1:
        raise CliError(f"--threshold must be between {LEAST_THRESHOLD:g} and 1, not {threshold:g}")
    if clear is not None and not 0 < clear <= 1:
        raise CliError(f"--clear must be above 0 and at most --threshold, not {clear:g}")
    k, n = _parse_of(of)
    rule = Rule(
        threshold=threshold,
        clear_threshold=threshold if clear is None else clear,
        k=k,
        n=n,
        cooldown_s=cooldown,
        schedule=[parse_span(text) for text in schedule or []],
        zones=[parse_zone(text) for text in zone or []],
    )
    if rule.clear_threshold > threshold:
        raise CliError(
            f"--clear {clear} is above --threshold {threshold}: an answer could be yes and no at once"
        )
    if fault := rule_fault(rule):
        raise CliError(fault)
    return rule


@app.command("offline")
def offline(
    camera: CameraOption = None,
    cooldown: Annotated[
        float, typer.Option(min=0.0, help="Seconds after an incident in which no new one opens.")
    ] = 0.0,
    schedule: Annotated[
        list[str] | None,
        typer.Option(help="Only at these times: 'mon-fri 08:00-18:00 Europe/Berlin'.  [default: always]"),
    ] = None,
    bootstrap: BootstrapOption = None,
) -> None:
    """Open an incident when a camera sends nothing; it closes when the camera returns.

    It applies to cameras that have at least one other watch.
    """
    address = find_bootstrap(bootstrap)
    watch = Watch(
        id=CAMERA_OFFLINE,
        version=standing_watches(address).version_after(CAMERA_OFFLINE),
        question="Is the camera offline?",
        cameras=camera or [],
        rule=Rule(cooldown_s=cooldown, schedule=[parse_span(text) for text in schedule or []]),
    )
    _change(address, watch)
    where = ", ".join(watch.cameras) or "all cameras"
    say(out, "[green]✓[/] watch [bold]{}[/] version {} on {}", CAMERA_OFFLINE, watch.version, where)


@app.command("list")
def list_(
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object per line, as in Kafka.")
    ] = False,
    bootstrap: BootstrapOption = None,
) -> None:
    """Show every watch."""
    standing = standing_watches(find_bootstrap(bootstrap))
    watches = standing.watches
    for key, why in sorted(standing.unusable.items()):
        before = f"; version {watches[key].version} stays in force" if key in watches else ""
        say(TerminalConsole(stderr=True), "[yellow]skipped[/] {}: {}{}", clean(key, 200), why, before)
    if as_json:
        for name in sorted(watches):
            echo(to_json(watches[name]).decode())
        return
    if not watches:
        out.print('No watches yet. Add one: lookout watch add "Is anyone lying on the ground?"')
        return
    print_watches(out, watches)


def print_watches(console: Console, watches: Mapping[str, Watch]) -> None:
    """Print a table of watches, by id."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    # Ids are copied from here into other commands, so they are never wrapped, even on a narrow terminal.
    longest = max(len(clean(name)) for name in watches)
    table.add_column("id", no_wrap=True, min_width=longest)
    for column in ("version", "question", "cameras", "rule"):
        table.add_column(column, overflow="fold")
    for name, watch in sorted(watches.items()):
        rule = f"{rule_text(watch)}{priority_text(watch)}"
        cells = (name, watch.version, watch.question, cameras_text(watch), rule)
        table.add_row(*(Text(clean(cell)) for cell in cells))
    console.print(table, width=max(console.width, longest + _BESIDE_ID), crop=False)


@app.command("remove", hidden=True)  # the same name as in `lookout memory remove`
@app.command("rm")
def remove(
    identities: Annotated[
        list[str], typer.Argument(metavar="ID...", help="Ids as `lookout watch list` shows them.")
    ],
    bootstrap: BootstrapOption = None,
) -> None:
    """Remove watches; their open incidents close."""
    address = find_bootstrap(bootstrap)
    keys = standing_watches(address).keys
    # Ids are compared in the form in which the list shows them, so that a key that cannot be typed (control
    # characters, 100 kB) can be removed, too.
    keys_by_text = {**{clean(name, 200): key for name, key in keys.items()}, **keys}
    if missing := [clean(name, 60) for name in identities if name not in keys_by_text]:
        names = ", ".join(clean(name, 60) for name in sorted(keys)[:NAMED]) or "none"
        more = f" and {len(keys) - NAMED} more" if len(keys) > NAMED else ""
        raise CliError(f"no watch {', '.join(missing)}; there are: {names}{more}")
    send_and_confirm(address, WATCHES.name, dict.fromkeys(keys_by_text[name] for name in identities))
    say(out, "[green]✓[/] removed {}", ", ".join(identities))


def cameras_text(watch: Watch) -> str:
    """Describe the cameras that a watch covers."""
    cameras = ", ".join(watch.cameras) or "all cameras"
    return f"{cameras} of tenant {watch.tenant}" if watch.tenant else cameras


def priority_text(watch: Watch) -> str:
    """Describe a watch's priority, as text to follow other words; empty if it is normal."""
    names = {number: name for name, number in PRIORITIES.items() if name != "normal"}
    return f", priority {names[watch.priority]}" if watch.priority in names else ""


def rule_text(watch: Watch) -> str:
    """Describe a watch's rule in a few words, or say why it is not valid."""
    rule = watch.rule
    if fault := rule_fault(rule):
        return f"skipped: {fault}"
    words = [f"p ≥ {rule.threshold or 0.5:g}"]
    if rule.n > 1:
        words.append(f"{rule.k} of {rule.n} windows")
    if rule.cooldown_s:
        words.append(f"quiet {rule.cooldown_s:g} s")
    if rule.schedule:
        words.append(", ".join(span_text(span) for span in rule.schedule))
    if rule.zones:
        words.append("in " + ", ".join(zone.name or "zone" for zone in rule.zones))
    if gate := gate_text(watch.gate):
        words.append(gate)
    if asks_strides(watch):
        words.append("asked about strides")
    if watch.verify:
        words.append(f"second opinion of {watch.verify_with}" if watch.verify_with else "second opinion")
    if watch.disabled:
        words.append("disabled")
    return ", ".join(words)


def rule_fault(rule: Rule) -> str | None:
    """Return why a rule is not valid; None if it is valid."""
    try:
        rule_of(rule)
    except RuleError as error:
        return str(error)
    return None


def span_text(span: ScheduleEntry) -> str:
    """Format a ScheduleEntry as `parse_span` reads it."""
    days = ",".join(_DAYS[day - 1] for day in span.weekdays)
    return " ".join(filter(None, (days, f"{span.start}-{span.end}", span.time_zone)))


def slug(question: str) -> str:
    """Make a readable id from the main words of a question."""
    skipped = {
        "is",
        "are",
        "the",
        "a",
        "an",
        "there",
        "any",
        "in",
        "on",
        "of",
        "at",
        "do",
        "does",
        "you",
        "see",
    }
    structure = structure_of(question)
    text = question if structure is None else structure.text
    words = [word for word in re.findall(r"[a-z0-9]+", text.lower()) if word not in skipped]
    return "-".join(words[:4]) or "watch"


def parse_span(text: str) -> ScheduleEntry:
    """Parse a schedule such as 'mon-fri 22:00-06:00 Europe/Berlin'.

    Raises:
        CliError: The text has another form.
    """
    match = _SPAN.fullmatch(text.strip())
    if match is None:
        raise CliError(f"--schedule {clean(text, 60)!r} is not like 'mon-fri 22:00-06:00 Europe/Berlin'")
    try:
        days = _parse_days(match["days"])
    except ValueError:
        raise CliError(f"--schedule {text!r}: days are {', '.join(_DAYS)}, single or as a range") from None
    span = ScheduleEntry(weekdays=days, start=match["start"], end=match["end"], time_zone=match["zone"] or "")
    if fault := rule_fault(Rule(schedule=[span])):
        raise CliError(f"--schedule {text!r}: {fault.removeprefix('schedule: ')}")
    return span


def _parse_days(text: str | None) -> list[int]:
    days: list[int] = []
    for part in filter(None, (text or "").lower().split(",")):
        first, _, last = part.partition("-")
        start, end = _DAYS.index(first[:3]), _DAYS.index((last or first)[:3])
        days.extend((start + step) % 7 + 1 for step in range((end - start) % 7 + 1))
    return days


def parse_zone(text: str, option: str = "--zone") -> Zone:
    """Parse a zone such as 'door:0.1,0.2 0.4,0.2 0.4,0.9'.

    Args:
        text: The text.
        option: The option that it belongs to, for messages.

    Raises:
        CliError: The text has another form.
    """
    name, found, points = text.rpartition(":")
    try:
        polygon = [Point(x=x, y=y) for x, y in parse_points(points)]
    except RuleError as error:
        raise CliError(f"{option} {clean(text, 60)!r}: {error}") from None
    return Zone(name=name if found else "", points=polygon)


def _parse_of(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d{1,9})/(\d{1,9})", text)
    if match is None or not 1 <= int(match[1]) <= int(match[2]):
        raise CliError(f"--of {clean(text, 60)!r} is not like 2/3 (yes in 2 of the last 3 windows)")
    return int(match[1]), int(match[2])
