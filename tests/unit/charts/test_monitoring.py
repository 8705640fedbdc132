"""Alerts, the dashboard and autoscaling ask for metrics that the services have, by labels that these have."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.promtool import find_promtool

ROOT = Path(__file__).parents[3]
CHART = ROOT / "charts/lookout"
#: labels that Prometheus adds to what it scrapes
TARGET = {"namespace", "pod"}
#: series of a histogram
SERIES = ("_bucket", "_sum", "_count")


def metrics() -> dict[str, set[str]]:
    """Return the labels of every metric, from the table that is generated from the code."""
    page = (ROOT / "docs/metrics.md").read_text()
    rows = re.findall(r"^\| `(lookout_\w+)` \| (\w+) \| ([^|]*) \|", page, re.MULTILINE)
    found: dict[str, set[str]] = {}
    for name, kind, labels in rows:
        own = {each.strip() for each in labels.split(",") if each.strip()}
        if kind == "histogram":
            found |= {f"{name}{end}": own | ({"le"} if end == "_bucket" else set()) for end in SERIES}
        else:
            found[name] = own
    return found


def queries() -> Iterator[tuple[str, str]]:
    """Return every PromQL expression of the chart with the place where it stands."""
    for name in ("monitoring.yaml", "autoscaling.yaml"):
        text = (CHART / "templates" / name).read_text()
        for each in re.findall(r"^\s+(?:expr|query): (.+)$", text, re.MULTILINE):
            yield name, re.sub(r"\{\{.*?\}\}", "x", each)
    dashboard = json.loads((CHART / "files/dashboard.json").read_text())
    for panel in dashboard["panels"]:
        for target in panel.get("targets", ()):
            yield f"panel {panel['title']}", target["expr"]
    for annotation in dashboard["annotations"]["list"]:
        yield f"annotation {annotation['name']}", annotation["expr"]
    for variable in dashboard["templating"]["list"]:
        if variable["type"] == "query":
            yield f"variable {variable['name']}", variable["query"]


def rules() -> dict[str, str]:
    """Return the expression of every alert of the chart by its name."""
    text = (CHART / "templates/monitoring.yaml").read_text()
    return dict(re.findall(r"- alert: (\w+)\n\s+expr: (.+)$", text, re.MULTILINE))


def problems(query: str, known: dict[str, set[str]]) -> list[str]:
    """Return metrics that do not exist, and labels that the query's metrics do not have."""
    names = re.findall(r"\blookout_\w+", query)
    unknown = [f"no metric {name}" for name in names if name not in known]
    if unknown or not names:
        return unknown or ["no metric of Lookout"]
    own = set.intersection(*(known[name] for name in names)) | TARGET
    wrong = []
    for name, chosen in re.findall(r"\b(lookout_\w+)\{([^}]*)\}", query):
        used = re.findall(r"(?:^|,)\s*(\w+)\s*(?:=~|!~|!=|=)", chosen)
        wrong += [f"no label {label}" for label in used if label not in known[name] | TARGET]
    for grouped in re.findall(r"\b(?:by|without)\s*\(([^)]*)\)", query):
        wrong += [f"no label {label.strip()}" for label in grouped.split(",") if label.strip() not in own]
    return wrong


@pytest.mark.parametrize(("place", "query"), list(queries()))
def test_queries_ask_for_metrics_that_exist(place: str, query: str) -> None:
    assert not problems(query, metrics()), f"{place}: {query}"


def test_promtool_parses_every_query(tmp_path: Path) -> None:
    """What Prometheus itself would reject; variables of the dashboard are Grafana's language."""
    program = find_promtool()
    if program is None:
        pytest.skip("no promtool: install the Debian package prometheus")
    expressions = [query for place, query in queries() if not place.startswith("variable")]

    def checked(expressions: list[str]) -> subprocess.CompletedProcess[str]:
        rules = [{"record": f"query:{number}", "expr": text} for number, text in enumerate(expressions)]
        file = tmp_path / "rules.yaml"
        file.write_text(json.dumps({"groups": [{"name": "queries", "rules": rules}]}))
        command = [str(program), "check", "rules", str(file)]
        return subprocess.run(command, check=False, capture_output=True, text=True)

    assert checked(["max(lookout_ready"]).returncode, "promtool sees a wrong query"
    done = checked(expressions)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(expressions)} rules found" in done.stdout


@pytest.mark.parametrize(
    ("query", "problem"),
    [
        ("max(lookout_lag_second)", "no metric lookout_lag_second"),
        ("lookout_handle_seconds", "no metric lookout_handle_seconds"),
        ('sum by (stages) (lookout_ready{namespace="x"})', "no label stages"),
        ('rate(lookout_records_total{topic="x"}[5m])', "no label topic"),
        ("up == 0", "no metric of Lookout"),
    ],
)
def test_wrong_queries_are_found(query: str, problem: str) -> None:
    assert problem in problems(query, metrics())


def test_the_chart_has_queries() -> None:
    assert len(list(queries())) > 10


def test_every_alert_has_a_runbook_with_its_expression() -> None:
    page = (ROOT / "docs/runbooks.md").read_text()
    sections = dict(re.findall(r"^## (Lookout\w+)\n\n`(.*?)`", page, re.MULTILINE))

    def names(queries: dict[str, str]) -> dict[str, list[str]]:
        return {alert: re.findall(r"\blookout_\w+", query) for alert, query in queries.items()}

    assert names(sections) == names(rules())


def test_every_alert_leads_to_its_runbook() -> None:
    text = (CHART / "templates/monitoring.yaml").read_text()
    alerts = re.split(r"^\s+- alert: ", text, flags=re.MULTILINE)[1:]
    for alert in alerts:
        name = alert.split()[0]
        assert alert.count(f"runbook_url: {{{{ $runbooks }}}}{name.lower()}\n") == 1, name
