"""A registry of container images that asks who comes, by password or by token: the read side of the distribution
protocol, with one image in it. Run as a program: ADDRESS PORT USERNAME:PASSWORD basic|token LAYER.
"""

import base64
import hashlib
import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

IMAGE_NAME, IMAGE_TAG = "team/private", "1"
_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
_TOKEN = "a-token-of-the-registry"


def sha256_digest(content):
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


class RegistryHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        server = self.server
        if self.path.startswith("/token"):
            known = self._authorization() == server.basic_authorization
            return self._send(200 if known else 401, json.dumps({"token": _TOKEN, "access_token": _TOKEN}).encode())
        if self._authorization() != server.required_authorization:
            errors = {"errors": [{"code": "UNAUTHORIZED", "message": "authentication required"}]}
            return self._send(401, json.dumps(errors).encode(), {"WWW-Authenticate": server.challenge(self)})
        if self.path == "/v2/":
            return self._send(200, b"{}")
        found = server.content.get(self.path)
        if found is None:
            return self._send(404, b'{"errors": [{"code": "NAME_UNKNOWN", "message": "unknown"}]}')
        kind = _MANIFEST if "/manifests/" in self.path else "application/octet-stream"
        return self._send(200, found, {"Docker-Content-Digest": sha256_digest(found)}, kind)

    do_HEAD = do_GET  # noqa: N815 - http.server's

    def _authorization(self):
        return self.headers.get("Authorization", "")

    def _send(self, status, body, headers=None, kind="application/json"):
        self.send_response(status)
        named = {"Content-Type": kind, "Content-Length": str(len(body)), **(headers or {})}
        for name, value in {**named, "Docker-Distribution-Api-Version": "registry/2.0"}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


class PrivateRegistryServer(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, address, login, scheme, layer):
        super().__init__(address, RegistryHandler)
        self._scheme = scheme
        self.basic_authorization = "Basic " + base64.b64encode(login.encode()).decode()
        self.required_authorization = self.basic_authorization if scheme == "basic" else f"Bearer {_TOKEN}"
        self.content = build_image(layer)

    def challenge(self, request):
        if self._scheme == "basic":
            return 'Basic realm="private"'
        realm = f"http://{request.headers['Host']}/token"
        return f'Bearer realm="{realm}",service="private",scope="repository:{IMAGE_NAME}:pull"'


def build_image(layer):
    """Map paths to content: a manifest, by tag and by digest, and the blobs it names."""
    config = json.dumps(
        {
            "architecture": "amd64",
            "os": "linux",
            "config": {"Env": ["PATH=/bin"]},
            "rootfs": {"type": "layers", "diff_ids": [sha256_digest(layer)]},
        }
    ).encode()
    kinds = {
        "application/vnd.docker.container.image.v1+json": config,
        "application/vnd.docker.image.rootfs.diff.tar": layer,
    }
    descriptors = [
        {"mediaType": kind, "size": len(blob), "digest": sha256_digest(blob)} for kind, blob in kinds.items()
    ]
    listed = {"schemaVersion": 2, "mediaType": _MANIFEST, "config": descriptors[0], "layers": descriptors[1:]}
    manifest = json.dumps(listed).encode()
    blobs = {f"/v2/{IMAGE_NAME}/blobs/{sha256_digest(blob)}": blob for blob in kinds.values()}
    return blobs | {f"/v2/{IMAGE_NAME}/manifests/{name}": manifest for name in (IMAGE_TAG, sha256_digest(manifest))}


if __name__ == "__main__":
    host, port, login, scheme, layer = sys.argv[1:]
    PrivateRegistryServer((host, int(port)), login, scheme, Path(layer).read_bytes()).serve_forever()
