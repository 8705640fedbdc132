"""Settings of notify."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator

from lookout.runtime.net.fetch import UriFetcher
from lookout.runtime.worker import ServiceSettings
from lookout.runtime.worker.settings import Listed, check_hosts, check_networks

#: time limit in seconds for one message to one target, from the DNS lookup to the answer
MESSAGE_S = 15.0


@dataclass(frozen=True, slots=True)
class SecondModel:
    """A model that gives second opinions.

    Attributes:
        url: The model's OpenAI-compatible endpoint, up to /v1.
        model: The model's name at the endpoint.
        key: Name of the file with the endpoint's key; empty: the endpoint needs none.
    """

    url: str
    model: str
    key: str = ""


#: NAME=VALUE, or only a value; a URL is never mistaken for NAME=VALUE, because of its colon
_ENTRY: Final = re.compile(r"(?:([a-z0-9][a-z0-9-]{0,39})=)?(.+)")


def _named(entry: str) -> tuple[str, str]:
    """Return the name and value of NAME=VALUE; if there is only a value, the name is empty."""
    match = _ENTRY.fullmatch(entry)
    return (match[1] or "", match[2]) if match else ("", entry)


def _by_name(setting: str, entries: tuple[str, ...], pattern: str, what: str) -> dict[str, str]:
    """Return a setting's values by name.

    Raises:
        ValueError: A value does not match the pattern, or two values have the same name.
    """
    values: dict[str, str] = {}
    for name, value in map(_named, entries):
        if not re.fullmatch(pattern, value):
            raise ValueError(
                f"{setting}: {value[:60]!r} is not {what}; to give several values, write "
                "NAME=VALUE,NAME=VALUE"
            )
        if name in values:
            raise ValueError(
                f"{setting}: two values have the same name; write NAME=VALUE,NAME=VALUE with different names"
            )
        values[name] = value
    return values


class NotifySettings(ServiceSettings):
    """Settings of notify."""

    notify_hosts: Listed = Field(
        (),
        description="hosts that messages may be sent to, comma-separated globs; empty: nothing is sent",
    )
    notify_networks: Listed = Field(
        (),
        description="private networks (CIDR, comma-separated) that the hosts in LOOKOUT_NOTIFY_HOSTS "
        "may resolve to",
    )
    notify_secrets: Path | None = Field(
        None,
        description="folder with keys, passwords and Apprise URLs, one per file; notifications name "
        "the files",
    )
    public_url: str | None = Field(
        None,
        pattern=r"^https?://[^\s/]+/?$",
        description="URL at which people reach the gateway, for links in messages; unset: messages have no "
        "links",
    )
    gateway_url: str | None = Field(
        None,
        pattern=r"^https?://[^\s/]+/?$",
        description="URL at which notify reaches the gateway, for pictures and snoozing; unset: public_url",
    )
    link_key_file: Path | None = Field(
        None,
        description="file with the key that signs links to pictures and clips, the same as the gateway's; "
        "unset: messages have neither such links nor pictures",
    )

    opinion_url: Listed = Field(
        (),
        description="endpoint of a second model: OpenAI-compatible, up to /v1, on one of notify_hosts; for "
        "several second models: NAME=URL, comma-separated, of which each watch chooses one; unset: no second "
        "opinions",
    )
    opinion_networks: Listed = Field(
        (),
        description="private networks (CIDR) that the hosts of opinion_url may resolve to, comma-separated; "
        "such hosts need not be in notify_hosts",
    )
    opinion_model: Listed = Field(
        (),
        description="the second model's name at its endpoint; for several second models: NAME=MODEL, "
        "comma-separated",
    )
    opinion_key: Listed = Field(
        (),
        description="file in notify_secrets with the endpoint's key; for several second models: NAME=FILE, "
        "comma-separated; empty: no key is sent",
    )
    opinion_frames: int = Field(
        8,
        ge=1,
        le=16,
        description="maximum number of pictures of an incident that a second model sees; 1: only the best "
        "one",
    )
    opinion_daily: int = Field(
        200,
        ge=1,
        description="maximum number of second opinions within 24 hours; further incidents are delivered "
        "without one",
    )
    push_key_file: Path | None = Field(
        None,
        description="file with the private key (P-256, PEM) of Web Push, the same as the gateway's; unset: "
        "no notifications in browsers",
    )

    _hosts = field_validator("notify_hosts")(check_hosts)
    _networks = field_validator("notify_networks", "opinion_networks")(check_networks)

    @model_validator(mode="after")
    def _check_second_models(self) -> Self:
        urls = _by_name("opinion_url", self.opinion_url, r"https?://\S+", "an http or https URL")
        models = _by_name("opinion_model", self.opinion_model, r"\S.*", "the model's name at its endpoint")
        keys = _by_name("opinion_key", self.opinion_key, r"[A-Za-z0-9_][A-Za-z0-9._-]*", "a file's name")
        for setting, named in (("opinion_model", models), ("opinion_key", keys)):
            if unknown := sorted(named.keys() - urls.keys()):
                raise ValueError(f"{setting}: opinion_url has no second model called {unknown[0]!r}")
        if missing := sorted(urls.keys() - models.keys()):
            raise ValueError(f"opinion_model: give the name of the model at {urls[missing[0]]}")
        return self

    @property
    def second_models(self) -> dict[str, SecondModel]:
        """The second models by name, in the setting's order; a model without a name has the name ""."""
        models, keys = (dict(map(_named, listed)) for listed in (self.opinion_model, self.opinion_key))
        urls = map(_named, self.opinion_url)
        return {name: SecondModel(url.rstrip("/"), models[name], keys.get(name, "")) for name, url in urls}

    def opinion_allowed(self) -> UriFetcher:
        """Make the fetcher that reaches second models."""
        if not self.opinion_networks:
            return self.allowed()
        return UriFetcher(
            ("http", "https"),
            tuple(urlsplit(model.url).hostname or "" for model in self.second_models.values()),
            self.opinion_networks,
            settings="LOOKOUT_OPINION",
        )

    def allowed(self) -> UriFetcher:
        """Make the fetcher that reaches targets."""
        return UriFetcher(
            ("http", "https"),
            self.notify_hosts,
            self.notify_networks,
            timeout_s=MESSAGE_S,
            settings="LOOKOUT_NOTIFY",
        )
