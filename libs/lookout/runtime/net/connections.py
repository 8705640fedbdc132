"""Secure connections to Kafka, Redis and gRPC: the settings that every service and command shares."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar, cast

from pydantic import Field, SecretStr, ValidationError, model_validator
from pydantic_settings import BaseSettings, EnvSettingsSource, SettingsConfigDict, SettingsError

from lookout.errors import StartupError
from lookout.runtime.kafka_clients import FilePassword
from lookout.runtime.net.setting_faults import fault_text
from lookout.text import clean, public_url

if TYPE_CHECKING:
    import redis

PREFIX = "LOOKOUT_"
#: librdkafka options that hold a secret; they have separate settings, whose values are never printed
SECRET_OPTIONS = frozenset(
    {
        "sasl.password",
        "sasl.oauthbearer.client.secret",
        "sasl.oauthbearer.config",
        "ssl.key.password",
        "ssl.key.pem",
        "ssl.keystore.password",
    }
)
#: settings whose values may hold a secret; errors omit these values
SECRET_SETTINGS = frozenset(
    {
        "kafka_options",
        "kafka_password",
        "redis_url",
        "redis_password",
        "grpc_token",
    }
)

T = TypeVar("T", bound=BaseSettings)


class KafkaSecurity(BaseSettings):
    """How to reach Kafka. Each field is `LOOKOUT_<FIELD>`."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, extra="ignore", frozen=True)

    kafka_protocol: Literal["plaintext", "ssl", "sasl_plaintext", "sasl_ssl"] = Field(
        "plaintext",
        description="security protocol for Kafka; ssl means TLS, sasl_ means user name and password",
    )
    kafka_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"] = Field(
        "SCRAM-SHA-512", description="SASL mechanism for Kafka"
    )
    kafka_username: str | None = Field(
        None,
        description="user name for Kafka (SASL); with OAUTHBEARER, the client id",
    )
    kafka_username_file: Path | None = Field(
        None,
        description="file with the user name for Kafka; if it or LOOKOUT_KAFKA_PASSWORD_FILE changes, "
        "clients use the new content without a restart (not with OAUTHBEARER)",
    )
    kafka_token_url: str | None = Field(
        None,
        description="URL from which OAUTHBEARER gets tokens for Kafka (OpenID Connect, client credentials)",
    )
    kafka_token_scope: str | None = Field(
        None, description="scope of the tokens from LOOKOUT_KAFKA_TOKEN_URL"
    )
    kafka_token_ca_file: Path | None = Field(
        None, description="CA certificates (PEM) for LOOKOUT_KAFKA_TOKEN_URL; unset: the system's"
    )
    kafka_password: SecretStr | None = Field(
        None, description="password for Kafka (SASL); better: set LOOKOUT_KAFKA_PASSWORD_FILE"
    )
    kafka_password_file: Path | None = Field(None, description="file with the password for Kafka (SASL)")
    kafka_ca_file: Path | None = Field(
        None, description="CA certificates (PEM) for the brokers; unset: the system's"
    )
    kafka_cert_file: Path | None = Field(None, description="client certificate (PEM) for Kafka")
    kafka_key_file: Path | None = Field(None, description="private key (PEM) of LOOKOUT_KAFKA_CERT_FILE")
    kafka_key_password_file: Path | None = Field(None, description="file with the private key's password")

    @model_validator(mode="after")
    def _kafka_fits(self) -> Self:
        sasl, tls = self.kafka_protocol.startswith("sasl"), self.kafka_protocol.endswith("ssl")
        _one_of(self, "kafka_username", "kafka_username_file")
        _one_of(self, "kafka_password", "kafka_password_file")
        _together(self, "kafka_cert_file", "kafka_key_file")
        user = self.kafka_username or self.kafka_username_file
        if sasl and not (user and (self.kafka_password or self.kafka_password_file)):
            raise ValueError(
                f"LOOKOUT_KAFKA_PROTOCOL={self.kafka_protocol} needs LOOKOUT_KAFKA_USERNAME and "
                "LOOKOUT_KAFKA_PASSWORD_FILE"
            )
        if sasl:
            self._token_fits()
        if user and not sasl:
            raise ValueError(
                "LOOKOUT_KAFKA_USERNAME is set: set LOOKOUT_KAFKA_PROTOCOL to sasl_ssl or sasl_plaintext"
            )
        if (self.kafka_ca_file or self.kafka_cert_file) and not tls:
            raise ValueError("certificates for Kafka are set: set LOOKOUT_KAFKA_PROTOCOL to ssl or sasl_ssl")
        return self

    def _token_fits(self) -> None:
        bearer, url = self.kafka_mechanism == "OAUTHBEARER", self.kafka_token_url
        if bearer != (url is not None):
            raise ValueError(
                "LOOKOUT_KAFKA_MECHANISM=OAUTHBEARER and LOOKOUT_KAFKA_TOKEN_URL go "
                "together: set both or neither"
            )
        if url is not None and not url.startswith(("https://", "http://")):
            raise ValueError("LOOKOUT_KAFKA_TOKEN_URL must have the form https://host/path")

    def kafka_security(self) -> dict[str, str]:
        """Return the librdkafka options for these settings; secrets are read from their files now.

        Clients from `lookout.runtime.kafka_clients` also follow later changes of the files with user name and
        password.

        Raises:
            StartupError: a file cannot be read.
        """
        options: dict[str, str | None] = {"security.protocol": self.kafka_protocol}
        if self.kafka_protocol.startswith("sasl"):
            options["sasl.mechanism"] = self.kafka_mechanism
            options |= self._credentials()
        if self.kafka_protocol.endswith("ssl"):
            options["ssl.ca.location"] = _readable(self, "kafka_ca_file")
            options["ssl.certificate.location"] = _readable(self, "kafka_cert_file")
            options["ssl.key.location"] = _readable(self, "kafka_key_file")
            options["ssl.key.password"] = self._key_password()
        if self.kafka_protocol == "plaintext":
            return {}  # librdkafka's default, which LOOKOUT_KAFKA_OPTIONS may change
        return {name: value for name, value in options.items() if value is not None}

    def _key_password(self) -> str | None:
        path = self.kafka_key_password_file
        return None if path is None else read_secret(path, setting("kafka_key_password_file"))

    def _credentials(self) -> dict[str, str | None]:
        user, password = self._login()
        if self.kafka_mechanism != "OAUTHBEARER":
            if self.kafka_username_file is not None or self.kafka_password_file is not None:
                password = FilePassword(password, self._login)
            return {"sasl.username": user, "sasl.password": password}
        return {
            "sasl.oauthbearer.method": "oidc",
            "sasl.oauthbearer.client.id": user,
            "sasl.oauthbearer.client.secret": password,
            "sasl.oauthbearer.token.endpoint.url": self.kafka_token_url,
            "sasl.oauthbearer.scope": self.kafka_token_scope,
            "https.ca.location": _readable(self, "kafka_token_ca_file"),
        }

    def _login(self) -> tuple[str, str]:
        user = self.kafka_username
        if self.kafka_username_file is not None:
            user = read_secret(self.kafka_username_file, setting("kafka_username_file"))
        return user or "", _secret(self, "kafka_password") or ""


class RedisSecurity(BaseSettings):
    """How to reach Redis. Each field is `LOOKOUT_<FIELD>`. `rediss://` in the URL selects TLS."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, extra="ignore", frozen=True)

    redis_cluster: bool = Field(
        False,
        description="true: LOOKOUT_REDIS_URL names one node of a Redis Cluster, and clients learn the other "
        "nodes from it",
    )
    redis_sentinel: str | None = Field(
        None,
        min_length=1,
        description="name of the primary, as the Sentinels know it; LOOKOUT_REDIS_URL then names the "
        "Sentinels (redis://host:26379,host:26379/db)",
    )
    redis_sentinel_auth: bool = Field(
        False, description="true: the Sentinels require the same user name and password as the primary"
    )
    redis_username: str | None = Field(None, description="user name for Redis (ACL); unset: the default user")
    redis_password: SecretStr | None = Field(
        None, description="password for Redis; better: set LOOKOUT_REDIS_PASSWORD_FILE"
    )
    redis_password_file: Path | None = Field(
        None, description="file with the password for Redis; read again at each connection"
    )
    redis_ca_file: Path | None = Field(
        None, description="CA certificates (PEM) for Redis; unset: the system's"
    )
    redis_cert_file: Path | None = Field(None, description="client certificate (PEM) for Redis")
    redis_key_file: Path | None = Field(None, description="private key (PEM) of LOOKOUT_REDIS_CERT_FILE")

    @model_validator(mode="after")
    def _redis_fits(self) -> Self:
        _one_of(self, "redis_password", "redis_password_file")
        _together(self, "redis_cert_file", "redis_key_file")
        if self.redis_username and not (self.redis_password or self.redis_password_file):
            raise ValueError("LOOKOUT_REDIS_USERNAME needs LOOKOUT_REDIS_PASSWORD_FILE")
        if self.redis_cluster and self.redis_sentinel:
            raise ValueError("LOOKOUT_REDIS_CLUSTER and LOOKOUT_REDIS_SENTINEL are both set: set only one")
        if self.redis_sentinel_auth and not (
            self.redis_sentinel and (self.redis_password or self.redis_password_file)
        ):
            raise ValueError(
                "LOOKOUT_REDIS_SENTINEL_AUTH needs LOOKOUT_REDIS_SENTINEL and LOOKOUT_REDIS_PASSWORD_FILE"
            )
        return self

    def redis_client(self, url: str, **more: Any) -> redis.Redis:
        """Return a Redis client, which connects on first use. A client of a cluster connects at once, to ask
        for its nodes.

        Args:
            url: redis:// or rediss:// (TLS).
            more: options of `redis.Redis`.

        Raises:
            StartupError: the URL or a file cannot be used; the message holds no secret.
            redis.exceptions.RedisClusterException: no node of the cluster answers.
        """
        # Imported here, because commands and services without Redis need not wait for the import.
        import redis

        from lookout.runtime.net.redis_credentials import RedisCredentials
        from lookout.runtime.net.redis_values import ENCODING_ERRORS

        options: dict[str, Any] = {"encoding_errors": ENCODING_ERRORS, **more}
        if self.redis_password is not None or self.redis_password_file is not None:
            options["credential_provider"] = RedisCredentials(
                self.redis_username, lambda: _secret(self, "redis_password") or ""
            )
        if url.startswith("rediss://"):
            files = {"ssl_ca_certs": "redis_ca_file", "ssl_certfile": "redis_cert_file"}
            files["ssl_keyfile"] = "redis_key_file"
            options.update({name: _readable(self, field) for name, field in files.items()})
        elif self.redis_ca_file or self.redis_cert_file:
            raise StartupError("certificates for Redis are set: LOOKOUT_REDIS_URL must begin with rediss://")
        try:
            if self.redis_sentinel is not None:
                from lookout.runtime.net.redis_sentinel import primary_client

                return primary_client(url, self.redis_sentinel, options, auth=self.redis_sentinel_auth)
            if self.redis_cluster:
                # Only methods that both clients have are used.
                return cast("redis.Redis", redis.RedisCluster.from_url(url, **options))
            return redis.Redis.from_url(url, **options)
        except ValueError:
            # The parser's message is not shown, because it may quote the password.
            raise StartupError(
                f"LOOKOUT_REDIS_URL={public_url(url)} must have the form redis://host:port/db or "
                f"rediss://host:port/db"
            ) from None


class GrpcSecurity(BaseSettings):
    """Credentials of gRPC, as a server and as a client. Each field is `LOOKOUT_<FIELD>`.

    With certificate files both sides authenticate (mutual TLS). A token without certificates is meant for a
    single machine.
    """

    model_config = SettingsConfigDict(env_prefix=PREFIX, extra="ignore", frozen=True)

    grpc_ca_file: Path | None = Field(
        None,
        description="CA certificates (PEM) for the services' gRPC servers; changes apply without a restart",
    )
    grpc_cert_file: Path | None = Field(
        None, description="this service's certificate (PEM), for its server and for calls to other services"
    )
    grpc_key_file: Path | None = Field(None, description="private key (PEM) of LOOKOUT_GRPC_CERT_FILE")
    grpc_tls_name: str | None = Field(
        None,
        description="DNS name that every service's certificate contains; unset: a certificate must "
        "contain the host name that the client connects to",
    )
    grpc_token: SecretStr | None = Field(
        None, description="token that gRPC callers must send; better: set LOOKOUT_GRPC_TOKEN_FILE"
    )
    grpc_token_file: Path | None = Field(
        None, description="file with the token that gRPC callers must send; changes apply without a restart"
    )
    grpc_insecure: bool = Field(
        False,
        description="serve other machines without TLS; use it only in a network that nobody else can reach",
    )
    grpc_reflection: bool = Field(
        False, description="turn on gRPC server reflection, with which clients can list the services"
    )

    @model_validator(mode="after")
    def _grpc_fits(self) -> Self:
        _one_of(self, "grpc_token", "grpc_token_file")
        _together(self, "grpc_ca_file", "grpc_cert_file", "grpc_key_file")
        return self

    @property
    def grpc_tls(self) -> bool:
        """Whether connections use mutual TLS."""
        return self.grpc_cert_file is not None


class Connections(KafkaSecurity, RedisSecurity, GrpcSecurity):
    """The settings for Kafka, Redis and gRPC together."""


def load_connections(kind: type[T], environ: Mapping[str, str] | None = None) -> T:
    """Read only the connection settings from the environment, for the command line and tests.

    Raises:
        StartupError: The message names every setting that is wrong.
    """
    return read_settings(kind, os.environ if environ is None else environ)


def read_settings(kind: type[T], environ: Mapping[str, str], **values: Any) -> T:
    """Read settings from an environment; `values` take precedence.

    Raises:
        StartupError: The message names every setting that is wrong.
    """
    try:
        return kind(**{**given(kind, environ), **values})
    except ValidationError as error:
        raise StartupError(explain(error)) from None
    except SettingsError as error:
        field = re.search(r'field "(\w+)"', str(error))  # the error has no attribute that names the field
        name = setting(field[1]) if field else "a setting"
        raise StartupError(
            f"{name} is not a JSON object: write a JSON object, set {name}__FIELD for each field, or omit "
            f"the setting"
        ) from None


def without_security() -> Connections:
    """Return settings for unencrypted connections without passwords, whatever the environment says, for
    servers that this process started.
    """
    return Connections.model_validate(Connections.model_construct().model_dump())


def setting(field: str) -> str:
    """Return the environment variable of a field."""
    return PREFIX + field.upper()


def given(kind: type[BaseSettings], environ: Mapping[str, str]) -> dict[str, Any]:
    """Return the settings in `environ`; empty if it is the process's own environment, which pydantic reads
    itself.
    """
    if environ is os.environ:
        return {}

    # pydantic's own parsing of nested and JSON values, over another mapping than the environment.
    class Given(EnvSettingsSource):
        def _load_env_vars(self) -> Mapping[str, str | None]:
            return {key.lower(): value for key, value in environ.items()}

    return Given(kind)()


def explain(error: ValidationError) -> str:
    """Describe every invalid setting by its name; values that may hold secrets are omitted."""
    lines = []
    for fault in error.errors():
        where = "__".join(str(part) for part in fault["loc"])
        message = fault_text(fault)
        if not where:
            lines.append(message)
        elif str(fault["loc"][0]) in SECRET_SETTINGS:
            lines.append(f"{setting(where)}: {message}")
        else:
            lines.append(f"{setting(where)}={clean(repr(fault['input']), 80)}: {message}")
    return "; ".join(lines)


def read_secret(path: Path, name: str) -> str:
    """Read a secret from a file, without the newline at its end.

    Raises:
        StartupError: the file of setting `name` cannot be read or is empty.
    """
    try:
        # Only the newline is removed, which editors add. Spaces may belong to the secret.
        text = path.read_text().strip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is not text"
        raise StartupError(f"{name}={path}: the file cannot be read: {why}") from None
    if not text:
        raise StartupError(f"{name}={path}: the file is empty")
    return text


def _secret(settings: BaseSettings, field: str) -> str | None:
    value: SecretStr | None = getattr(settings, field)
    if value is not None:
        return value.get_secret_value()
    path: Path | None = getattr(settings, f"{field}_file")
    return None if path is None else read_secret(path, setting(f"{field}_file"))


def _readable(settings: BaseSettings, field: str) -> str | None:
    path: Path | None = getattr(settings, field)
    if path is None:
        return None
    if not os.access(path, os.R_OK):
        raise StartupError(f"{setting(field)}={path}: there is no such file, or it cannot be read")
    return str(path)


def _one_of(settings: BaseSettings, *fields: str) -> None:
    sources = [setting(field) for field in fields if getattr(settings, field) is not None]
    if len(sources) > 1:
        raise ValueError(f"{' and '.join(sources)} are both set: set only one")


def _together(settings: BaseSettings, *fields: str) -> None:
    missing = [setting(field) for field in fields if getattr(settings, field) is None]
    if missing and len(missing) < len(fields):
        raise ValueError(
            f"{', '.join(missing)} must be set, too: {', '.join(map(setting, fields))} go together"
        )
