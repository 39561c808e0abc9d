"""Untrusted archives: any bytes give a tree of plain names, or a fault."""

from __future__ import annotations

import gzip
import io
import tarfile
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from cortexfs.core.errors import Fault
from cortexfs.plugins.package import package, tarball
from cortexfs.plugins.package.package import FILES, FOLDERS
from tests.shell.plugin_files import MANIFEST, member, tar

WHOLE = tar(
    member("lib", kind=tarfile.DIRTYPE),
    member("lib/a.so", b"elf", mode=0o755),
    member("skills/" + "x" * 150, b"1"),
    form=tarfile.PAX_FORMAT,
)
parts = st.sampled_from(
    ["lib", "LIB", "bin", "..", ".", "", "a", "A", "\u00e9", "e\u0301", "x.bak", ".x", "a\nb"]
)
paths = st.lists(parts, min_size=1, max_size=4).map("/".join)
kinds = st.sampled_from(
    [tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, b"L", b"x"]
)


def unpacked(data: bytes) -> package.PackageFiles | None:
    found, fault = None, None
    try:
        found = package.unpack(data, "x.cpx")
    except Fault as raised:
        fault = raised
    assert fault is None or fault.message.startswith("x.cpx is refused: ")
    assert fault is None or len(fault.message) < 1000
    return found


def check(tree: package.PackageFiles | None) -> None:
    for name in tree.files if tree else ():
        assert name in FILES or name.split("/")[0] in FOLDERS
        assert not {"", ".", ".."} & {*name.split("/")}
        assert name.isprintable()


@given(st.binary(max_size=2000))
def test_any_bytes(data: bytes) -> None:
    check(unpacked(data))
    check(unpacked(gzip.compress(data)))


@given(st.lists(st.tuples(paths, kinds, st.binary(max_size=20)), max_size=6))
def test_any_entries(entries: list[tuple[str, bytes, bytes]]) -> None:
    made = io.BytesIO(tar(manifest=MANIFEST)[:1024])
    made.seek(0, io.SEEK_END)
    for name, kind, data in entries:
        info, data = member(name, data, kind)
        made.write(info.tobuf(tarfile.GNU_FORMAT) + data.ljust(-(-len(data) // 512) * 512, b"\0"))
    check(unpacked(gzip.compress(made.getvalue() + bytes(1024))))


@given(
    st.lists(st.tuples(st.integers(0, len(WHOLE) - 1), st.integers(0, 255)), min_size=1, max_size=8),
    st.booleans(),
)
def test_any_damage(changes: list[tuple[int, int]], repaired: bool) -> None:
    data = bytearray(WHOLE)
    for position, value in changes:
        data[position] = value
        header = position // 512 * 512
        if repaired:  # so the checksum does not cause the refusal
            data[header + 148 : header + 156] = b" " * 8
            data[header + 148 : header + 156] = f"{sum(data[header : header + 512]):06o}\0 ".encode()
    check(unpacked(gzip.compress(bytes(data))))


@given(
    st.dictionaries(
        st.text(st.characters(codec="utf-8", exclude_characters="\0/"), min_size=1, max_size=120).map(
            lambda part: f"d/{part}"
        ),
        st.tuples(st.binary(max_size=600), st.booleans()),
        max_size=5,
    ),
    st.sampled_from([tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]),
)
def test_what_tarfile_writes_is_read_as_tarfile_reads_it(
    files: dict[str, tuple[bytes, bool]], form: int
) -> None:
    members: list[Any] = [
        member(name, data, mode=0o755 if on else 0o644) for name, (data, on) in files.items()
    ]
    found = tarball.read(tar(*members, form=form, manifest=""))
    assert {entry.name: (entry.data, entry.executable) for entry in found} == files


@given(st.dictionaries(paths, st.tuples(st.binary(max_size=600), st.booleans()), max_size=5))
def test_what_is_written_is_read_again(files: dict[str, tuple[bytes, bool]]) -> None:
    named = {f"d/{name}x": content for name, content in files.items()}
    data = tarball.write((name, *content) for name, content in named.items())
    assert tarball.read(tarball.inflate(data)) == [
        tarball.TarEntry(n, d, e, False) for n, (d, e) in named.items()
    ]
