"""Lock files of Deno: the versions that they pin, and files that are no lock files."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cortexfs.core.errors import Fault
from cortexfs.plugins.package import manifest_hash
from tests.tables import each_of

SHA512 = f"sha512-{'A' * 86}=="
HEX = "0123456789abcdef" * 4
LOCK = {
    "version": "5",
    "specifiers": {"npm:ms@2": "2.1.3"},
    "npm": {
        "ms@2.1.3": {"integrity": SHA512, "dependencies": ["x"]},
        "@a/b@1.0.0_c@2.0.0": {"integrity": SHA512},
    },
    "jsr": {"@std/path@1.0.0": {"integrity": HEX}},
    "redirects": {"https://a.example/x": "https://a.example/y"},
    "remote": {"https://a.example/y": HEX},
}


def lock(**changes: Any) -> bytes:
    return msgspec.json.encode(LOCK | changes)


def test_everything_that_it_pins() -> None:
    assert manifest_hash.pins(lock(), "deno.lock") == {
        "npm:@a/b@1.0.0_c@2.0.0": SHA512,
        "npm:ms@2.1.3": SHA512,
        "jsr:@std/path@1.0.0": f"sha256:{HEX}",
        "https://a.example/y": f"sha256:{HEX}",
    }
    assert manifest_hash.pins(b'{"version": "5"}', "deno.lock") == {}


def test_the_hash_of_an_entry_point_is_where_it_leads() -> None:
    for address in ("https://a.example/x", "https://a.example/y"):
        assert manifest_hash.locked_hash(lock(), address, "deno.lock") == f"sha256:{HEX}"
    assert manifest_hash.locked_hash(lock(), "https://a.example/z", "deno.lock") is None


@each_of(
    ("data", "told"),
    [
        (b"", "deno.lock is no lock file of Deno"),
        (b"[]", "deno.lock is no lock file of Deno"),
        (b"\xff", "deno.lock is no lock file of Deno"),
        (lock(version="4"), 'deno.lock is of version "4"; write one of version 5 with: deno cache'),
        (lock(npm={"ms@2.1.3": {}}), 'deno.lock has no hash of "npm:ms@2.1.3"; write it anew'),
        (lock(npm={"ms@2.1.3": {"integrity": "md5-x"}}), 'deno.lock has no hash of "npm:ms@2.1.3"'),
        (lock(jsr={"@a/b@1.0.0": {"integrity": SHA512}}), 'deno.lock has no hash of "jsr:@a/b@1.0.0"'),
        (lock(remote={"https://a.example/y": ""}), 'deno.lock has no hash of "https://a.example/y"'),
        (lock(remote={"http://a.example/y": HEX}), '"http://a.example/y" is not an https address'),
        (lock(remote={"file:///etc/passwd": HEX}), '"file:///etc/passwd" is not an https address'),
    ],
)
def test_what_pins_nothing_is_refused(data: bytes, told: str) -> None:
    with pytest.raises(Fault) as refused:
        manifest_hash.pins(data, "deno.lock")
    assert told in refused.value.message


@given(
    st.recursive(
        st.none() | st.text() | st.integers(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        max_leaves=10,
    )
)
def test_anything_else_is_a_fault_or_none(value: Any) -> None:
    for data in (msgspec.json.encode(value), lock(npm=value), lock(remote=value)):
        found: dict[str, str] = {}
        with suppress(Fault):
            found = manifest_hash.pins(data, "deno.lock")
        assert all(found.values())
