"""A real Keycloak on loopback, from Maven: fetched once, checked, built once, with its data in memory."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import tempfile
import time
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from html import unescape
from pathlib import Path
from typing import Any, Final

import httpx
from filelock import FileLock

from lookout.local import free_ports
from lookout.local.addresses import cache_folder
from lookout.local.java import find_java
from lookout.local.processes import Child

VERSION: Final = "26.7.3"
SHA256: Final = "27a6535553c3cdcd083872ba40629efafb3475e3b758e0c6f691395561dd0f1f"
REALM: Final = "lookout"
PASSWORD: Final = "a-password-of-a-test"
_START_S: Final = 900.0


def keycloak_home() -> Path:
    """The unpacked distribution, built for a database in memory; fetched the first time."""
    cache = cache_folder()
    home = cache / f"keycloak-{VERSION}"
    if not home.is_dir():
        cache.mkdir(parents=True, exist_ok=True)
        with FileLock(cache / "keycloak.filelock", timeout=_START_S):
            if not home.is_dir():
                _install(home)
    return home


def _install(home: Path) -> None:
    from jgo.config import GlobalSettings
    from jgo.maven import MavenContext

    with tempfile.TemporaryDirectory(prefix=".keycloak-", dir=home.parent) as scratch:
        context = MavenContext(repo_cache=Path(scratch) / "maven", timeout=300)
        context.remote_repos.update(GlobalSettings.load().repositories)
        component = context.project("org.keycloak", "keycloak-quarkus-dist").at_version(VERSION)
        archive = Path(component.artifact(packaging="zip").resolve())
        with archive.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        assert digest == SHA256, f"{archive.name} has SHA-256 {digest}"
        with zipfile.ZipFile(archive) as content:
            content.extractall(scratch)
        unpacked = Path(scratch) / f"keycloak-{VERSION}"
        command = ["/bin/bash", str(unpacked / "bin/kc.sh"), "build", "--db=dev-mem"]
        subprocess.run(command, check=True, env=_environment(), timeout=_START_S)
        unpacked.rename(home)


def _environment() -> dict[str, str]:
    own = {"JAVA": str(find_java().path), "JAVA_OPTS_APPEND": "-Xmx512m -XX:TieredStopAtLevel=1"}
    admin = {"KC_BOOTSTRAP_ADMIN_USERNAME": "admin", "KC_BOOTSTRAP_ADMIN_PASSWORD": PASSWORD}
    return {**os.environ, **own, **admin}


class Keycloak:
    """A running server, and the calls of its administrator.

    Args:
        url: Where it answers.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self._client = httpx.Client(timeout=120.0, trust_env=False)

    @property
    def issuer(self) -> str:
        """Of the realm of the tests."""
        return f"{self.url}/realms/{REALM}"

    def call(self, method: str, path: str, body: Any = None) -> httpx.Response:
        """A call of the administrator."""
        form = {
            "grant_type": "password",
            "client_id": "admin-cli",
            "username": "admin",
            "password": PASSWORD,
        }
        token = self._client.post(f"{self.url}/realms/master/protocol/openid-connect/token", data=form).json()
        headers = {"authorization": f"Bearer {token['access_token']}"}
        answer = self._client.request(method, f"{self.url}/admin/realms{path}", json=body, headers=headers)
        answer.raise_for_status()
        return answer

    def make_realm(self, gateway: str, secret: str, people: Mapping[str, Sequence[str]]) -> None:
        """Make the realm of the tests.

        Args:
            gateway: Public URL of the gateway, the client `gateway`.
            secret: Of that client, and of the program `robot`, whose tokens are for the audience `programs`.
            people: Groups of each person.
        """
        groups = sorted({group for names in people.values() for group in names})
        mapper = {"protocol": "openid-connect", "protocolMapper": "oidc-group-membership-mapper"}
        claim = {"full.path": "false", "claim.name": "groups"}
        everywhere = {"id.token.claim": "true", "access.token.claim": "true"}
        audience = {"included.custom.audience": "programs", "access.token.claim": "true"}
        hardcoded = {
            "claim.name": "groups",
            "claim.value": '["readers"]',
            "jsonType.label": "JSON",
            **everywhere,
        }
        self.call(
            "POST",
            "",
            {
                "realm": REALM,
                "enabled": True,
                "sslRequired": "none",
                "groups": [{"name": group} for group in groups],
                "users": [
                    {
                        "username": name,
                        "enabled": True,
                        "email": f"{name}@example.org",
                        "emailVerified": True,
                        "firstName": name,
                        "lastName": name,
                        "credentials": [{"type": "password", "value": PASSWORD}],
                        "groups": list(names),
                    }
                    for name, names in people.items()
                ],
                "clients": [
                    {
                        "clientId": "gateway",
                        "secret": secret,
                        "redirectUris": [f"{gateway}/oidc/callback"],
                        "attributes": {
                            "post.logout.redirect.uris": f"{gateway}/",
                            "pkce.code.challenge.method": "S256",
                        },
                        "protocolMappers": [{"name": "groups", **mapper, "config": {**claim, **everywhere}}],
                    },
                    {
                        "clientId": "robot",
                        "secret": secret,
                        "standardFlowEnabled": False,
                        "serviceAccountsEnabled": True,
                        "protocolMappers": [
                            {
                                "name": "audience",
                                "protocol": "openid-connect",
                                "protocolMapper": "oidc-audience-mapper",
                                "config": audience,
                            },
                            {
                                "name": "groups",
                                "protocol": "openid-connect",
                                "protocolMapper": "oidc-hardcoded-claim-mapper",
                                "config": hardcoded,
                            },
                        ],
                    },
                ],
            },
        )

    def remove_realm(self) -> None:
        """Remove the realm of the tests."""
        self.call("DELETE", f"/{REALM}")

    def rotate_keys(self) -> None:
        """Sign with a new key from now on, and withdraw the others."""
        realm = self.call("GET", f"/{REALM}").json()["id"]
        query = "type=org.keycloak.keys.KeyProvider"
        before = self.call("GET", f"/{REALM}/components?{query}").json()
        self.call(
            "POST",
            f"/{REALM}/components",
            {
                "name": f"rotated-{time.time_ns()}",
                "providerId": "rsa-generated",
                "providerType": "org.keycloak.keys.KeyProvider",
                "parentId": realm,
                "config": {"priority": ["900"], "algorithm": ["RS256"]},
            },
        )
        for component in before:
            if component["providerId"] == "rsa-generated":
                self.call("DELETE", f"/{REALM}/components/{component['id']}")

    def robot_token(self, secret: str) -> str:
        """An access token of the program."""
        form = {"grant_type": "client_credentials", "client_id": "robot", "client_secret": secret}
        reply = self._client.post(f"{self.issuer}/protocol/openid-connect/token", data=form)
        return str(reply.raise_for_status().json()["access_token"])

    def close(self) -> None:
        """End the connections."""
        self._client.close()


def _take_cookies(browser: httpx.Client) -> None:
    """Send cookies with `Secure` to loopback over http as well, as browsers do."""
    for cookie in browser.cookies.jar:
        cookie.secure = False


def sign_in(browser: httpx.Client, name: str, password: str = PASSWORD) -> httpx.Response:
    """Sign in as a person does: the gateway's link, the provider's form, and back.

    Args:
        browser: A client with the cookies of one person.
        name: The person's.
        password: The person's.

    Returns:
        The gateway's answer, or the provider's form where it does not let the person in.
    """
    page = browser.get(browser.get("/oidc/sign-in").headers["location"])
    while page.status_code in (302, 303):
        page = browser.get(page.headers["location"])
    if "/oidc/callback" in str(page.url):
        return page  # the provider knows this browser
    _take_cookies(browser)
    action = re.search(r'action="([^"]+)"', page.text)
    assert action is not None, page.text[:2000]
    form = {"username": name, "password": password, "credentialId": ""}
    back = browser.post(unescape(action[1]), data=form)
    _take_cookies(browser)
    return browser.get(back.headers["location"]) if back.status_code == 302 else back


@contextmanager
def keycloak(folder: Path) -> Iterator[Keycloak]:
    """A server that is ready; LOOKOUT_KEYCLOAK names one that runs already.

    Args:
        folder: For its log.
    """
    if given := os.environ.get("LOOKOUT_KEYCLOAK"):
        server = Keycloak(given)
        yield server
        server.close()
        return
    (port,) = free_ports(1)
    options = ["--optimized", "--http-enabled=true", "--hostname-strict=false", "--http-host=127.0.0.1"]
    command = ["/bin/bash", str(keycloak_home() / "bin/kc.sh"), "start", *options, f"--http-port={port}"]
    child = Child(command, folder / "keycloak.log", env=_environment())
    server = Keycloak(f"http://127.0.0.1:{port}")
    try:
        deadline = time.monotonic() + _START_S
        while not _answers(server):
            if not child.alive or time.monotonic() > deadline:
                raise AssertionError((folder / "keycloak.log").read_text()[-4000:])
            time.sleep(1.0)
        yield server
    finally:
        server.close()
        child.stop()


def _answers(server: Keycloak) -> bool:
    try:
        address = f"{server.url}/realms/master/.well-known/openid-configuration"
        return httpx.get(address, timeout=10.0, trust_env=False).status_code == 200
    except httpx.HTTPError:
        return False
