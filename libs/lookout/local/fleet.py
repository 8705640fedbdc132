"""A whole fleet on one machine: Kafka, Redis, topics and services, started and stopped together."""

from __future__ import annotations

import json
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from http.client import HTTPException
from pathlib import Path
from typing import Self

from filelock import FileLock, Timeout

from lookout.cores import usable_cores
from lookout.disk import private_folder, replace_file
from lookout.errors import StartupError
from lookout.local.addresses import (
    CAMERA_AGENT,
    CAMERA_SECRETS,
    GATEWAY,
    LINK_KEY,
    NOTIFY_SECRETS,
    PLAN_SETTINGS,
    PUSH_KEY,
    RECALL,
    RECORDINGS_DECODE,
    RECORDINGS_ROLES,
    FleetAddress,
    announcement,
    announcements,
)
from lookout.local.kafka import KafkaServer
from lookout.local.passwords import lasting_password, new_password
from lookout.local.processes import (
    Child,
    LocalError,
    ephemeral_ports,
    free_ports,
    hold,
    release,
    remove_scratch,
    scratch_folder,
)
from lookout.local.readiness import ask_ready
from lookout.local.redis import RedisServer, check_redis
from lookout.local.server import LocalServer, Startable
from lookout.local.topics import create_topics, reconcile_topics
from lookout.runtime.net import KafkaSecurity, RedisSecurity, load_connections
from lookout.runtime.net.push_keys import new_push_key
from lookout.runtime.worker.startup import check_open_files
from lookout.wire import CANARY, NAME_PREFIX, NOTIFY, Stage, all_topics, canary_topics

Progress = Callable[[str], None]

#: settings that restrict who may call the services; if none is given, the fleet generates a token
_GRPC_CREDENTIALS = frozenset(
    {"grpc_token", "grpc_token_file", "grpc_cert_file", "grpc_key_file", "grpc_ca_file"}
)
_READY_S = 600.0  # long, because importing torch twice takes minutes on a loaded machine
_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 15.0
_SETTLED_S = 30.0  # seconds that a service must run before its restart pauses are short again
_MISCONFIGURED = 2  # exit code of a service with wrong settings, which is not restarted
_GIVE_UP_AFTER = 4  # limit of consecutive early exits of a service, or failed starts of a server
_READS_FROM: dict[str, dict[str, str]] = {
    Stage.PRUNE_ENCODE: {"LOOKOUT_FRAME_REPLICAS": Stage.DECODE},
    Stage.PREFILL: {"LOOKOUT_TOKEN_REPLICAS": Stage.PRUNE_ENCODE},
    f"{CANARY}-{Stage.PRUNE_ENCODE}": {"LOOKOUT_FRAME_REPLICAS": Stage.DECODE},
    f"{CANARY}-{Stage.PREFILL}": {"LOOKOUT_TOKEN_REPLICAS": f"{CANARY}-{Stage.PRUNE_ENCODE}"},
    RECALL: {"LOOKOUT_HOLDERS": Stage.PREFILL},
    GATEWAY: {"LOOKOUT_RECALL": RECALL, "LOOKOUT_NOTIFY": NOTIFY.name},
    "recordings": {"LOOKOUT_TOKEN_REPLICAS": Stage.PRUNE_ENCODE},
}


def service_module(stage: str) -> str:
    """Return the module that `python -m` runs for a stage."""
    return f"lookout.services.{stage.replace('-', '_')}"


class Service:
    """One process of a stage, which is restarted if it ends, after pauses that become longer."""

    def __init__(
        self,
        stage: str,
        folder: Path,
        environment: Mapping[str, str],
        replica: int = 0,
        module: Sequence[str] = (),
    ) -> None:
        self.stage = stage
        self._module = tuple(module) or (service_module(stage),)
        self.name = f"{stage}-{replica}"
        self.folder = folder / self.name
        self.log = folder / "logs" / f"{self.name}.log"
        self.grpc_port, self.metrics_port = free_ports(2)
        self.restarts = 0
        self.was_ready = False
        self.waiting_for = "it has not started"
        self._environment = dict(environment)
        self._child: Child | None = None
        self._started = 0.0
        self._deaths = 0
        self._next_start = 0.0

    @property
    def pid(self) -> int | None:
        return self._child.pid if self._child and self._child.alive else None

    def set_defaults(self, settings: Mapping[str, str]) -> None:
        """Set defaults for settings that were not given."""
        self._environment = {**settings, **self._environment}

    def start(self) -> None:
        private_folder(self.folder)
        self._child = Child(
            [sys.executable, "-m", *self._module],
            self.log,
            env=self._settings(),
            cwd=self.folder,
        )
        self._started = time.monotonic()

    def ready(self) -> bool:
        """Whether the service reports that it is ready (/readyz)."""
        if self._child is None or not self._child.alive:
            return False
        try:
            waiting_for = ask_ready(self.metrics_port, 2.0)
        except (OSError, HTTPException):  # before the service listens, another program may answer at its port
            waiting_for = "it does not answer yet"
        if waiting_for is not None:
            self.waiting_for = waiting_for
            return False
        self.was_ready = True
        return True

    def supervise(self) -> str | None:
        """Restart the process if it has ended and its pause is over. If it has just ended, return a sentence
        about it; otherwise None.

        Raises:
            LocalError: The process ended shortly after several consecutive starts; the message contains
                the end of its log.
        """
        now = time.monotonic()
        if self._child is not None:
            if self._child.alive:
                if now - self._started > _SETTLED_S:
                    self._deaths = 0
                return None
            code, tail = self._child.kill(), self._child.tail()
            self._child = None
            self._deaths += 1
            # A service that was ready once is restarted for ever, because the cause may be in the data or the
            # machine and disappear.
            if not self.was_ready and (code == _MISCONFIGURED or self._deaths >= _GIVE_UP_AFTER):
                raise LocalError(f"{self.name} cannot start (exit code {code}); the end of its log:\n{tail}")
            pause = min(_FIRST_PAUSE_S * 2 ** (self._deaths - 1), _LONGEST_PAUSE_S)
            self._next_start = now + pause
            return f"{self.name} ended with code {code}; it starts again in {pause:g} s (log: {self.log})"
        if now >= self._next_start:
            self.restarts += 1
            self.start()
        return None

    def stop(self, patience: float) -> None:
        if self._child is not None:
            self._child.stop(patience)
            self._child = None

    def ask_to_stop(self) -> None:
        if self._child is not None:
            self._child.signal(15)

    def tail(self) -> str:
        return self._child.tail() if self._child else ""

    def _settings(self) -> dict[str, str]:
        return {
            **self._environment,
            "LOOKOUT_INSTANCE": self.name,
            "LOOKOUT_GRPC_PORT": str(self.grpc_port),
            "LOOKOUT_METRICS_PORT": str(self.metrics_port),
        }


class Fleet(Startable):
    """Kafka, Redis, topics and services on one machine. To be used only from the main thread.

    Args:
        folder: Folder for data, spools and logs; None: a temporary folder that is removed at the end.
        kafka: Bootstrap servers of a running Kafka; None: start one.
        redis_url: URL of a running Redis; None: start one.
        kafka_port: Port of the Kafka that is started; None: a free port.
        partitions: Partitions of the pipeline's topics.
        settings: Settings for all services, without the LOOKOUT_ prefix ({"fps": "2"}).
        stage_settings: Settings for one stage only.
        stages: The services of the pipeline to run.
        modules: Modules with arguments that `python -m` runs for a stage, instead of its service.
        python_path: A folder from which `modules` are imported.
        announced: Whether other commands on this machine can find the fleet without an address.
        memory: How much of each camera's past to keep ("2h"); if given, recall runs too.
        recordings: Folders whose files jobs may ask about; if given, the services for recordings run too.
        open_servers: Whether a started Kafka or Redis needs no password.
        gateway: Whether the HTTP API runs as well.
        cameras: Whether the service that pulls cameras runs as well.
        notifications: Whether the service that notifies people of incidents runs as well.
        canary: Settings for a canary's prune-encode and prefill, with its share of cameras; None: no canary.
    """

    def __init__(
        self,
        folder: Path | None = None,
        *,
        kafka: str | None = None,
        redis_url: str | None = None,
        kafka_port: int | None = None,
        partitions: int = 4,
        settings: Mapping[str, str] | None = None,
        stage_settings: Mapping[str, Mapping[str, str]] | None = None,
        stages: Sequence[str] = tuple(Stage),
        modules: Mapping[str, Sequence[str]] | None = None,
        python_path: Path | None = None,
        announced: bool = False,
        memory: str | None = None,
        recordings: Sequence[Path] = (),
        open_servers: bool = False,
        gateway: bool = False,
        cameras: bool = False,
        notifications: bool = False,
        canary: Mapping[str, str] | None = None,
    ) -> None:
        _refuse_ephemeral(kafka_port)
        self._temporary = folder is None
        self.folder = folder.resolve() if folder else scratch_folder("fleet")
        private_folder(self.folder)
        self._given_kafka, self._given_redis = kafka, redis_url
        passwords = not open_servers
        self._kafka = (
            None if kafka else KafkaServer(self.folder / "kafka", port=kafka_port, passwords=passwords)
        )
        self._redis = None if redis_url else RedisServer(self.folder / "redis", passwords=passwords)
        self._partitions = partitions
        self._common = dict(settings or {})
        self._own = {str(stage): dict(values) for stage, values in (stage_settings or {}).items()}
        self._stages: tuple[str, ...] = tuple(stages)
        if memory is not None:
            self._own.setdefault(Stage.PREFILL, {}).setdefault("memory", memory)
            self._stages = (*self._stages, RECALL)
        self._modules = dict(modules or {})
        uploads = self.folder / "uploads" if recordings and gateway else None
        if recordings:
            self._add_recordings([*recordings, *([uploads] if uploads else [])])
        self._gateway = self._add_gateway(uploads) if gateway else None
        if cameras:
            self._add_cameras()
        self._link_key = self._add_notify() if notifications else None
        self._has_canary = canary is not None
        if canary is not None:
            self._add_canary(canary)
        self._python_path = python_path
        self._announced = announced
        self._progress: Progress = lambda _: None
        self._lock = FileLock(self.folder / ".running", timeout=0)
        self._failures: Counter[str] = Counter()  # consecutive failed starts of servers
        self.services: list[Service] = []
        setting_names = [name for values in (self._common, *self._own.values()) for name in values]
        secured = not _GRPC_CREDENTIALS.isdisjoint(setting_names)
        self._token_file = None if secured else self.folder / "grpc-token"

    def _add_recordings(self, folders: Sequence[Path]) -> None:
        """Add the services that answer jobs about recordings in these folders."""
        roots = ",".join(str(folder.resolve()) for folder in folders)
        planned = self._own.get(Stage.PREFILL, {})
        shared = {name: planned[name] for name in PLAN_SETTINGS if name in planned}
        ahead = self._own.get("recordings", {}).get("ahead", "0") != "0"
        roles = RECORDINGS_ROLES | ({RECORDINGS_DECODE: "decode"} if ahead else {})
        for stage, role in roles.items():
            self._own[stage] = {"recording_roots": roots, **shared, **self._own.get(stage, {})}
            self._modules.setdefault(stage, (service_module("recordings"), role))
        self._stages = (*self._stages, *roles)

    def _add_canary(self, settings: Mapping[str, str]) -> None:
        """Add a second prune-encode and prefill, whose answers are only compared with the fleet's."""
        for stage in (Stage.PRUNE_ENCODE, Stage.PREFILL):
            name = f"{CANARY}-{stage}"
            self._own[name] = {**self._own.get(stage, {}), **self._own.get(name, {}), **settings}
            self._modules.setdefault(name, (service_module(stage),))
            self._stages = (*self._stages, name)

    def _add_gateway(self, uploads: Path | None) -> str:
        """Add the gateway and return its URL.

        Args:
            uploads: Where the gateway stores uploaded recordings; None: no uploads.
        """
        api = self._own.setdefault(GATEWAY, {})
        port = api.setdefault("http_port", str(free_ports(1)[0]))
        api.setdefault("sign_in_file", str(self.folder / f"{GATEWAY}-0" / "sign-in"))
        api.setdefault("keep_url", str(self.folder / f"{GATEWAY}-0" / "kept"))
        if uploads is not None:
            api.setdefault("upload_url", str(uploads))
        if model := self._common.get("model_dir"):
            api.setdefault("model_dir", model)
        self._stages = (*self._stages, GATEWAY)
        scheme = "https" if "http_cert_file" in api else "http"
        return api.get("public_url", f"{scheme}://127.0.0.1:{port}")

    def _add_cameras(self) -> None:
        """Add the service that pulls cameras."""
        secrets = str(private_folder(self.folder / CAMERA_SECRETS))
        self._own.setdefault(CAMERA_AGENT, {}).setdefault("credentials", secrets)
        self._stages = (*self._stages, CAMERA_AGENT)

    def _add_notify(self) -> Path | None:
        """Add the notification service. Return the file with the key for its links; None if there is no
        gateway."""
        own = self._own.setdefault(NOTIFY.name, {})
        own.setdefault("notify_secrets", str(private_folder(self.folder / NOTIFY_SECRETS)))
        own.setdefault("notify_hosts", "*")  # only local users can write notifications
        self._stages = (*self._stages, NOTIFY.name)
        if self._gateway is None:
            return None
        key = self._own[GATEWAY].setdefault("link_key_file", str(self.folder / LINK_KEY))
        own.setdefault("link_key_file", key)
        push = self._own[GATEWAY].setdefault("push_key_file", str(self.folder / PUSH_KEY))
        own.setdefault("push_key_file", push)
        own.setdefault("public_url", self._gateway)
        return Path(key)

    @property
    def bootstrap(self) -> str:
        return self._kafka.bootstrap if self._kafka else str(self._given_kafka)

    @property
    def redis_url(self) -> str:
        return self._redis.url if self._redis else str(self._given_redis)

    @property
    def logs(self) -> Path:
        return self.folder / "logs"

    @property
    def address(self) -> FleetAddress:
        return FleetAddress(
            bootstrap=self.bootstrap,
            redis_url=self.redis_url,
            folder=str(self.folder),
            pid=os.getpid(),
            metrics={service.name: service.metrics_port for service in self.services},
            grpc={service.name: service.grpc_port for service in self.services},
            own_kafka=self._kafka is not None,
            own_redis=self._redis is not None,
            grpc_token_file=str(self._token_file) if self._token_file else None,
            security=self._own_security(),
            gateway=self._gateway,
            sign_in_file=self._own[GATEWAY]["sign_in_file"] if self._gateway else None,
            model=self._common.get("model_dir", ""),
        )

    @property
    def client_properties(self) -> Path | None:
        """Return the file that librdkafka clients need to reach Kafka (kcat -F). None: this fleet did not
        start Kafka, or its Kafka needs no password.
        """
        accounts = self._kafka.accounts if self._kafka else None
        return None if accounts is None else accounts.properties_file

    def pids(self) -> dict[str, int]:
        """Return the process ids of all running servers and services, by name."""
        servers = {"kafka": self._kafka, "redis": self._redis}
        pids = {name: server.pid for name, server in servers.items() if server is not None}
        pids |= {service.name: service.pid for service in self.services}
        return {name: pid for name, pid in pids.items() if pid is not None}

    def kafka_security(self) -> Mapping[str, str]:
        """Return the librdkafka options for this fleet's clients, without the address.

        Raises:
            LocalError: A Kafka security setting is invalid.
        """
        if self._kafka is not None:
            return self._kafka.accounts.login() if self._kafka.accounts else {}
        try:
            return load_connections(KafkaSecurity).kafka_security()
        except StartupError as error:
            raise LocalError(str(error)) from None

    def _redis_security(self) -> RedisSecurity:
        """Return how the services log in to a Redis that this fleet did not start.

        Raises:
            LocalError: A Redis security setting is invalid.
        """
        own = {f"LOOKOUT_{name.upper()}": value for name, value in self._common.items()}
        try:
            return load_connections(RedisSecurity, {**os.environ, **own})
        except StartupError as error:
            raise LocalError(str(error)) from None

    def on_progress(self, tell: Progress) -> None:
        """Set a function that `start` calls with sentences that say what the fleet waits for."""
        self._progress = tell

    def start(self) -> Self:
        """Start everything and wait until every service is ready.

        Raises:
            LocalError: A server or service did not start, or the limit on open files is too low; the
                message says which.
        """
        try:
            check_open_files()
        except StartupError as error:
            raise LocalError(str(error)) from error
        _refuse_links(self.folder)
        try:
            self._lock.acquire()
        except Timeout:
            raise LocalError(
                f"another fleet is running in {self.folder}: end it, or choose another folder"
            ) from None
        if self._redis:
            self._progress("Redis is starting")
            self._redis.start()
        else:
            check_redis(self.redis_url, self._redis_security())
        if self._kafka:
            self._progress("Kafka is starting (the first time, its jars are fetched)")
            self._kafka.start()
        topics = (*all_topics(), *(canary_topics() if self._has_canary else ()))
        created = create_topics(
            self.bootstrap, self._partitions, topics=topics, security=self.kafka_security()
        )
        if self._token_file is not None:
            # written after the servers start, before the services that read it
            new_password(self._token_file)
        if self._link_key is not None:
            lasting_password(self._link_key)
            push_key = self.folder / PUSH_KEY
            if (
                not push_key.exists()
            ):  # kept across starts, because a new key would end the permissions given in people's browsers
                replace_file(push_key, new_push_key())
        if self._kafka:  # do not change topics of a broker that this fleet did not start
            existing = [topic for topic in topics if topic.name not in created]
            reconcile_topics(self.bootstrap, existing, security=self.kafka_security())
        private_folder(self.folder / "tmp")
        self.services = [
            Service(stage, self.folder, self._environment(stage), module=self._modules.get(stage, ()))
            for stage in self._stages
        ]
        for service in self.services:
            # The ports of all services are known only now.
            service.set_defaults(self._replicas(service.stage))
            service.start()
        self._await_ready()
        if self._announced:
            announcements().mkdir(parents=True, exist_ok=True)
            # Written only now that everything answers, because commands use the fleet as soon as they find
            # this file.
            hold(announcement(), json.dumps(asdict(self.address)))
        return self

    def supervise(self) -> list[str]:
        """Restart processes that ended; return a sentence for each event. Call it about once a second.

        Raises:
            LocalError: A server or a service fails at every start; the message has the last reason.
        """
        dead = [server for server in (self._kafka, self._redis) if server is not None and not server.alive]
        news = [self._restart_server(server) for server in dead]
        news.extend(news_line for service in self.services if (news_line := service.supervise()))
        return news

    def _restart_server(self, server: LocalServer) -> str:
        try:
            server.start()
        except LocalError as error:
            self._failures[server.name] += 1
            if self._failures[server.name] >= _GIVE_UP_AFTER:
                raise
            return f"{server.name} ended and could not be restarted; this will be tried again ({error})"
        del self._failures[server.name]
        return f"{server.name} ended, and was restarted at the same address"

    def close(self) -> None:
        """End the services, then the servers; remove the folder if it is a temporary one."""
        if self._announced:
            release(announcement())
        for service in self.services:
            service.ask_to_stop()
        for service in self.services:
            service.stop(patience=15.0)
        for server in (self._kafka, self._redis):
            if server is not None:
                server.close()
        self._lock.release()
        if self._temporary:
            remove_scratch(self.folder)

    def _environment(self, stage: str) -> dict[str, str]:
        settings = {
            "mode": "local",
            "host": "127.0.0.1",
            "bootstrap": self.bootstrap,
            "redis_url": self.redis_url,
            **self._own_security(),
            **({"grpc_token_file": str(self._token_file)} if self._token_file else {}),
            **({"prefix": NAME_PREFIX} if NAME_PREFIX else {}),
            **self._common,
            **self._own.get(stage, {}),
        }
        passed = self._connection_settings()
        inherited = {
            name: value
            for name, value in os.environ.items()
            # Settings in this command's environment must not reach the services.
            if name in passed or not name.startswith("LOOKOUT_")
        }
        # The services share this machine. If each had thread pools for all cores, they would slow each other
        # down.
        inherited.setdefault("OMP_NUM_THREADS", str(max(1, usable_cores() // 2)))
        inherited.setdefault("PYTHONFAULTHANDLER", "1")  # a crash in native code leaves a trace in the log
        if self._python_path is not None:
            inherited["PYTHONPATH"] = str(self._python_path)
        # Temporary files are inside the fleet's folder, so those of a killed service are removed with it.
        inherited["TMPDIR"] = str(self.folder / "tmp")
        return {**inherited, **{f"LOOKOUT_{name.upper()}": value for name, value in settings.items()}}

    def _own_security(self) -> dict[str, str]:
        """Return the settings that clients need to reach the servers that this fleet started."""
        kafka = self._kafka.accounts.settings() if self._kafka and self._kafka.accounts else {}
        return {**kafka, **(self._redis.settings() if self._redis else {})}

    def _connection_settings(self) -> set[str]:
        """Return the environment variables with the security settings for servers that this fleet did not
        start.
        """
        kafka = KafkaSecurity.model_fields if self._kafka is None else ()
        redis = RedisSecurity.model_fields if self._redis is None else ()
        return {f"LOOKOUT_{name.upper()}" for name in (*kafka, *redis)}

    def _replicas(self, stage: str) -> dict[str, str]:
        """Return a stage's settings with other services' addresses, which it uses for calls, and for tensors
        if Redis does not answer.
        """
        found: dict[str, list[str]] = {}
        for name, source in _READS_FROM.get(stage, {}).items():
            for service in self.services:
                if service.stage == source:
                    found.setdefault(name, []).append(f"127.0.0.1:{service.grpc_port}")
        return {name: ",".join(addresses) for name, addresses in found.items()}

    def _await_ready(self) -> None:
        deadline = time.monotonic() + _READY_S
        waiting = list(self.services)
        while waiting:
            self._progress("waiting for " + ", ".join(service.name for service in waiting))
            for news in self.supervise():
                self._progress(news)
            waiting = [service for service in waiting if not service.ready()]
            if waiting and time.monotonic() > deadline:
                first = waiting[0]
                raise LocalError(
                    f"{first.name} was not ready within {_READY_S:.0f} s; it was waiting for "
                    f"{first.waiting_for}; the end of its log:\n{first.tail()}"
                )
            if waiting:
                time.sleep(0.2)


def _refuse_ephemeral(port: int | None) -> None:
    """Check the port that Kafka will use.

    Raises:
        LocalError: The port is ephemeral, so an outgoing connection could take it while Kafka restarts.
    """
    if port is not None and port in (taken := ephemeral_ports()):
        raise LocalError(
            f"port {port} is in this machine's ephemeral range ({taken.start}-{taken.stop - 1}), so an "
            "outgoing connection could take it while Kafka restarts: choose a port outside the range, or "
            "give none"
        )


def _refuse_links(folder: Path) -> None:
    """Check that a folder has no links. Somebody else may have prepared the folder, and a link would let
    writes leave it.

    Raises:
        LocalError: The folder contains a link.
    """
    for parent, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = Path(parent, name)
            if path.is_symlink():
                raise LocalError(f"{path} is a link: remove it, or give another folder")
