"""`lookout notify`: manages who is told of incidents, in a compacted topic."""

from __future__ import annotations

import base64
import secrets
import time
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import unquote, urlsplit

import typer
from rich.table import Table
from rich.text import Text

from lookout.cli.connect import check_reachable, find_bootstrap, grpc_security, reading, send_and_confirm
from lookout.cli.options import BootstrapOption, CliError, Position
from lookout.cli.output import TerminalConsole, say
from lookout.cli.times import parse_until
from lookout.cli.watches import CameraOption, parse_span
from lookout.disk import private_folder, replace_file
from lookout.local import NOTIFY_SECRETS, FleetAddress, running_fleets
from lookout.rules import RuleError
from lookout.rules.notifications import check_notification, read_notification, secret_file, target_text
from lookout.text import clean
from lookout.v1.notifications_pb2 import Mqtt, Notification, TryNotificationRequest
from lookout.v1.watches_pb2 import Severity
from lookout.wire import NOTIFICATIONS, NOTIFY, is_camera_id, key_text, to_json
from lookout.wire.limits import NOTIFICATIONS as MOST
from lookout.wire.message_json import enum_name

app = typer.Typer(
    no_args_is_help=True, help="Manage who is told of incidents: add, list, test, snooze, remove."
)
out = TerminalConsole()
NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="The notification's id.")]
_TEST_S = 45.0
_EVENTS = ("opened", "updated", "closed", "action", "report")
_SCHEDULES = "'mon-fri 22:00-06:00 Europe/Berlin' (without a zone: UTC); repeat for more."


WebhookOption = Annotated[str | None, typer.Option(help="Post to this URL, signed.", metavar="URL")]
AppriseOption = Annotated[
    str | None, typer.Option(help="Send to this URL of Apprise: slack://..., ntfy://...", metavar="URL")
]
MqttOption = Annotated[
    str | None,
    typer.Option(help="Publish to mqtt:// or mqtts://USER:PASSWORD@HOST; Home Assistant discovers it."),
]
TokenOption = Annotated[
    str | None,
    typer.Option(
        help="With --mqtt: a token of the gateway; Home Assistant gets a switch for each watch that it may "
        "snooze.",
        metavar="TOKEN",
    ),
]
SecretOption = Annotated[
    list[str] | None,
    typer.Option(
        help="Name of a file in the fleet's secrets folder, instead of a secret here. With --webhook, give "
        "two while a key is being replaced."
    ),
]
WatchOption = Annotated[
    list[str] | None,
    typer.Option("--watch", "-w", help="Watch id or pattern; repeat for more.  [default: all]"),
]
SeverityOption = Annotated[
    Literal["info", "warning", "critical"],
    typer.Option(help="Only incidents of watches of this severity or above."),
]
EventOption = Annotated[
    list[str] | None,
    typer.Option(help=f"Only these events: {', '.join(_EVENTS)}; repeat for more.  [default: all]"),
]
HoursOption = Annotated[list[str] | None, typer.Option(help=f"Only at these times: {_SCHEDULES}")]
QuietOption = Annotated[
    list[str] | None, typer.Option(help=f"Only critical incidents at these times: {_SCHEDULES}")
]
UnclaimedOption = Annotated[
    float, typer.Option(min=0.0, help="Escalation: only incidents that nobody took up for this many minutes.")
]
TenantOption = Annotated[str, typer.Option(help="Only cameras of this tenant.", show_default=False)]


@app.command()
def add(
    name: NameArgument,
    webhook: WebhookOption = None,
    apprise: AppriseOption = None,
    mqtt: MqttOption = None,
    snooze_token: TokenOption = None,
    secret: SecretOption = None,
    picture: Annotated[bool, typer.Option("--picture", help="With --apprise: attach the picture.")] = False,
    camera: CameraOption = None,
    watch: WatchOption = None,
    severity: SeverityOption = "info",
    event: EventOption = None,
    hours: HoursOption = None,
    quiet: QuietOption = None,
    unclaimed: UnclaimedOption = 0.0,
    tenant: TenantOption = "",
    bootstrap: BootstrapOption = None,
) -> None:
    """Notify somebody of incidents from now on; the same NAME again changes the notification.

    If the fleet runs on this machine, keys and passwords go into a file in its folder, not into Kafka.
    Otherwise put them into the service's folder (LOOKOUT_NOTIFY_SECRETS), and name their files with --secret.

    Example:

        lookout notify add phone --apprise ntfys://ntfy.sh/TOPIC --picture --quiet '22:00-06:00 Europe/Berlin'
    """
    if not is_camera_id(name):
        raise CliError(f"{clean(name, 40)}: a name must be printable text of 1 to 200 bytes")
    if unknown := [kind for kind in event or () if kind not in _EVENTS]:
        raise CliError(f"--event {clean(unknown[0], 40)}: give one of {', '.join(_EVENTS)}")
    address = find_bootstrap(bootstrap)
    standing = _standing(address)
    if name not in standing and len(standing) >= MOST:
        raise CliError(f"there are {len(standing)} notifications, {MOST} at most: remove some first")
    notification = Notification(
        id=name,
        watches=watch or [],
        cameras=camera or [],
        tenant=tenant,
        severity=f"SEVERITY_{severity.upper()}",
        hours=[parse_span(text) for text in hours or []],
        quiet_hours=[parse_span(text) for text in quiet or []],
        events=[f"EVENT_{kind.upper()}" for kind in event or []],
        unclaimed_s=unclaimed * 60,
    )
    keeper = _SecretKeeper(address, name, secret or [])
    _set_channel(notification, keeper, {"webhook": webhook, "apprise": apprise, "mqtt": mqtt})
    if snooze_token is not None:
        if not notification.HasField("mqtt"):
            raise CliError("--snooze-token goes with --mqtt: only Home Assistant gets switches")
        notification.mqtt.token_file = keeper.put_token(snooze_token)
    if notification.HasField("apprise"):
        notification.apprise.picture = picture
    _write(address, notification, keeper)


def _set_channel(notification: Notification, keeper: _SecretKeeper, urls: dict[str, str | None]) -> None:
    """Set a notification's channel from the given URLs.

    Raises:
        CliError: No URL or several URLs were given, or there is no folder for the secret.
    """
    given = [(channel, url) for channel, url in urls.items() if url is not None]
    if len(given) != 1:
        raise CliError("give one of --webhook, --apprise and --mqtt")
    match given[0]:
        case ("webhook", url):
            notification.webhook.url = url
            notification.webhook.secrets.extend(keeper.key())
        case ("apprise", url):
            notification.apprise.url_file = keeper.put(url)
        case (_, url):
            notification.mqtt.CopyFrom(_mqtt(url, keeper))


def _write(address: str, notification: Notification, keeper: _SecretKeeper) -> None:
    """Check a notification; write its secrets and its record."""
    try:
        check_notification(notification)
    except RuleError as error:
        raise CliError(str(error)) from None
    keeper.write()
    send_and_confirm(address, NOTIFICATIONS.name, {notification.id: to_json(notification)})
    name = notification.id
    say(out, "[green]✓[/] {} is told of incidents; try it: lookout notify test {}", name, name)
    if keeper.shown:
        say(out, "  its key, which the target needs: {}", keeper.shown)


@app.command("list")
def list_(bootstrap: BootstrapOption = None) -> None:
    """Show every notification."""
    notifications = _standing(find_bootstrap(bootstrap))
    if not notifications:
        out.print(
            "Nobody is told yet. Add somebody: lookout notify add hook --webhook https://example.org/hook"
        )
        return
    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in ("id", "channel", "watches", "cameras", "from severity", "unclaimed", "state"):
        table.add_column(column, overflow="fold")
    for name, notification in sorted(notifications.items()):
        level = (
            enum_name("Severity", Severity.Name(notification.severity)) if notification.severity else "info"
        )
        minutes = f"{notification.unclaimed_s / 60:g} min" if notification.unclaimed_s else ""
        cells = (
            name,
            target_text(notification),
            ", ".join(notification.watches) or "all",
            ", ".join(notification.cameras) or "all",
            level,
            minutes,
            _state(notification),
        )
        table.add_row(*(Text(clean(cell)) for cell in cells))
    out.print(table, crop=False)


def _state(notification: Notification) -> str:
    until = notification.snoozed_until.ToMilliseconds() / 1000
    if notification.disabled:
        return "off"
    if until <= time.time():
        return "on"
    return f"snoozed until {datetime.fromtimestamp(until).astimezone():%Y-%m-%d %H:%M %Z}"


@app.command()
def snooze(
    name: NameArgument,
    until: Annotated[
        str, typer.Argument(metavar="TIME", help="How long (30m, 8h), until when (2026-05-01T06:00), or off.")
    ],
    bootstrap: BootstrapOption = None,
) -> None:
    """Until TIME, send nothing about newly opened incidents, nor about their later events.

    Example:

        lookout notify snooze phone 8h
    """
    address = find_bootstrap(bootstrap)
    notification = _one(_standing(address), name)
    notification.ClearField("snoozed_until")
    if until != "off":
        notification.snoozed_until.FromMilliseconds(round(1000 * parse_until(until, "TIME")))
    send_and_confirm(address, NOTIFICATIONS.name, {name: to_json(notification)})
    say(out, "[green]✓[/] {} is {}", name, _state(notification))


def _one(notifications: dict[str, Notification], name: str) -> Notification:
    """Return a notification by its id.

    Raises:
        CliError: No notification has this id; the message lists the existing ids.
    """
    if name not in notifications:
        names = ", ".join(clean(known, 60) for known in sorted(notifications)[:10]) or "none"
        raise CliError(f"no notification {clean(name, 60)}; there are: {names}")
    return notifications[name]


@app.command("test")
def send_test(name: NameArgument, bootstrap: BootstrapOption = None) -> None:
    """Deliver a test at once, and say whether it arrived."""
    import grpc

    from lookout.runtime.net import Channels
    from lookout.v1.notifications_pb2_grpc import NotifyServiceStub

    address = find_bootstrap(bootstrap)
    fleet = next((fleet for fleet in running_fleets() if fleet.bootstrap == address), None)
    port = None if fleet is None else fleet.grpc.get(f"{NOTIFY.name}-0")
    if port is None:
        raise CliError(
            f"the fleet at {address} does not run on this machine: call POST /v1/notifications/NAME/test of "
            "its gateway"
        )
    with Channels(grpc_security(address)).open(f"127.0.0.1:{port}") as channel:
        stub: Any = NotifyServiceStub(channel)  # type: ignore[no-untyped-call]
        try:
            answer = stub.TryNotification(TryNotificationRequest(notification=name), timeout=_TEST_S)
        except grpc.RpcError as error:
            raise CliError(f"notify at 127.0.0.1:{port}: {error.details()}") from None
    if not answer.delivered:
        raise CliError(f"not delivered: {clean(answer.detail, 500)}")
    say(out, "[green]✓[/] delivered")


@app.command("remove", hidden=True)
@app.command("rm")
def remove(name: NameArgument, bootstrap: BootstrapOption = None) -> None:
    """Remove a notification, and its secrets if the fleet runs on this machine.

    With MQTT, the service needs the file with the password until it has removed the entities from Home
    Assistant. In a fleet on this machine it then removes the file itself. Elsewhere keep the file until the
    entities are gone.
    """
    address = find_bootstrap(bootstrap)
    notification = _one(_standing(address), name)
    send_and_confirm(address, NOTIFICATIONS.name, {name: None})
    # With MQTT, the service needs the password to remove entities, and then deletes the file.
    _SecretKeeper(address, name, []).forget(has_password=not notification.HasField("mqtt"))
    say(out, "[green]✓[/] removed {}", name)


def _standing(address: str) -> dict[str, Notification]:
    """Return the notifications in the topic, by id. A notification that cannot be used is skipped, with a
    message.
    """
    check_reachable(address, NOTIFICATIONS.name)
    notifications: dict[str, Notification] = {}
    with reading(address, [NOTIFICATIONS.name], Position(oldest=True)) as reader:
        for message in reader.until_now():
            key, value = key_text(message.key() or b""), message.value()
            notifications.pop(key, None)
            if value is not None:
                try:
                    notifications[key] = read_notification(key, value)
                except RuleError as error:
                    say(TerminalConsole(stderr=True), "[yellow]skipped[/] {}: {}", clean(key, 200), error)
    return notifications


def _mqtt(url: str, keeper: _SecretKeeper) -> Mqtt:
    """Return the MQTT channel that a broker's URL describes.

    Raises:
        CliError: The text is not the URL of a broker.
    """
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    if host is None or parts.scheme not in ("mqtt", "mqtts"):
        raise CliError("--mqtt: a broker's address begins with mqtt:// or mqtts:// and a host")
    mqtt = Mqtt(
        host=host, port=port or 0, tls=parts.scheme == "mqtts", username=unquote(parts.username or "")
    )
    if parts.password is not None or keeper.names:
        mqtt.password_file = keeper.put(unquote(parts.password or ""))
    return mqtt


class _SecretKeeper:
    """Writes secrets into the folder of a fleet on this machine. For other fleets, the user gives the names
    of files that already exist there.

    Args:
        address: Kafka's address of the fleet.
        name: Id of the notification.
        names: Names of files that the user gave (--secret).
    """

    def __init__(self, address: str, name: str, names: list[str]) -> None:
        self._fleet = next((fleet for fleet in running_fleets() if fleet.bootstrap == address), None)
        self._file, self.names, self.shown = secret_file(name), names, ""
        self._texts: dict[str, str] = {}

    def put(self, text: str) -> str:
        """Keep a secret in memory for `write`; return the name of its file.

        Raises:
            CliError: The fleet does not run here, and no file was named.
        """
        if self.names:
            return self.names[0]
        self._check_here(self._fleet)
        self._texts[self._file] = text
        return self._file

    def put_token(self, text: str) -> str:
        """Keep a token in memory for `write`; return the name of its file.

        Raises:
            CliError: The fleet does not run here.
        """
        self._check_here(self._fleet)
        self._texts[self._token_file] = text
        return self._token_file

    def key(self) -> list[str]:
        """Return the names of the files with a webhook's keys: the files given with --secret, otherwise one
        with a generated key.
        """
        if self.names:
            return self.names
        path = self._check_here(self._fleet) / self._file
        if not path.exists():
            self.shown = "whsec_" + base64.b64encode(secrets.token_bytes(32)).decode()
            self._texts[self._file] = self.shown
        return [self._file]

    def write(self) -> None:
        """Write the secrets that were kept for this call."""
        for file, text in self._texts.items():
            replace_file(self._check_here(self._fleet) / file, text.encode())

    def forget(self, *, has_password: bool) -> None:
        """Remove the token, and with `has_password` the secret as well."""
        if self._fleet is not None:
            for file in (self._token_file, *([self._file] if has_password else [])):
                (self._check_here(self._fleet) / file).unlink(missing_ok=True)

    @property
    def _token_file(self) -> str:
        return f"{self._file}-token"

    @staticmethod
    def _check_here(fleet: FleetAddress | None) -> Path:
        if fleet is None:
            raise CliError(
                "the fleet does not run on this machine: put the secret into a file of its folder "
                "(LOOKOUT_NOTIFY_SECRETS), and give the file's name with --secret"
            )
        return private_folder(Path(fleet.folder) / NOTIFY_SECRETS)
