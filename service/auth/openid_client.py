"""Authlib's client of an OpenID provider, without a web framework."""

from authlib.integrations.base_client.sync_app import BaseApp, OAuth2Mixin
from authlib.integrations.base_client.sync_openid import OpenIDMixin
from authlib.integrations.requests_client import OAuth2Session


class OpenIDClient(OAuth2Mixin, OpenIDMixin, BaseApp):  # type: ignore[misc]  # classes without types
    client_cls = OAuth2Session

    def _on_update_token(self, *_args: object, **_options: object) -> None:
        """Keep no token: whoever refreshed it has it."""
