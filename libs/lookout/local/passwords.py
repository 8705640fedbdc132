"""Passwords for a local Kafka and Redis, in files that only this user can read, never on command lines."""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from pathlib import Path
from typing import Final

from confluent_kafka.admin import ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion

from lookout.disk import FILE_MODE, private_folder, read_file, replace_file
from lookout.local.addresses import kafka_login
from lookout.runtime.kafka_clients import AdminClient

USER: Final = "lookout"
CLIENTS, INTERNAL, CONTROLLER = "CLIENTS", "INTERNAL", "CONTROLLER"
_OWN_USER = "internal"
_MECHANISM = "SCRAM-SHA-512"
_ROUNDS = 4096  # Kafka's default; any number is safe, because a random 256-bit password cannot be guessed
_PLAIN_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
_SCRAM_MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"
_LIMIT = 4096
_ANSWER_S = 10.0


def new_password(path: Path) -> str:
    """Write a new random password to a file that only this user can read, and return it."""
    private_folder(path.parent)
    password = secrets.token_urlsafe(32)
    replace_file(path, password.encode())
    return password


def lasting_password(path: Path) -> str:
    """Return the password in a file; write a new one if the file is missing, belongs to another user, or can
    be read by others.
    """
    with contextlib.suppress(OSError, UnicodeDecodeError):
        facts = path.lstat()
        private = stat.S_IMODE(facts.st_mode) == FILE_MODE and facts.st_uid == os.getuid()
        if private and (password := read_file(path, limit=_LIMIT).decode().strip()):
            return password
    return new_password(path)


class KafkaAccounts:
    """The accounts of a local broker: one for clients, and one for the broker itself.

    Clients prove with SCRAM that they know the password, without sending it, so a process that takes the port
    while the broker is down learns nothing. The broker and its controller use PLAIN, because SCRAM needs the
    metadata that the controller keeps; `renew` gives them a new password for every launch.

    Args:
        folder: Folder for the clients' password.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._internal = ""

    @property
    def password_file(self) -> Path:
        """The file with the clients' password."""
        return self._folder / "password"

    @property
    def properties_file(self) -> Path:
        """The file that tells librdkafka clients (kcat -F) how to connect."""
        return self._folder / "client.properties"

    def settings(self) -> dict[str, str]:
        """Return Kafka settings for services and commands, without the LOOKOUT_ prefix."""
        return {
            "kafka_protocol": "sasl_plaintext",
            "kafka_mechanism": _MECHANISM,
            "kafka_username": USER,
            "kafka_password_file": str(self.password_file),
        }

    def login(self) -> dict[str, str]:
        """Return the librdkafka options for a client."""
        lasting_password(self.password_file)
        return kafka_login(self.settings())

    def internal_login(self) -> dict[str, str]:
        """Return the librdkafka options for the broker's own account."""
        return {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": _OWN_USER,
            "sasl.password": self._internal,
        }

    def renew(self) -> None:
        """Generate a new password for the broker's own account, for its next launch."""
        self._internal = secrets.token_urlsafe(32)

    def broker_properties(self) -> dict[str, str]:
        """Return the broker properties for the next launch, which contain the broker's own password."""
        own = (
            f'{_PLAIN_MODULE} required username="{_OWN_USER}" password="{self._internal}" '
            f'user_{_OWN_USER}="{self._internal}";'
        )
        clients = f"listener.name.{CLIENTS.lower()}"
        properties = {
            "listener.security.protocol.map": ",".join(
                f"{listener}:SASL_PLAINTEXT" for listener in (CONTROLLER, INTERNAL, CLIENTS)
            ),
            "inter.broker.listener.name": INTERNAL,
            "sasl.mechanism.inter.broker.protocol": "PLAIN",
            "sasl.mechanism.controller.protocol": "PLAIN",
            f"{clients}.sasl.enabled.mechanisms": _MECHANISM,
            f"{clients}.{_MECHANISM.lower()}.sasl.jaas.config": f"{_SCRAM_MODULE} required;",
        }
        for listener in (CONTROLLER.lower(), INTERNAL.lower()):
            properties[f"listener.name.{listener}.sasl.enabled.mechanisms"] = "PLAIN"
            properties[f"listener.name.{listener}.plain.sasl.jaas.config"] = own
        return properties

    def open_to_clients(self, admin: AdminClient) -> None:
        """Set the clients' password in a running broker.

        Args:
            admin: A client that uses the broker's own account.

        Raises:
            KafkaException: The broker rejected the password.
        """
        password = lasting_password(self.password_file)
        user = UserScramCredentialUpsertion(
            USER, ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, _ROUNDS), password.encode()
        )
        for outcome in admin.alter_user_scram_credentials([user], request_timeout=_ANSWER_S).values():
            outcome.result(_ANSWER_S + 5)

    def write_properties(self, bootstrap: str) -> None:
        """Write `properties_file` for clients of a broker at this address."""
        lines = {"bootstrap.servers": bootstrap, **self.login()}
        text = "".join(f"{name}={value}\n" for name, value in lines.items())
        replace_file(self.properties_file, text.encode())
