"""Commands that plugins add to `cortex`, called from a shell on a running mount, with real Deno."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.mounted.agents import agent, call, results, run, say, script
from tests.mounted.ctx_mount import NOBODY, Ctx, alive, mounted
from tests.mounted.test_esm import plugin
from tests.mounted.test_manifestjson_plugins import blocks, row
from tests.waiting import PATIENCE, until

GREET: dict[str, Any] = {
    "name": "say-hello",
    "description": "Greets somebody",
    "args": [{"name": "whom", "type": "string", "description": "Whom", "required": True}],
    "options": [
        {"name": "times", "type": "number", "description": "How often", "flag": "-n"},
        {"name": "loud", "type": "boolean", "description": "Loudly", "flag": "-l"},
    ],
}
HELLO = "export async function sayHello(args) { console.log('hello', JSON.stringify(args)); }"


@pytest.fixture(scope="module")
def mount(python: Path) -> Iterator[Ctx]:
    with mounted(python) as ctx:
        yield ctx


def cortex(mount: Ctx, *words: str | bytes, **options: Any) -> subprocess.CompletedProcess[str]:
    return mount.run(["cortex", *words], **options)


def commands(where: Path, name: str, source: str, *declared: dict[str, Any], **changes: Any) -> Path:
    """Write a plugin that declares these commands; returns its directory."""
    may = changes.pop("capabilities", ["cli:commands"])
    return plugin(where, name, {}, source, capabilities=may, cliCommands=[*declared], **changes)


@pytest.fixture
def greeter(mount: Ctx, tmp_path: Path) -> Iterator[Path]:
    folder = commands(tmp_path, "greeter", HELLO, GREET)
    mount.ctx("plugin", "install", str(folder))
    yield folder
    mount.ctx("plugin", "uninstall", "greeter", "--purge")


def test_a_command_is_called_as_declared(mount: Ctx, greeter: Path) -> None:
    # abi.md 9.16, 9.17
    said = cortex(mount, "say-hello", "-n", "2", "ann", "--loud")
    assert (said.returncode, said.stderr) == (0, "")
    assert said.stdout == 'hello {"whom":"ann","times":2,"loud":true}\n'
    assert cortex(mount, "say-hello", "ann", uid=NOBODY).stdout == 'hello {"whom":"ann"}\n'
    assert mount.ctx("say-hello", "ann").stdout == 'hello {"whom":"ann"}\n'  # `ctx` is the same program


def test_the_command_of_the_manual_works(mount: Ctx, tmp_path: Path) -> None:
    # docs/plugins.md, "Commands"
    (tmp_path / "mod.js").write_text(next(text for text in blocks("js") if "sayHello" in text))
    manifest = next(text for text in blocks("json") if "hello-command" in text)
    (tmp_path / "manifest.json").write_text(manifest)
    mount.ctx("plugin", "install", str(tmp_path))
    said = cortex(mount, "say-hello", "Ann", "--loud", cwd=Path("/usr"))
    assert (said.returncode, said.stdout, said.stderr) == (0, "HELLO, ANN.\n", "say-hello: said in /usr\n")
    assert cortex(mount, "say-hello").stdout == "Hello, you.\n"
    mount.ctx("plugin", "uninstall", "hello-command", "--purge")


def test_it_is_in_the_help_and_no_tool(mount: Ctx, greeter: Path) -> None:
    # abi.md 1.24, 9.16
    assert "\n  say-hello   Greets somebody\n" in cortex(mount, "--help").stdout
    said = cortex(mount, "say-hello", "--help")
    assert (said.returncode, said.stderr) == (0, "")
    assert "usage: cortex say-hello [options] <whom>" in said.stdout
    assert not [name for name in os.listdir(mount.root / "tool") if "hello" in name]
    assert ".commands" not in os.listdir(mount.root)
    one = row(mount, "greeter")
    assert (one["status"], one["tools"], one["commands"]) == ("loaded", [], ["say-hello"])


def test_what_does_not_fit_never_reaches_the_plugin(mount: Ctx, greeter: Path) -> None:
    # abi.md 4.15
    assert cortex(mount, "say-hello").returncode == 2
    assert cortex(mount, "say-hello", "ann", "--times", "often").returncode == 2
    # The same holds for callers that do not use the program.
    for input, why in (("{}", "whom"), ('{"whom":1}', "whom"), ('{"whom":"a","x":1}', "x"), ("no", "cortex")):
        words = [
            str(mount.root / "bin/cortexfs-object-runner"),
            str(mount.root / ".commands"),
            "say-hello",
            input,
        ]
        done = mount.run(words)
        assert done.returncode == 2, done
        assert why in json.loads(done.stdout.splitlines()[-2])["message"]


ENDS = """
export const cliCommands = [
  {name: "speak", description: "Says where it is"}, {name: "fail", description: "Fails"},
  {name: "leave", description: "Ends its process"}, {name: "wait-here", description: "Waits"},
];
export const speak = (args, ctx) => {
  console.error("to be", "read");
  ctx.logger.info("kept");
  console.log(ctx.workingDir, ctx.pluginId, typeof ctx.config.get);
  return "returned";
};
export const fail = () => { throw new Error("no such luck"); };
export const leave = () => Deno.exit(3);
export const waitHere = async (args, ctx) => {
  console.log("waiting", Deno.pid);
  await new Promise((done) => ctx.signal.addEventListener("abort", done));
};
"""


@pytest.fixture(scope="module")
def ends(mount: Ctx, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Installs a plugin whose module declares its commands itself."""
    mount.ctx("plugin", "install", str(commands(tmp_path_factory.mktemp("ends"), "ends", ENDS)))
    yield
    mount.ctx("plugin", "uninstall", "ends", "--purge")


def test_the_caller_is_who_and_where_he_is(mount: Ctx, ends: None) -> None:
    # abi.md 4.35, 9.40
    said = cortex(mount, "speak", cwd=Path("/usr"), uid=NOBODY)
    assert (said.returncode, said.stdout) == (0, "/usr ends function\nreturned")
    assert said.stderr == "speak: to be read\n"
    # The standard error of a plugin is copied to the log beside the call, which does not wait for the copy.
    until((mount.state / "daemon.log").read_text, lambda log: "ends: info: kept" in log)
    frames = cortex(mount, "speak", env={"CTX_OUTPUT": "jsonl"}).stdout.splitlines()
    assert [json.loads(line)["type"] for line in frames] == ["start", "progress", "delta", "delta", "done"]


@pytest.mark.parametrize(
    ("command", "status", "sentence"),
    [
        ("fail", 1, "fail: EIO: no such luck\n"),
        ("leave", 70, "leave: EPROTO: "),
    ],
)
def test_exit_status_is_that_of_a_tool(
    command: str, status: int, sentence: str, mount: Ctx, ends: None
) -> None:
    # abi.md 4.23, 4.24, 4.25, 4.26
    said = cortex(mount, command)
    assert (said.returncode, said.stdout) == (status, "")
    assert said.stderr.startswith(sentence)


def test_ctrl_c_cancels_and_output_comes_at_once(mount: Ctx, ends: None) -> None:
    # abi.md 4.26
    running = subprocess.Popen(
        ["cortex", "wait-here"],
        env=mount.environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    )
    with running:
        assert running.stdout is not None
        word, pid = running.stdout.readline().split()  # the command still runs
        assert word == "waiting"
        assert cortex(mount, "speak").returncode == 0  # a second command beside it
        running.send_signal(signal.SIGINT)
        assert running.wait(PATIENCE) == 130
    assert alive(int(pid))  # the command ended in time, so its process goes on serving


def test_files_are_those_of_where_it_is_called(mount: Ctx, tmp_path: Path) -> None:
    # abi.md 9.25; abi.md 4.35
    source = "export default ({whom}) => Deno.readTextFileSync(whom)"
    folder = commands(tmp_path, "reading", source, GREET, capabilities=["cli:commands", "fs:read"])
    mount.ctx("plugin", "install", str(folder))
    (mount.work / "mine").write_text("mine\n")
    assert cortex(mount, "say-hello", "mine").stdout == "mine\n"
    assert cortex(mount, "say-hello", "mine", cwd=Path("/usr")).returncode == 1
    mount.ctx("plugin", "uninstall", "reading", "--purge")


def test_a_killed_daemon_ends_it(fresh: Ctx, tmp_path: Path) -> None:
    # abi.md 4.24
    fresh.ctx("plugin", "install", str(commands(tmp_path, "ends", ENDS)))
    with subprocess.Popen(
        ["cortex", "wait-here"],
        env=fresh.environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as running:
        assert running.stdout is not None
        assert running.stdout.readline().startswith("waiting")
        os.kill(fresh.pid, signal.SIGKILL)
        _, err = running.communicate(timeout=PATIENCE)
    assert (running.returncode, err.startswith("wait-here: EHOSTDOWN: ")) == (69, True)


def test_a_disabled_or_denied_plugins_command_says_so(mount: Ctx, greeter: Path) -> None:
    mount.ctx("plugin", "disable", "greeter")
    said = cortex(mount, "say-hello", "ann", uid=NOBODY)
    assert (said.returncode, said.stdout) == (69, "")
    assert said.stderr == (
        "cortex say-hello: its plugin greeter is disabled; enable it with: ctx plugin enable greeter\n"
    )
    assert "say-hello" not in cortex(mount, "--help").stdout
    mount.ctx("plugin", "enable", "greeter")
    assert cortex(mount, "say-hello", "ann").returncode == 0
    # abi.md 9.26
    mount.ctx("plugin", "permissions", "greeter", "--set", "cli:commands=deny")
    said = cortex(mount, "say-hello", "ann")
    assert (said.returncode, "it may add no commands" in said.stderr) == (69, True)
    mount.ctx("plugin", "permissions", "greeter", "--set", "cli:commands=default")
    assert cortex(mount, "say-hello", "ann").returncode == 0


def test_a_name_is_one_plugins(mount: Ctx, greeter: Path, tmp_path: Path) -> None:
    # issue 5: "enabling a plugin that takes an existing name needs consent (`--replace`, shown in origin),
    # else it is refused; disabling it gives the name back"
    other = commands(tmp_path, "other", HELLO.replace("hello", "ahoy"), GREET)
    refused = mount.ctx("plugin", "install", str(other), check=False)
    assert "its command say-hello is already one of plugin:greeter@1.0.0" in refused.stderr
    assert cortex(mount, "say-hello", "ann").stdout.startswith("hello")
    mount.ctx("plugin", "enable", "other", "--replace")
    assert cortex(mount, "say-hello", "ann").stdout.startswith("ahoy")
    mount.ctx("plugin", "uninstall", "other", "--purge")
    assert cortex(mount, "say-hello", "ann").stdout.startswith("hello")


def test_no_command_of_ours_is_hidden(mount: Ctx, tmp_path: Path) -> None:
    # abi.md 8.6
    refused = mount.ctx(
        "plugin", "install", str(commands(tmp_path, "thief", "", {**GREET, "name": "status"})), check=False
    )
    assert (refused.returncode, "status is a command of ctx itself" in refused.stderr) == (2, True)
    # A plugin may declare its commands only when it is loaded.
    source = (
        'export const cliCommands = [{name: "version", description: "Lies"}]; export default () => "lie";'
    )
    mount.ctx("plugin", "install", str(commands(tmp_path, "liar", source)))
    assert "lie" not in cortex(mount, "version").stdout.lower()
    mount.ctx("plugin", "uninstall", "liar", "--purge")


def test_an_agents_shell_has_no_commands(mount: Ctx, greeter: Path) -> None:
    # abi.md 7.3
    (mount.config / "policy.toml").write_text('mode = "open"\n')
    words = f'{mount.root}/bin/cortexfs-object-runner {mount.root}/.commands say-hello \'{{"whom":"a"}}\''
    with agent(mount, "user", "shell.exec") as path:
        task = script([call("shell.exec", cmd=f"CTX_OUTPUT=text {words} 2>&1")], say("done"))
        (result,) = results(run(mount, path, task, uid=NOBODY).frames)
        assert "hello {" not in result["output"], result
        assert "agents may not run commands" in result["output"], result
    (mount.config / "policy.toml").unlink()


def test_a_kind_that_runs_no_commands_says_so(mount: Ctx, tmp_path: Path) -> None:
    # abi.md 9.17: the handler is of the plugin's module, which a server has none of
    server = {"kind": "mcp", "entryPoint": "https://localhost/rpc"}
    mount.ctx("plugin", "install", str(commands(tmp_path, "serving", "", GREET, **server)))
    said = cortex(mount, "say-hello", "ann")
    assert (said.returncode, "plugins of kind mcp cannot add commands" in said.stderr) == (69, True)
    mount.ctx("plugin", "uninstall", "serving", "--purge")
    assert "there is no command 'say-hello'" in cortex(mount, "say-hello", "ann").stderr


def test_a_review_names_them(mount: Ctx, tmp_path: Path) -> None:
    said = mount.ctx("plugin", "review", str(commands(tmp_path, "greeter", HELLO, GREET))).stdout
    assert "Commands:\n    - cortex say-hello: Greets somebody\n" in said
    thief = commands(tmp_path, "thief", "", {**GREET, "name": "status"})
    assert "fail: commands" in mount.ctx("plugin", "test", str(thief), check=False).stdout


def test_what_a_module_declares_is_checked(mount: Ctx, tmp_path: Path) -> None:
    source = 'export const cliCommands = [{name: "a b", description: ""}];'
    said = mount.ctx("plugin", "install", str(commands(tmp_path, "odd", source)), check=False)
    assert "its module exports a wrong command" in said.stderr
    assert not (mount.state / "plugins/odd").exists()


def test_nobody_else_says_that_a_plugin_ends(mount: Ctx, greeter: Path) -> None:
    words = [
        str(mount.root / "bin/cortexfs-object-runner"),
        str(mount.root / ".commands"),
        ":uninstall",
        "greeter",
    ]
    done = mount.run(words, uid=NOBODY)
    assert (done.returncode, "only the owner" in done.stdout) == (13, True)
