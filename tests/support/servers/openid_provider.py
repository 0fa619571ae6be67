"""An OpenID provider in a process of its own: `oidc-provider-mock`, with PKCE, and lies that it tells on demand.

As a program: PORT. `PUT /users/SUB` sets the claims of a user, `POST /users/SUB/revoke-tokens` forgets one,
`PUT /lie/NAME` makes the next ID token a lie, and `GET /asked` returns what the last sign-in asked for.
"""

import os
import subprocess
import sys
import time
import warnings
from pathlib import Path
from urllib.parse import quote

import httpx
from support.deployment import wait_until
from support.free_port import free_port


class OpenIdProvider:
    def __init__(self, log: Path) -> None:
        self.url = f"http://localhost:{free_port()}"
        arguments = [sys.executable, __file__, self.url.rpartition(":")[2]]
        env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "AUTHLIB_INSECURE_TRANSPORT": "1"}
        with log.open("wb") as output:
            self._process = subprocess.Popen(arguments, env=env, stdout=output, stderr=output)
        self.client = httpx.Client(base_url=self.url, timeout=30)
        wait_until(self._is_ready, "the OpenID provider")

    def settings(self, **others: str) -> dict[str, str]:
        prefixed = {f"GRADIENT_OIDC__{name.upper()}": value for name, value in others.items()}
        own = {"ISSUER": self.url, "CLIENT_ID": "gradient", "CLIENT_SECRET": "x", "NAME": "Lab"}
        return {f"GRADIENT_OIDC__{name}": value for name, value in own.items()} | prefixed

    def set_user(self, subject: str, *groups: str, **claims: object) -> None:
        claims = {"email": subject, "groups": [*groups], **claims}
        self.client.put(f"/users/{quote(subject)}", json=claims).raise_for_status()

    def forget_user(self, subject: str) -> None:
        self.client.post(f"/users/{quote(subject)}/revoke-tokens").raise_for_status()

    def lie(self, name: str) -> None:
        self.client.put(f"/lie/{name}").raise_for_status()

    def asked(self) -> dict[str, str]:
        return dict(self.client.get("/asked").json())

    def stop(self) -> None:
        self.client.close()
        self._process.kill()
        self._process.wait()

    def _is_ready(self) -> bool:
        assert self._process.poll() is None, "the OpenID provider ended"
        try:
            return self.client.get("/.well-known/openid-configuration").is_success
        except httpx.TransportError:
            return False


def _serve(port: int) -> None:  # noqa: C901 - small functions around the state of one provider
    import flask  # noqa: PLC0415 - of the provider's process alone
    import oidc_provider_mock  # noqa: PLC0415
    from authlib.oauth2.rfc6749.errors import InvalidGrantError  # noqa: PLC0415
    from authlib.oauth2.rfc7636 import create_s256_code_challenge  # noqa: PLC0415
    from joserfc import jwk, jwt  # noqa: PLC0415
    from oidc_provider_mock import _app  # noqa: PLC0415
    from werkzeug.serving import make_server  # noqa: PLC0415

    lies: list[str] = []
    asked: dict[str, str] = {}
    challenges: dict[str, dict[str, str]] = {}

    validate = _app.AuthorizationCodeGrant.validate_token_request

    def validate_with_pkce(grant: _app.AuthorizationCodeGrant) -> None:
        validate(grant)
        begun = challenges[grant.request.authorization_code.nonce]
        verifier = flask.request.form.get("code_verifier", "")
        if begun["code_challenge_method"] != "S256" or create_s256_code_challenge(verifier) != begun["code_challenge"]:
            raise InvalidGrantError

    _app.AuthorizationCodeGrant.validate_token_request = validate_with_pkce
    app = oidc_provider_mock.app(require_nonce=True)

    @app.before_request
    def note() -> None:
        if flask.request.path == "/oauth2/authorize":
            asked.clear()
            asked.update(flask.request.args)
            challenges[asked["nonce"]] = dict(asked)

    @app.put("/lie/<name>")
    def lie(name: str) -> str:
        lies.append(name)
        return ""

    @app.get("/asked")
    def show_asked() -> flask.Response:
        return flask.jsonify(asked)

    @app.after_request
    def tell(answer: flask.Response) -> flask.Response:
        if flask.request.form.get("grant_type") == "authorization_code" and lies and answer.status_code == 200:
            body = answer.get_json()
            body["id_token"] = _lie(lies.pop(), body["id_token"])
            answer.set_data(flask.json.dumps(body))
        return answer

    def _lie(name: str, token: str) -> str:
        stored = flask.g.oidc_provider_mock_storage.jwk
        private = "private" if isinstance(stored, jwk.RSAKey) else "is_private"  # of two libraries, by release
        key = jwk.RSAKey.import_key(stored.as_dict(**{private: True}))
        claims = jwt.decode(token, key).claims
        changed = {
            "nonce": {"nonce": "another"},
            "audience": {"aud": "another"},
            "issuer": {"iss": "http://evil.example"},
            "expired": {"exp": int(time.time()) - 3600},
            "subject": {"sub": "another"},
        }.get(name, {})
        if name == "none":
            _, payload, _ = token.split(".")
            return f"eyJhbGciOiJub25lIn0.{payload}."
        if name == "hs256":
            return jwt.encode({"alg": "HS256"}, claims, jwk.OctKey.import_key("x" * 32))
        signer = jwk.RSAKey.generate_key(2048) if name == "key" else key
        return jwt.encode({"alg": "RS256"}, {**claims, **changed}, signer)

    make_server("localhost", port, app, threaded=True).serve_forever()


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    _serve(int(sys.argv[1]))
