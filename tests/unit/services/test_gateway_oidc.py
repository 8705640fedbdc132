"""OpenID Connect: what the gateway refuses, on a fake provider; a real one is in tests/fleet."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from joserfc import jwt
from joserfc.jwk import ECKey, OctKey
from starlette.testclient import TestClient

from lookout.errors import StartupError
from lookout.runtime.worker.settings import load_settings
from lookout.services.gateway.access.people import actor_of, person
from lookout.services.gateway.access.provider import LEEWAY_S, Provider, ProviderError, TokenError
from lookout.services.gateway.app import make_app
from lookout.services.gateway.oidc_settings import OidcSettings
from lookout.services.gateway.parts import make_parts
from lookout.services.gateway.settings import GatewaySettings
from lookout.v1.access_pb2 import Role
from tests.fake_provider import CLIENT, FakeProvider, fake_provider, new_key

HOME = "http://gateway.test"
GRANTS = [
    {"group": "admins", "role": "administrator"},
    {"group": "guards", "role": "operator", "tenants": ["north"], "cameras": ["gate*"]},
    {"group": "all", "role": "viewer"},
]


@pytest.fixture
def fake() -> Iterator[FakeProvider]:
    with fake_provider() as provider:
        yield provider


class Clock:
    """Unix seconds that the test moves."""

    def __init__(self) -> None:
        self.now = time.time()

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds


def oidc_settings(fake: FakeProvider, **more: Any) -> OidcSettings:
    return OidcSettings.model_validate({"issuer": fake.issuer, "client_id": CLIENT, "grants": GRANTS, **more})


@pytest.fixture
def provider(fake: FakeProvider) -> Iterator[Provider]:
    with ExitStack() as stack:
        made = Provider(oidc_settings(fake), HOME)
        stack.callback(made.close)
        yield made


def test_a_person_comes_back_with_the_claims(fake: FakeProvider, provider: Provider) -> None:
    answer = fake.sign_in(provider.sign_in_url("secret"))
    assert provider.finish("secret", answer)["preferred_username"] == "alice"


def test_a_code_is_taken_once(fake: FakeProvider, provider: Provider) -> None:
    answer = fake.sign_in(provider.sign_in_url("secret"))
    provider.finish("secret", answer)
    with pytest.raises(TokenError, match="invalid_grant"):
        provider.finish("secret", answer)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"state": "other"}, "state"),
        ({"state": ""}, "state"),
        ({"code": ""}, "code"),
        ({"iss": "https://other.test"}, "another provider"),
        ({"error": "access_denied", "error_description": "no <b>"}, "access_denied"),
        ({"code": "stolen"}, "invalid_grant"),
    ],
)
def test_answers_of_another_sign_in_are_refused(
    fake: FakeProvider, provider: Provider, change: dict[str, str], reason: str
) -> None:
    answer = fake.sign_in(provider.sign_in_url("secret")) | change
    with pytest.raises(TokenError, match=reason):
        provider.finish("secret", answer)


def test_a_code_of_another_browser_is_refused(fake: FakeProvider, provider: Provider) -> None:
    stolen = fake.sign_in(provider.sign_in_url("victim"), "victims-code")
    own = fake.sign_in(provider.sign_in_url("attacker"))
    with pytest.raises(TokenError, match="invalid_grant"):  # PKCE
        provider.finish("attacker", own | {"code": stolen["code"]})


def test_a_provider_that_names_itself_must_do_so(fake: FakeProvider, provider: Provider) -> None:
    fake.metadata["authorization_response_iss_parameter_supported"] = True
    answer = fake.sign_in(provider.sign_in_url("secret"))
    with pytest.raises(TokenError, match="another provider"):
        provider.finish("secret", answer)
    assert provider.finish("secret", answer | {"iss": fake.issuer})


@pytest.mark.long
@pytest.mark.parametrize(
    "claims",
    [
        {"nonce": "other"},
        {"aud": "other"},
        {"aud": []},
        {"aud": None},
        {"iss": "https://other.test"},
        {"iss": None},
        {"sub": None},
        {"exp": None},
        {"exp": int(time.time()) - 3600},
        {"exp": "tomorrow"},
        {"nbf": int(time.time()) + 3600},
        {"iat": int(time.time()) + 3600},
        {"azp": "other", "aud": [CLIENT, "other"]},
    ],
)
def test_wrong_claims_are_refused(fake: FakeProvider, provider: Provider, claims: dict[str, Any]) -> None:
    answer = fake.sign_in(provider.sign_in_url("secret"))
    challenge, right = fake.answers["code"]
    wrong = {name: value for name, value in (right | claims).items() if value is not None}
    fake.answers["code"] = (challenge, wrong)
    with pytest.raises(TokenError):
        provider.finish("secret", answer)


@pytest.mark.parametrize(("late_s", "taken"), [(LEEWAY_S - 5, True), (LEEWAY_S + 5, False)])
def test_clocks_may_differ_by_a_minute(
    fake: FakeProvider, provider: Provider, late_s: int, taken: bool
) -> None:
    now = int(time.time())
    for claims in ({"exp": now - late_s}, {"iat": now + late_s}, {"nbf": now + late_s}):
        token = fake.sign(fake.claims(**claims))
        if taken:
            assert provider.claims(token, CLIENT)
        else:
            with pytest.raises(TokenError):
                provider.claims(token, CLIENT)


def unsigned(header: dict[str, Any], claims: dict[str, Any]) -> str:
    parts = [base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=") for part in (header, claims)]
    return b".".join((*parts, b"")).decode()


def signed_with_bytes(secret: bytes, claims: dict[str, Any]) -> str:
    """A token whose shared secret no library would take."""
    content = unsigned({"alg": "HS256", "kid": "one"}, claims).rstrip(".")
    mac = hmac.new(secret, content.encode(), hashlib.sha256).digest()
    return f"{content}.{base64.urlsafe_b64encode(mac).rstrip(b'=').decode()}"


def forged(fake: FakeProvider) -> dict[str, str]:
    """Tokens that the provider's published key did not sign, by the attack."""
    published, stranger = fake.keys[0], new_key("one")
    claims = fake.claims()
    right = fake.sign(claims)
    head, body, signature = right.split(".")
    other = (
        base64.urlsafe_b64encode(json.dumps(claims | {"groups": ["admins"]}).encode()).rstrip(b"=").decode()
    )
    return {
        "none": unsigned({"alg": "none", "kid": "one"}, claims),
        "None": unsigned({"alg": "None"}, claims),
        "a public key as a shared secret": signed_with_bytes(published.as_pem(private=False), claims),
        "another key with the same id": fake.sign(claims, stranger),
        "a key in the header": fake.sign(claims, stranger, jwk=stranger.as_dict(private=False)),
        "another content": f"{head}.{other}.{signature}",
        "no signature": f"{head}.{body}.",
        "an encrypted form": f"{head}.{body}.{signature}.{body}.{signature}",
        "deep": unsigned({"alg": "RS256", "kid": "one"}, {}).split(".")[0]
        + "."
        + base64.urlsafe_b64encode(b"[" * 9000).decode()
        + "."
        + signature,
        "a deep header": base64.urlsafe_b64encode(b"[" * 9000).decode() + f".{body}.{signature}",
        "long": f"{head}.{body * 200}.{signature}",
        "empty": "..",
        "no base64": "\u00e9.\u00e9.\u00e9",
        "an unknown id": fake.sign(claims, new_key("two")),
        "no id": jwt.encode({"alg": "RS256"}, claims, stranger),
    }


def takes(provider: Provider, token: str) -> bool:
    try:
        provider.claims(token, CLIENT)
    except TokenError:
        return False
    return True


def test_forged_tokens_are_refused(fake: FakeProvider, provider: Provider) -> None:
    fake.keys.append(ECKey.generate_key("P-256", {"kid": "ec", "use": "sig"}))
    assert provider.claims(fake.sign(fake.claims()), CLIENT)
    taken = [attack for attack, token in forged(fake).items() if takes(provider, token)]
    assert taken == []


def test_a_shared_key_or_one_for_encryption_in_the_key_set_signs_nothing(
    fake: FakeProvider, provider: Provider
) -> None:
    shared = OctKey.generate_key(256, {"kid": "shared"})
    encryption = new_key("encryption")
    fake.keys = [fake.keys[0], shared, type(encryption).import_key(encryption.as_dict() | {"use": "enc"})]
    for key in (shared, encryption):
        with pytest.raises(TokenError):
            provider.claims(fake.sign(fake.claims(), key), CLIENT)


def test_keys_rotate(fake: FakeProvider) -> None:
    clock = Clock()
    provider = Provider(oidc_settings(fake), HOME, clock)
    claims = fake.claims(exp=int(time.time()) + 100_000)
    before = fake.sign(claims)
    assert provider.claims(before, CLIENT)
    fake.keys = [new_key("two")]
    clock.advance(11)
    assert provider.claims(fake.sign(claims), CLIENT)  # an unknown key: the keys are read again
    with pytest.raises(TokenError):
        provider.claims(before, CLIENT)  # a key that was withdrawn
    provider.close()


def test_a_withdrawn_key_counts_ten_minutes_at_most(fake: FakeProvider) -> None:
    clock = Clock()
    provider = Provider(oidc_settings(fake), HOME, clock)
    token = fake.sign(fake.claims(exp=int(time.time()) + 100_000))
    assert provider.claims(token, CLIENT)
    fake.keys = [new_key("two")]
    clock.advance(599)
    assert provider.claims(token, CLIENT)
    clock.advance(2)
    with pytest.raises(TokenError):
        provider.claims(token, CLIENT)
    provider.close()


def test_a_flood_of_unknown_keys_does_not_flood_the_provider(fake: FakeProvider, provider: Provider) -> None:
    stranger = new_key("strange")
    token = fake.sign(fake.claims(), stranger)
    for _ in range(20):
        with pytest.raises(TokenError):
            provider.claims(token, CLIENT)
    assert fake.key_reads <= 2


def test_a_provider_that_is_away_does_not_end_access_at_once(fake: FakeProvider) -> None:
    clock = Clock()
    provider = Provider(oidc_settings(fake), HOME, clock)
    token = fake.sign(fake.claims(exp=int(time.time()) + 100_000))
    assert provider.claims(token, CLIENT)
    fake.down = True
    clock.advance(1800)
    assert provider.claims(token, CLIENT)
    clock.advance(3600)
    with pytest.raises(ProviderError):
        provider.claims(token, CLIENT)
    provider.close()


@pytest.mark.parametrize(
    ("metadata", "reason"),
    [
        ({"issuer": "https://other.test"}, "names the issuer"),
        ({"token_endpoint": "file:///etc/passwd"}, "token_endpoint"),
        ({"jwks_uri": 7}, "jwks_uri"),
    ],
)
def test_a_wrong_discovery_document_is_refused(
    fake: FakeProvider, provider: Provider, metadata: dict[str, Any], reason: str
) -> None:
    fake.metadata = metadata
    with pytest.raises(ProviderError, match=reason):
        provider.sign_in_url("secret")


def test_the_first_grant_that_fits_counts_alone(fake: FakeProvider) -> None:
    chosen = oidc_settings(fake)
    guard = person(chosen, fake.claims(groups=["all", "guards"]))
    assert guard is not None
    assert (guard.role, guard.tenants, guard.cameras) == (Role.ROLE_OPERATOR, ("north",), ("gate*",))
    assert person(chosen, fake.claims(groups=["other"])) is None
    assert person(chosen, fake.claims(groups=None)) is None
    assert person(chosen, fake.claims(groups={"guards": 1})) is None


@pytest.mark.parametrize(
    ("claim", "claims"),
    [
        ("realm_access.roles", {"realm_access": {"roles": ["all"]}}),
        ("https://example.test/roles", {"https://example.test/roles": ["all"]}),
        ("role", {"role": "all"}),
    ],
)
def test_a_claim_may_lie_deep(fake: FakeProvider, claim: str, claims: dict[str, Any]) -> None:
    assert person(oidc_settings(fake, claim=claim), fake.claims(groups=[], **claims)) is not None


def test_people_of_one_name_are_different_actors(fake: FakeProvider) -> None:
    names = {actor_of(fake.claims(sub=subject)) for subject in ("1", "2")}
    assert len(names) == 2
    assert all(name.startswith("alice#") for name in names)
    assert len(actor_of(fake.claims(preferred_username="x" * 5000, sub="y" * 5000))) <= 200


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"issuer": "http://login.example.org"}, "https"),
        ({"issuer": "https://login.example.org", "client_id": ""}, "client_id"),
        ({"issuer": "https://login.example.org", "client_id": "a", "grants": []}, "grants"),
        ({"issuer": "https://login.example.org", "client_id": "a", "audience": "a"}, "audience"),
        ({"grants": [{"group": "a", "role": "king"}]}, "role"),
        ({"grants": [{"group": "a", "role": "viewer", "tenants": ["/"]}]}, "tenant"),
    ],
)
def test_wrong_settings_are_named(settings: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        OidcSettings.model_validate({"client_id": "gateway", "grants": GRANTS} | settings)


def test_the_settings_come_from_the_environment() -> None:
    environment = {
        "LOOKOUT_BOOTSTRAP": "127.0.0.1:1",
        "LOOKOUT_MODE": "local",
        "LOOKOUT_OIDC__ISSUER": "https://login.example.org",
        "LOOKOUT_OIDC__CLIENT_ID": "gateway",
        "LOOKOUT_OIDC__GRANTS": json.dumps(GRANTS),
    }
    with pytest.raises(StartupError, match="LOOKOUT_PUBLIC_URL"):
        load_settings(GatewaySettings, environment)
    environment["LOOKOUT_PUBLIC_URL"] = "https://lookout.example.org"
    grants = load_settings(GatewaySettings, environment).oidc.grants
    assert [grant.group for grant in grants] == ["admins", "guards", "all"]


def test_the_address_of_the_database_may_be_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "url"
    environment = {"LOOKOUT_BOOTSTRAP": "127.0.0.1:1", "LOOKOUT_MODE": "local"}
    settings = load_settings(GatewaySettings, environment | {"LOOKOUT_DATABASE_URL_FILE": str(file)})
    file.write_text("postgresql://lookout:secret@db/history\n")
    assert settings.database() == "postgresql://lookout:secret@db/history"
    file.write_text("secret")
    with pytest.raises(StartupError, match="its content is not sqlite") as error:
        settings.database()
    assert "secret" not in str(error.value)


@pytest.fixture
def client(fake: FakeProvider, tmp_path: Path) -> Iterator[TestClient]:
    """The whole application without Kafka, which these routes do not need."""
    settings = GatewaySettings.model_validate(
        {
            "mode": "local",
            "bootstrap": "127.0.0.1:1",
            "database_url": f"sqlite:///{tmp_path}/history.db",
            "public_url": HOME,
            "oidc": oidc_settings(fake, audience="programs"),
        }
    )
    parts = make_parts(settings)
    yield TestClient(make_app(parts), base_url=HOME, follow_redirects=False)
    parts.media.close()
    parts.database.close()


def test_a_session_begins_and_ends(fake: FakeProvider, client: TestClient) -> None:
    begun = client.get("/oidc/sign-in")
    assert begun.status_code == 303
    answer = fake.sign_in(begun.headers["location"])
    assert client.get("/oidc/callback", params=answer).headers["location"] == "/"
    session = client.get("/v1/session").json()
    assert session["actor"].startswith("alice#")
    assert (session["role"], session["tenants"], session["sign_out_url"]) == (
        "operator",
        ["north"],
        "/oidc/sign-out",
    )
    assert client.delete("/v1/session", headers={"x-csrf-token": session["csrf"]}).status_code == 204
    assert client.get("/v1/session").status_code == 401
    assert client.get("/oidc/sign-out").headers["location"].startswith(f"{fake.issuer}/end?client_id=")


def test_a_state_is_taken_once(fake: FakeProvider, client: TestClient) -> None:
    begun = client.get("/oidc/sign-in")
    secret = client.cookies["lookout-sign-in"]
    answer = fake.sign_in(begun.headers["location"])
    assert client.get("/oidc/callback", params=answer).status_code == 303
    answer = fake.sign_in(begun.headers["location"], "new-code")  # a provider that takes a state twice
    client.cookies.clear()
    client.cookies.set("lookout-sign-in", secret, domain="gateway.test", path="/oidc")
    again = client.get("/oidc/callback", params=answer)
    assert again.status_code == 401
    assert "this sign-in was already used" in again.json()["detail"]


def test_an_answer_without_the_cookie_begins_no_session(fake: FakeProvider, client: TestClient) -> None:
    answer = fake.sign_in(client.get("/oidc/sign-in").headers["location"])
    client.cookies.clear()
    assert client.get("/oidc/callback", params=answer).status_code == 401
    assert client.get("/v1/session").status_code == 401


def test_a_person_without_a_group_is_told_so(fake: FakeProvider, client: TestClient) -> None:
    answer = fake.sign_in(client.get("/oidc/sign-in").headers["location"], groups=[])
    refused = client.get("/oidc/callback", params=answer)
    assert refused.status_code == 403
    assert "groups" in refused.json()["detail"]
    assert client.get("/v1/session").status_code == 401


def test_a_provider_that_is_away_is_503(fake: FakeProvider, client: TestClient) -> None:
    fake.down = True
    answer = client.get("/oidc/sign-in")
    assert answer.status_code == 503
    assert answer.headers["retry-after"]
    bearer = {"authorization": f"Bearer {fake.sign(fake.claims(aud='programs'))}"}
    assert client.get("/v1/session", headers=bearer).status_code == 503


def test_programs_show_access_tokens(fake: FakeProvider, client: TestClient) -> None:
    def status(token: str) -> int:
        return client.get("/v1/session", headers={"authorization": f"Bearer {token}"}).status_code

    assert status(fake.sign(fake.claims(aud=["programs", "account"]))) == 200
    assert status(fake.sign(fake.claims())) == 401  # an ID token
    assert status(fake.sign(fake.claims(aud="programs", groups=[]))) == 401
    assert status(fake.sign(fake.claims(aud="programs"), new_key("one"))) == 401
