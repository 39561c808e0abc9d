"""The trusted publishers, and the question about other publishers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from cortexfs.core.errors import Fault
from cortexfs.plugins.trust.signing import SignatureVerdict
from cortexfs.plugins.trust.trust import TrustStore, decide
from tests.shell.plugin_files import PUBLIC

KNOWN = SignatureVerdict("verified", "", "example.dev", PUBLIC, "f" * 64)
AT = "2026-01-02T03:04:05Z"


def test_publishers_are_kept_as_upstream_keeps_them(tmp_path: Path) -> None:
    # abi.md 11.23
    store = TrustStore(tmp_path / "state")
    assert not store.trusts(KNOWN)
    store.add(KNOWN, AT)
    store.add(KNOWN, "later")
    assert store.trusts(KNOWN)
    assert store.path == tmp_path / "state" / "plugin-trust.toml"
    assert store.path.read_text() == (
        f'[[publishers]]\npublisher_id = "example.dev"\nfingerprint_sha256 = "{"f" * 64}"\n'
        f'public_key = "{PUBLIC}"\ntrusted_at = "{AT}"\n'
    )
    assert store.path.stat().st_mode & 0o777 == 0o600


def test_a_publisher_is_an_id_and_a_key(tmp_path: Path) -> None:
    # abi.md 11.23
    store = TrustStore(tmp_path)
    store.add(KNOWN, AT)
    assert not store.trusts(msgspec.structs.replace(KNOWN, publisher="other.dev"))
    assert not store.trusts(msgspec.structs.replace(KNOWN, fingerprint="0" * 64))


def test_trust_can_be_taken_back(tmp_path: Path) -> None:
    # abi.md 11.23
    store = TrustStore(tmp_path)
    second = msgspec.structs.replace(KNOWN, fingerprint="0" * 64)
    other = msgspec.structs.replace(KNOWN, publisher="other.dev")
    for each in (KNOWN, second, other):
        store.add(each, AT)
    assert store.remove("example.dev", "0" * 64) == 1
    assert [store.trusts(each) for each in (KNOWN, second, other)] == [True, False, True]
    store.add(second, AT)
    assert store.remove("example.dev") == 2
    assert [store.trusts(each) for each in (KNOWN, second, other)] == [False, False, True]
    with pytest.raises(Fault, match=r'^ENOENT: "example.dev" is not trusted'):
        store.remove("example.dev")


@pytest.mark.parametrize(
    "data", [b"x", b"\xff", b"publishers = 1", b"[[publishers]]\nx = 1", b"a=" + b"[" * 9999]
)
def test_a_store_that_cannot_be_read_is_a_fault_and_stays(tmp_path: Path, data: bytes) -> None:
    # abi.md 11.23
    store = TrustStore(tmp_path)
    store.path.write_bytes(data)
    for attempt in (lambda: store.trusts(KNOWN), lambda: store.add(KNOWN, AT)):
        with pytest.raises(Fault, match=r"the trust store .* cannot be read: "):
            attempt()
    assert store.path.read_bytes() == data


@pytest.mark.parametrize(
    ("status", "trusted", "packaged", "yes", "interactive", "outcome"),
    [
        # abi.md 11.24
        ("unsigned", False, True, True, True, None),
        # "Directory install: unsigned allowed"
        ("unsigned", False, False, False, False, "install"),
        # "invalid refused"; "--yes = trust (never skips checks)"
        ("invalid", True, True, True, True, None),
        ("invalid", True, False, True, True, None),
        ("verified", True, True, False, False, "install"),
        # "unknown key: prompt on a tty `[y/N]`, --yes = trust, no tty = refuse"
        ("verified", False, True, False, True, "ask"),
        ("verified", False, True, True, False, "trust"),
        ("verified", False, True, False, False, None),
        # "signed-and-verified key is trusted WITHOUT asking": here it is asked for
        ("verified", False, False, False, True, "ask"),
        ("verified", False, False, False, False, None),
    ],
)
def test_who_is_trusted_is_asked_for(
    status: Any, trusted: bool, packaged: bool, yes: bool, interactive: bool, outcome: str | None
) -> None:
    verdict = msgspec.structs.replace(KNOWN, status=status)

    def decided() -> str:
        return decide(verdict, trusted=trusted, packaged=packaged, yes=yes, interactive=interactive)

    if outcome:
        assert decided() == outcome
    else:
        with pytest.raises(Fault, match=r"^EPERM: "):
            decided()
