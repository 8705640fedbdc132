"""The sheet of `lookout cost`: months, sums and forms."""

from __future__ import annotations

import csv
import io
import json
from datetime import UTC, datetime

import pytest

from lookout.cli.cost import CostLine, cost_lines, csv_sheet, json_sheet, markdown_sheet, month_span
from lookout.cli.options import CliError

NOW = datetime(2026, 11, 27, 9, tzinfo=UTC)
ROWS = [
    {"tenant": "north", "camera": "gate", "watch": "fall", "verdicts": 10, "device_s": 1800.0},
    {"tenant": "north", "camera": "gate", "watch": "crowd", "verdicts": 10, "device_s": 900.0},
    {"tenant": "south", "camera": "a|b", "watch": "fall", "verdicts": 5, "device_s": 7200.0},
    {"tenant": "south", "camera": "idle", "watch": "fall"},  # JSON leaves zeros out
]


def lines() -> list[CostLine]:
    return cost_lines(ROWS, 2.5)


@pytest.mark.parametrize(
    ("month", "begin", "end"),
    [
        ("", datetime(2026, 11, 1, tzinfo=UTC), datetime(2026, 12, 1, tzinfo=UTC)),
        ("2025-12", datetime(2025, 12, 1, tzinfo=UTC), datetime(2026, 1, 1, tzinfo=UTC)),
    ],
)
def test_a_month_ends_where_the_next_begins(month: str, begin: datetime, end: datetime) -> None:
    assert month_span(month, NOW) == (begin, end)


@pytest.mark.parametrize("month", ["2026-13", "2026-1", "november", "0000-01", "2026-12", "٢٠٢٦-١١"])
def test_what_is_not_a_month_that_has_begun_is_refused(month: str) -> None:
    with pytest.raises(CliError, match="--month"):
        month_span(month, NOW)


def test_a_sheet_has_the_sums_of_tenants_and_the_dearest_first() -> None:
    text = markdown_sheet(lines(), "2026-11", 2.5, "USD").splitlines()
    assert text[0] == "# Cost of 2026-11"
    assert "| south | 2 | 5 | 2.000 | 5.00 |" in text
    assert "| north | 1 | 20 | 0.750 | 1.88 |" in text
    assert "| total | 3 | 25 | 2.750 | 6.88 |" in text
    assert text.index("| south | a\\|b | fall | 5 | 2.000 | 5.00 |") < text.index(
        "| north | gate | fall | 10 | 0.500 | 1.25 |"
    )


def test_a_sheet_of_nothing_has_its_total() -> None:
    assert "| total | 0 | 0 | 0.000 | 0.00 |" in markdown_sheet([], "2026-11", 2.5, "USD")


def test_csv_and_json_have_every_line() -> None:
    table = list(csv.DictReader(io.StringIO(csv_sheet(lines(), "2026-11", 2.5, "EUR"))))
    assert [row["camera"] for row in table] == ["a|b", "gate", "gate", "idle"]
    assert float(table[0]["cost"]) == 5.0
    sheet = json.loads(json_sheet(lines(), "2026-11", 2.5, "EUR"))
    assert sheet["cost"] == pytest.approx(6.875)
    assert [row["device_hours"] for row in sheet["rows"]] == [2.0, 0.5, 0.25, 0.0]


def test_a_name_is_no_formula_of_a_spreadsheet() -> None:
    text = csv_sheet(cost_lines([{"tenant": "=1+1", "camera": "gate"}], 1.0), "2026-11", 1.0, "USD")
    assert "'=1+1" in text
