"""`ctx plugin` on files, without a mount: keygen, sign, pack, trust and install."""

from __future__ import annotations

import gzip
import http.server
import json
import os
import pty
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import ClassVar

import pytest

from cortexfs.cli.plugin.install import install
from cortexfs.plugins.install import sources
from cortexfs.plugins.package import package, tarball
from cortexfs.state import directories
from tests.shell import plugin_commands
from tests.shell.plugin_commands import Said, edit, hello
from tests.shell.plugin_files import MANIFEST, member, summed, tar
from tests.shell.webserving import served

places, said = plugin_commands.places, plugin_commands.said
UNMOUNTED = "the change takes effect with the next ctx mount"


# -- keys, signatures and packages


def test_sign_pack_and_install(places: directories.Places, said: Said) -> None:
    hello(Path("hello"))
    out = said.ok("keygen", "key")
    lines = out.splitlines()
    assert [line.split(":")[0] for line in lines] == [
        "Created signing key",
        "Public key",
        "Public key SHA-256",
    ]
    assert Path("key").stat().st_mode & 0o777 == 0o600
    assert said("keygen", "key")[2] == "ctx plugin: signing key already exists: key; name another file\n"
    fingerprint = lines[2].split(": ")[1]
    assert f"verified ed25519; publisher=Ann; fingerprint={fingerprint}" in said.ok(
        "sign", "hello", "--key", "key"
    )
    told = said.ok("pack", "hello")
    name = f"hello-v0.1.0-{package.platform()}.cpx"  # abi.md 11.25
    assert told.endswith(f"  {name}\n")
    status, _, err = said("install", name)
    assert (status, not (places.state / "plugins").exists()) == (13, True)
    assert "add --yes, or answer at a terminal" in err
    assert said.ok("install", name, "--yes") == f"installed hello 0.1.0, signed by Ann; {UNMOUNTED}\n"
    (known,) = json.loads(said.ok("trust", "list", "--json"))
    assert (known["publisher_id"], known["fingerprint_sha256"]) == ("Ann", fingerprint)
    assert fingerprint in said.ok("trust")
    said.ok("install", name)  # the publisher is known now
    assert "Ann is no longer trusted (1 key)" in said.ok("trust", "remove", "Ann")
    assert json.loads(said.ok("trust", "--json")) == []
    assert said("trust", "remove", "Ann")[0] == 1
    assert said("trust", "remove")[0] == 2


def test_neither_key_nor_package_becomes_a_file_of_the_plugin(
    places: directories.Places, said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    # abi.md 11.50
    said.ok("new", "own", "own", "--template", "esm")
    monkeypatch.chdir("own")
    said.ok("keygen", "key")
    assert "key would be published with the plugin; move it out of ." in said("sign", ".", "--key", "key")[2]
    Path("key").rename("../key")
    said.ok("sign", ".", "--key", "../key", "--publisher", "Ann")
    status, _, err = said("pack", ".")
    assert (status, "would become a file of the plugin itself; write it elsewhere" in err) == (2, True)
    said.ok("pack", ".", "../own.cpx")
    assert "verified ed25519" in said.ok("review", ".")


@pytest.mark.parametrize("answer", ["y", "n"])
def test_a_person_at_a_terminal_is_asked(places: directories.Places, said: Said, answer: str) -> None:
    # issue: "Unknown publishers: asked on a terminal"
    hello(Path("hello"))
    said.ok("keygen", "key")
    said.ok("sign", "hello", "--key", "key")
    ours, theirs = pty.openpty()
    with os.fdopen(ours, "wb", buffering=0) as typed:
        typed.write(f"{answer}\n".encode())
        command = [sys.executable, "-m", "cortexfs.cli.main", "plugin", "install", "hello"]
        done = subprocess.run(command, stdin=theirs, capture_output=True, text=True, check=False)
        os.close(theirs)
    assert "The publisher Ann with the key " in done.stderr
    assert (done.returncode == 0, (places.state / "plugins/hello").exists()) == (answer == "y",) * 2


def test_an_unsigned_package_is_refused_and_its_directory_is_not(
    places: directories.Places, said: Said
) -> None:
    hello(Path("hello"))
    said.ok("pack", "hello", "hello.cpx")
    status, _, err = said("install", "hello.cpx", "--yes")
    assert status == 13
    assert "the package is unsigned" in err
    assert said.ok("install", "hello").startswith("installed hello 0.1.0, unsigned; ")


@pytest.mark.parametrize("where", ["bin/hello", "manifest.toml", "package.toml"])
def test_a_flipped_bit_refuses(places: directories.Places, said: Said, where: str) -> None:
    # issue: "any flipped bit in any file, name or metadata refuses"
    folder = hello(Path("hello"))
    said.ok("keygen", "key")
    said.ok("sign", "hello", "--key", "key")
    data = (folder / where).read_text()
    for old, new in (("hello", "hellp"), ("Ann", "Anm"), ("Says", "Sais")):
        if old in data:
            (folder / where).write_text(data.replace(old, new, 1))
            break
    status, _, err = said("install", "hello", "--yes")
    assert status != 0
    assert "is invalid (" in err or "is not among its files" in err
    assert not (places.state / "plugins").exists()


def _many() -> bytes:
    return tar()[:1024] + tar(member("lib/x"))[1024:1536] * 100_000 + bytes(1024)


HOSTILE: dict[str, Callable[[], bytes]] = {
    "traversal": lambda: tar(member("../evil", b"x")),
    "absolute": lambda: tar(member("/evil", b"x")),
    "symbolic link": lambda: tar(member("lib/a", kind=tarfile.SYMTYPE)),
    "hard link": lambda: tar(member("lib/a", kind=tarfile.LNKTYPE)),
    "device": lambda: tar(member("lib/a", kind=tarfile.CHRTYPE)),
    "disk": lambda: tar(member("lib/a", kind=tarfile.BLKTYPE)),
    "pipe": lambda: tar(member("lib/a", kind=tarfile.FIFOTYPE)),
    "duplicate": lambda: tar(member("manifest.toml", MANIFEST.encode())),
    "sparse": lambda: tar(member("lib/a", kind=tarfile.GNUTYPE_SPARSE)),
    "bomb": lambda: tar() + bytes(tarball.MAX_UNPACKED),
    "100,000 entries": _many,
    "non-UTF-8": lambda: summed(tar(member("lib/abc")).replace(b"lib/abc", b"lib/\xff\xfec", 1), 1024),
    "case collision": lambda: tar(member("lib/x"), member("lib/X")),
    "the name of another place": lambda: tar(manifest=MANIFEST.replace('"hello"', '"../../evil"')),
}


@pytest.mark.parametrize("hostile", HOSTILE)
def test_a_hostile_package_leaves_nothing(places: directories.Places, said: Said, hostile: str) -> None:
    # issue: "refused, nothing written outside, nothing half-installed"
    before = sorted(str(path) for path in places.state.parent.rglob("*"))
    Path("evil.cpx").write_bytes(gzip.compress(HOSTILE[hostile](), 1))
    status, _, err = said("install", "evil.cpx", "--yes")
    assert status != 0
    assert "evil.cpx is refused" in err
    Path("evil.cpx").unlink()
    assert sorted(str(path) for path in places.state.parent.rglob("*")) == before


@pytest.mark.parametrize("source", ["hello", "hello.cpx"])
def test_what_is_installed_is_what_was_checked(
    places: directories.Places, said: Said, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # issue: "a manifest that changes between check and use"
    folder = hello(Path("hello"))
    said.ok("keygen", "key")
    said.ok("sign", "hello", "--key", "key")
    said.ok("pack", "hello", "hello.cpx")
    checked = {path: (folder / path).read_bytes() for path in ("manifest.toml", "bin/hello", "package.toml")}

    def changed(question: str) -> bool:
        """Changes the plugin while the person still thinks about the question."""
        edit(folder, 'name = "hello"\nv', 'name = "../../evil"\nv')
        (folder / "bin/hello").write_text("#!/bin/sh\nrm -r /\n")
        Path("hello.cpx").write_bytes(b"evil")
        return True

    monkeypatch.setattr(install, "sure", changed)
    monkeypatch.setattr(sys, "stdin", open(os.openpty()[1]))  # noqa: SIM115
    said.ok("install", source)
    sys.stdin.close()
    place = places.state / "plugins/hello"
    assert {path: (place / path).read_bytes() for path in checked} == checked
    assert not (places.state.parent / "evil").exists()


# -- installing and removing


def test_what_is_installed_is_enabled_listed_and_removed(places: directories.Places, said: Said) -> None:
    hello(Path("hello"))
    said.ok("install", "hello")
    (row,) = [row for row in json.loads(said.ok("list", "--json")) if row["name"] == "hello"]
    assert (row["version"], row["boundary"], row["enabled"]) == ("0.1.0", "process", True)
    assert row["location"] == str(places.state / "plugins/hello")
    assert said.ok("disable", "hello") == f"disabled hello; {UNMOUNTED}\n"
    assert said.ok("enable", "hello") == f"enabled hello; {UNMOUNTED}\n"
    # abi.md 11.27
    assert "its files stay until: ctx plugin uninstall hello --purge" in said.ok("uninstall", "hello")
    assert (places.state / "plugins/hello").is_dir()
    assert said.ok("uninstall", "hello", "--purge") == f"removed hello; {UNMOUNTED}\n"
    assert not (places.state / "plugins/hello").exists()
    assert json.loads((places.config / "plugins.json").read_text()) == {}
    assert said("uninstall", "hello")[0] == 1


def test_names_that_lead_outside_are_none(places: directories.Places, said: Said) -> None:
    # abi.md 11.26
    status, _, err = said("uninstall", "../..", "--purge")
    assert status == 2
    assert "the name '../..' may hold only letters" in err
    edit(hello(Path("hello")), 'name = "hello"\nversion', 'name = "../hello"\nversion')
    assert said("install", "hello")[0] == 2


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ('trust = "quarantined"\n', "plugin 'hello' is Quarantined"),
        ('[sandbox]\nnetwork = "allowlist"\n', "sandbox.network=allowlist is not enforced"),
    ],
)
def test_what_a_daemon_would_refuse_is_not_installed(
    places: directories.Places, said: Said, text: str, sentence: str
) -> None:
    hello(Path("hello"), text)
    status, _, err = said("install", "hello")
    assert status != 0
    assert sentence in err
    assert not places.state.exists()


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ('command = "../outside"', "command escapes plugin directory: ../outside; "),
        ('command = "bin/hello"\nworking_dir = "/"', "working_dir escapes plugin directory"),
        ('command = "/bin/sh"', "command escapes plugin directory"),
    ],
)
def test_what_leads_outside_is_not_installed(
    places: directories.Places, said: Said, change: str, sentence: str
) -> None:
    edit(hello(Path("hello")), 'command = "bin/hello"', change)
    status, _, err = said("install", "hello")
    assert status != 0
    assert sentence in err


def test_the_name_of_the_tools_that_are_built_in_is_taken(places: directories.Places, said: Said) -> None:
    edit(hello(Path("hello")), 'name = "hello"\nversion', 'name = "builtin"\nversion')
    assert "the name builtin belongs to built-in tools" in said("install", "hello")[2]


@pytest.mark.parametrize("word", ["no/such/thing/at all", "./nothing", "nothing.cpx"])
def test_what_is_no_source_is_said(places: directories.Places, said: Said, word: str) -> None:
    status, _, err = said("install", word)
    assert status == 1
    assert err.count("\n") == 1


def test_a_script_is_no_package(places: directories.Places, said: Said) -> None:
    # abi.md 12.18
    Path("greet.sh").write_text("#!/bin/sh\n# tool: Greet.\n")
    mend = "is not a package of a plugin; to make a script a tool: ctx tool add greet.sh"
    assert mend in said("install", "greet.sh")[2]


def test_a_pipe_is_no_package_whoever_writes_it(places: directories.Places, said: Said) -> None:
    os.mkfifo("hello.cpx")
    with open(os.open("hello.cpx", os.O_RDWR), "wb"):  # a writer that says nothing
        status, _, err = said("install", "hello.cpx")
    assert (status, err.count("\n")) == (2, 1)
    assert "hello.cpx is not a regular file; name a copy of its content" in err


# -- from an address


class Site(http.server.BaseHTTPRequestHandler):
    files: ClassVar[dict[str, bytes]] = {}

    def do_GET(self) -> None:
        data = self.files.get(self.path)
        self.send_response(200 if data is not None else 404)
        self.end_headers()
        self.wfile.write(data or b"")

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    with served(http.server.ThreadingHTTPServer(("127.0.0.1", 0), Site)) as server:
        address = f"http://127.0.0.1:{server.server_port}"
        monkeypatch.setattr(sources, "RELEASES", f"{address}/repos")
        Site.files = {}
        yield address


def signed_package(said: Said) -> bytes:
    hello(Path("hello"))
    said.ok("keygen", "key")
    said.ok("sign", "hello", "--key", "key")
    said.ok("pack", "hello", "hello.cpx")
    return Path("hello.cpx").read_bytes()


def test_a_package_is_fetched_and_held_against_its_checksum(
    places: directories.Places, said: Said, site: str
) -> None:
    # abi.md 11.32; issue: ".sha256 checked where one is published"
    data = signed_package(said)
    Site.files = {"/p/hello.cpx": data}
    said.ok("install", f"{site}/p/hello.cpx", "--yes")
    Site.files["/p/hello.cpx.sha256"] = f"{'0' * 64}  hello.cpx\n".encode()
    status, _, err = said("install", f"{site}/p/hello.cpx", "--yes")
    assert status != 0
    assert "hello.cpx does not match its checksum file" in err
    Site.files["/p/hello.cpx.sha256"] = package.checksum(data, "hello.cpx").encode()
    said.ok("install", f"{site}/p/hello.cpx")
    assert "HTTP 404" in said("install", f"{site}/p/other.cpx")[2]


@pytest.mark.parametrize(
    ("word", "path"),
    [
        ("ann/tools", "/repos/ann/tools/releases/latest"),
        ("ann/tools@1.2.0", "/repos/ann/tools/releases/tags/v1.2.0"),
        ("hello", "/repos/by-scott/cortex-plugin-hello/releases/latest"),
        ("hello@0.1.0", "/repos/by-scott/cortex-plugin-hello/releases/tags/v0.1.0"),
    ],
)
def test_a_release_is_found_by_its_repository(
    places: directories.Places, said: Said, site: str, word: str, path: str
) -> None:
    # abi.md 11.25
    data = signed_package(said)
    Path("hello").rename("elsewhere")
    repo = path.split("/")[3]
    platform = package.platform()
    names = (f"other-{platform}.cpx", f"{repo}-v1.2.0-{platform}.cpx", f"{repo}-v1.2.0-plan9-vax.cpx")
    assets = [{"name": name, "browser_download_url": f"{site}/dl/{name}"} for name in names]
    Site.files = {path: json.dumps({"assets": assets}).encode(), f"/dl/{names[1]}": data}
    assert said.ok("install", word, "--yes").startswith("installed hello 0.1.0, signed by Ann")
    Site.files[path] = json.dumps({"assets": assets[2:]}).encode()
    status, _, err = said("install", word, "--yes")
    assert status == 1
    assert f"has no package (.cpx) for {platform}" in err


@pytest.mark.parametrize("verb", ["review", "test", "install"])
def test_a_pipe_with_the_name_of_a_package_is_not_waited_for(
    verb: str, places: directories.Places, said: Said
) -> None:
    os.mkfifo("evil.cpx")
    status, _, err = said(verb, "evil.cpx")
    assert status != 0
    assert "evil.cpx" in err
