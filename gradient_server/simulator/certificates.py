"""A temporary certificate authority, which lets the simulator impersonate Google's hosts and no others."""

import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

_VALID_DAYS = 30


def create_authority(folder: Path, names: list[str]) -> tuple[Path, ssl.SSLContext]:
    """Create an authority and one certificate signed by it.

    The authority's private key is never stored, so it cannot sign anything else. `folder`: the folder to write
    `ca.pem`, for clients to trust, and `server.pem` to. Returns the path of the authority's certificate, and the
    server's TLS context.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    authority_key, server_key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Gradient Jobs simulator")])
    authority = (
        _certificate(issuer, issuer, authority_key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(authority_key, hashes.SHA256())
    )
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, names[0])])
    server = (
        _certificate(subject, issuer, server_key.public_key())
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name) for name in names]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    trusted, own = folder / "ca.pem", folder / "server.pem"
    trusted.write_bytes(authority.public_bytes(serialization.Encoding.PEM))
    own.touch(mode=0o600)
    own.write_bytes(
        server_key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        + server.public_bytes(serialization.Encoding.PEM)
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(own)
    return trusted, context


def _certificate(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=_VALID_DAYS))
    )
