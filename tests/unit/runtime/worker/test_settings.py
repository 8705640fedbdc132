"""Settings say what is wrong by name."""

from __future__ import annotations

import pytest

from lookout.errors import StartupError
from lookout.runtime.worker import FetchSettings, ServiceSettings, digest, load_settings

LOCAL = {"LOOKOUT_MODE": "local", "LOOKOUT_INSTANCE": "decode-0"}


class StageSettings(ServiceSettings):
    tau: float = 0.25


def test_local_mode_has_addresses() -> None:
    settings = load_settings(StageSettings, LOCAL)
    assert settings.bootstrap == "127.0.0.1:9092"
    assert settings.redis_url.startswith("redis://127.0.0.1")
    assert settings.address(5000) == "127.0.0.1:5000"


def test_a_cluster_needs_addresses() -> None:
    with pytest.raises(StartupError, match=r"LOOKOUT_BOOTSTRAP is not set"):
        load_settings(StageSettings, {})


def test_values_are_read() -> None:
    environ = {
        **LOCAL,
        "LOOKOUT_TAU": "0.5",
        "LOOKOUT_KAFKA_OPTIONS": '{"security.protocol": "SSL"}',
        "LOOKOUT_BOOTSTRAP": "kafka:9092",
    }
    settings = load_settings(StageSettings, environ)
    assert settings.tau == 0.5
    assert settings.kafka()["security.protocol"] == "SSL"
    assert settings.kafka()["bootstrap.servers"] == "kafka:9092"


def test_an_unknown_setting_is_named_with_its_neighbour() -> None:
    with pytest.raises(StartupError, match=r"LOOKOUT_TUA; did you mean LOOKOUT_TAU\?"):
        load_settings(StageSettings, {**LOCAL, "LOOKOUT_TUA": "1"})
    with pytest.raises(StartupError, match="LOOKOUT_GPRC_PORT"):
        load_settings(StageSettings, {**LOCAL, "LOOKOUT_GPRC_PORT": "5000"})


def test_a_retired_setting_says_what_to_do() -> None:
    environ = {**LOCAL, "LOOKOUT_SHED_AFTER_S": "5", "LOOKOUT_TAU": "1"}
    with pytest.raises(StartupError, match=r"^LOOKOUT_SHED_AFTER_S was removed: set skip_after_s"):
        load_settings(StageSettings, environ)


def test_what_kubernetes_injects_is_no_setting() -> None:
    links = {"LOOKOUT_DECODE_SERVICE_HOST": "10.0.0.1", "LOOKOUT_DECODE_PORT": "tcp://10.0.0.1:50051"}
    assert load_settings(StageSettings, {**LOCAL, **links}).tau == 0.25


def test_a_bad_value_is_named() -> None:
    with pytest.raises(StartupError, match="LOOKOUT_TAU='fast'"):
        load_settings(StageSettings, {**LOCAL, "LOOKOUT_TAU": "fast"})


class FetchingSettings(FetchSettings):
    pass


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("LOOKOUT_URI_HOSTS", "a b", "'a b' is not a host"),
        ("LOOKOUT_URI_HOSTS", "media.example,https://cdn.example/x", "'https://cdn.example/x' is not a host"),
        ("LOOKOUT_URI_HOSTS", "media.example:8080", "is not a host; give host names without scheme, port"),
        ("LOOKOUT_URI_NETWORKS", "10.0.0.0/33", "give networks such as 10.2.0.0/16"),
        ("LOOKOUT_URI_NETWORKS", "10.0.0.1/8", "has host bits set; give networks"),
        ("LOOKOUT_URI_SCHEMES", "https,ftp", "'ftp' is not a supported scheme; give http or https"),
    ],
)
def test_what_is_never_fetched_from_is_refused_at_start(name: str, value: str, why: str) -> None:
    """Before the first URI of a camera fails for it, each with an error of its own."""
    with pytest.raises(StartupError, match=f"{name}.*{why}"):
        load_settings(FetchingSettings, {**LOCAL, name: value})


def test_hosts_are_globs_and_addresses() -> None:
    hosts = "media.example, *.cdn.example,cam-?[0-9],10.0.0.7,fd00::7"
    settings = load_settings(FetchingSettings, {**LOCAL, "LOOKOUT_URI_HOSTS": hosts})
    assert settings.uri_hosts == ("media.example", "*.cdn.example", "cam-?[0-9]", "10.0.0.7", "fd00::7")


def test_a_window_is_whole_strides_of_whole_samples() -> None:
    with pytest.raises(StartupError, match=r"LOOKOUT_WINDOW_S=9 .* LOOKOUT_STRIDE_S=2"):
        load_settings(StageSettings, {**LOCAL, "LOOKOUT_WINDOW_S": "9"})
    with pytest.raises(StartupError, match=r"LOOKOUT_STRIDE_S=1 has 0\.5 samples"):
        load_settings(StageSettings, {**LOCAL, "LOOKOUT_STRIDE_S": "1", "LOOKOUT_FPS": "0.5"})


def test_the_process_environment_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {**LOCAL, "LOOKOUT_TAU": "2"}.items():
        monkeypatch.setenv(name, value)
    assert load_settings(StageSettings).tau == 2


def test_a_digest_depends_on_values_not_on_order() -> None:
    assert digest({"a": 1, "b": 2}) == digest({"b": 2, "a": 1}) != digest({"a": 2, "b": 1})


@pytest.mark.parametrize(
    ("advertise", "address"),
    [("10.1.1.1", "10.1.1.1:7"), ("pod:99", "pod:99"), ("[::1]:99", "[::1]:99"), ("[::1]", "[::1]:7")],
)
def test_the_advertised_address_may_carry_its_port(advertise: str, address: str) -> None:
    assert load_settings(StageSettings, {**LOCAL, "LOOKOUT_ADVERTISE": advertise}).address(7) == address


def test_what_is_shown_of_settings_has_no_password() -> None:
    url = "rediss://alice:hunter2@cache.example:6380/0?password=hunter2"
    settings = load_settings(StageSettings, {**LOCAL, "LOOKOUT_REDIS_URL": url})
    for shown in (repr(settings), str(settings), f"{settings}"):
        assert "hunter2" not in shown
        assert "alice" not in shown
        assert "redis_url='rediss://cache.example:6380/0'" in shown
    assert settings.redis_url == url
