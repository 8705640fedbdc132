"""The chart's derived files follow the code, and the values follow their schema."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import jsonschema
import pytest
import yaml

from lookout.wire import all_topics

ROOT = Path(__file__).parents[3]
CHART = ROOT / "charts/lookout"


@pytest.fixture(scope="module")
def derive() -> ModuleType:
    spec = importlib.util.spec_from_file_location("derive", ROOT / "charts/derive.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    import sys

    sys.modules["derive"] = module
    spec.loader.exec_module(module)
    return module


def test_derived_files_are_current(derive: ModuleType) -> None:
    stale = [path.name for path, text in derive.derived().items() if path.read_text() != text]
    assert not stale, f"run `make chart`: {stale}"


def test_every_value_has_a_comment(derive: ModuleType) -> None:
    assert not [value.path for value in derive.values() if not value.comment]


def test_the_defaults_follow_the_schema(derive: ModuleType) -> None:
    jsonschema.validate(yaml.safe_load((CHART / "values.yaml").read_text()), derive.schema())


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("tryout.enabeld", False),
        ("topics.partitions", 0),
        ("topics.retentionHours", {"verdict.v1": 5}),
        ("topics.retentionHours", {"watches.v1": 5}),
        ("decode.settings", {"stride": 3}),
        ("decode.settings", {"bootstrap": "elsewhere:9092"}),
        ("settings", {"fps": "fast"}),
        ("settings", {"kafka_password": "secret"}),
        ("model.source", "cloud"),
        ("kafka.bootstrap", "nohost"),
        ("redis.url", "redis://user:password@host:6379"),
        ("cameraAgent.cameraNetworks", ["10.0.0.0"]),
        ("prefill.gpus", -1),
    ],
)
def test_wrong_values_are_refused(derive: ModuleType, path: str, value: object) -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    *folders, name = path.split(".")
    inner = values
    for folder in folders:
        inner = inner[folder]
    inner[name] = value
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(values, derive.schema())


def test_the_topic_table_is_the_wires(derive: ModuleType) -> None:
    assert [each["name"] for each in derive.topics()] == [topic.name for topic in all_topics()]


def test_custom_resources_have_schemas_without_gaps() -> None:
    """A field without a type would be dropped or accepted whatever it holds."""
    for path in (CHART / "crds").glob("*.yaml"):
        crd = yaml.safe_load(path.read_text())
        for version in crd["spec"]["versions"]:
            _check(version["schema"]["openAPIV3Schema"], path.name)
            assert version["additionalPrinterColumns"]


def _check(schema: dict[str, object], where: str) -> None:
    assert "type" in schema, where
    assert "x-kubernetes-preserve-unknown-fields" not in schema, where
    properties = schema.get("properties", {})
    assert isinstance(properties, dict)
    for name, inner in properties.items():
        _check(inner, f"{where}.{name}")
    items = schema.get("items")
    if isinstance(items, dict):
        _check(items, f"{where}[]")
