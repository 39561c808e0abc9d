"""Keys of a team in the form of NATS: nkeys, the JWTs that the server believes, and signed messages.

    key = Key.new(USER)                 key.seed to keep, key.public to show
    token = user_claims(...)            a JWT, signed by the account's key
    sealed = seal(key, subject, data)   opened(public, subject, sealed) gives the data back
    proven = prove(key, public, ...)    proven_data(key, public, subject, proven), for that machine alone

Rules: a machine is identified by its key, which the account's key binds to its name. Messages that decide
something (a call, an export) are signed by the machine too. The server answers on any subject that a client
names as that of its reply, so a subject alone proves no sender. A call is for one machine. It is proven by a
secret of both machines' keys (X25519), which takes a hundredth of a signature's time.
This file must never know the meaning of the signed data.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec

from cortexfs.core.errors import Fault
from cortexfs.core.jsontext import UNREADABLE


@contextmanager
def needed() -> Iterator[None]:
    """Turns a missing package of the extra `team` into a Fault."""
    try:
        yield
    except ImportError:
        why = "a team needs packages that are not installed here; install them: pip install 'cortexfs[team]'"
        raise Fault("EHOSTDOWN", why) from None


with needed():
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

OPERATOR, ACCOUNT, USER = 14 << 3, 0, 20 << 3  # the letters O, A and U
_SEED = 18 << 3  # S
RAW = 32
PROVEN_SECONDS = 60.0  # how long a call is accepted; clocks may differ by as much
_SIGNATURE = 64
_MARK = 32  # bytes of the proof of a call
_TIME = 8
_PRIME = 2**255 - 19
_MAX_SECRETS = 4096
NO_LIMIT = -1


class Key:
    """A private key."""

    def __init__(self, kind: int, raw: bytes) -> None:
        self._kind = kind
        self.raw = raw
        self._private = Ed25519PrivateKey.from_private_bytes(raw)
        self.public_raw = self._private.public_key().public_bytes_raw()
        self.public = public_text(kind, self.public_raw)
        self._secrets: dict[bytes, bytes] = {}

    @classmethod
    def new(cls, kind: int) -> Key:
        return cls(kind, Ed25519PrivateKey.generate().private_bytes_raw())

    @classmethod
    def of_seed(cls, seed: str) -> Key:
        data = _unbased(seed, "a seed")
        kind = (data[0] & 7) << 5 | data[1] >> 3
        if data[0] & 0xF8 != _SEED or len(data) != 2 + RAW:
            raise Fault("EINVAL", "this is not the seed of a key")
        return cls(kind, data[2:])

    @property
    def seed(self) -> str:
        return _based(bytes([_SEED | self._kind >> 5, (self._kind & 31) << 3]) + self.raw)

    def sign(self, data: bytes) -> bytes:
        return self._private.sign(data)

    def secret_with(self, public: bytes) -> bytes:
        """Returns the shared secret of this key and that public key. Raises EPROTO if that is no good key."""
        secret = self._secrets.get(public)
        if secret is None:
            if len(self._secrets) >= _MAX_SECRETS:
                self._secrets.clear()
            secret = self._secrets[public] = self._exchanged(public)
        return secret

    def _exchanged(self, public: bytes) -> bytes:
        # From Ed25519 to X25519: RFC 8032, 5.1.5 for the private half, RFC 7748, 4.1 for the other.
        private = X25519PrivateKey.from_private_bytes(hashlib.sha512(self.raw).digest()[:RAW])
        y = int.from_bytes(public, "little") % 2**255
        try:
            u = (1 + y) * pow(1 - y, -1, _PRIME) % _PRIME
            public_key = X25519PublicKey.from_public_bytes(u.to_bytes(RAW, "little"))
            pair = b"".join(sorted((self.public_raw, public)))
            return hashlib.sha256(b"ctx-team-secret-1\0" + pair + private.exchange(public_key)).digest()
        except ValueError:  # a public key of small order, with which the secret could be guessed
            raise Fault("EPROTO", "the key of that machine is unsafe (small order)") from None


def public_text(kind: int, raw: bytes) -> str:
    return _based(bytes([kind]) + raw)


def public_raw(kind: int, text: str) -> bytes:
    data = _unbased(text, "a public key")
    if data[0] != kind or len(data) != 1 + RAW:
        raise Fault("EINVAL", "this is not a public key of that kind")
    return data[1:]


def _based(data: bytes) -> str:
    checked = data + binascii.crc_hqx(data, 0).to_bytes(2, "little")
    return base64.b32encode(checked).rstrip(b"=").decode()


def _unbased(text: str, title: str) -> bytes:
    try:
        data = base64.b32decode(text + "=" * (-len(text) % 8))
    except (binascii.Error, ValueError):
        raise Fault("EINVAL", f"this is not {title}") from None
    if len(data) < 3 or binascii.crc_hqx(data[:-2], 0) != int.from_bytes(data[-2:], "little"):
        raise Fault("EINVAL", f"this is not {title}: its checksum is wrong")
    return data[:-2]


def _verified(public: bytes, signature: bytes, data: bytes) -> bool:
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, data)
    except InvalidSignature:
        return False
    return True


# -- JWTs


def unpadded(data: bytes) -> str:
    """Returns bytes in the form that JWTs, and NATS in JSON, have for them."""
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def padded(text: str) -> bytes:
    """Returns the bytes of such a text. Raises EPROTO if it is none."""
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except ValueError:
        raise Fault("EPROTO", "this is not the token of a machine") from None


_HEADER = unpadded(b'{"typ":"JWT","alg":"ed25519-nkey"}')


class Claims(NamedTuple):
    """The claims of a JWT in their only encoding. From the same facts the signed bytes can be made again."""

    text: str  # the part of the JWT that is signed

    def signed(self, key: Key) -> str:
        return self.with_signature(self.signature(key))

    def signature(self, key: Key) -> bytes:
        return key.sign(self.text.encode())

    def with_signature(self, signature: bytes) -> str:
        return f"{self.text}.{unpadded(signature)}"


def _claims(issuer: str, subject: str, name: str, nats: dict[str, Any], issued: int, expires: int) -> Claims:
    value: dict[str, Any] = {"iat": issued, "iss": issuer, "name": name, "sub": subject, "nats": nats}
    if expires:
        value["exp"] = expires
    mark = hashlib.sha256(msgspec.json.encode(value)).digest()
    body = msgspec.json.encode({"jti": base64.b32encode(mark).rstrip(b"=").decode(), **value})
    return Claims(f"{_HEADER}.{unpadded(body)}")


def operator_claims(key: Key, system: str) -> Claims:
    nats = {"type": "operator", "version": 2, "system_account": system}
    return _claims(key.public, key.public, "cortexfs", nats, int(time.time()), 0)


def account_claims(
    operator: str, account: str, name: str, *, stores: bool, removed: Mapping[str, int] = MappingProxyType({})
) -> Claims:
    """`removed` maps the public keys of removed machines to the times of their removal."""
    unbounded = ("subs", "data", "payload", "imports", "exports", "conn", "leaf")
    limits: dict[str, Any] = dict.fromkeys(unbounded, NO_LIMIT)
    limits["wildcards"] = True
    if stores:
        limits |= dict.fromkeys(("mem_storage", "disk_storage", "streams", "consumer"), NO_LIMIT)
    nats = {"type": "account", "version": 2, "limits": limits, "default_permissions": {"pub": {}, "sub": {}}}
    if removed:
        nats["revocations"] = dict(removed)
    return _claims(operator, account, name, nats, int(time.time()), 0)


def user_claims(
    account: str,
    user: str,
    name: str,
    publish: list[str],
    subscribe: list[str],
    issued: int,
    expires: int = 0,
) -> Claims:
    limits = dict.fromkeys(("subs", "data", "payload"), NO_LIMIT)
    allowed = {"pub": {"allow": publish}, "sub": {"allow": subscribe}}
    nats = {"type": "user", "version": 2, **allowed, **limits}
    return _claims(account, user, name, nats, issued, expires)


class MachineToken(NamedTuple):
    """The facts in a machine's JWT."""

    name: str
    public: bytes
    issued: int


class _Known(msgspec.Struct):
    sub: str
    name: str
    iat: int


def machine_of(token: str, account: str) -> MachineToken:
    """Returns the facts in the JWT of a machine. Raises EPROTO if the account's key has not signed it."""
    header, _, rest = token.partition(".")
    body, _, signature = rest.partition(".")
    signed = f"{header}.{body}".encode()
    if not _verified(public_raw(ACCOUNT, account), padded(signature), signed):
        raise Fault("EPROTO", "the token of a machine is not signed by the team's key")
    try:
        claims = msgspec.json.decode(padded(body), type=_Known)
    except UNREADABLE:
        raise Fault("EPROTO", "this is not the token of a machine") from None
    return MachineToken(claims.name, public_raw(USER, claims.sub), claims.iat)


# -- signed messages


def seal(key: Key, subject: str, data: bytes, now: float | None = None) -> bytes:
    """Returns the data with a signature over the data, its subject, and the time."""
    stamp = _stamp(time.time() if now is None else now)
    return key.sign(_sealed_text(subject, stamp, data)) + stamp + data


def opened(public: bytes, subject: str, sealed: bytes) -> bytes:
    """Returns the data. Raises EPROTO if that machine has not signed it for that subject."""
    signature, stamp = sealed[:_SIGNATURE], sealed[_SIGNATURE : _SIGNATURE + _TIME]
    data = unsealed(sealed)
    if len(stamp) < _TIME or not _verified(public, signature, _sealed_text(subject, stamp, data)):
        raise Fault("EPROTO", "the signature of the message is not its sender's")
    return data


def unsealed(sealed: bytes) -> bytes:
    """Returns the data of a signed message, without a check of the signature."""
    return sealed[_SIGNATURE + _TIME :]


def stamp_of(sealed: bytes) -> int:
    """Returns the time of a signed message, in milliseconds."""
    return int.from_bytes(sealed[_SIGNATURE : _SIGNATURE + _TIME], "little")


def _stamp(now: float) -> bytes:
    return int(now * 1000).to_bytes(_TIME, "little")


def _sealed_text(subject: str, stamp: bytes, data: bytes) -> bytes:
    return b"ctx-team-1\0" + subject.encode() + b"\0" + stamp + data


# -- messages for one machine


def prove(key: Key, public: bytes, subject: str, data: bytes, now: float | None = None) -> bytes:
    """Returns the data with a mark that proves the sender, the subject and the time to that machine."""
    stamp = _stamp(time.time() if now is None else now)
    return _mark(key, public, subject, stamp + data) + stamp + data


def proven_data(key: Key, public: bytes, subject: str, proven: bytes) -> bytes:
    """Returns the data. Raises EPROTO if that machine has not proven it to this one for that subject; see
    check_time."""
    mark, rest = proven[:_MARK], proven[_MARK:]
    if len(rest) < _TIME or not hmac.compare_digest(mark, _mark(key, public, subject, rest)):
        raise Fault("EPROTO", "the message is not from the machine that its subject names")
    return rest[_TIME:]


def check_time(proven: bytes) -> None:
    """Raises EHOSTDOWN if a proven message has another time than the clock here. The sender is told."""
    age = time.time() - int.from_bytes(proven[_MARK : _MARK + _TIME], "little") / 1000
    if abs(age) > PROVEN_SECONDS:
        why = f"that machine's clock differs from the clock here by {abs(age):.0f} s"
        raise Fault("EHOSTDOWN", f"{why}; compare both with: date")


def _mark(key: Key, public: bytes, subject: str, rest: bytes) -> bytes:
    return hmac.digest(key.secret_with(public), subject.encode() + b"\0" + rest, "sha256")
