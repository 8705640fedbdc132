"""Reads a service's settings from environment variables with the prefix `LOOKOUT_`. Unknown and missing
settings are errors."""

from __future__ import annotations

import difflib
import gc
import hashlib
import ipaddress
import json
import os
import re
import socket
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar

from pydantic import BeforeValidator, Field, field_validator, model_validator
from pydantic_settings import NoDecode, SettingsConfigDict

from lookout.errors import StartupError
from lookout.models.device import Dtype, default_dtype
from lookout.runtime.net.connections import PREFIX, SECRET_OPTIONS, Connections, read_settings, setting
from lookout.runtime.worker.retired_settings import retired
from lookout.runtime.worker.sampling import SamplingSettings
from lookout.text import public_url
from lookout.wire import IS_CANARY, NAME_PREFIX, prefix_fault

#: variables of the command line, tests and the local fleet that may be in the same environment
FOREIGN = frozenset(
    {"LOOKOUT_FOOTAGE", "LOOKOUT_CACHE", "LOOKOUT_KAFKA", "LOOKOUT_RECEIPT_KEY", "LOOKOUT_REDIS"}
)
#: variables that Kubernetes injects for a Service called lookout-...; they are never settings
_SERVICE_LINK = re.compile(r"_SERVICE_(HOST|PORT(_\w+)?)$|_PORT(_\d+_(TCP|UDP)(_\w+)?)?$")
LOCAL_KAFKA = "127.0.0.1:9092"
LOCAL_REDIS = "redis://127.0.0.1:6379/0"

T = TypeVar("T", bound="ServiceSettings")


def _options(value: object) -> object:
    try:
        options = json.loads(value) if isinstance(value, str) else value
    except ValueError:
        raise ValueError("is not a JSON object") from None
    if isinstance(options, dict) and (secret := sorted(SECRET_OPTIONS & set(options))):
        raise ValueError(
            f"{', '.join(secret)} is a secret: use LOOKOUT_KAFKA_PASSWORD_FILE or "
            "LOOKOUT_KAFKA_KEY_PASSWORD_FILE"
        )
    return options


class ServiceSettings(Connections, SamplingSettings):
    """Settings that every service has. A service derives its settings from this class; each field is read
    from `LOOKOUT_<FIELD>`.

    Times are in seconds, sizes in bytes.
    """

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, env_nested_delimiter="__", extra="forbid", frozen=True, protected_namespaces=()
    )

    mode: Literal["cluster", "local"] = Field(
        "cluster", description="cluster, or local, where addresses default to this machine"
    )
    prefix: str = Field(
        NAME_PREFIX,
        validate_default=True,
        description="prefix of the names of topics, consumer groups, transactional ids and Redis keys; "
        "installations that share a Kafka or a Redis need different prefixes",
    )
    release: str = Field(
        "",
        max_length=120,
        description="name of the installation; a service refuses to share a consumer group with a service of "
        "another installation",
    )
    instance: str = Field(
        default_factory=socket.gethostname,
        min_length=1,
        max_length=120,
        description="this replica's name (the pod's): stable over restarts and unique in its stage",
    )
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = Field(
        "INFO", description="least severe level that is logged"
    )
    otlp_endpoint: str | None = Field(
        None,
        pattern=r"^(https?://[^\s@/]+/?|[^\s@/:]+:[0-9]+)$",
        description="OTLP endpoint for traces, over gRPC: http://HOST:4317, or https for TLS; unset: no "
        "traces are sent, but trace ids are passed on in headers",
    )

    bootstrap: str = Field("", description="Kafka bootstrap servers")
    kafka_options: Annotated[dict[str, str], NoDecode, BeforeValidator(_options)] = Field(
        default_factory=dict, description="further librdkafka options as JSON, for tuning"
    )
    group: str | None = Field(None, min_length=1, description="consumer group; unset: the stage's name")
    static_member: bool | None = Field(
        None,
        description="static group membership: a restarted instance gets its partitions back, and no other "
        "instance gets them before its session ends; unset: true for an instance that loads within half a "
        "session",
    )
    session_timeout_s: float = Field(
        10.0,
        ge=1,
        le=300,
        description="seconds without a heartbeat after which Kafka gives a worker's partitions to other "
        "workers; raise it if pods are paused for longer; lower it for faster takeovers",
    )
    transaction_timeout_s: float = Field(
        30.0,
        ge=2,
        le=900,
        description="seconds after which Kafka aborts an unfinished transaction; raise it if brokers answer "
        "slowly",
    )
    redis_url: str = Field(
        "", description="Redis with the directory of tensors: redis://host:port/db, or rediss:// for TLS"
    )

    host: str = Field(
        "0.0.0.0", description="address that the servers listen on; in mode local, 127.0.0.1 unless set"
    )
    grpc_port: int = Field(0, ge=0, le=65535, description="port of the gRPC server; 0: any free port")
    metrics_port: int = Field(
        0, ge=0, le=65535, description="port of /metrics, /livez and /readyz; 0: any free port"
    )
    advertise: str | None = Field(
        None,
        description="address (host, or host:port) at which other instances reach this instance's gRPC "
        "server; unset: the host's name",
    )

    preset: Literal["default", "faithful", "codecsight", "strides"] = Field(
        "default",
        description="settings that belong together: default, faithful (smaller errors than the default, more "
        "arithmetic), codecsight (as in the paper), strides (each stride asked alone, for a third of the "
        "arithmetic)",
    )
    model_digest: str | None = Field(
        None,
        description="digest that the checkpoint in model_dir must have, so that no replica starts with other "
        "weights; unset: any",
    )

    threads: int = Field(
        2, ge=1, le=256, description="cameras computed at the same time; raise it only with more cores"
    )
    #: records of a partition read ahead of their commit
    in_flight_records: ClassVar[int] = 64
    #: bytes read ahead of their commit, shared by this process's partitions
    in_flight_bytes: ClassVar[int] = 128 << 20
    work_limit_s: float = Field(
        900.0,
        gt=1,
        description="seconds that a compute thread may take for one record, before the record becomes a dead "
        "letter; if the work cannot be stopped, the process ends with exit code 1",
    )
    latency_s: float = Field(
        0.3,
        ge=0,
        le=10,
        description="seconds for which a segment may wait for other segments, to share transactions and "
        "batches with them; a larger value saves CPU but answers later",
    )
    forget_after_days: float | None = Field(
        30.0,
        gt=0,
        description="days without a record after which a camera's state is deleted; raise it if cameras are "
        "switched off for months; unset: never",
    )
    #: seconds that running work may take to finish after SIGTERM; unfinished work is done again later
    drain_s: ClassVar[float] = 2.0
    retry_max_s: float = Field(
        10.0,
        gt=0,
        description="longest pause between two attempts after a transient failure, in seconds; lower it to "
        "resume sooner after an outage",
    )
    retry_limit_s: float = Field(
        3600.0,
        gt=0,
        description="seconds for which a record is retried while a dependency is unavailable, before it "
        "becomes a dead letter; raise this limit if outages last longer and late answers are still wanted",
    )
    #: seconds of device failures after which the process ends (exit code 4)
    device_retry_s: ClassVar[float] = 10.0
    #: seconds without a poll after which the process counts as dead
    stall_s: ClassVar[float] = 30.0
    #: seconds after which a process that is still loading its model counts as dead
    load_limit_s: ClassVar[float] = 1800.0
    start_timeout_s: float = Field(
        60.0,
        gt=0,
        description="seconds that dependencies may take to answer at start-up; raise it if Kafka or Redis "
        "may start later than the services",
    )
    #: seconds to wait for the takeover of a partition before the process ends (exit code 1); longer than
    #: transactions may last (the brokers' transaction.max.timeout.ms)
    takeover_limit_s: ClassVar[float] = 1200.0
    outage_s: float = Field(
        3600.0,
        ge=0,
        description="longest outage, in seconds, after which no record may be lost; a service starts only if "
        "topics keep records for at least this long",
    )
    #: seconds added to window and outage when topic retention is checked
    retention_margin_s: ClassVar[float] = 600.0
    on_config_change: Literal["refuse", "restart"] = Field(
        "refuse",
        description="what to do with checkpoints that were written with different shared settings: refuse "
        "(the service stops), or restart (their cameras start without checkpoints)",
    )

    @field_validator("prefix")
    @classmethod
    def _usable_prefix(cls, value: str) -> str:
        if value != NAME_PREFIX:  # the topic table read it from the environment when the process started
            raise ValueError("it can be set only in the environment of the process")
        if fault := prefix_fault(value):
            raise ValueError(fault)
        return value

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        """Hide credentials in URLs from `repr` and `str`."""
        for name, value in super().__repr_args__():
            yield name, public_url(value) if name == "redis_url" and value else value

    @model_validator(mode="after")
    def _together(self) -> Self:
        local = self.mode == "local"
        for name, value, default in (
            ("bootstrap", self.bootstrap, LOCAL_KAFKA),
            ("redis_url", self.redis_url, LOCAL_REDIS),
        ):
            if not value:
                if not local:
                    raise ValueError(
                        f"{setting(name)} is not set: give its address, or set LOOKOUT_MODE=local"
                    )
                object.__setattr__(self, name, default)
        if local and "host" not in self.model_fields_set:
            object.__setattr__(self, "host", "127.0.0.1")
        return self

    @property
    def retention_needed_s(self) -> float:
        """Minimum retention of segments, frames and tokens: a window, the longest tolerated outage, and a
        margin."""
        return self.window_s + self.outage_s + self.retention_margin_s

    def address(self, grpc_port: int) -> str:
        """Return host:port at which peers reach this instance's gRPC server. `grpc_port` is the port that the
        server listens on."""
        host = self.advertise or ("127.0.0.1" if self.mode == "local" else socket.gethostname())
        return host if re.search(r"(?<!:):\d+$|\]:\d+$", host) else f"{host}:{grpc_port}"

    def kafka(self, **more: Any) -> dict[str, Any]:
        """Return client options for librdkafka: address, quiet reconnects, security, `kafka_options`, then
        `more`.

        Raises:
            StartupError: a file with a secret or a certificate cannot be read.
        """
        return {
            "bootstrap.servers": self.bootstrap,
            # By default, librdkafka waits up to ten seconds between attempts, and notices a restarted broker
            # late.
            "reconnect.backoff.ms": 50,
            "reconnect.backoff.max.ms": 1000,
            "retry.backoff.ms": 5,
            "log.connection.close": False,
            "socket.keepalive.enable": True,
            **self.kafka_security(),
            **self.kafka_options,
            **more,
        }


def _listed(value: object) -> object:
    if isinstance(value, str):
        return tuple(part.strip() for part in value.split(",") if part.strip())
    return value


#: names or addresses, separated by commas in the environment
Listed = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_listed)]


_SCHEMES = ("http", "https")  # what `lookout.runtime.net.fetch` has a port for
#: a host name as a glob, or an address, without scheme and port
_HOST_PATTERN = r"([A-Za-z0-9*?\[\]!._-]+|[0-9A-Fa-f:.]+)"


def check_hosts(hosts: tuple[str, ...]) -> tuple[str, ...]:
    """Check that these are host names, addresses, or globs of names."""
    for host in hosts:
        if not re.fullmatch(_HOST_PATTERN, host):
            raise ValueError(
                f"{host!r} is not a host; give host names without scheme, port and path, separated by commas "
                "(media.example,*.cdn.example)"
            )
    return hosts


def check_networks(networks: tuple[str, ...]) -> tuple[str, ...]:
    """Check that these are networks (CIDR)."""
    for network in networks:
        try:
            ipaddress.ip_network(network)
        except ValueError as error:
            raise ValueError(f"{error}; give networks such as 10.2.0.0/16, separated by commas") from None
    return networks


class FetchSettings(ServiceSettings):
    """Settings of services that fetch segments or recordings from URIs."""

    uri_schemes: Listed = Field(
        ("https",), description="URI schemes from which segments or recordings are fetched, comma-separated"
    )
    uri_hosts: Listed = Field(
        (),
        description="hosts from which URIs may be fetched, comma-separated globs; empty: URIs are rejected",
        json_schema_extra={"items": {"type": "string", "pattern": _HOST_PATTERN}},
    )
    uri_networks: Listed = Field(
        (),
        description="private networks (CIDR, comma-separated) that the hosts in LOOKOUT_URI_HOSTS may "
        "resolve to",
    )
    #: limit of seconds for one fetch
    uri_timeout_s: ClassVar[float] = 30.0

    @field_validator("uri_schemes")
    @classmethod
    def _schemes(cls, schemes: tuple[str, ...]) -> tuple[str, ...]:
        for scheme in schemes:
            if scheme not in _SCHEMES:
                raise ValueError(f"{scheme!r} is not a supported scheme; give {' or '.join(_SCHEMES)}")
        return schemes

    _hosts = field_validator("uri_hosts")(check_hosts)
    _networks = field_validator("uri_networks")(check_networks)


class ModelSettings(ServiceSettings):
    """Settings of services that run a model or its vision tower."""

    device: str = Field("cpu", description="device that the model runs on: cpu, cuda, cuda:1")
    dtype: Dtype = Field(
        "auto",
        description="the model's data type; auto: float32 on the CPU, bfloat16 on a GPU that supports it, "
        "else float16",
    )

    @model_validator(mode="after")
    def _data_type(self) -> Self:
        # Replace `auto`, because instances compare the data type, and digests contain it.
        if self.dtype == "auto":
            object.__setattr__(self, "dtype", default_dtype(self.place))
        return self

    @property
    def place(self) -> str:
        """The device that the model runs on."""
        return self.device


class CanarySettings(ModelSettings):
    """Settings with which prune-encode and prefill run as the fleet's own services or as a canary's."""

    canary: float | None = Field(
        None,
        gt=0,
        le=1,
        description="share of the cameras on which this process tries its model or policy as a canary, whose "
        "verdicts raise no alerts; unset: this process belongs to the fleet, not to a canary",
    )

    @field_validator("canary")
    @classmethod
    def _of_this_process(cls, value: float | None) -> float | None:
        if (
            value is not None and not IS_CANARY
        ):  # the topic table read it from the environment, like the prefix
            raise ValueError("it can be set only in the environment of the process")
        return value

    def tries(self, camera: str) -> bool:
        """Whether this process computes a camera. If the share is increased, the canary keeps its cameras."""
        if self.canary is None:
            return True
        place = int.from_bytes(hashlib.blake2b(camera.encode(), digest_size=8).digest())
        return place < self.canary * 2**64


class WindowPlanSettings(ModelSettings):
    """Settings that determine how a window is computed. Prefill and back-tests must share them."""

    reuse: bool = Field(
        True, description="keep KV between windows; false computes every window in full, for comparison"
    )
    key_every: int = Field(
        30,
        ge=1,
        description="strides from one key window (which is computed in full) to the next; a smaller number "
        "gives smaller errors and costs more",
    )
    token_replicas: Listed = Field(
        (),
        description="prune-encode's gRPC addresses, comma-separated, used if the directory does not answer",
    )
    max_damage: float = Field(
        0.1,  # `lookout.streams.MAX_DAMAGE`
        ge=0,
        le=1,
        description="maximum share of a window's samples that may be damaged, or missing because of damage; "
        "above this share, the outcome is degraded",
    )


def digest(*parts: object) -> str:
    """Return a digest of values (as JSON with sorted keys), 16 hex digits, for `Handler.config_digest`."""
    text = json.dumps(parts, sort_keys=True, default=str, separators=(",", ":"))
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def load_settings(kind: type[T], environ: Mapping[str, str] | None = None, **values: Any) -> T:
    """Read settings from the environment (None: the process's); `values` take precedence.

    Raises:
        StartupError: A setting is unknown, missing or invalid; the message names all such settings.
    """
    _end_imports()
    environ = os.environ if environ is None else environ
    unknown = sorted(_unknown(kind, environ))
    if unknown:
        raise StartupError("; ".join(_unknown_text(name, kind) for name in unknown))
    return read_settings(kind, environ, **values)


def _end_imports() -> None:
    """Turn on the garbage collector, which `lookout.services` turned off during imports. It never visits the
    imported objects."""
    if not gc.isenabled():
        gc.freeze()
        gc.enable()


def _unknown(kind: type[ServiceSettings], environ: Mapping[str, str]) -> Iterable[str]:
    names = {setting(name) for name in kind.model_fields}
    for name, value in environ.items():
        if not name.startswith(PREFIX) or name in names or name in FOREIGN:
            continue
        # Such as `LOOKOUT_STORE__MEMORY_BYTES`, a field of a nested setting, which pydantic checks.
        if name.split("__")[0] in names and retired(name) is None:
            continue
        if _SERVICE_LINK.search(name) and ("_SERVICE_" in name or "://" in value):
            continue
        yield name


def _unknown_text(name: str, kind: type[ServiceSettings]) -> str:
    if (instead := retired(name)) is not None:
        return f"{name} was removed: {instead}"
    word = name.removeprefix(PREFIX).lower()  # without the prefix, which would make all names similar
    close = difflib.get_close_matches(word, kind.model_fields, n=1, cutoff=0.65)
    hint = f"; did you mean {setting(close[0])}?" if close else ""
    return f"unknown setting {name}{hint}"
