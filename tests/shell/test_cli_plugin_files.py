"""`ctx plugin` on files, without a mount: new, test, review, keygen, sign, pack, trust and install."""

from __future__ import annotations

import http.server
import json
import os
import pty
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest

from cortexfs import config
from cortexfs.cli.main import main
from cortexfs.plugins import package, sources
from tests.shell.plugin_files import MANIFEST, TOOL, member, plugin, tar

UNMOUNTED = "it counts from the next ctx mount"


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> config.Places:
    """A state and a configuration of its own, no mount, and a directory to work in."""
    found = config.Places(tmp_path / "state", tmp_path / "config")
    monkeypatch.setenv("CTX_STATE", str(found.state))
    monkeypatch.setenv("CTX_CONFIG", str(found.config))
    monkeypatch.setenv("CTX_ROOT", str(tmp_path / "ctx"))
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return found


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]) -> Said:
    return Said(capsys)


class Said:
    """Runs a command; its exit status, and what it printed."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *words: str) -> tuple[int, str, str]:
        self._capsys.readouterr()
        status = main(["plugin", *words])
        out, err = self._capsys.readouterr()
        return status, out, err

    def ok(self, *words: str) -> str:
        status, out, err = self(*words)
        assert status == 0, err
        return out or err


def hello(where: Path, text: str = "") -> Path:
    script = "#!/bin/sh\necho '\"hello\"'\n"
    return plugin(where, text + TOOL % "bin/hello", {"bin/hello": script})


# -- new and test


@pytest.mark.parametrize("template", ["process", "native", "python"])
def test_a_template_works_unchanged(places: config.Places, said: Said, template: str) -> None:
    # issue: "ctx plugin new (process, native C, python templates that pass test and run unchanged)"
    assert f"ctx plugin test cortex-plugin-my-{template} --run" in said.ok(
        "new", f"my-{template}", "--template", template
    )
    folder = f"cortex-plugin-my-{template}"
    if template == "native":
        subprocess.run(["make", "-s", "-C", folder], check=True, capture_output=True)
    out = said.ok("test", folder, "--run")
    assert f"ok: it loads, with my-{template}" in out
    assert "words" in out.splitlines()[-1]
    assert "fail:" not in out
    said.ok("install", folder)


def test_nothing_is_written_over(places: config.Places, said: Said) -> None:
    Path("there").mkdir()
    status, _, err = said("new", "notes", "there")
    assert (status, err) == (1, "ctx plugin: there is there already; name another directory\n")
    assert said("new", "../notes")[0] == 2


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        # cortex-sdk.md 8: "does not check the +x bit, input_schema, signature or that the library exists"
        (lambda folder: (folder / "bin/hello").chmod(0o644), "it is not executable: chmod +x bin/hello"),
        (lambda folder: (folder / "bin/hello").unlink(), "is not among its files"),
        (lambda folder: edit(folder, "input_schema = {}", "input_schema = 7"), "it is no table"),
        (lambda folder: edit(folder, "= {}", '= { type = "no such" }'), "has no sound input_schema"),
        (lambda folder: edit(folder, "= {}", "= {}\ntimeout_secs = 0"), "timeout_secs is 0"),
        (lambda folder: edit(folder, "= {}", "= {}\nmax_output_bytes = 0"), "max_output_bytes is 0"),
        (lambda folder: edit(folder, "= {}", '= {}\ninherit_env = ["API_KEY"]'), "API_KEY may hold secrets"),
        (lambda folder: edit(folder, '"tools"', ""), "capabilities.provides must not be empty"),
        (lambda folder: edit(folder, "1.6.0", "9.9.9"), "it needs 9.9.9 or newer"),
        (
            lambda folder: edit(folder, "[capabilities]", "[sandbox]\nuid_drop = true\n[capabilities]"),
            "uid_drop is not enforced by this runtime",
        ),
    ],
)
def test_a_failing_check_fails_the_test(
    places: config.Places, said: Said, change: object, sentence: str
) -> None:
    folder = hello(Path("hello"))
    assert callable(change)
    change(folder)
    status, out, _ = said("test", "hello")
    assert status == 1
    assert any("fail:" in line and sentence in line for line in out.splitlines()), out
    assert "Conformance: local checks failed" in out


def test_a_keyboard_is_no_secret(places: config.Places, said: Said) -> None:
    # cortex-sdk.md 8: "so KEYBOARD fails too"
    edit(hello(Path("hello")), "= {}", '= {}\ninherit_env = ["KEYBOARD", "MONKEY"]')
    said.ok("test", "hello")


def edit(folder: Path, old: str, new: str) -> None:
    path = folder / "manifest.toml"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def test_a_tool_that_breaks_fails_the_test_that_runs_it(places: config.Places, said: Said) -> None:
    folder = hello(Path("hello"))
    (folder / "bin/hello").write_text("#!/bin/sh\necho '{'\n")
    said.ok("test", "hello")
    status, out, _ = said("test", "hello", "--run")
    assert status == 1
    assert "fail: tool hello called with {} (EPROTO: " in out
    (folder / "bin/hello").write_text("#!/bin/sh\necho no pen >&2; exit 3\n")
    assert "ok: tool hello called with {}: no pen" in said.ok("test", "hello", "--run")


# -- review


def test_a_review_says_what_is_asked_for_and_what_holds_it(places: config.Places, said: Said) -> None:
    # issue: "prints for each plugin what is enforced by what"
    claims = '[sandbox]\nnetwork = "none"\nfilesystem = "plugin_only"\nmemory_mb = 64\nuid_drop = true\n'
    folder = hello(Path("hello"), claims)
    edit(folder, '"tools"]', '"tools"]\nfile_write = ["/tmp/x"]\nbackground = true')
    (folder / "notes.txt").write_text("")
    out = said.ok("review", "hello")
    for line in (
        "Plugin review: hello v0.1.0",
        "  Trust: UnreviewedProcess",
        "  Signature: unsigned (manifest hash missing; binary hash not applicable; signature missing)",
        "  Conformance: local checks failed; no package certificate",
        "    - write files: /tmp/x",
        "    - does not request host secrets",
        "    - run in background",
        "    - sandbox.level = child_process: held by a process of its own",
        "    - sandbox.network = none: held by Landlock and seccomp",
        "    - sandbox.filesystem = plugin_only: held by Landlock",
        "    - sandbox.memory_mb = 64: held by resource limits",
        "    - sandbox.uid_drop = true: REFUSED, uid_drop is not enforced by this runtime",
        '    [risk.tools.hello] effect = WriteFile target = "/tmp/x" floor = RequireConfirmation',
        "    - notes.txt",
        "    - missing publisher_id",
        "    - ok: manifest identity",
    ):
        assert line in out.splitlines(), line


def test_a_package_is_reviewed_as_its_directory_is(places: config.Places, said: Said) -> None:
    hello(Path("hello"))
    said.ok("pack", "hello", "hello.cpx")
    assert said.ok("review", "hello.cpx") == said.ok("review", "hello")
    Path("bad.cpx").write_bytes(b"no gzip")
    assert "bad.cpx is refused: it is not gzip" in said("review", "bad.cpx")[2]


# -- keys, signatures and packages


def test_sign_pack_and_install(places: config.Places, said: Said) -> None:
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
    name = f"hello-v0.1.0-{package.platform()}.cpx"  # cortex-sdk.md 8
    assert told.endswith(f"  {name}\n")
    status, _, err = said("install", name)
    assert (status, not (places.state / "plugins").exists()) == (13, True)
    assert "say --yes to trust it, or ask at a terminal" in err
    assert said.ok("install", name, "--yes") == f"installed hello 0.1.0, signed by Ann; {UNMOUNTED}\n"
    (known,) = json.loads(said.ok("trust", "list", "--json"))
    assert (known["publisher_id"], known["fingerprint_sha256"]) == ("Ann", fingerprint)
    assert fingerprint in said.ok("trust")
    said.ok("install", name)  # it is known now
    assert "Ann is no longer trusted (1 keys)" in said.ok("trust", "remove", "Ann")
    assert json.loads(said.ok("trust", "--json")) == []
    assert said("trust", "remove", "Ann")[0] == 1
    assert said("trust", "remove")[0] == 2


@pytest.mark.parametrize("answer", ["y", "n"])
def test_a_person_at_a_terminal_is_asked(places: config.Places, said: Said, answer: str) -> None:
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


def test_an_unsigned_package_is_refused_and_its_directory_is_not(places: config.Places, said: Said) -> None:
    hello(Path("hello"))
    said.ok("pack", "hello", "hello.cpx")
    status, _, err = said("install", "hello.cpx", "--yes")
    assert status == 13
    assert "the package is unsigned" in err
    assert said.ok("install", "hello").startswith("installed hello 0.1.0, unsigned; ")


@pytest.mark.parametrize("where", ["bin/hello", "manifest.toml", "package.toml"])
def test_a_flipped_bit_refuses(places: config.Places, said: Said, where: str) -> None:
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


@pytest.mark.parametrize(
    "entry",
    [
        member("../evil", b"x"),
        member("/evil", b"x"),
        member("lib/a", kind=b"2"),
        member("lib/a", kind=b"3"),
        member("manifest.toml", MANIFEST.encode()),
    ],
)
def test_a_hostile_package_leaves_nothing(places: config.Places, said: Said, entry: object) -> None:
    # issue: "refused, nothing written outside, nothing half-installed"
    import gzip

    before = sorted(str(path) for path in places.state.parent.rglob("*"))
    Path("evil.cpx").write_bytes(gzip.compress(tar(entry)))  # type: ignore[arg-type]
    status, _, err = said("install", "evil.cpx", "--yes")
    assert status != 0
    assert "evil.cpx is refused" in err
    Path("evil.cpx").unlink()
    assert sorted(str(path) for path in places.state.parent.rglob("*")) == before


# -- installing and removing


def test_what_is_installed_is_enabled_listed_and_removed(places: config.Places, said: Said) -> None:
    hello(Path("hello"))
    said.ok("install", "hello")
    (row,) = [row for row in json.loads(said.ok("list", "--json")) if row["name"] == "hello"]
    assert (row["version"], row["boundary"], row["enabled"]) == ("0.1.0", "process", True)
    assert row["location"] == str(places.state / "plugins/hello")
    assert said.ok("disable", "hello") == f"disabled hello; {UNMOUNTED}\n"
    assert said.ok("enable", "hello") == f"enabled hello; {UNMOUNTED}\n"
    # cortex-sdk.md 8: "uninstall ... (without --purge only disables)"
    assert "its files stay until: ctx plugin uninstall hello --purge" in said.ok("uninstall", "hello")
    assert (places.state / "plugins/hello").is_dir()
    assert said.ok("uninstall", "hello", "--purge") == f"removed hello; {UNMOUNTED}\n"
    assert not (places.state / "plugins/hello").exists()
    assert json.loads((places.config / "plugins.json").read_text()) == {}
    assert said("uninstall", "hello")[0] == 1


def test_names_that_lead_outside_are_none(places: config.Places, said: Said) -> None:
    # cortex-sdk.md 9: "`uninstall ../.. --purge` deletes, outside plugins/"
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
    places: config.Places, said: Said, text: str, sentence: str
) -> None:
    hello(Path("hello"), text)
    status, _, err = said("install", "hello")
    assert status != 0
    assert sentence in err
    assert not places.state.exists()


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ('command = "../outside"', "command not found"),
        ('command = "bin/hello"\nworking_dir = "/"', "working_dir escapes plugin directory"),
        ('command = "/bin/sh"', "command escapes plugin directory"),
    ],
)
def test_what_leads_outside_is_not_installed(
    places: config.Places, said: Said, change: str, sentence: str
) -> None:
    edit(hello(Path("hello")), 'command = "bin/hello"', change)
    status, _, err = said("install", "hello")
    assert status != 0
    assert sentence in err


def test_the_name_of_the_tools_that_are_built_in_is_taken(places: config.Places, said: Said) -> None:
    edit(hello(Path("hello")), 'name = "hello"\nversion', 'name = "builtin"\nversion')
    assert "the name builtin is that of the tools that are built in" in said("install", "hello")[2]


@pytest.mark.parametrize("word", ["no/such/thing/at all", "./nothing", "nothing.cpx"])
def test_what_is_no_source_is_said(places: config.Places, said: Said, word: str) -> None:
    status, _, err = said("install", word)
    assert status == 1
    assert err.count("\n") == 1


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
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Site) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        address = f"http://127.0.0.1:{server.server_port}"
        monkeypatch.setattr(sources, "RELEASES", f"{address}/repos")
        Site.files = {}
        yield address
        server.shutdown()
        thread.join()


def signed_package(said: Said) -> bytes:
    hello(Path("hello"))
    said.ok("keygen", "key")
    said.ok("sign", "hello", "--key", "key")
    said.ok("pack", "hello", "hello.cpx")
    return Path("hello.cpx").read_bytes()


def test_a_package_is_fetched_and_held_against_its_checksum(
    places: config.Places, said: Said, site: str
) -> None:
    # issue: ".sha256 checked where one is published"
    data = signed_package(said)
    Site.files = {"/p/hello.cpx": data}
    said.ok("install", f"{site}/p/hello.cpx", "--yes")
    Site.files["/p/hello.cpx.sha256"] = f"{'0' * 64}  hello.cpx\n".encode()
    status, _, err = said("install", f"{site}/p/hello.cpx", "--yes")
    assert status != 0
    assert "hello.cpx is not what its checksum file says" in err
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
    places: config.Places, said: Said, site: str, word: str, path: str
) -> None:
    # cortex-sdk.md 8: "asset must end `-<platform>.cpx`, `<repo>-v*` preferred"
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
    assert f"has no .cpx asset for {platform}" in err
