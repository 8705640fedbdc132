"""Of KEDA's scalers the one for Prometheus is left, and the fake Prometheus knows what the chart asks."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster import keda
from tests.cluster.fake_prometheus import answer
from tests.cluster.tools import ToolError
from tests.unit.charts.test_autoscaling import TEMPLATE, VALUES, Stage

BUILDER = """func buildScaler(kind string) (Scaler, error) {
\tswitch kind {
\tcase "activemq":
\t\treturn NewActiveMQScaler()
\tcase "prometheus":
\t\treturn NewPrometheusScaler()
\tcase "redis":
\t\treturn NewRedisScaler()
\tdefault:
\t\treturn nil, fmt.Errorf("no scaler")
\t}
}
"""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """The files of KEDA's source that choose a scaler."""
    scalers = tmp_path / "pkg" / "scalers"
    scalers.mkdir(parents=True)
    for name in ("scaler", "prometheus_scaler", "redis_scaler", "activemq_scaler_test"):
        (scalers / f"{name}.go").write_text("package scalers\n")
    (tmp_path / "pkg" / "scaling").mkdir()
    (tmp_path / "pkg" / "scaling" / "scalers_builder.go").write_text(BUILDER)
    return tmp_path


def test_one_scaler_is_left(source: Path) -> None:
    keda.leave_one_scaler(source)
    names = {path.name for path in (source / "pkg" / "scalers").iterdir()}
    assert names == {"scaler.go", "prometheus_scaler.go", "rest.go"}
    builder = (source / "pkg" / "scaling" / "scalers_builder.go").read_text()
    assert builder.count("case ") == 1
    assert "NewPrometheusScaler()\n\tdefault:" in builder


def test_another_way_to_choose_a_scaler_is_refused_before_anything_is_deleted(source: Path) -> None:
    (source / "pkg" / "scaling" / "scalers_builder.go").write_text("var scalers = map[string]Scaler{}\n")
    with pytest.raises(ToolError, match="chooses its scalers in another way"):
        keda.leave_one_scaler(source)
    assert (source / "pkg" / "scalers" / "redis_scaler.go").exists()


def test_the_fake_answers_what_the_chart_asks() -> None:
    queries = [line.split("query: ")[1] for line in TEMPLATE.splitlines() if "query: " in line]
    stage = Stage(pods=2)
    stage.work(3.0)
    others = ("handle_seconds", "lookout_agent_")  # of what the step does not scale
    prefill = [query for query in queries if not any(name in query for name in others)]
    assert [answer(stage, query) for query in prefill] == [2.0, stage.lag_s / VALUES["lagSeconds"]]
    with pytest.raises(ValueError, match="up"):
        answer(stage, "up")
