"""`ctx mcp list`, `add` and `remove` on files of their own, without a mount (docs/mcp.md)."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path
from typing import Any

import pytest

from cortexfs.cli.main import main
from cortexfs.cli.mounts import Mount
from cortexfs.cli.shell.complete import candidates
from cortexfs.plugins.mcp_servers import Servers
from tests.shell.plugin_commands import places

__all__ = ["places"]  # a fixture
pytestmark = pytest.mark.usefixtures("places")


def run(*words: str) -> int:
    return main(["mcp", *words])


def type_in(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode())))


def listed(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    capsys.readouterr()
    assert run("list", "--json") == 0
    rows: list[dict[str, Any]] = json.loads(capsys.readouterr().out)
    return rows


def file(name: str) -> Path:
    return Path(os.environ["CTX_CONFIG"], "mcp", f"{name}.toml")


def secrets() -> dict[str, str]:
    folder = Path(os.environ["CTX_STATE"], "secrets")
    return {path.name: path.read_text() for path in folder.glob("*")}


def servers() -> Servers:
    return Servers(Path(os.environ["CTX_CONFIG"]), Path(os.environ["CTX_STATE"]))


@pytest.mark.parametrize("words", ["serve", "call x y", "inspect x", "login x"])
def test_a_missing_package_is_named_by_its_extra(
    words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # issue 14: "Missing packages are named by the extra, never by an inner module"
    monkeypatch.setattr("cortexfs.cli.mounts.answering", lambda _: "/ctx")
    monkeypatch.setattr("cortexfs.cli.mcp.mcp.has_extra", lambda: False)
    assert run(*words.split()) == 69
    assert capsys.readouterr().err.endswith("is not installed: pip install 'cortexfs[mcp]'\n")


def test_a_program_is_what_follows_two_dashes(capsys: pytest.CaptureFixture[str]) -> None:
    # docs/commands.md: "ctx mcp add NAME ... -- COMMAND [ARGS]"; options may stand on either side of the name
    assert (
        run("add", "time", "--env", "ZONE=a=b", "--tool", "get_*", "--", "uvx", "a", "--url", "--", "b") == 0
    )
    assert run("add", "--env", "A=1", "other", "--", "true") == 0
    one = servers().read("time")
    assert (one.command, one.args, one.env, one.tools) == (
        "uvx",
        ("a", "--url", "--", "b"),
        {"ZONE": "a=b"},
        ("get_*",),
    )
    rows = listed(capsys)
    assert [row["name"] for row in rows] == ["other", "time"]
    assert rows[1]["server"] == "uvx a --url -- b"
    assert (rows[1]["transport"], rows[1]["status"], rows[1]["enabled"]) == ("stdio", "not mounted", True)


def test_a_mount_of_somebody_else_has_none_of_a_user_s_own_servers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("CTX_STATE", "CTX_CONFIG"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setattr(os, "getuid", lambda: 1000)
    monkeypatch.setattr("cortexfs.cli.mounts.root", lambda given: str(tmp_path))
    monkeypatch.setattr("cortexfs.cli.mounts.mounted_at", lambda root: Mount(root, 1, 1001, True))
    monkeypatch.setattr("cortexfs.cli.mounts.status_text", lambda *_: "pid: 1\n")
    assert run("add", "time", "--", "true") == 0
    assert [row["status"] for row in listed(capsys)] == ["not mounted"]
    monkeypatch.setenv("CTX_CONFIG", str(tmp_path / "config/cortexfs"))  # this may be the mount's
    assert [row["status"] for row in listed(capsys)] == ["no tools"]


def test_secrets_are_typed_and_never_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # docs/mcp.md: "A KEY alone is a secret: its value is typed"
    type_in(monkeypatch, "Bearer very secret\nbanana\n")
    words = ("--url", "https://x.example/mcp", "--header", "Authorization", "--header", "X-Fruit")
    assert run("add", "docs", *words, "--header", "X-Plain: a b") == 0
    assert secrets() == {"mcp.docs.Authorization": "Bearer very secret\n", "mcp.docs.X-Fruit": "banana\n"}
    assert {path.stat().st_mode & 0o777 for path in Path(os.environ["CTX_STATE"], "secrets").iterdir()} == {
        0o600
    }
    said = file("docs").read_text()
    assert "secret\n" not in said
    assert "banana" not in said
    (row,) = listed(capsys)
    assert (row["transport"], row["secrets"]) == ("http", ["Authorization", "X-Fruit"])
    (told,) = servers().load({"SSL_CERT_FILE": "/ca.pem", "https_proxy": "http://me:secret@proxy"}).plugins
    # docs/mcp.md: "beside `PATH LANG TZ SSL_CERT_FILE SSL_CERT_DIR` of the daemon"
    passed = json.loads(told.target)["environment"]
    assert passed == {"SSL_CERT_FILE": "/ca.pem", "PATH": "/usr/local/bin:/usr/bin:/bin"}
    assert json.loads(told.target)["headers"] == {
        "X-Plain": "a b",
        "Authorization": "Bearer very secret",
        "X-Fruit": "banana",
    }


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["add", "a"], "name the server: --url URL, or at the end -- COMMAND [ARGS]"),
        (["add", "a", "--"], "name the server"),
        (["add", "a", "--", "", "x"], "the COMMAND behind -- is empty"),
        (["add", "a", "--url", "https://x", "--", "b"], "needs either command"),
        (["add", "a", "--url", "http://example.com"], "https://"),
        (["add", "a/b", "--", "x"], "the name 'a/b'"),
        (["add", "a", "--env", "API_KEY=1", "--", "x"], "API_KEY looks like a secret"),
        (["add", "a", "--url", "https://x", "--header", "Authorization: Bearer 1"], "looks like a secret"),
        (["add", "a", "--url", "https://x", "--env", "A=1"], "--header for --url"),
        (["add", "a", "--header", "A: 1", "--", "x"], "--env is for a program"),
        (["add", "a", "--env", "B", "--env", "C", "--", "x"], "standard input needs 2 lines: B, C"),
        (["add", "a", "x", "--y"], "write the command after --, as in: -- x; see: ctx mcp add --help"),
        (["inspect", "a", "x"], "write the command after --, as in: -- x; see: ctx mcp inspect --help"),
        (["add", "a", "--env", "B", "--", "x"], "not one line of visible ASCII"),
        (["remove", "nothing"], "there is no MCP server 'nothing'; see: ctx mcp list"),
        (["remove", "../a"], "there is no MCP server '../a'"),
        (["list", "--", "x"], "'x' is one argument too many; see: ctx mcp list --help"),
    ],
)
def test_what_is_wrong_changes_nothing(
    words: list[str], why: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    type_in(monkeypatch, "\x01\n")
    assert run(*words) in (1, 2)
    assert why in capsys.readouterr().err
    assert not file("a").exists()
    assert not secrets()


def test_one_that_is_there_is_replaced_only_when_asked(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    type_in(monkeypatch, "one\n")
    assert run("add", "a", "--env", "TOKEN", "--", "x") == 0
    assert run("add", "a", "--", "y") == 1
    assert "there is an MCP server a already; --replace takes its place" in capsys.readouterr().err
    assert secrets() == {"mcp.a.TOKEN": "one\n"}
    assert run("add", "a", "--replace", "--", "y") == 0
    assert servers().read("a").command == "y"
    assert secrets() == {}  # no server names the secret any more


def test_removing_takes_its_secrets_and_nobody_elses(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # docs/mcp.md: "the file of a server, and the secrets that were made for it"
    for name in ("a", "a.b", "c"):
        type_in(monkeypatch, f"of {name}\n")
        assert run("add", name, "--env", "TOKEN", "--", "x") == 0
    with open(file("c"), "a") as more:
        more.write('"ALSO" = "mcp.a.SHARED"\n')
    folder = Path(os.environ["CTX_STATE"], "secrets")
    for name in ("mcp.a.SHARED", "openai"):
        (folder / name).write_text("x\n")
        (folder / name).chmod(0o600)
    file("a").write_text("what = is this")  # a wrong file can be removed, too
    assert run("remove", "a") == 0
    assert "removed a and its secrets" in capsys.readouterr().err
    assert secrets().keys() == {"mcp.a.b.TOKEN", "mcp.c.TOKEN", "mcp.a.SHARED", "openai"}
    assert [row["name"] for row in listed(capsys)] == ["a.b", "c"]
    assert (run("add", "plain", "--", "x"), run("remove", "plain")) == (0, 0)
    assert "removed plain; " in capsys.readouterr().err


def test_listing_says_what_is_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("add", "a", "--", "x") == 0
    file("wrong").write_text("commnd = 1\n")
    file("off").write_text('command = "x"\nenabled = false\n')
    rows = {row["name"]: row for row in listed(capsys)}
    assert "unknown key commnd; did you mean command?" in rows["wrong"]["reason"]
    assert {name: row["status"] for name, row in rows.items()} == {
        "a": "not mounted",
        "wrong": "broken",
        "off": "disabled",
    }
    assert run("list") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["NAME", "TRANSPORT", "ENABLED", "STATUS", "SERVER", "TOOLS"]
    assert lines[1].split() == ["a", "stdio", "yes", "not", "mounted", "x", "-"]


def test_names_of_servers_are_completed() -> None:
    assert run("add", "time", "--", "x") == 0
    assert candidates(["ctx", "mcp", "remove", "t"]) == ["time"]
    verbs = ["serve", "list", "add", "import", "call", "inspect", "login", "logout", "remove"]
    assert candidates(["ctx", "mcp", ""]) == verbs
    assert candidates(["ctx", "mcp", "add", ""]) == []
    assert "--url" in candidates(["ctx", "mcp", "add", "--"])


def test_a_file_of_another_client_is_taken_over_whole_or_not_at_all(tmp_path: Path) -> None:
    # docs/mcp.md: "imports all or none"
    table = {"a": {"url": "https://x", "headers": {"Authorization": "Bearer abc"}}}
    given = tmp_path / "servers.json"
    given.write_text(json.dumps({"mcpServers": table | {"b": {"command": "x", "env": {"TOKEN": "\n\n"}}}}))
    assert main(["plugin", "import-mcp", str(given)]) == 2
    assert not file("a").exists()
    given.write_text(json.dumps({"mcpServers": table | {"a!": {"command": "x"}, "a-": {"command": "x"}}}))
    assert main(["plugin", "import-mcp", str(given)]) == 2
    given.write_text(json.dumps({"mcpServers": {f"s{number}": {"command": "x"} for number in range(129)}}))
    assert main(["plugin", "import-mcp", str(given)]) == 2
    assert not file("s0").exists()
    given.write_text(json.dumps({"mcpServers": table}))
    assert main(["plugin", "import-mcp", str(given)]) == 0
    assert secrets() == {"mcp.a.Authorization": "Bearer abc\n"}
    (told,) = servers().load({}).plugins
    assert json.loads(told.target)["headers"] == {"Authorization": "Bearer abc"}


def test_a_server_needs_no_home() -> None:
    # next to some states no folder can be created
    assert run("add", "time", "--", "true") == 0
    state = Path(os.environ["CTX_STATE"])
    state.with_name(f"{state.name}-kept").write_text("in the way")
    found = servers().load({})
    assert [(one.name, one.keeps) for one in found.plugins] == [("mcp:time", "")]
    assert found.faults == {}
