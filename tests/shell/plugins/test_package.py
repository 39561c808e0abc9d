"""Packages: the files that belong to a plugin, and archives that are refused before any use."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import tarfile
from pathlib import Path

import pytest

from cortexfs.core.errors import Fault
from cortexfs.plugins.package import filenames, package, tarball
from tests.shell.plugin_files import MANIFEST, NATIVE, TOOL, cpx, full, member, plugin, summed, tar, tree


def refused(data: bytes) -> str:
    with pytest.raises(Fault) as caught:
        package.unpack(data, "x.cpx")
    assert caught.value.message.startswith("x.cpx is refused: ")
    assert len(caught.value.message) < 800
    return caught.value.message.removeprefix("x.cpx is refused: ")


def test_what_is_packed_is_what_is_unpacked(tmp_path: Path) -> None:
    made = full(tmp_path)
    assert package.unpack(package.pack(made), "x.cpx") == made
    assert made.ignored == ()
    assert [name for name, file in made.files.items() if file.executable] == ["bin/hello", "bin/part"]


def test_the_layout_is_that_of_upstream(tmp_path: Path) -> None:
    # abi.md 11.25
    data = package.pack(full(tmp_path))
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:gz") as archive:
        assert archive.getnames() == [
            "manifest.toml",
            "risk.toml",
            "bin/hello",
            "bin/part",
            "lib/words.txt",
            "prompts/p.md",
            "skills/a/x.md",
            "skills/a-b/x.md",
        ]
    assert package.pack(full(tmp_path)) == data  # the package does not depend on the time or the user


def test_a_package_is_named_after_its_directory(tmp_path: Path) -> None:
    # abi.md 11.25
    machine = {"x86_64": "amd64", "aarch64": "arm64"}.get(os.uname().machine, os.uname().machine)
    made = tree(tmp_path)
    name = package.archive_name("cortex-plugin-hello", made.manifest)
    assert name == f"cortex-plugin-hello-v0.1.0-linux-{machine}.cpx"


def test_a_checksum_is_that_of_sha256sum() -> None:
    # abi.md 11.32
    text = package.checksum(b"data", "a.cpx")
    assert text == f"{hashlib.sha256(b'data').hexdigest()}  a.cpx\n"
    package.check_checksum("0  b.cpx\n" + text, b"data", "a.cpx")
    package.check_checksum(text.replace("  ", " *"), b"data", "a.cpx")
    with pytest.raises(Fault, match=r"a\.cpx does not match its checksum file"):
        package.check_checksum(text, b"date", "a.cpx")
    with pytest.raises(Fault, match=r"does not list b\.cpx"):
        package.check_checksum(text, b"data", "b.cpx")


def test_programs_belong_to_the_plugin(tmp_path: Path) -> None:
    # abi.md 11.25
    files = {
        "bin/hello": "x",
        "tools/run/main": "x",
        "tools/run/part": "x",
        "tools/other": "x",
        "README.md": "x",
    }
    made = tree(tmp_path / "a", TOOL % "./tools/run/main", files)
    assert [*made.files] == ["bin/hello", "manifest.toml", "tools/run/main", "tools/run/part"]
    assert made.ignored == ("README.md", "tools/other")
    assert package.unpack(package.pack(made), "x.cpx").files == made.files


def test_a_script_that_an_interpreter_gets_belongs_too(tmp_path: Path) -> None:
    text = (
        TOOL % "/usr/bin/python3"
        + 'allow_host_paths = true\nargs = ["src/main.py", "-x", "../y", "gone/z"]\n'
    )
    made = tree(tmp_path, text, {"src/main.py": "", "src/part.py": "", "gone/other": ""})
    assert [*made.files] == ["manifest.toml", "src/main.py", "src/part.py"]
    assert package.unpack(package.pack(made), "x.cpx") == package.PackageFiles(made.files, made.manifest, ())


def test_a_program_beside_the_manifest_takes_nothing_along(tmp_path: Path) -> None:
    made = tree(tmp_path, TOOL % "run.sh", {"run.sh": "", "notes": "", "target/x": ""})
    assert [*made.files] == ["manifest.toml", "run.sh"]


def test_a_missing_program_is_told_before_it_is_missed(tmp_path: Path) -> None:
    with pytest.raises(Fault, match='"bin/hello", the command of the tool "hello", is not among its files'):
        tree(tmp_path / "a", TOOL % "bin/hello")
    assert "is not among its files" in refused(cpx(manifest=MANIFEST + TOOL % "bin/hello"))
    with pytest.raises(Fault, match=r'"lib/x\.so", the library, is not among its files'):
        tree(tmp_path / "b", NATIVE % "lib/x.so")


def test_a_library_that_no_manifest_names_lies_beside_it(tmp_path: Path) -> None:
    # abi.md 11.15
    made = tree(tmp_path / "a", NATIVE % "", {"libhello.so": "elf", "lib/libhello.so": "another"})
    assert made.files["libhello.so"].data == b"elf"
    with pytest.raises(Fault, match=r'"libhello\.so", the library, is not among its files'):
        tree(tmp_path / "b", NATIVE % "", {"lib/libhello.so": "elf"})


def test_a_library_may_lie_where_cargo_left_it(tmp_path: Path) -> None:
    # abi.md 11.25
    made = tree(tmp_path, NATIVE % "lib/libhello.so", {"target/release/libhello.so": "elf"})
    assert made.files["lib/libhello.so"].data == b"elf"
    assert "target" in made.ignored


@pytest.mark.parametrize("link", ["target", "target/release", "target/release/libhello.so"])
def test_no_link_leads_to_a_library(tmp_path: Path, link: str) -> None:
    where = plugin(tmp_path / "p", NATIVE % "lib/libhello.so", {"target/release/libhello.so": "elf"})
    (where / link).rename(tmp_path / "outside")
    (where / link).symlink_to(tmp_path / "outside")
    with pytest.raises(Fault, match=r'"lib/libhello\.so", the library, is not among its files'):
        package.read(where)


def test_what_is_hidden_and_what_is_a_link_stays_behind(tmp_path: Path) -> None:
    # abi.md 11.25
    names = ["lib/.env", "lib/a~", "lib/a.bak", "lib/a.BAK", ".git/config", "lib/.d/x", "lib.bak/x"]
    where = plugin(tmp_path / "p", files=dict.fromkeys(names, "secret") | {"lib/a": "kept"})
    (tmp_path / "outside").write_text("secret")
    (where / "lib" / "link").symlink_to(tmp_path / "outside")
    (where / "skills").symlink_to(tmp_path)
    (where / "risk.toml").symlink_to(tmp_path / "outside")
    os.mkfifo(where / "lib" / "pipe")
    made = package.read(where)
    assert [*made.files] == ["lib/a", "manifest.toml"]
    assert {"lib/link", "lib/pipe", "skills", "risk.toml", ".git", "lib/.env", "lib.bak"} <= {*made.ignored}


def test_a_manifest_that_is_a_link_is_none(tmp_path: Path) -> None:
    (tmp_path / "manifest.toml").symlink_to("/etc/passwd")
    with pytest.raises(Fault, match=r"has no manifest\.toml and no manifest\.json, so it is no plugin"):
        package.read(tmp_path)


def test_old_archives_keep_what_they_may(tmp_path: Path) -> None:
    # abi.md 11.25
    folder = member("lib", kind=tarfile.DIRTYPE)
    extra = [member(name) for name in ("lib/x", "lib/.env", "lib/x.bak", "README.md", "src/a.rs")]
    found = package.unpack(cpx(folder, *extra), "x.cpx")
    assert [*found.files] == ["lib/x", "manifest.toml"]
    assert found.ignored == ("README.md", "lib/.env", "lib/x.bak", "src/a.rs")


@pytest.mark.parametrize("form", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT, tarfile.USTAR_FORMAT])
def test_long_names_and_other_alphabets_are_read(form: int) -> None:
    long = "lib/" + "/".join(["d" * 60] * 3)
    names = [long] if form == tarfile.USTAR_FORMAT else [long, "lib/" + "x" * 200, "lib/größe"]
    found = package.unpack(cpx(*(member(name, b"1") for name in names), form=form), "x.cpx")
    assert {*found.files} == {"manifest.toml", *names}


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("../x", "leads outside"),
        ("lib/../../x", "leads outside"),
        ("lib/..", "leads outside"),
        ("/etc/x", "is absolute"),
        ("//etc/x", "is absolute"),
        ("lib//x", "is not plain"),
        ("lib/./x", "is not plain"),
        # abi.md 11.25
        ("./manifest.toml", "cpx archive missing manifest.toml"),
        ("lib/a\nb", "holds a control character"),
        ("lib/a\tb", "holds a control character"),
        ("lib/a\u202eb", "holds a control character"),
        ("lib/a\u2028b", "holds a control character"),
        ("lib/" + "x" * 256, "is too long"),
        ("lib/" + "x/" * 600 + "x", "is too long"),
        ("\u0000", "is not plain"),
    ],
)
def test_a_name_that_could_lead_elsewhere_is_refused(name: str, sentence: str) -> None:
    # issue: "Hostile packages: traversal names, absolute paths, ..."
    info = member("x")
    info[0].name = name
    assert sentence in refused(cpx(info))


def test_names_are_utf_8() -> None:
    data = tar(member("lib/abc")).replace(b"lib/abc", b"lib/\xff\xfec", 1)
    assert "is not UTF-8" in refused(gzip.compress(summed(data, 1024)))


@pytest.mark.parametrize(
    ("kind", "what"),
    [
        (tarfile.SYMTYPE, "a symbolic link"),
        (tarfile.LNKTYPE, "a hard link"),
        (tarfile.CHRTYPE, "a device"),
        (tarfile.BLKTYPE, "a device"),
        (tarfile.FIFOTYPE, "a pipe"),
        (tarfile.GNUTYPE_SPARSE, "a sparse file"),
        (tarfile.CONTTYPE, "neither a file nor a directory"),
        (b"Z", "neither a file nor a directory"),
    ],
)
def test_what_is_no_plain_file_is_refused(kind: bytes, what: str) -> None:
    # issue: "links, devices, ... sparse"; upstream drops them and goes on
    entry = member("lib/x", kind=kind)
    entry[0].linkname = "/etc/passwd"
    assert refused(cpx(entry)) == f'"lib/x" is {what}; a package holds plain files'


def test_sparse_files_in_pax_headers_are_refused() -> None:
    for key in ("GNU.sparse.major", "GNU.sparse.size", "size"):
        info, data = member("lib/x", b"1")
        info.pax_headers = {key: "1"}
        assert "sparse file, or a file with two lengths" in refused(
            cpx((info, data), form=tarfile.PAX_FORMAT)
        )


@pytest.mark.parametrize(
    ("names", "sentence"),
    [
        # abi.md 11.25
        (["manifest.toml"], "occurs twice"),
        (["lib/x", "lib/x"], "occurs twice"),
        (["Manifest.toml"], "are the same on systems"),
        (["lib/x", "lib/X"], "are the same on systems"),
        (["lib/a/x", "lib/A/y"], "are the same on systems"),
        (["lib/gr\u00f6\u00dfe", "lib/gro\u0308\u00dfe"], "are the same on systems"),
        (["lib/stra\u00dfe", "lib/strasse"], "are the same on systems"),
        (["lib/x", "lib/x/y"], "belongs to a file and a directory"),
        (["lib/x/y", "lib/x"], "belongs to a file and a directory"),
    ],
)  # fmt: skip
def test_no_two_names_are_one(names: list[str], sentence: str) -> None:
    # issue: "duplicates", "case collisions"
    assert sentence in refused(cpx(*(member(name) for name in names)))


def test_a_directory_may_be_named_and_used(tmp_path: Path) -> None:
    folders = [member(name, kind=tarfile.DIRTYPE) for name in ("lib", "lib/", "lib/a")]
    assert "lib/a/x" in package.unpack(cpx(*folders, member("lib/a/x")), "x.cpx").files


def test_files_in_too_many_directories_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    deep = "/".join("a" * 400)
    shared = cpx(*(member(f"lib/{deep}/{each}") for each in range(30)))
    monkeypatch.setattr(filenames, "MAX_NOTED", 500)
    assert "lib/a/a" in " ".join(package.unpack(shared, "x.cpx").files)
    assert refused(cpx(*(member(f"lib/{each}/{deep}") for each in "bc"))) == (
        "its files lie in too many directories"
    )


def test_a_bomb_is_refused_before_it_goes_off() -> None:
    # issue: "sparse and bomb archives"
    assert refused(gzip.compress(bytes(tarball.MAX_UNPACKED + 1), 1)) == "it unpacks to more than 128 MiB"
    assert "over 64 MiB" in refused(bytes(tarball.MAX_PACKED + 1))


def test_a_hundred_thousand_entries_are_refused() -> None:
    # issue: "100,000 entries"
    header = tar(member("lib/x"))[1024:1536]
    data = tar()[:1024] + header * 100_000 + bytes(1024)
    assert refused(gzip.compress(data, 1)) == "it holds more than 10000 entries"


@pytest.mark.parametrize("cut", [0, 10, 200, -1, -9])
def test_an_archive_that_is_cut_short_is_refused(cut: int, tmp_path: Path) -> None:
    data = package.pack(full(tmp_path))
    assert refused(data[:cut])


@pytest.mark.parametrize(
    "data", [b"", b"PK\3\4", b"\x1f\x8b", tar(), gzip.compress(b"", mtime=0), gzip.compress(b"x", mtime=0)]
)
def test_what_is_no_gzip_tar_is_refused(data: bytes) -> None:
    assert refused(data)


def test_what_readers_could_read_differently_is_refused() -> None:
    whole = tar(member("lib/x", b"1"))
    assert "data after its end" in refused(gzip.compress(whole) + gzip.compress(whole))
    assert "data after its end" in refused(gzip.compress(whole + b"1"))
    assert "cut short" in refused(gzip.compress(whole.rstrip(b"\0").ljust(2048, b"\0")))
    negative = whole[:1148] + b"-0000000001\0" + whole[1160:]
    assert "a number in a header is not valid" in refused(gzip.compress(summed(negative, 1024)))
    big = whole[:1148] + b"\x80" + bytes(10) + b"\x01" + whole[1160:]
    assert "a number in a header is not valid" in refused(gzip.compress(summed(big, 1024)))
    assert "the checksum of a header is wrong" in refused(
        gzip.compress(whole[:1124] + b"0000755\0" + whole[1132:])
    )
    beyond = whole[:1148] + b"00077777777\0" + whole[1160:]
    assert "cut short" in refused(gzip.compress(summed(beyond, 1024)))


def test_headers_that_contradict_each_other_are_refused() -> None:
    name, other = member("././@LongLink", b"lib/a\0", b"L"), member("././@LongLink", b"lib/b\0", b"L")
    assert "has two long names" in refused(cpx(name, other, member("x")))
    assert "is cut short after the long name" in refused(cpx(name))
    assert "takes more than 16 KiB" in refused(cpx(member("x", bytes(1 << 15), b"L"), member("x")))
    long = member("x", b"16000 a=".ljust(15_999, b"x") + b"\n", b"x")
    assert "its long names take more than 8 MiB" in refused(cpx(*[long] * 600))
    assert "is a link" in refused(cpx(member("x", b"/etc", b"K"), member("x")))
    assert "all files one name" in refused(cpx(member("x", b"14 path=lib/x\n", b"g"), member("x")))
    for record in (b"99 path=x\n", b"9 path=lib/x\n", b"path=x\n", b"5 ab\n", b"14 path=lib/xx"):
        assert "pax record is not valid" in refused(cpx(member("x", record, b"x"), member("x")))


def test_an_archive_without_a_manifest_is_refused() -> None:
    # abi.md 11.25
    assert refused(cpx(member("lib/x"), manifest="")).startswith("cpx archive missing manifest.toml; ")
    folder = member("manifest.toml", kind=tarfile.DIRTYPE)
    assert refused(cpx(folder, manifest="")).startswith("cpx archive missing manifest.toml; ")


def test_a_manifest_and_its_metadata_are_checked_in_the_archive() -> None:
    assert "invalid manifest.toml: name: " in refused(cpx(manifest=MANIFEST.replace('"hello"', '"../../x"')))
    assert "invalid package.toml: " in refused(cpx(member("package.toml", b"x = 1")))


def test_a_directory_that_is_too_large_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plugin(tmp_path, files={"lib/a": "x" * 5000, "lib/b": "x"})
    monkeypatch.setattr(package, "MAX_UNPACKED", 5000)
    with pytest.raises(Fault, match="it has more than"):
        package.read(tmp_path)
    monkeypatch.undo()
    monkeypatch.setattr(package, "MAX_ENTRIES", 2)
    with pytest.raises(Fault, match="it holds more than 2 files"):
        package.read(tmp_path)


def test_a_directory_with_names_that_cannot_be_packed_is_refused(tmp_path: Path) -> None:
    plugin(tmp_path, files={"lib/a": "x"})
    with open(os.path.join(os.fsencode(tmp_path), b"\xff"), "wb"):
        assert package.read(tmp_path).ignored == ("\\udcff",)  # beside the plugin, so not its file
    with (
        open(os.path.join(os.fsencode(tmp_path / "lib"), b"\xff"), "wb"),
        pytest.raises(Fault, match="is not UTF-8"),
    ):
        package.read(tmp_path)


def test_two_files_that_fold_into_one_are_refused_in_a_directory_too(tmp_path: Path) -> None:
    with pytest.raises(Fault, match="are the same on systems"):
        tree(tmp_path, files={"lib/a": "", "lib/A": ""})
