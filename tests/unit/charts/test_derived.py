"""The chart's derived files follow the code, and the values follow their schema."""

from __future__ import annotations

import importlib.util
import json
import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import jsonschema
import pytest
import yaml

from lookout.past.memory import Keep
from lookout.services.controller.cluster import VERSION
from lookout.wire import all_topics

ROOT = Path(__file__).parents[3]
CHART = ROOT / "charts/lookout"


def read_yaml(path: Path) -> Any:
    """Read a document with libyaml, which takes a fifteenth of the time of PyYAML's own parser."""
    return yaml.load(path.read_text(), Loader=yaml.CSafeLoader)


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


@pytest.fixture(scope="module")
def check(derive: ModuleType) -> Callable[[object], None]:
    """Validate values: the schema is made and read once."""
    validator = jsonschema.Draft7Validator(derive.schema())
    return validator.validate


@pytest.mark.slow
def test_derived_files_are_current(derive: ModuleType) -> None:
    stale = [path.name for path, text in derive.derived().items() if path.read_text() != text]
    assert not stale, f"run `make chart`: {stale}"


def test_definitions_can_have_two_versions(derive: ModuleType) -> None:
    """The step `versions` of the cluster tests serves them."""
    old, new = derive.Version("v1", stored=False), derive.Version("v2", stored=True)
    for text in derive.crds().values():
        both = derive.versioned(text, (old, new))
        first, second = yaml.safe_load(both)["spec"]["versions"]
        assert (first["name"], first["storage"], first["deprecated"]) == ("v1", False, True)
        assert "apiVersion: lookout.dev/v2" in first["deprecationWarning"]
        assert (second["name"], second["storage"], "deprecated" in second) == ("v2", True, False)
        assert first["served"]
        assert second["served"]
        assert first["schema"] == second["schema"]
        assert derive.versioned(both) == text


def test_the_controller_uses_a_version_that_is_served(derive: ModuleType) -> None:
    assert VERSION in [version.name for version in derive.VERSIONS if version.served]
    assert [version.stored for version in derive.VERSIONS].count(True) == 1


def test_every_value_has_a_comment(derive: ModuleType) -> None:
    assert not [value.path for value in derive.values() if not value.comment]


@pytest.mark.slow
def test_every_reference_of_the_schema_has_its_definition(derive: ModuleType) -> None:
    """Helm refuses every value where one is missing."""
    schema = derive.schema()
    references = set(re.findall(r'"\$ref": "#/definitions/(\w+)"', json.dumps(schema)))
    assert references == set(schema["definitions"])


def test_no_refusal_of_helm_shows_a_regular_expression(derive: ModuleType) -> None:
    """Nor a bound that it says in words that contradict each other (`got 0, want 0`)."""
    unreadable = {
        "pattern",
        "patternProperties",
        "propertyNames",
        "exclusiveMinimum",
        "exclusiveMaximum",
        "not",
    }

    def keywords(schema: object) -> set[str]:
        if isinstance(schema, list):
            return set().union(*map(keywords, schema))
        if not isinstance(schema, dict):
            return set()
        inside = [part for name, part in schema.items() if name not in ("properties", "definitions")]
        for name in ("properties", "definitions"):  # names of values are no keywords
            inside += schema.get(name, {}).values()
        return set(schema) | set().union(*map(keywords, inside))

    plain, forms = derive.forms(derive.schema())
    assert not keywords(plain) & unreadable
    assert keywords(derive.schema()) & unreadable == {"pattern", "patternProperties", "exclusiveMinimum"}
    for form in forms:
        assert form["words"], form
        assert form["paths"], form
        assert form["kind"] in ("above", "there") or form["form"] not in form["words"]


def test_every_value_and_every_group_of_values_must_be_there(derive: ModuleType) -> None:
    _, forms = derive.forms(derive.schema())
    there = [".".join(path) for form in forms if form["kind"] == "there" for path in form["paths"]]
    assert {value.path for value in derive.values()} <= set(there)
    assert {"decode", "tryout.kafka", "tryout.kafka.outside"} <= set(there)
    assert there.index("tryout") < there.index("tryout.kafka") < there.index("tryout.kafka.heapMb")


def test_settings_that_must_fit_a_form_are_refused_with_what_they_are_for(derive: ModuleType) -> None:
    _, forms = derive.forms(derive.schema())
    [words] = [form["words"] for form in forms if ["settings", "otlp_endpoint"] in form["paths"]]
    assert words.startswith("rejected; expected: OTLP endpoint for traces")


def test_the_defaults_follow_the_schema(check: Callable[[object], None]) -> None:
    check(read_yaml(CHART / "values.yaml"))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("tryout.enabeld", False),
        ("topics.partitions", 0),
        ("recordings.settings.job_quotas", {"*": {"jobs": -1}}),
        ("recordings.settings.job_quotas", {"Acme Corp": {"jobs": 1}}),
        ("recordings.decodeReplicas", -1),
        ("topics.retentionHours", {"verdict.v1": 5}),
        ("topics.retentionHours", {"watches.v1": 5}),
        ("topics.tieredLocalHours", {"watches.v1": 5}),
        ("decode.settings", {"stride": 3}),
        ("decode.settings", {"bootstrap": "elsewhere:9092"}),
        ("settings", {"fps": "fast"}),
        ("settings", {"kafka_password": "secret"}),
        ("model.source", "cloud"),
        ("kafka.bootstrap", "nohost"),
        ("redis.url", "redis://user:password@host:6379"),
        ("cameraAgent.cameraNetworks", ["10.0.0.0"]),
        ("cameraAgent.cameraNetworks", ["10.0.0.0/33"]),
        ("cameraAgent.cameraNetworks", ["10.0.0.256/24"]),
        ("cameraAgent.cameraNetworks", ["fd00::/129"]),
        ("model.digest", "xyz"),
        ("prefill.memory.keep", "2hours"),
        ("prefill.gpus", -1),
        ("redis.url", "redis://redis:70000"),
        ("image.digests", {"decoder": "sha256:" + "0" * 64}),
        ("settings", {"otlp_endpoint": "collector"}),
        ("decode.tolerations", [{"key": "gpu", "operator": "Sometimes"}]),
        ("recall.updateStrategy", {"type": "OnDelete"}),
        ("model.volume.path", "../etc"),
        ("pod", {"labels": {"team": "x_y!"}}),
        ("pod", {"extraEnv": [{"name": "A B"}]}),
        ("pod", {"extraEnv": [{"name": "A", "value": 3}]}),
        ("pod", {"extraVolumes": [{"name": "A B"}]}),
        ("pod", {"extraVolumeMounts": [{"name": "models", "mountPath": "models"}]}),
        ("pod", {"extraVolumeMounts": [{"name": "models"}]}),
        ("pod", {"extraContainers": [{"name": "side_car"}]}),
        ("pod", {"affinity": {"nodeAfinity": {}}}),
        ("pod", {"topologySpreadConstraints": [{"x": 1}]}),
        ("pod", {"topologySpreadConstraints": [{"topologyKey": "rack"}]}),
        ("decode.tolerations", [{"key": "gpu node"}]),
        ("decode.tolerations", [{"key": "gpu", "value": "a b"}]),
        ("decode.updateStrategy", {"rollingUpdate": {"maxUnavailable": "abc"}}),
        ("decode.updateStrategy", {"rollingUpdate": {"maxUnavailable": "101%"}}),
        ("decode.updateStrategy", {"rollingUpdate": {"maxSurge": 1}}),
        ("controller.updateStrategy", {"rollingUpdate": {"partition": 1}}),
        ("services.ipFamilies", ["IPv4", "IPv4"]),
        ("redis.sentinel", "a b"),
        ("redis.url", "redis://redis?x=1"),
        ("redis.url", "redis://redis?socket_timeout=5&x=1"),
        ("redis.url", "redis://redis?ssl_cert_reqs=none"),
        ("redis.passwordKey", ""),
        ("redis.caKey", "a b"),
        ("kafka.sasl.usernameKey", ""),
        ("kafka.tls.caKey", "a b"),
        ("prefill.memory.secretKey", "a/b"),
        ("prefill.memory.region", "eu central"),
        ("kafka.options", {"compression.type": "snapy"}),
        ("kafka.options", {"a b": 1}),
        ("decode.settings", {"tenant_quotas": "{}"}),
        ("prefill.settings", {"tenant_interval_s": 10}),
        ("tenants.quotas", {"Acme": {"cameras": 1}}),
        ("tenants.quotas", {"acme": {"camera": 1}}),
        ("tenants.quotas", {"acme": {"cameras": -1}}),
        ("tenants.quotas", {"acme": {"weight": 0}}),
        ("tenants.intervalS", 0),
        ("controller.settings", {"resync": 5}),
        ("controller.settings", {"status_writes_s": 0}),
        ("controller.settings", {"namespace": "other"}),
        ("controller.settings", {"recordings": True}),
    ],
)
def test_wrong_values_are_refused(check: Callable[[object], None], path: str, value: object) -> None:
    values = read_yaml(CHART / "values.yaml")
    *folders, name = path.split(".")
    inner = values
    for folder in folders:
        inner = inner[folder]
    inner[name] = value
    with pytest.raises(jsonschema.ValidationError):
        check(values)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("kafka.bootstrap", "kafka-0.kafka:9092,[fd00::1]:65535"),
        ("redis.url", "redis://a:26379,b_1:26379/0"),
        ("redis.url", "rediss://[fd00::1]:6380"),
        ("redis.url", "rediss://redis.example/3?socket_timeout=5"),
        ("image.prefix", "registry.example:5000/team/lookout-"),
        ("settings", {"otlp_endpoint": "https://collector.example:4317/"}),
        ("settings", {"otlp_endpoint": "collector:4317"}),
        ("model.volume.path", "qwen/a..b"),
        ("decode.updateStrategy", {"rollingUpdate": {"maxUnavailable": "10%"}}),
        ("controller.updateStrategy", {"rollingUpdate": {"maxSurge": "100%", "maxUnavailable": 0}}),
        ("redis.url", "rediss://redis?ssl_cert_reqs=none&health_check_interval=30"),
        ("redis.sentinel", "fleet-1.primary_a"),
        ("kafka.options", {"compression.type": "zstd", "socket.nagle.disable": True}),
        ("services.ipFamilies", ["IPv6", "IPv4"]),
        ("prefill.memory.region", "eu-central-1"),
        ("tenants.quotas", {"acme-2": {"cameras": 900, "device_s": 1.5, "weight": 3}, "*": {"bytes": 0}}),
        ("recordings.settings", {"job_quotas": {"*": {"jobs": 5}, "acme.eu": {"seconds": 60}}}),
        ("controller.settings", {"status_writes_s": 40}),
        ("pod", {"extraEnv": [{"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}]}),
        ("pod", {"affinity": {"nodeAffinity": {"anything": "as given"}}}),
        ("decode.tolerations", [{"key": "example.com/gpu", "operator": "Equal", "value": "yes"}]),
    ],
)
def test_values_are_accepted(check: Callable[[object], None], path: str, value: object) -> None:
    values = read_yaml(CHART / "values.yaml")
    folder, name = path.rsplit(".", 1) if "." in path else ("", path)
    inner = values
    for part in filter(None, folder.split(".")):
        inner = inner[part]
    inner[name] = value
    check(values)


@pytest.mark.parametrize(
    "network", ["10.0.0.0/8", "192.0.2.255/32", "0.0.0.0/0", "fd00::/8", "::1/128", "::ffff:10.0.0.1/96"]
)
def test_networks_are_accepted(check: Callable[[object], None], network: str) -> None:
    values = read_yaml(CHART / "values.yaml")
    values["cameraAgent"]["cameraNetworks"] = [network]
    check(values)


@pytest.mark.parametrize("keep", ["2h", "90min", "1.5d", "500MB", "5 GB", "2H", "3m"])
def test_the_schema_takes_what_a_memory_parses(check: Callable[[object], None], keep: str) -> None:
    assert Keep.parse(keep)
    values = read_yaml(CHART / "values.yaml")
    values["prefill"]["memory"]["keep"] = keep
    check(values)


def test_versions_of_project_and_charts_are_one(derive: ModuleType) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for name in ("lookout", "lookout-crds"):
        chart = yaml.safe_load((ROOT / "charts" / name / "Chart.yaml").read_text())
        assert chart["version"] == chart["appVersion"] == project["version"]
    assert re.search(r"(?m)^## (\S+)", (ROOT / "CHANGELOG.md").read_text())[1] == project["version"]  # type: ignore[index]


def test_artifact_hub_gets_images_and_changes_of_the_chart(derive: ModuleType) -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    images = yaml.safe_load(chart["annotations"]["artifacthub.io/images"])
    assert {image["name"] for image in images} == set(derive._IMAGES)
    assert {image["image"].rpartition(":")[2] for image in images} == {chart["version"]}
    kinds = {entry["kind"] for entry in yaml.safe_load(chart["annotations"]["artifacthub.io/changes"])}
    assert kinds <= {"added", "changed", "deprecated", "removed", "fixed", "security"}


def test_changes_of_the_newest_version_that_name_the_chart(derive: ModuleType) -> None:
    text = """# Changelog

## 2.0.0

### Changed

- The chart refuses
  `a: "b"`.
- Another thing.

### Fixed

- Charts install.

## 1.0.0

### Changed

- The chart came.
"""
    assert derive.changes(text) == [("changed", 'The chart refuses `a: "b"`.'), ("fixed", "Charts install.")]


def test_the_topic_table_is_the_wires(derive: ModuleType) -> None:
    assert [each["name"] for each in derive.topics()] == [topic.name for topic in all_topics()]


def test_custom_resources_have_schemas_without_gaps() -> None:
    """A field without a type would be dropped or accepted whatever it holds."""
    for path in (CHART / "crds").glob("*.yaml"):
        crd = read_yaml(path)
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


@pytest.mark.parametrize("path", sorted((CHART / "crds").iterdir()), ids=lambda path: path.stem)
def test_every_key_of_a_definition_has_a_value(path: Path) -> None:
    """A comma in a description ends it within braces: the rest becomes keys that the API server refuses."""

    def empty(node: Any, place: str) -> list[str]:
        if isinstance(node, dict):
            return [key for name in node for key in empty(node[name], f"{place}.{name}")]
        if isinstance(node, list):
            return [key for entry in node for key in empty(entry, place)]
        return [place] if node is None else []

    assert empty(read_yaml(path), path.stem) == []


@pytest.mark.parametrize("path", sorted((CHART / "crds").iterdir()), ids=lambda path: path.stem)
def test_kubectl_explains_every_field(path: Path) -> None:
    """All but `metadata`, which Kubernetes describes itself."""

    def silent(schema: dict[str, Any], place: str) -> list[str]:
        own = [] if schema.get("description") or place.endswith("[]") else [place]
        inner = {f"{place}.{name}": part for name, part in schema.get("properties", {}).items()}
        inner |= {f"{place}[]": schema["items"]} if isinstance(schema.get("items"), dict) else {}
        found = [silent(part, name) for name, part in inner.items() if name != f"{path.stem}.metadata"]
        return own + [name for names in found for name in names]

    for version in read_yaml(path)["spec"]["versions"]:
        assert silent(version["schema"]["openAPIV3Schema"], path.stem) == []
