"""An OpenID Connect provider: its endpoints, its keys, and the claims in its tokens."""

from __future__ import annotations

import base64
import hashlib
import hmac
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote, urlencode

import httpx
from joserfc import jwt
from joserfc.errors import InvalidKeyIdError, JoseError
from joserfc.jwk import KeySet

from lookout.errors import LookoutError
from lookout.runtime.net.connections import read_secret
from lookout.runtime.observe import logs
from lookout.services.gateway.oidc_settings import OidcSettings
from lookout.text import clean

#: only asymmetric signatures. If HMAC were allowed, a token could be forged with the public key as the shared
#: secret
ALGORITHMS: Final = (
    *("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    *("ES256", "ES384", "ES512", "Ed25519", "EdDSA"),
)
CALLBACK: Final = "/oidc/callback"
SIGN_OUT: Final = "/oidc/sign-out"
#: maximum difference between the provider's and the gateway's clocks, in seconds
LEEWAY_S: Final = 60
#: seconds for which fetched keys are used: normally, and while the provider does not answer. A withdrawn key
#: is still accepted during this time
_FRESH_S: Final = 600.0
_STALE_S: Final = 3600.0
#: minimum seconds between two fetches of keys, however many tokens name unknown keys
_AGAIN_S: Final = 10.0
_TIMEOUT_S: Final = 10.0
_ANSWER_BYTES: Final = 1 << 20
_TOKEN_BYTES: Final = 16 << 10
_KEY_TYPES: Final = ("RSA", "EC", "OKP")


class ProviderError(LookoutError):
    """The provider does not answer, or its answer violates OpenID Connect."""


class TokenError(LookoutError):
    """A token was not issued by the provider for this gateway, or is not valid at the moment."""


@dataclass(frozen=True, slots=True)
class Endpoints:
    """The parts of the provider's discovery document that the gateway uses.

    Attributes:
        authorization: Where people sign in.
        token: Where codes are exchanged for tokens.
        keys: Where the provider's public keys (JWKS) are.
        end_session: Where people sign out; empty: unknown.
        basic: Whether the client authenticates itself with HTTP Basic; otherwise with form fields.
        names_itself: Whether the provider's redirects back have the parameter `iss` (RFC 9207).
    """

    authorization: str
    token: str
    keys: str
    end_session: str
    basic: bool
    names_itself: bool


class Provider:
    """A client of the provider in the settings.

    Args:
        settings: Issuer and client.
        public_url: Where people reach the gateway.
        clock: Unix seconds.
    """

    def __init__(
        self, settings: OidcSettings, public_url: str, clock: Callable[[], float] = time.time
    ) -> None:
        self._settings, self._clock = settings, clock
        self.issuer = settings.issuer
        self._redirect = public_url + CALLBACK
        self._home = public_url + "/"
        self._client = httpx.Client(timeout=_TIMEOUT_S, follow_redirects=False)
        self._lock = threading.Lock()
        self._endpoints: tuple[float, Endpoints] | None = None
        self._keys: tuple[float, KeySet] | None = None
        self._fetched_at = float("-inf")

    def sign_in_url(self, secret: str) -> str:
        """Return the URL to which a browser goes to sign in.

        Args:
            secret: The sign-in's secret, which the browser gets as a cookie.

        Raises:
            ProviderError: The provider does not answer.
        """
        verifier = derived(secret, "verifier")
        challenge = base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).rstrip(b"=")
        query = {
            "response_type": "code",
            "client_id": self._settings.client_id,
            "redirect_uri": self._redirect,
            "scope": " ".join(("openid", *self._settings.scopes)),
            "state": derived(secret, "state"),
            "nonce": derived(secret, "nonce"),
            "code_challenge": challenge.decode(),
            "code_challenge_method": "S256",
        }
        return _with_query(self._known().authorization, query)

    def sign_out_url(self) -> str:
        """Return the URL at which a browser ends its session with the provider; if the provider has no such
        URL, the gateway's own URL.

        Raises:
            ProviderError: The provider does not answer.
        """
        known = self._known()
        if not known.end_session:
            return self._home
        query = {"client_id": self._settings.client_id, "post_logout_redirect_uri": self._home}
        return _with_query(known.end_session, query)

    def finish(self, secret: str, answer: Mapping[str, str]) -> dict[str, Any]:
        """Finish a sign-in when the browser comes back from the provider; return the person's claims.

        Args:
            secret: The sign-in's secret, from the browser's cookie.
            answer: The parameters with which the browser comes back.

        Raises:
            TokenError: The parameters do not belong to this sign-in, or the person may not sign in.
            ProviderError: The provider does not answer.
        """
        if not hmac.compare_digest(answer.get("state", "").encode(), derived(secret, "state").encode()):
            raise TokenError("state: the answer does not belong to a sign-in from this browser")
        known = self._known()
        named = answer.get("iss")
        if named != self.issuer and (named is not None or known.names_itself):
            raise TokenError("iss: the answer is from another provider")
        if error := answer.get("error"):
            raise TokenError(
                f"the provider reports {clean(error, 60)}: {clean(answer.get('error_description', ''))}"
            )
        if not (code := answer.get("code")):
            raise TokenError("code: missing")
        reply = self._exchange(known, code, derived(secret, "verifier"))
        token = reply.get("id_token")
        if not isinstance(token, str):
            raise ProviderError(
                f"{known.token}: the answer has no id_token; allow the client the scope openid"
            )
        claims = self.claims(token, self._settings.client_id)
        if claims.get("nonce") != derived(secret, "nonce"):
            raise TokenError("nonce: the token belongs to another sign-in")
        if claims.get("azp", self._settings.client_id) != self._settings.client_id:
            raise TokenError("azp: the token was issued to another client")
        return claims

    def claims(self, token: str, audience: str) -> dict[str, Any]:
        """Check a token's signature, issuer, audience and times; return its claims.

        Raises:
            TokenError: The signature, the issuer, the audience or a time is wrong.
            ProviderError: The provider's keys cannot be read.
        """
        if len(token) > _TOKEN_BYTES or token.count(".") != 2:
            raise TokenError("the token is not a signed token (JWS)")
        claims = self._verified(token)
        registry = jwt.JWTClaimsRegistry(
            now=lambda: int(self._clock()),
            leeway=LEEWAY_S,
            iss={"essential": True, "value": self.issuer},
            aud={"essential": True, "value": audience},
            sub={"essential": True},
            exp={"essential": True},
            iat={"essential": True},
        )
        try:
            registry.validate(claims)
        except (JoseError, TypeError, ValueError) as error:
            raise TokenError(f"the token is not valid: {error}") from None
        return claims

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def _verified(self, token: str) -> dict[str, Any]:
        """Check that one of the provider's keys signed a token; return the token's claims."""
        for newer in (False, True):
            try:
                claims = jwt.decode(token, self._key_set(newer=newer), algorithms=ALGORITHMS).claims
            except InvalidKeyIdError:
                continue  # no known key matches, but the provider may have a new one
            except (JoseError, TypeError, ValueError, RecursionError) as error:
                raise TokenError(f"the token is not valid: {error}") from None
            if not isinstance(claims, dict):
                break
            return claims
        raise TokenError("the token is not valid: none of the provider's keys signed it")

    def _key_set(self, *, newer: bool) -> KeySet:
        with self._lock:
            now = self._clock()
            cached = self._keys
            fresh = cached is not None and now - cached[0] < _FRESH_S
            if cached is not None and ((fresh and not newer) or now - self._fetched_at < _AGAIN_S):
                return cached[1]
            self._fetched_at = now
        try:
            keys = self._read_keys()
        except ProviderError as error:
            if cached is None or now - cached[0] > _STALE_S:
                raise
            logs.get("gateway").warning("the provider's keys cannot be read", error=str(error))
            return cached[1]
        with self._lock:
            self._keys = (now, keys)
        return keys

    def _read_keys(self) -> KeySet:
        address = self._known().keys
        document = self._json("GET", address)
        listed = document.get("keys")
        usable = [
            key
            for key in (listed if isinstance(listed, list) else [])
            if isinstance(key, dict) and key.get("kty") in _KEY_TYPES and key.get("use", "sig") == "sig"
        ]
        try:
            return KeySet.import_key_set({"keys": usable})
        except (JoseError, TypeError, ValueError) as error:
            raise ProviderError(f"{address} has no usable key: {error}") from None

    def _known(self) -> Endpoints:
        now, cached = self._clock(), self._endpoints
        if cached is not None and now - cached[0] < _STALE_S:
            return cached[1]
        address = self.issuer.rstrip("/") + "/.well-known/openid-configuration"
        document = self._json("GET", address)
        if document.get("issuer") != self.issuer:
            raise ProviderError(
                f"{address} names the issuer {clean(str(document.get('issuer')), 200)}: "
                "set LOOKOUT_OIDC__ISSUER to exactly this value"
            )
        methods = document.get("token_endpoint_auth_methods_supported", ["client_secret_basic"])
        known = Endpoints(
            self._endpoint(document, "authorization_endpoint"),
            self._endpoint(document, "token_endpoint"),
            self._endpoint(document, "jwks_uri"),
            self._endpoint(document, "end_session_endpoint") if "end_session_endpoint" in document else "",
            "client_secret_basic" in methods,
            document.get("authorization_response_iss_parameter_supported") is True,
        )
        self._endpoints = (now, known)
        return known

    def _endpoint(self, document: Mapping[str, Any], name: str) -> str:
        address = document.get(name)
        scheme = self.issuer.partition("://")[0]
        if not isinstance(address, str) or not address.startswith(("https://", f"{scheme}://")):
            raise ProviderError(f"{self.issuer}: {name} in its discovery document is not an {scheme} URL")
        return address

    def _exchange(self, known: Endpoints, code: str, verifier: str) -> dict[str, Any]:
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": self._redirect,
            "code_verifier": verifier,
        }
        client, basic = self._settings.client_id, None
        file = self._settings.client_secret_file
        if file is None:
            form["client_id"] = client
        else:
            secret = read_secret(file, "LOOKOUT_OIDC__CLIENT_SECRET_FILE")
            if known.basic:
                basic = httpx.BasicAuth(quote(client, safe=""), quote(secret, safe=""))
            else:
                form |= {"client_id": client, "client_secret": secret}
        return self._json("POST", known.token, data=form, auth=basic)

    def _json(self, method: str, address: str, **more: Any) -> dict[str, Any]:
        try:
            with self._client.stream(
                method, address, headers={"accept": "application/json"}, **more
            ) as reply:
                content = b""
                for piece in reply.iter_bytes():
                    content += piece
                    if len(content) > _ANSWER_BYTES:
                        raise ProviderError(f"{address}: the answer has more than {_ANSWER_BYTES} bytes")
            document = httpx.Response(200, content=content).json()
        except (httpx.HTTPError, ValueError, RecursionError) as error:
            raise ProviderError(f"{address}: {error!r}") from error
        if not isinstance(document, dict):
            raise ProviderError(f"{address}: the answer is not a JSON object")
        if reply.status_code == 400 and method == "POST":
            reason = clean(str(document.get("error")), 60)
            raise TokenError(f"the provider does not accept the code ({reason})")
        if reply.status_code != 200:
            raise ProviderError(
                f"{address}: HTTP {reply.status_code} {clean(str(document.get('error', '')), 60)}"
            )
        return document


def derived(secret: str, purpose: str) -> str:
    """Return a value that only this sign-in's browser and the gateway can know.

    Args:
        secret: The sign-in's secret.
        purpose: state, nonce or verifier. The three derived values do not reveal each other.
    """
    mac = hmac.new(secret.encode("utf-8", "surrogatepass"), purpose.encode(), hashlib.sha256)
    return base64.urlsafe_b64encode(mac.digest()).rstrip(b"=").decode()


def _with_query(address: str, query: Mapping[str, str]) -> str:
    return f"{address}{'&' if '?' in address else '?'}{urlencode(query)}"
