"""The chart's rules on recorded scrapes: promtool plays them back, one sample at each scrape of the chart.

Scrapes are recorded faster than Prometheus would take them and played at the chart's interval. A fault that
lasts is repeated: gauges show the same values again, and counters grow by the same steps again.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from tests.cluster.tools import BIN, build_programs
from tests.promtool import find_promtool

ROOT = Path(__file__).resolve().parents[3]
NAMESPACE: Final = "lookout"
#: as the chart's `monitoring.intervalS`
INTERVAL_S: Final = 15
_BEFORE_S, _AFTER_S = 360, 1620  # without a fault, and from its begin on
_COUNTERS = ("_total", "_bucket", "_count", "_sum")
#: all that has a rule of its own
_VALUES: Final = {
    "monitoring": {"rules": True},
    "networkPolicy": {"enabled": False},
    "controller": {"enabled": True},
    "cameraAgent": {"enabled": True},
    "gateway": {"enabled": True},
    "notify": {"enabled": True, "settings": {"notify_hosts": "*"}},
    "recall": {"enabled": True},
    "recordings": {"enabled": True, "decodeReplicas": 1},
    "prefill": {"memory": {"keep": "2h"}},
}
#: series and what they were at one moment; None: the process did not answer
Scrape = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Case:
    """What was recorded of one fault.

    Attributes:
        fault: In words.
        rules: Alerts that it has to fire.
        also: Alerts that are right to fire as well, as they follow from the fault.
        scrapes: The last one before it, then those since it began.
        lasts: Whether the fault goes on after the last scrape.
        every_s: Seconds between two scrapes when they are played.
    """

    fault: str
    rules: frozenset[str]
    also: frozenset[str]
    scrapes: Sequence[Scrape]
    lasts: bool
    every_s: int = INTERVAL_S


def rendered_rules() -> list[dict[str, Any]]:
    """The rules of the chart, rendered by Helm with everything that has a rule turned on."""
    helm = shutil.which("helm") or str(BIN / "helm")
    if not Path(helm).exists():
        build_programs()
    command = [helm, "template", "lookout", str(ROOT / "charts/lookout"), "--namespace", NAMESPACE]
    command += ["--api-versions", "monitoring.coreos.com/v1", "--show-only", "templates/monitoring.yaml"]
    values = yaml.safe_dump(_VALUES)
    done = subprocess.run(
        [*command, "--values", "-"], input=values, check=False, capture_output=True, text=True
    )
    if done.returncode:
        raise AssertionError(f"the chart cannot be rendered: {done.stderr}")
    (rules,) = (part for part in yaml.safe_load_all(done.stdout) if part["kind"] == "PrometheusRule")
    (group,) = rules["spec"]["groups"]
    found: list[dict[str, Any]] = group["rules"]
    return found


def rule_name(rule: Mapping[str, Any]) -> str:
    """The name of a rule; those that exist for each stage have the stage in it."""
    stage = rule["labels"].get("stage")
    return f"{rule['alert']}/{stage}" if stage else str(rule["alert"])


def metric_names(rules: Sequence[Mapping[str, Any]]) -> set[str]:
    """The metrics that rules ask for."""
    return {name for rule in rules for name in re.findall(r"\blookout_\w+", rule["expr"])}


def fired(rules: Sequence[Mapping[str, Any]], case: Case, folder: Path) -> set[str]:
    """The rules that fire at any minute of a case."""
    series = [
        {"series": name, "values": " ".join(_written(values))} for name, values in _played(case).items()
    ]
    minutes = range(_BEFORE_S // 60 + 1, (_BEFORE_S + _AFTER_S) // 60)
    asked = 'group by (alertname, rule) (ALERTS{alertstate="firing"})'
    tests = {
        "interval": f"{case.every_s}s",
        "input_series": series,
        "promql_expr_test": [
            {"expr": asked, "eval_time": f"{minute}m", "exp_samples": []} for minute in minutes
        ],
    }
    named = [{**rule, "labels": {**rule["labels"], "rule": rule_name(rule)}} for rule in rules]
    group = {"name": "lookout", "interval": f"{INTERVAL_S}s", "rules": named}
    (folder / "rules.yaml").write_text(json.dumps({"groups": [group]}))
    content = {"rule_files": ["rules.yaml"], "evaluation_interval": f"{INTERVAL_S}s", "tests": [tests]}
    (folder / "case.yaml").write_text(json.dumps(content))
    program = find_promtool()
    if program is None:
        raise SystemExit("no promtool: install the Debian package prometheus")
    command = [str(program), "test", "rules", "case.yaml"]
    done = subprocess.run(command, cwd=folder, check=False, capture_output=True, text=True)
    output = done.stdout + done.stderr
    found = {name for line in output.splitlines() for name in re.findall(r'rule=\\?"([^"\\]+)', line)}
    if done.returncode and not found:
        raise AssertionError(output[:4000])
    return found


def _played(case: Case) -> dict[str, list[float | None]]:
    """The values of each series: the scrape before the fault for minutes, the fault, and how it goes on."""
    names = {name for scrape in case.scrapes for name in scrape}
    return {name: list(_values(name, [scrape.get(name) for scrape in case.scrapes], case)) for name in names}


def _values(name: str, recorded: Sequence[float | None], case: Case) -> Iterator[float | None]:
    yield from [recorded[0]] * (_BEFORE_S // case.every_s)
    yield from recorded[1:]
    grows = name.partition("{")[0].endswith(_COUNTERS)
    value = recorded[-1]
    for number in range(_AFTER_S // case.every_s - len(recorded) + 1):
        if case.lasts:
            place = 1 + number % (len(recorded) - 1)
            before, after = recorded[place - 1], recorded[place]
            if after is None or not grows:
                value = after
            else:
                # A counter that is less than before began again at 0, as in Prometheus.
                value = (value or 0.0) + (after - before if before is not None and before <= after else after)
        yield value


def _written(values: Sequence[float | None]) -> Iterator[str]:
    """Values in promtool's words; a series that ends is marked as stale, as a failed scrape does."""
    seen = False
    for value in values:
        if value is None:
            yield "stale" if seen else "_"
        else:
            yield f"{value:g}"
        seen = value is not None
