"""Untrusted packages with a manifest.json: any bytes give a tree of plain names, or a fault."""

from __future__ import annotations

import gzip
import io
import tarfile
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from cortexfs.plugins.package import manifests
from tests.fuzz.test_package_fuzz import kinds, paths, unpacked
from tests.shell.plugin_files import member

MANIFEST: dict[str, Any] = {
    "name": "word-count",
    "version": "1.0.0",
    "description": "Counts words",
    "kind": "wasm",
    "entryPoint": "a",
    "runtime": "wasm",
    "capabilities": ["tools"],
}
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.text(max_size=8)
    | st.sampled_from(["./a.wasm", "*", "^1"]),
    lambda below: st.lists(below, max_size=3) | st.dictionaries(st.text(max_size=8), below, max_size=3),
    max_leaves=8,
)
keys = st.sampled_from(
    [*MANIFEST, "hash", "signature", "dependencies", "peerDependencies", "events", "tools", "ui", "config"]
)


def packed(manifest: object, entries: list[tuple[str, bytes, bytes]]) -> bytes:
    made = io.BytesIO()
    for name, kind, data in [("manifest.json", b"0", msgspec.json.encode(manifest)), *entries]:
        info, data = member(name, data, kind)
        made.write(info.tobuf(tarfile.GNU_FORMAT) + data.ljust(-(-len(data) // 512) * 512, b"\0"))
    return gzip.compress(made.getvalue() + bytes(1024))


def check(data: bytes) -> None:
    tree = unpacked(data)
    if tree is not None:
        assert manifests.is_json(tree.manifest)
        for name in tree.files:
            assert not {"", ".", ".."} & {*name.split("/")}
            assert name.isprintable()


@given(st.lists(st.tuples(paths, kinds, st.binary(max_size=20)), max_size=6))
def test_any_entries(entries: list[tuple[str, bytes, bytes]]) -> None:
    check(packed(MANIFEST | {"entryPoint": "a.wasm"}, [("a.wasm", b"0", b"x"), *entries]))


@given(st.dictionaries(keys, values, max_size=4), values)
def test_any_manifest(changes: dict[str, object], whole: object) -> None:
    for manifest in (MANIFEST | changes, whole):
        check(packed(manifest, [("a.wasm", b"0", b"x")]))
