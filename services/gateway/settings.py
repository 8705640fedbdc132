"""Settings of the gateway."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Final, Literal, Self

from pydantic import Field, SecretStr, field_validator, model_validator

from lookout.errors import StartupError
from lookout.rules.types import is_time_zone
from lookout.runtime.net.connections import read_secret, setting
from lookout.runtime.worker import FetchSettings, Listed
from lookout.services.gateway.oidc_settings import OidcSettings

_DATABASES: Final = ("sqlite:///", "postgresql://")
_NO_DATABASE: Final = "is not sqlite:///FILE or postgresql://user:password@host/name"
#: what to do with clips and live views if a privacy mask hides part of them
MaskedClips = Literal["encode", "refuse"]


class GatewaySettings(FetchSettings):
    """Settings of the gateway in addition to every service's; each field is `LOOKOUT_<FIELD>`."""

    http_port: int = Field(0, ge=0, le=65535, description="port of the HTTP API; 0: any free port")
    http_cert_file: Path | None = Field(
        None, description="certificate (PEM) of the HTTP API; changes apply without a restart"
    )
    http_key_file: Path | None = Field(None, description="private key (PEM) of LOOKOUT_HTTP_CERT_FILE")
    public_url: str | None = Field(
        None,
        pattern=r"^https?://[^/\s@?#]+$",
        description="scheme, host and port at which people reach the API; unset: the address that it listens "
        "on",
    )
    trusted_proxies: Listed = Field(
        (),
        description="addresses or networks of proxies whose X-Forwarded headers are believed, "
        "comma-separated",
    )
    database_url: SecretStr = Field(
        SecretStr("sqlite:///history.db"),
        description="database of the history: sqlite:///FILE, or postgresql://user:password@host/name for "
        "several replicas or thousands of cameras; a deleted database is rebuilt from Kafka",
    )
    database_url_file: Path | None = Field(
        None,
        description="file that contains LOOKOUT_DATABASE_URL, for URLs with passwords; it overrides "
        "LOOKOUT_DATABASE_URL",
    )
    sign_in_file: Path | None = Field(
        None,
        description="file with the secret of the one-time sign-in link (`lookout up` prints the link); a "
        "used secret is replaced; unset: there is no link",
    )
    oidc: OidcSettings = Field(
        default_factory=lambda: OidcSettings.model_validate({}), description="sign-in with OpenID Connect"
    )
    session_hours: float = Field(
        12.0, gt=0, le=720, description="hours after which a session ends and people sign in again"
    )
    history_days: float = Field(
        400.0, gt=0, description="days for which incidents, actions and the hourly and daily sums are kept"
    )
    #: days for which the sums of minutes are kept
    minutes_days: ClassVar[float] = 60.0
    #: days for which buckets shorter than a minute are available
    detail_days: ClassVar[float] = 7.0
    history_bytes: int = Field(
        20 << 30,
        ge=1 << 20,
        description="maximum bytes of the database; the oldest details are removed first",
    )
    notify: str | None = Field(
        None,
        description="notify's gRPC address (host:port), for test notifications; unset: test notifications "
        "are off",
    )
    link_key_file: Path | None = Field(
        None,
        description="file with the key that signs links to pictures and clips, the same as notify's; unset: "
        "such links are rejected",
    )
    push_key_file: Path | None = Field(
        None,
        description="file with the private key (P-256, PEM) of Web Push, the same as notify's; unset: no "
        "notifications in browsers",
    )
    model_dir: Path | None = Field(
        None, description="folder of the model's checkpoint, whose list of trained questions the API returns"
    )
    recall: str | None = Field(None, description="recall's gRPC address (host:port); unset: search is off")
    prose_url: str | None = Field(
        None,
        pattern=r"^https?://\S+$",
        description="endpoint of a model that writes reports: OpenAI-compatible, up to /v1; a private "
        "address must be in uri_networks; unset: reports have only template sentences",
    )
    prose_model: str = Field("", description="name of the model at prose_url that writes reports")
    prose_key_file: Path | None = Field(
        None, description="file with the key for the endpoint at prose_url; unset: no key is sent"
    )
    keep_url: str | None = Field(
        None,
        description="store for pictures and clips that people keep beyond Kafka's retention: "
        "s3://bucket/prefix, or a folder that all gateways mount; unset: nothing can be kept",
    )
    keep_bytes: int = Field(
        10 << 30,
        ge=1 << 20,
        description="maximum bytes of kept pictures and clips; when this limit is reached, nothing more can "
        "be kept",
    )
    masked_clips: MaskedClips = Field(
        "encode",
        description="what to do with clips and live views of footage that a privacy mask partly hides: "
        "encode (encode them again with the mask, which costs CPU), or refuse (only pictures are available)",
    )
    upload_url: str | None = Field(
        None,
        description="store for recordings that people upload: a folder in LOOKOUT_RECORDING_ROOTS, or an "
        "object store in LOOKOUT_RECORDING_STORES; unset: nothing can be uploaded",
    )
    upload_bytes: int = Field(
        50 << 30,
        ge=1 << 20,
        description="maximum bytes of all uploaded recordings together; when this limit is reached, uploads "
        "are rejected",
    )
    calls_per_minute: int = Field(
        1200,
        ge=1,
        description="maximum number of calls per minute from one person or token at each gateway; further "
        "calls get 429",
    )
    price_per_hour: float | None = Field(
        None, ge=0, description="price of one device hour, for the cost report; unset: no prices"
    )
    report_times: str = Field(
        "",
        pattern=r"^$|^([01][0-9]|2[0-3]):[0-5][0-9](,([01][0-9]|2[0-3]):[0-5][0-9])*( [A-Za-z0-9_+/-]+)?$",
        description="times of day at which a report on everything since the previous report is sent: "
        "06:00,18:00 Europe/Berlin (without a zone: UTC); empty: no reports",
    )
    currency: str = Field("EUR", pattern=r"^[A-Z]{3}$", description="currency of LOOKOUT_PRICE_PER_HOUR")

    def database(self) -> str:
        """The URL of the database.

        Raises:
            StartupError: `database_url_file` cannot be read, or contains no valid URL.
        """
        if self.database_url_file is None:
            return self.database_url.get_secret_value()
        name = setting("database_url_file")
        url = read_secret(self.database_url_file, name)
        if not url.startswith(_DATABASES):
            raise StartupError(f"{name}={self.database_url_file}: its content {_NO_DATABASE}")
        return url

    @field_validator("database_url")
    @classmethod
    def _known_database(cls, value: SecretStr) -> SecretStr:
        if not value.get_secret_value().startswith(_DATABASES):
            raise ValueError(_NO_DATABASE)
        return value

    @field_validator("report_times")
    @classmethod
    def _known_zone(cls, value: str) -> str:
        zone = value.partition(" ")[2]
        if zone and not is_time_zone(zone):
            raise ValueError(f"{zone!r} is not a time zone such as Europe/Berlin")
        return value

    @model_validator(mode="after")
    def _http_fits(self) -> Self:
        if (self.http_cert_file is None) != (self.http_key_file is None):
            raise ValueError(
                "LOOKOUT_HTTP_CERT_FILE and LOOKOUT_HTTP_KEY_FILE go together: set both or neither"
            )
        if self.prose_url is not None and not self.prose_model:
            raise ValueError("LOOKOUT_PROSE_URL needs LOOKOUT_PROSE_MODEL, the model's name at this endpoint")
        if self.oidc.issuer and self.public_url is None:
            raise ValueError(
                "LOOKOUT_OIDC__ISSUER needs LOOKOUT_PUBLIC_URL, to which the provider sends people back"
            )
        return self
