"""A fake provider of OpenID Connect: it signs what a test asks it to, right or wrong."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final
from urllib.parse import parse_qs, parse_qsl, urlsplit

from joserfc import jwt
from joserfc.jwk import ECKey, KeySet, OctKey, RSAKey

CLIENT: Final = "gateway"
Key = RSAKey | ECKey | OctKey


class FakeProvider:
    """The provider.

    Attributes:
        keys: Which it publishes; the last one signs.
        metadata: Changes of its discovery document.
        answers: Codes it takes, with the challenge and the claims of the ID token.
        key_reads: How often its keys were read.
        down: Answers 500 to everything.
    """

    def __init__(self, issuer: str) -> None:
        self.issuer = issuer
        self.keys: list[Key] = [_first_key()]
        self.metadata: dict[str, Any] = {}
        self.answers: dict[str, tuple[str, dict[str, Any]]] = {}
        self.key_reads = 0
        self.down = False

    def claims(self, **more: Any) -> dict[str, Any]:
        """Claims of alice, a guard."""
        now = int(time.time())
        return {
            "iss": self.issuer,
            "aud": CLIENT,
            "sub": "8f1c",
            "iat": now,
            "exp": now + 300,
            "preferred_username": "alice",
            "groups": ["guards"],
            **more,
        }

    def sign(self, claims: dict[str, Any], key: Key | None = None, **header: Any) -> str:
        """A token."""
        key = key or self.keys[-1]
        algorithm = {"RSA": "RS256", "EC": "ES256", "oct": "HS256"}[key.key_type]
        return jwt.encode({"alg": algorithm, "kid": key.kid, **header}, claims, key)

    def sign_in(self, url: str, code: str = "code", **claims: Any) -> dict[str, str]:
        """What a browser brings back after a person signed in at an address.

        Args:
            url: Where the gateway sent the browser.
            code: Which the provider gives.
            claims: Other than usual.
        """
        query = dict(parse_qsl(urlsplit(url).query))
        assert query["client_id"] == CLIENT
        assert query["code_challenge_method"] == "S256"
        self.answers[code] = (query["code_challenge"], self.claims(nonce=query["nonce"], **claims))
        return {"state": query["state"], "code": code}

    def answer(self, path: str, form: dict[str, list[str]]) -> tuple[int, Any]:
        """The status and document of one call."""
        if self.down:
            return 500, {}
        if path == "/.well-known/openid-configuration":
            return 200, {
                "issuer": self.issuer,
                "authorization_endpoint": f"{self.issuer}/authorize",
                "token_endpoint": f"{self.issuer}/token",
                "jwks_uri": f"{self.issuer}/keys",
                "end_session_endpoint": f"{self.issuer}/end",
                **self.metadata,
            }
        if path == "/keys":
            self.key_reads += 1
            return 200, KeySet(list(self.keys)).as_dict(private=False)
        if path == "/token":
            challenge, claims = self.answers.pop(form.get("code", [""])[0], ("", {}))
            digest = hashlib.sha256(form.get("code_verifier", [""])[0].encode()).digest()
            if not claims or base64.urlsafe_b64encode(digest).rstrip(b"=").decode() != challenge:
                return 400, {"error": "invalid_grant"}
            return 200, {"id_token": self.sign(claims), "access_token": "x", "token_type": "Bearer"}
        return 404, {}


@cache
def _first_key() -> RSAKey:
    """The key that every provider begins with: a new one costs a tenth of a second."""
    return new_key("one")


def new_key(kid: str) -> RSAKey:
    """A new RSA key."""
    return RSAKey.generate_key(2048, {"kid": kid, "use": "sig"})


@contextmanager
def fake_provider() -> Iterator[FakeProvider]:
    """A fake provider on loopback."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer({})

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0))).decode()
            self._answer(parse_qs(body))

        def _answer(self, form: dict[str, list[str]]) -> None:
            status, document = provider.answer(urlsplit(self.path).path, form)
            content = json.dumps(document).encode()
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    provider = FakeProvider(f"http://127.0.0.1:{server.server_address[1]}")
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield provider
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)
