"""JavaScript plugins in a running mount: installed, called, granted, denied, set and killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.mounted import placed as places
from tests.mounted.agents import agent, call, results, run, say, script
from tests.mounted.ctx_mount import NOBODY, Answer, Ctx, mounted
from tests.mounted.plugins import said, tools
from tests.mounted.test_manifestjson_plugins import blocks, row
from tests.shell import esmodules


@pytest.fixture(scope="module")
def mount(python: Path) -> Iterator[Ctx]:
    with mounted(python) as ctx:
        yield ctx


ctx, own, placed = mount, places.own, places.placed


def plugin(where: Path, name: str, bodies: dict[str, str], more: str = "", **changes: Any) -> Path:
    """Write a plugin's directory, as its author would."""
    folder = where / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "mod.ts").write_text(esmodules.source(bodies, more))
    manifest = {
        "name": name,
        "version": "1.0.0",
        "description": "For tests",
        "kind": "esm",
        "entryPoint": "./mod.ts",
        "runtime": "deno",
        "capabilities": ["tools"],
    }
    (folder / "manifest.json").write_bytes(msgspec.json.encode(manifest | changes))
    return folder


def test_the_tool_of_the_manual_works(mount: Ctx, tmp_path: Path) -> None:
    # "a section in docs/plugins.md with a tool in twelve lines run by a test"
    (source,) = blocks("ts")
    (tmp_path / "mod.ts").write_text(source)
    (tmp_path / "manifest.json").write_text(next(text for text in blocks("json") if '"shout"' in text))
    tested = mount.ctx("plugin", "test", str(tmp_path), "--run", "--yes", check=False).stdout
    assert "fail:" not in tested
    mount.ctx("plugin", "install", str(tmp_path))
    assert mount.call("shout", "--text", "hello", uid=NOBODY).output == "HELLO"
    assert mount.call("shout").code == "EINVAL"
    one = row(mount, "shout")
    assert (one["boundary"], one["status"], one["tools"]) == ("esm", "loaded", ["shout"])
    mount.ctx("plugin", "uninstall", "shout", "--purge")
    assert "shout" not in tools(mount)


@pytest.mark.parametrize("placed", [places.ROOTS[1], places.OWN], indirect=True)
def test_a_tool_is_no_more_harmless_than_its_process(placed: Ctx) -> None:
    # policy.md: "What the process of a tool may do counts too, whatever the tool says of itself"
    body = "return new Deno.Command('/bin/echo', {args: ['ran']}).outputSync().success"
    folder = plugin(placed.base, "harmless", {"quiet": body}, capabilities=["tools", "shell:run"])
    placed.ctx("plugin", "install", str(folder))
    assert said(placed, "quiet", NOBODY) == "true"  # though the tool declares no effect
    shown = "tool/quiet.d/effects"
    assert placed.text(shown) == "run_process plugin%20process partially_reversible always not_supported\n"
    with agent(placed, "user", "quiet") as path:
        told = placed.ctx("policy", "explain", "agent/user", "tool/quiet", check=False).stdout
        assert "run_process on plugin process is require_confirmation" in told
        (asked,) = results(run(placed, path, script([call("quiet")], say("done")), uid=NOBODY).frames)
        assert "true" not in str(asked["output"])
    placed.ctx("plugin", "permissions", "harmless", "--set", "shell:run=deny")
    assert placed.text(shown) == ""  # a denied capability does not count
    placed.ctx("plugin", "permissions", "harmless", "--set", "fs:write=grant")
    assert placed.text(shown).split()[:2] == ["write_file", "plugin%20process"]
    placed.ctx("plugin", "uninstall", "harmless", "--purge")


def test_what_is_granted_and_denied_counts_at_once(mount: Ctx, tmp_path: Path) -> None:
    # issue 6: "effective = declared ... applied to the running plugin"
    body = "try { return Deno.readTextFileSync('/proc/../etc/passwd').length } catch (e) { return e.name }"
    here = "try { return [...Deno.readDirSync('.')].length } catch (e) { return e.name }"
    folder = plugin(tmp_path, "looking", {"look": body, "list": here}, capabilities=["tools", "fs:list"])
    mount.ctx("plugin", "install", str(folder))
    assert said(mount, "look", NOBODY) == "NotCapable"
    assert said(mount, "list", NOBODY).isdigit()
    mount.ctx("plugin", "permissions", "looking", "--set", "fs:list=deny")
    assert said(mount, "list", NOBODY) == "NotCapable"
    mount.ctx("plugin", "permissions", "looking", "--set", "fs:list=grant")
    assert said(mount, "list", NOBODY).isdigit()
    mount.ctx("plugin", "uninstall", "looking", "--purge")


def test_settings_and_state_are_each_users(mount: Ctx, tmp_path: Path) -> None:
    # issue 6: "onConfigChange (`ctx plugin config NAME [KEY [VALUE]]`, defaults from config.settings)"
    hooks = """
    let heard = "", calls = 0;
    export const onInstall = () => void (heard += "install ");
    export const onConfigChange = (key, value) => void (heard += key + "=" + value);
    """
    bodies = {
        "heard": "return heard",
        "theme": "return await ctx.config.get('theme')",
        "memory": "return `${++calls} ${Deno.pid}`",
        "count": "const n = Number(await ctx.state.get('n')) + 1; await ctx.state.set('n', n); return n",
    }
    folder = plugin(tmp_path, "keeping", bodies, hooks, config={"settings": {"theme": "light"}})
    mount.ctx("plugin", "install", str(folder))
    assert [said(mount, "count") for _ in range(2)] == ["1", "2"]
    assert said(mount, "count", NOBODY) == "1"
    assert (said(mount, "theme"), said(mount, "heard")) == ("light", "install ")
    # abi.md 9.51: the module that runs is told, and keeps what it has in memory
    calls, pid = said(mount, "memory").split()
    mount.ctx("plugin", "config", "keeping", "theme", "dark")
    assert (said(mount, "theme"), said(mount, "heard")) == ("dark", "install theme=dark")
    assert said(mount, "memory").split() == [str(int(calls) + 1), pid]
    assert said(mount, "count") == "3"
    mount.umount()
    mount.mount()
    assert (said(mount, "count"), said(mount, "heard")) == ("4", "")
    mount.ctx("plugin", "uninstall", "keeping", "--purge")


def test_one_that_does_not_take_a_setting_begins_anew(mount: Ctx, tmp_path: Path) -> None:
    # abi.md 9.51
    hooks = """
    let calls = 0;
    export const onConfigChange = (key, value) => {
      if (value === "bad") throw new Error("no pen");
    };
    """
    bodies = {"moods": "return `${++calls} ${await ctx.config.get('mood')} ${Deno.pid}`"}
    folder = plugin(tmp_path, "moody", bodies, hooks, config={"settings": {"mood": "good"}})
    mount.ctx("plugin", "install", str(folder))
    calls, mood, pid = said(mount, "moods").split()
    assert (calls, mood) == ("1", "good")
    mount.ctx("plugin", "config", "moody", "mood", "bad")
    calls, mood, other = said(mount, "moods").split()
    assert (calls, mood, other != pid) == ("1", "bad", True)
    assert f"the host of moody restarts for uid {os.getuid()}: " in (mount.state / "daemon.log").read_text()
    host = int(Path(f"/proc/{other}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(host, signal.SIGSTOP)  # as any user may do to a process of their own
    try:
        mount.ctx("plugin", "config", "moody", "mood", "fine")
        assert said(mount, "moods").split()[:2] == ["1", "fine"]
    finally:
        os.kill(host, signal.SIGCONT)
    mount.ctx("plugin", "uninstall", "moody", "--purge")


def test_a_provider_is_a_model(mount: Ctx, tmp_path: Path) -> None:
    # issue 6: "a `config:provider` kind becomes models under /ctx/model/<kind>/..."
    more = """
    export const providers = {
      parrot: () => ({
        async *stream(options) {
          for (const word of options.messages.at(-1).content.split(" ")) yield word + " ";
        },
      }),
    };
    """
    provides = {"providers": [{"kind": "parrot", "label": "Parrot", "defaultModel": "grey"}]}
    folder = plugin(tmp_path, "parrots", {}, more, capabilities=["config:provider"], config=provides)
    mount.ctx("plugin", "install", str(folder))
    answer = Answer(mount.run([str(mount.root / "model" / "parrot/grey"), "to be"], text=False, uid=NOBODY))
    assert (answer.status, answer.output) == (0, "to be ")
    mount.ctx("plugin", "uninstall", "parrots", "--purge")


def test_a_killed_process_is_back_with_the_next_call(mount: Ctx, tmp_path: Path) -> None:
    # issue 6: "Deno or a server killed in mid-call (error frame, 70 or 69, back within 1 s)"
    bodies = {
        "mortal": "return Deno.pid",
        "waiting": "ctx.emit(Deno.pid + ' '); await new Promise(() => {})",
    }
    mount.ctx("plugin", "install", str(plugin(tmp_path, "mortals", bodies)))
    words = [mount.tool("waiting")]
    with subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as running:
        assert running.stdout is not None
        line = next(line for line in running.stdout if b'"delta"' in line)
        os.kill(int(json.loads(line)["text"]), signal.SIGKILL)
        last = json.loads(running.stdout.read().splitlines()[-1])
        assert (last["code"], running.wait()) == ("EPROTO", 70)
    assert said(mount, "mortal").isdigit()
    mount.ctx("plugin", "uninstall", "mortals", "--purge")


def test_an_agents_calls_see_what_the_agent_sees(mount: Ctx, tmp_path: Path) -> None:
    # docs/agents.md: an agent's tools run in hosts that are confined to its view
    body = "try { return Deno.readTextFileSync(args.text) } catch (e) { return 'no: ' + e.name }"
    folder = plugin(tmp_path, "reading", {"read-it": body}, capabilities=["tools", "fs:read"])
    mount.ctx("plugin", "install", str(folder))
    (mount.config / "policy.toml").write_text('mode = "open"\n')
    with agent(mount, "user", "read-it") as path:
        task = script([call("read-it", text="/etc/passwd")], say("done"))
        (result,) = results(run(mount, path, task, uid=NOBODY).frames)
        assert result["output"].startswith("no: "), result
    (mount.config / "policy.toml").unlink()
    mount.ctx("plugin", "uninstall", "reading", "--purge")
