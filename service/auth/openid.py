"""Sign-in with an OpenID provider: the authorization code flow with PKCE, by Authlib."""

import hmac
import logging
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from authlib.common.errors import AuthlibBaseError
from joserfc.errors import JoseError
from requests import RequestException

from core.errors import StoreUnavailable, Unauthorized
from core.security.identities import Account
from core.settings import Settings

logger = logging.getLogger(__name__)

CALLBACK = "/ui/login/callback"
# Signatures by keys that the provider publishes: with HS256 the service's own secret would sign, with none nobody.
_ALGORITHMS = ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"]
_TIMEOUT_SECONDS = 10.0
_REFUSALS = {400, 401, 403}
_OFFLINE = "offline_access"  # the scope for tokens that outlive the browser's session at the provider

T = TypeVar("T")


class Provider:
    def __init__(self, settings: Settings) -> None:
        self._settings = settings.oidc
        self._redirect_uri = settings.public_url + CALLBACK
        self._home = f"{settings.public_url}/ui/login"
        self._loaded: Any = None

    @property
    def name(self) -> str | None:
        """Name of the provider for the sign-in page; None: there is none."""
        return self._settings.name if self._settings.issuer else None

    def begin(self) -> dict[str, str]:
        """Return the `url` to sign in at, with the `state`, `nonce` and `code_verifier` of this sign-in."""
        return dict(self._request(lambda client: client.create_authorization_url(self._redirect_uri)))

    def finish(self, answer: Mapping[str, str], started: Mapping[str, str]) -> Account:
        """Exchange the code of an answer. Raises `Unauthorized`: it is refused, or answers another sign-in."""
        expected, state = (values.get("state", "").encode(errors="replace") for values in (started, answer))
        if not expected or not hmac.compare_digest(expected, state):
            raise Unauthorized("This sign-in was not started in this browser, or is older than ten minutes. Try again.")
        if "code" not in answer:
            raise Unauthorized(f"The provider refused: {answer.get('error_description') or answer.get('error')}"[:300])

        def exchange(client: Any) -> Account:  # noqa: ANN401 - as `_client`
            token = client.fetch_access_token(
                self._redirect_uri, code=answer["code"], code_verifier=started["code_verifier"]
            )
            if "id_token" not in token:
                raise Unauthorized("The provider's answer has no ID token.")
            return self._account(client, token, token, started["nonce"])

        return self._request(exchange)

    def check(self, token: Mapping[str, Any]) -> Account:
        """Ask again about somebody. Raises `Unauthorized`: the provider no longer vouches for them."""

        def renew(client: Any) -> Account:  # noqa: ANN401 - as `_client`
            metadata, new = client.load_server_metadata(), dict[str, Any]()
            if token.get("refresh_token"):
                with client._get_oauth_client(**metadata) as session:  # noqa: SLF001 - Authlib's integrations do so
                    new = session.refresh_token(metadata["token_endpoint"], token["refresh_token"])
            return self._account(client, new, {**token, **new}, None)

        return self._request(renew)

    def sign_out_url(self, token: Mapping[str, Any]) -> str | None:
        """Return where to end the session at the provider; None: it offers no such address."""

        def find(client: Any) -> str | None:  # noqa: ANN401 - as `_client`
            if "end_session_endpoint" not in client.load_server_metadata():
                return None
            names = {"id_token_hint": token.get("id_token"), "client_id": self._settings.client_id}
            return str(client.create_logout_url(self._home, **names)["url"])

        return self._request(find)

    def _account(self, client: Any, new: Mapping[str, Any], token: Mapping[str, Any], nonce: str | None) -> Account:  # noqa: ANN401 - as `_client`
        """Return what the provider says; `new`: tokens that were just issued, whose ID token is verified."""
        named = {"iss": self._settings.issuer, "aud": self._settings.client_id}
        options = {claim: {"essential": True, "value": value} for claim, value in named.items()}
        claims = dict(client.parse_id_token(new, nonce, options) or {})
        if "userinfo_endpoint" in client.load_server_metadata():
            info = client.userinfo(token=token)
            if claims.get("sub", info["sub"]) != info["sub"]:
                raise Unauthorized("The provider's answers are about two different people.")
            claims |= info
        return Account.of(self._settings, claims, token)

    def _request(self, action: Callable[[Any], T]) -> T:
        """Raise `StoreUnavailable` if the provider does not answer, `Unauthorized` if it refuses."""
        try:
            return action(self._client())
        except (AuthlibBaseError, JoseError) as error:
            logger.warning("sign_in_refused", exc_info=error)
            raise Unauthorized(
                "The provider's answer was refused. Sign in again; the service's log says why."
            ) from error
        except (RequestException, AttributeError, KeyError, TypeError, ValueError) as error:
            status = getattr(getattr(error, "response", None), "status_code", None)
            if status in _REFUSALS:
                raise Unauthorized("The provider refused its own token. Sign in again.") from error
            logger.warning("openid_provider_failed", exc_info=error)
            raise StoreUnavailable(f"{self._settings.issuer} does not answer as an OpenID provider.") from error

    def _client(self) -> Any:  # noqa: ANN401 - a class without types
        if self._loaded is None:
            from service.auth.openid_client import OpenIDClient  # noqa: PLC0415 - 13 MiB, only with a provider

            settings, issuer = self._settings, str(self._settings.issuer)
            client = OpenIDClient(
                None,
                client_id=settings.client_id,
                client_secret=settings.client_secret.get_secret_value() or None,
                server_metadata_url=f"{issuer.rstrip('/')}/.well-known/openid-configuration",
                client_kwargs={"code_challenge_method": "S256", "default_timeout": _TIMEOUT_SECONDS},
            )
            metadata = client.load_server_metadata()
            if metadata.get("issuer") != issuer:
                raise ValueError(f"The provider calls itself {metadata.get('issuer')!r}, not {issuer!r}.")
            metadata["id_token_signing_alg_values_supported"] = _ALGORITHMS
            offline = {_OFFLINE} & {*metadata.get("scopes_supported", ())} - {*settings.scopes}
            client.client_kwargs["scope"] = " ".join([*settings.scopes, *offline])
            self._loaded = client
        return self._loaded
