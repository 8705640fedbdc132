"""People and programs of a real provider of OpenID Connect, Keycloak, at a real gateway."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import httpx
import pytest

from lookout.local import free_ports
from tests.fleet.gateway_case import GatewayProcess, gateway
from tests.keycloak import Keycloak, keycloak, sign_in

pytestmark = [pytest.mark.fleet, pytest.mark.long]
SECRET = "the secret of a client: 100 %"
PEOPLE = {"ada": ["admins"], "gus": ["guards", "all"], "eve": ["outsiders"]}
GRANTS = [
    {"group": "admins", "role": "administrator"},
    {"group": "guards", "role": "operator", "tenants": ["north"], "cameras": ["gate*"]},
    {"group": "readers", "role": "viewer"},
]


@dataclass(frozen=True, slots=True)
class Site:
    """A gateway and its provider."""

    provider: Keycloak
    process: GatewayProcess

    @contextmanager
    def browser(self) -> Iterator[httpx.Client]:
        """Somebody's browser, without cookies."""
        with self.process.client() as client:
            yield client


@pytest.fixture(scope="module")
def site(kafka: str, redis_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("site")
    with ExitStack() as stack:
        provider = stack.enter_context(keycloak(folder))
        secret_file = folder / "secret"
        secret_file.write_text(SECRET)
        (port,) = free_ports(1)
        public = f"http://127.0.0.1:{port}"
        provider.make_realm(public, SECRET, PEOPLE)
        stack.callback(provider.remove_realm)
        settings = {
            "http_port": str(port),
            "public_url": public,
            "oidc__issuer": provider.issuer,
            "oidc__client_id": "gateway",
            "oidc__client_secret_file": str(secret_file),
            "oidc__grants": json.dumps(GRANTS),
            "oidc__audience": "programs",
        }
        process = gateway(stack, folder, kafka, redis_url, settings)
        process.url = public
        yield Site(provider, process)


def test_people_sign_in_with_their_roles(site: Site) -> None:
    for name, role, tenants in (("ada", "administrator", []), ("gus", "operator", ["north"])):
        with site.browser() as browser:
            assert sign_in(browser, name).status_code == 303
            session = browser.get("/v1/session").json()
            assert session["actor"].startswith(f"{name}#")
            assert (session["role"], session.get("tenants", [])) == (role, tenants)
            allowed = browser.get("/v1/audit").status_code
            assert allowed == (200 if name == "ada" else 403)


def test_a_wrong_password_or_group_gives_no_session(site: Site) -> None:
    with site.browser() as browser:
        assert sign_in(browser, "ada", "guessed").status_code == 200  # the provider's form again
        assert browser.get("/v1/session").status_code == 401
    with site.browser() as browser:
        refused = sign_in(browser, "eve")
        assert refused.status_code == 403
        assert "groups" in refused.json()["detail"]
        assert browser.get("/v1/session").status_code == 401


def test_an_answer_is_taken_once_and_by_its_browser(site: Site) -> None:
    with site.browser() as browser, site.browser() as other:
        answer = sign_in(browser, "ada")
        assert other.get(str(answer.url)).status_code == 401
        assert browser.get(str(answer.url)).status_code == 401
        assert other.get("/v1/session").status_code == 401


def test_signing_out_ends_the_session_here_and_leads_to_the_provider(site: Site) -> None:
    with site.browser() as browser:
        sign_in(browser, "ada")
        session = browser.get("/v1/session").json()
        headers = {"x-csrf-token": session["csrf"]}
        assert browser.delete("/v1/session", headers=headers).status_code == 204
        assert browser.get("/v1/session").status_code == 401
        page = browser.get(browser.get(session["sign_out_url"]).headers["location"])
        assert page.status_code == 200, page.text[:2000]
        assert "logout" in page.text.lower()


def test_programs_show_access_tokens(site: Site) -> None:
    def session(token: str) -> httpx.Response:
        with site.browser() as client:
            return client.get("/v1/session", headers={"authorization": f"Bearer {token}"})

    token = site.provider.robot_token(SECRET)
    view = session(token).json()
    assert view["role"] == "viewer"
    assert view["expires"]
    head, body, signature = token.split(".")
    assert session(f"{head}.{body}.{signature[::-1]}").status_code == 401
    site.provider.rotate_keys()
    newer = site.provider.robot_token(SECRET)
    assert newer.split(".")[0] != head
    # Keys are read again at most every ten seconds.
    deadline = time.monotonic() + 60
    while session(newer).status_code != 200:
        assert time.monotonic() < deadline
        time.sleep(2)
    assert session(token).status_code == 401  # its key was withdrawn
