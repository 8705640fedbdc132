"""Settings of the service that delivers notifications."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

from pydantic import Field, field_validator

from lookout.runtime.net.fetch import UriFetcher
from lookout.runtime.worker import ServiceSettings
from lookout.runtime.worker.settings import Listed, check_hosts, check_networks

#: seconds for one message to one target, from the look-up of its name to its answer
MESSAGE_S = 15.0


class NotifySettings(ServiceSettings):
    """Settings of notify."""

    notify_hosts: Listed = Field(
        (),
        description="hosts that messages are sent to, comma-separated globs; empty: nothing is sent",
    )
    notify_networks: Listed = Field(
        (), description="private networks (CIDR) that these hosts may resolve to, comma-separated"
    )
    notify_secrets: Path | None = Field(
        None,
        description="folder with keys, passwords and Apprise URLs, one a file; notifications name the files",
    )
    public_url: str | None = Field(
        None,
        pattern=r"^https?://[^\s/]+/?$",
        description="where people reach the gateway, for links in messages; unset: messages have none",
    )
    gateway_url: str | None = Field(
        None,
        pattern=r"^https?://[^\s/]+/?$",
        description="where this service reaches the gateway, for pictures and to snooze; unset: public_url",
    )
    link_key_file: Path | None = Field(
        None,
        description="file with the key of signed links to pictures and clips, the gateway's too; unset: "
        "messages have no such links and no pictures",
    )

    opinion_url: str | None = Field(
        None,
        pattern=r"^https?://\S+$",
        description="a second model: an OpenAI-compatible endpoint, up to /v1, on one of notify_hosts; "
        "unset: no second opinions",
    )
    opinion_networks: Listed = Field(
        (),
        description="private networks (CIDR) that the host of opinion_url may resolve to, comma-separated; "
        "it then needs no place in notify_hosts",
    )
    opinion_model: str = Field("", description="the second model's name at its endpoint")
    opinion_key: str = Field(
        "",
        pattern=r"^([A-Za-z0-9_][A-Za-z0-9._-]*)?$",
        description="file in notify_secrets with the endpoint's key; empty: no key is sent",
    )
    opinion_frames: int = Field(
        8,
        ge=1,
        le=16,
        description="pictures of an incident that the second model sees at most; 1: the best one alone",
    )
    opinion_daily: int = Field(
        200,
        ge=1,
        description="second opinions within 24 hours at most; incidents beyond are told without one",
    )
    push_key_file: Path | None = Field(
        None,
        description="file with the private key (P-256, PEM) of Web Push, the gateway's too; unset: browsers "
        "are told nothing",
    )

    _hosts = field_validator("notify_hosts")(check_hosts)
    _networks = field_validator("notify_networks", "opinion_networks")(check_networks)

    def opinion_allowed(self) -> UriFetcher:
        """Where questions to the second model may go."""
        if not self.opinion_networks:
            return self.allowed()
        return UriFetcher(
            ("http", "https"),
            (urlsplit(self.opinion_url or "").hostname or "",),
            self.opinion_networks,
            settings="LOOKOUT_OPINION",
        )

    def allowed(self) -> UriFetcher:
        """Where messages may go."""
        return UriFetcher(
            ("http", "https"),
            self.notify_hosts,
            self.notify_networks,
            timeout_s=MESSAGE_S,
            settings="LOOKOUT_NOTIFY",
        )
