"""The certificates of a team: an authority of its own, and one certificate for each server.

Rules: the authority's key stays on the machine that began the team. TLS proves only the server: machines
prove themselves with their keys (keys.py).
This file must never know where certificates and keys are kept.
"""

from __future__ import annotations

import datetime
import hashlib
import ipaddress
import ssl
from collections.abc import Sequence
from typing import NamedTuple

from cortexfs.core.errors import Fault
from cortexfs.team.keys import needed

with needed():
    from cryptography import x509
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

DAYS = 3650
_P256 = ec.SECP256R1


class Pem(NamedTuple):
    """A certificate and its private key."""

    certificate: bytes
    key: bytes


def authority(team: str) -> Pem:
    key = ec.generate_private_key(_P256())
    name = _name(f"CortexFS team {team}")
    builder = _builder(name, name, key.public_key())
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_usage(signs=True), critical=True)
    certificate = builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
    return Pem(certificate, _key_pem(key))


def new_key() -> bytes:
    """Returns a new private key, as PEM."""
    return _key_pem(ec.generate_private_key(_P256()))


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    encoding, none = serialization.Encoding.PEM, serialization.NoEncryption()
    return key.private_bytes(encoding, serialization.PrivateFormat.PKCS8, none)


def public_of(key: bytes) -> str:
    """Returns the public half of such a key, as PEM."""
    public = serialization.load_pem_private_key(key, None).public_key()
    kind = serialization.PublicFormat.SubjectPublicKeyInfo
    return public.public_bytes(serialization.Encoding.PEM, kind).decode()


def key_pin(public: str) -> str:
    """Returns the hash by which servers know each other's certificates. Raises EPROTO for any other key."""
    encoding, kind = serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    return hashlib.sha256(_public(public).public_bytes(encoding, kind)).hexdigest()


def _public(pem: str) -> ec.EllipticCurvePublicKey:
    try:
        key = serialization.load_pem_public_key(pem.encode())
    except (ValueError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise Fault("EPROTO", "this is not the key of a server")
    return key


def of_server(ca: Pem, name: str, addresses: Sequence[str], public: str) -> bytes:
    """Returns a certificate for the server with this key, which is reached by these names and addresses."""
    issuer = x509.load_pem_x509_certificate(ca.certificate)
    signer = serialization.load_pem_private_key(ca.key, None)
    assert isinstance(signer, ec.EllipticCurvePrivateKey)
    builder = _builder(_name(name), issuer.subject, _public(public))
    builder = builder.add_extension(
        x509.SubjectAlternativeName([_general(each) for each in addresses]), critical=False
    )
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    builder = builder.add_extension(_usage(signs=False), critical=True)
    uses = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    builder = builder.add_extension(x509.ExtendedKeyUsage(uses), critical=False)
    return builder.sign(signer, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def pin(pem: bytes) -> bytes:
    """Returns the hash by which a token knows a server's certificate."""
    return pin_of(ssl.PEM_cert_to_DER_cert(pem.decode()))


def pin_of(der: bytes | None) -> bytes:
    return hashlib.sha256(der or b"").digest()


def check_authority(pem: str) -> None:
    """Raises EPROTO if this is no authority."""
    try:
        trusting(pem)
    except (ssl.SSLError, ValueError):
        raise Fault("EPROTO", "the team's answer has no valid certificate of its authority") from None


def trusting(pem: str) -> ssl.SSLContext:
    """Returns a client's context that trusts only this authority."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_verify_locations(cadata=pem)
    return context


def pinning() -> ssl.SSLContext:
    """Returns a client's context for a server whose certificate is compared with a pin."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _general(address: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(address))
    except ValueError:
        return x509.DNSName(address)


def _usage(*, signs: bool) -> x509.KeyUsage:
    uses = ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement")
    never = dict.fromkeys((*uses, "encipher_only", "decipher_only"), False)
    return x509.KeyUsage(digital_signature=not signs, key_cert_sign=signs, crl_sign=signs, **never)


def _builder(
    subject: x509.Name, issuer: x509.Name, public: ec.EllipticCurvePublicKey
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=DAYS))
    )
