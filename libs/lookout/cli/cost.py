"""`lookout cost`: what each tenant, camera and watch cost in a month, from the gateway's history."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import urllib.error
import urllib.parse
import urllib.request
from collections import defaultdict
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

import typer

from lookout.cli.formats import spreadsheet_cell
from lookout.cli.options import CliError
from lookout.cli.output import echo
from lookout.text import clean

_ANSWER_S = 60.0
_COLUMNS = ("tenant", "camera", "watch", "verdicts", "device_hours", "cost")


@dataclass(frozen=True, slots=True)
class CostLine:
    """The cost of one watch on one camera."""

    tenant: str
    camera: str
    watch: str
    verdicts: int
    device_hours: float
    cost: float


def cost(
    month: Annotated[
        str, typer.Option(metavar="YYYY-MM", help="Month in UTC.  [default: this month]", show_default=False)
    ] = "",
    price: Annotated[float, typer.Option(min=0.0, help="Price of one device hour.")] = 2.5,
    currency: Annotated[str, typer.Option(help="Currency of the price, which is only printed.")] = "USD",
    form: Annotated[
        Literal["markdown", "csv", "json"], typer.Option("--format", help="Output format.")
    ] = "markdown",
    gateway: Annotated[
        str | None,
        typer.Option(
            help="URL of the gateway, with a token in LOOKOUT_GATEWAY_TOKEN. Without it: LOOKOUT_GATEWAY, "
            "else the fleet that runs here.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Print what each tenant, camera and watch cost in a month.

    A cost is the measured device seconds (the vision tower's and the model's) times the price. Idle device
    time is charged to nobody, so the sum is less than the machines' bill.
    """
    begin, end = month_span(month, now := datetime.now(UTC))
    until = min(end, now)
    answer = _asked(gateway, {"since": begin.isoformat(), "until": until.isoformat()})
    lines = cost_lines(answer.get("rows", ()), price)
    sheets = {"csv": csv_sheet, "json": json_sheet, "markdown": markdown_sheet}
    echo(sheets[form](lines, f"{begin:%Y-%m}", price, currency))


def month_span(month: str, now: datetime) -> tuple[datetime, datetime]:
    """Return the start of a month and the start of the next month, in UTC.

    Args:
        month: YYYY-MM; empty: the month of `now`.
        now: The time.

    Raises:
        CliError: `month` is not a month, or has not begun.
    """
    text = month or f"{now:%Y-%m}"
    if not re.fullmatch(r"[0-9]{4}-(0[1-9]|1[0-2])", text) or text.startswith("0000"):
        raise CliError(f"--month {clean(month)!r} is not a month: give year and month, as in 2026-11")
    year, number = map(int, text.split("-"))
    begin = datetime(year, number, 1, tzinfo=UTC)
    if begin > now:
        raise CliError(f"--month {text} has not begun")
    return begin, datetime(year + number // 12, number % 12 + 1, 1, tzinfo=UTC)


def cost_lines(rows: Any, price: float) -> list[CostLine]:
    """Return the lines of the cost sheet, most expensive first.

    Args:
        rows: `rows` of the gateway's `/v1/costs`.
        price: Price of a device hour.
    """
    lines = []
    for row in rows:
        hours = float(row.get("device_s", 0.0)) / 3600
        names = (row.get("tenant", ""), row.get("camera", ""), row.get("watch", ""))
        lines.append(CostLine(*names, int(row.get("verdicts", 0)), hours, hours * price))
    return sorted(lines, key=lambda line: (-line.cost, line.tenant, line.camera, line.watch))


def markdown_sheet(lines: list[CostLine], month: str, price: float, currency: str) -> str:
    """Format two Markdown tables: the sums per tenant, and the cost of each watch of each camera."""
    tenants = defaultdict(list)
    for line in lines:
        tenants[line.tenant].append(line)
    text = [f"# Cost of {month}", "", f"Price of one device hour: {price:g} {currency}.", ""]
    text += ["| tenant | cameras | verdicts | device hours | cost |", "| --- | ---: | ---: | ---: | ---: |"]
    for name, own in sorted(tenants.items(), key=lambda entry: -sum(line.cost for line in entry[1])):
        text.append(_table_row(name, len({line.camera for line in own}), *_sums(own)))
    text.append(_table_row("total", len({(line.tenant, line.camera) for line in lines}), *_sums(lines)))
    text += ["", "| tenant | camera | watch | verdicts | device hours | cost |"]
    text.append("| --- | --- | --- | ---: | ---: | ---: |")
    for line in lines:
        numbers = (line.verdicts, line.device_hours, line.cost)
        text.append(_table_row(line.tenant, line.camera, line.watch, *numbers))
    return "\n".join(text)


def csv_sheet(lines: list[CostLine], month: str, price: float, currency: str) -> str:
    """Format a CSV table with one row for each watch of a camera."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(("month", *_COLUMNS, "currency"))
    for line in lines:
        names = (spreadsheet_cell(line.tenant), spreadsheet_cell(line.camera), spreadsheet_cell(line.watch))
        table.writerow(
            (month, *names, line.verdicts, f"{line.device_hours:.6f}", f"{line.cost:.4f}", currency)
        )
    return text.getvalue().rstrip("\n")


def json_sheet(lines: list[CostLine], month: str, price: float, currency: str) -> str:
    """Format a JSON object with the sums and one row for each watch of a camera."""
    verdicts, hours, total = _sums(lines)
    sheet = {"month": month, "price_per_hour": price, "currency": currency}
    sheet |= {"verdicts": verdicts, "device_hours": hours, "cost": total}
    rows = [{name: getattr(line, name) for name in _COLUMNS} for line in lines]
    return json.dumps({**sheet, "rows": rows}, ensure_ascii=False)


def _sums(lines: list[CostLine]) -> tuple[int, float, float]:
    return (
        sum(line.verdicts for line in lines),
        sum(line.device_hours for line in lines),
        sum(line.cost for line in lines),
    )


def _table_row(*cells: object) -> str:
    *names, verdicts, hours, money = cells
    texts = [clean(str(name), 200).replace("|", "\\|") for name in names]
    return f"| {' | '.join([*texts, f'{verdicts}', f'{hours:.3f}', f'{money:.2f}'])} |"


def _asked(gateway: str | None, query: dict[str, str]) -> dict[str, Any]:
    """Return the gateway's answer to `/v1/costs`.

    Raises:
        CliError: There is no gateway, or it does not answer.
    """
    opener = urllib.request.build_opener(_NoRedirect(), urllib.request.HTTPCookieProcessor())
    url = gateway or os.environ.get("LOOKOUT_GATEWAY") or _signed_in(opener)
    if urllib.parse.urlsplit(url).scheme not in ("http", "https"):
        raise CliError(
            f"{clean(url)} is not the URL of a gateway: give one that begins with https:// or http://"
        )
    request = urllib.request.Request(f"{url.rstrip('/')}/v1/costs?{urllib.parse.urlencode(query)}")
    if token := os.environ.get("LOOKOUT_GATEWAY_TOKEN"):
        request.add_header("Authorization", f"Bearer {token}")
    try:
        with opener.open(request, timeout=_ANSWER_S) as answer:
            found = json.load(answer)
    except urllib.error.HTTPError as error:
        advice = ": set LOOKOUT_GATEWAY_TOKEN to a viewer's token" if error.code in (401, 403) else ""
        raise CliError(f"{clean(url)} answers {error.code} {clean(str(error.reason))}{advice}") from None
    except (OSError, ValueError) as error:
        raise CliError(f"{clean(url)} did not give a gateway's answer: {clean(str(error))}") from None
    if not isinstance(found, dict):
        raise CliError(f"{clean(url)} did not give a gateway's answer: is this the gateway's URL?")
    return found


def _signed_in(opener: urllib.request.OpenerDirector) -> str:
    """Sign `opener` in to the gateway of the fleet that runs here, and return the gateway's URL.

    Raises:
        CliError: No fleet with a gateway runs here, or its gateway rejects the sign-in or does not answer.
    """
    from lookout.local.addresses import running_fleets

    for fleet in running_fleets():
        if fleet.gateway is not None and (link := fleet.sign_in_link()) is not None:
            try:
                opener.open(link, timeout=_ANSWER_S).close()
            except urllib.error.HTTPError as error:
                if error.code != 303:  # success redirects to the console, which is not followed
                    raise CliError(f"{fleet.gateway} rejects the sign-in: {error.code}") from None
            except OSError as error:
                raise CliError(f"{fleet.gateway} does not answer: {clean(str(error))}") from None
            return fleet.gateway
    raise CliError(
        "no fleet with an HTTP API runs here: start one with `lookout up`, or give --gateway and a token in "
        "LOOKOUT_GATEWAY_TOKEN"
    )


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Follows no redirect, so that the token goes only to the gateway."""

    def redirect_request(self, *_: Any) -> None:
        return None
