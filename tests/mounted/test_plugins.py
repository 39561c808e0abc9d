"""Plugins from directories and packages as tools of a running mount. The quotes are from the issue."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cortexfs.config import choose
from tests.mounted import plugins
from tests.mounted.agents import agent, call, results, run, say, script
from tests.mounted.ctx_mount import NOBODY, Ctx, mounted
from tests.mounted.plugins import CALLING, broken, origin, said, tools
from tests.mounted.test_user_daemon import USER, as_user, home
from tests.shell import declaring
from tests.waiting import PATIENCE, until

__all__ = ["home"]  # a fixture


@pytest.fixture(scope="module")
def mount(python: Path) -> Iterator[Ctx]:
    """A mount without plugins; each test uninstalls its own."""
    with mounted(python) as ctx:
        yield ctx


def test_the_state_is_closed_and_plugins_run_for_everybody(mount: Ctx, tmp_path: Path) -> None:
    # "a plugin directory or .cpx package becomes tools under /ctx/tool that run like the built-in ones"
    assert mount.state.stat().st_mode & 0o777 == 0o700
    for kind, made in plugins.KINDS.items():
        name = f"dir-{kind}"
        done = mount.ctx("plugin", "install", str(made(tmp_path, name)))
        assert f"installed {name} 1.0, unsigned; the change is in effect at {mount.root}" in done.stderr
        assert said(mount, name) == "hello 0"
        assert said(mount, name, NOBODY) == f"hello {NOBODY}"
        assert origin(mount, name) == f"plugin:{name}@1.0"
        listed = json.loads(mount.ctx("plugin", "list", "--json").stdout)
        row = next(row for row in listed if row["name"] == name)
        assert (row["boundary"], row["status"], row["tools"]) == (kind, "loaded", [name])
        mount.ctx("plugin", "uninstall", name, "--purge")
        assert name not in tools(mount)


@pytest.mark.parametrize("kind", plugins.KINDS)
def test_a_signed_package_goes_all_the_way(mount: Ctx, tmp_path: Path, kind: str) -> None:
    # "a package signed here verifies after a round trip through pack, sha256sum and install"
    name, key, package = f"cpx-{kind}", str(tmp_path / "key"), tmp_path / f"{kind}.cpx"
    folder = plugins.KINDS[kind](tmp_path, name)
    mount.ctx("plugin", "keygen", key)
    mount.ctx("plugin", "sign", str(folder), "--key", key, "--publisher", "example.dev")
    told = mount.ctx("plugin", "pack", str(folder), str(package)).stdout
    summed = subprocess.run(
        ["sha256sum", package.name], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert summed.stdout == told
    package.with_name(f"{package.name}.sha256").write_text(told)
    # "Unknown publishers: asked on a terminal, refused without one unless --yes."
    refused = mount.ctx("plugin", "install", str(package), check=False)
    assert (refused.returncode, name in tools(mount)) == (13, False)
    assert 'the publisher "example.dev" with the key' in refused.stderr
    mount.ctx("plugin", "install", str(package), "--yes")
    assert said(mount, name, NOBODY) == f"hello {NOBODY}"
    # abi.md 11.23
    mount.ctx("plugin", "trust", "remove", "example.dev")
    assert "its publisher example.dev is not trusted any more" in broken(mount)
    assert name not in tools(mount)
    mount.ctx("plugin", "uninstall", name, "--purge")
    package.with_name(f"{package.name}.sha256").write_text(f"{'0' * 64}  {package.name}\n")
    assert (
        "does not match its checksum file" in mount.ctx("plugin", "install", str(package), check=False).stderr
    )


def test_what_changed_on_the_disk_is_refused_when_it_is_loaded(fresh: Ctx, tmp_path: Path) -> None:
    # "Signatures and hashes are checked at load, not only at install."
    fresh.ctx("plugin", "install", str(plugins.program(tmp_path, "flipped")))
    installed = fresh.state / "plugins" / "flipped" / "bin" / "run"
    data = bytearray(installed.read_bytes())
    data[-4] ^= 1
    installed.write_bytes(data)
    why = 'it has changed since it was installed: "bin/run"'
    assert why in fresh.ctx("plugin", "enable", "flipped", check=False).stderr
    # "a broken new version leaves the old one serving and says why in origin, status and doctor"
    assert said(fresh, "flipped") == "hello 0"
    assert origin(fresh, "flipped").startswith(
        "plugin:flipped@1.0 (the former version, as the new one is refused: "
    )
    assert why in broken(fresh)
    assert why in fresh.ctx("doctor", check=False).stdout
    fresh.umount()
    fresh.mount()
    assert "flipped" not in tools(fresh)
    assert why in broken(fresh)
    # The plugin runs from a copy, which is verified again after a restart.
    installed.write_bytes(bytes(data[:-4]) + bytes([data[-4] ^ 1]) + bytes(data[-3:]))
    fresh.ctx("plugin", "enable", "flipped")
    (copy,) = fresh.state.with_name("state-plugins").iterdir()
    (copy / "bin" / "run").write_text("#!/bin/sh\necho '\"other\"'\n")
    fresh.umount()
    fresh.mount()
    assert said(fresh, "flipped") == "hello 0"


def test_a_name_is_taken_with_consent_and_given_back(mount: Ctx, tmp_path: Path) -> None:
    # "enabling a plugin that takes an existing name needs consent (--replace, shown in origin), else it is
    # refused; disabling it gives the name back"
    folder = plugins.program(tmp_path, "thief", "mine", tool="fs.read")
    done = mount.ctx("plugin", "install", str(folder), check=False)
    assert done.returncode == 1
    assert "thief is not enabled: its tool fs.read is already one of builtin" in done.stderr
    assert origin(mount, "fs.read") == "builtin"
    assert broken(mount) == ""
    mount.ctx("plugin", "enable", "thief", "--replace")
    assert origin(mount, "fs.read") == "plugin:thief@1.0 (replaces that of builtin)"
    assert said(mount, "fs.read") == "mine 0"
    # "order of enabling": who comes later wins, again with consent only
    later = plugins.program(tmp_path, "later", "last", tool="fs.read")
    assert mount.ctx("plugin", "install", str(later), check=False).returncode == 1
    mount.ctx("plugin", "install", str(later), "--replace")
    assert said(mount, "fs.read") == "last 0"
    mount.ctx("plugin", "disable", "later")
    assert said(mount, "fs.read") == "mine 0"
    mount.ctx("plugin", "disable", "thief")
    assert origin(mount, "fs.read") == "builtin"
    for name in ("thief", "later"):
        mount.ctx("plugin", "uninstall", name, "--purge")


WAITING = '#!/bin/sh\nread line < {gate}\nprintf \'"%s"\' "$(cat bin/word)"\n'


@pytest.mark.parametrize("change", ["install", "disable", "uninstall"])
def test_running_calls_finish_with_the_code_they_began_with(mount: Ctx, tmp_path: Path, change: str) -> None:
    # "running calls finish with the code that they began with"
    gate = mount.work / f"gate-{change}"
    os.mkfifo(gate, 0o666)
    folder = plugins.program(tmp_path, "slow", WAITING.format(gate=gate))
    (folder / "bin" / "word").write_text("old")
    mount.ctx("plugin", "install", str(folder))
    running = subprocess.Popen([mount.tool("slow")], env=mount.environ, stdout=subprocess.PIPE)
    opened = os.open(gate, os.O_WRONLY)  # this waits for the reader
    if change == "install":
        plugins.program(tmp_path, "slow", "new", version="2.0")
        (folder / "bin" / "word").write_text("new")
        mount.ctx("plugin", "install", str(folder))
        assert said(mount, "slow") == "new 0"
    elif change == "disable":
        mount.ctx("plugin", "disable", "slow")
        assert "slow" not in tools(mount)
    else:
        mount.ctx("plugin", "uninstall", "slow", "--purge")
        assert "slow" not in tools(mount)
    os.write(opened, b"\n")
    os.close(opened)
    output, _ = running.communicate(timeout=PATIENCE)
    assert running.returncode == 0
    assert b'"text":"old"' in output
    mount.ctx("plugin", "uninstall", "slow", "--purge", check=False)
    gate.unlink()


def test_a_replaced_library_is_picked_up_without_a_restart(mount: Ctx, tmp_path: Path) -> None:
    # "a replaced .so is picked up by a new host, without a daemon restart"
    mount.ctx("plugin", "install", str(plugins.native(tmp_path, "lib", "one")))
    assert said(mount, "lib", NOBODY) == f"one {NOBODY}"
    mount.ctx("plugin", "install", str(plugins.native(tmp_path, "lib", "two")))
    assert said(mount, "lib", NOBODY) == f"two {NOBODY}"
    mount.ctx("plugin", "uninstall", "lib", "--purge")


def test_a_library_reads_the_variables_of_whoever_calls_it(mount: Ctx, tmp_path: Path) -> None:
    # docs/ctx.md: "Of your environment it sees ..."; the real runner, a real library, and git
    manifest = plugins.manifest_text("fixture", "1.0", plugins.LIBRARY, plugins.TRUSTED)
    folder = plugins.written(tmp_path / "fixture", {"manifest.toml": manifest})
    (folder / "lib").mkdir()
    declaring.build(folder / "lib", declaring.NATIVE / "environment.c")
    mount.ctx("plugin", "install", str(folder))
    home = mount.work / "ann"
    home.mkdir()
    (home / ".gitconfig").write_text("[user]\n\tname = Ann\n")
    for uid in (None, NOBODY) if os.geteuid() == 0 else (None,):
        seen = mount.call("look", "{}", uid=uid, env={"HOME": str(home), "USER": "ann", "STRAY": "1"}).output
        assert f" HOME={home} USER=ann PATH={mount.environ['PATH']} " in seen
        assert seen.endswith(" STRAY=- git=Ann\n")
    mount.ctx("plugin", "uninstall", "fixture", "--purge")


def test_what_a_plugin_is_outlives_the_mount_and_not_its_version(python: Path, tmp_path: Path) -> None:
    # design.md: "A plugin is asked for its tools once for each version"
    with mounted(python) as ctx:
        asked = ctx.work / "asked"
        asked.touch()
        asked.chmod(0o666)

        def version(says: str, number: str) -> Path:
            made = plugins.python(tmp_path / number, "counted", says, number)
            module = made / "lib/counted_plugin.py"
            module.write_text(f"{module.read_text()}\nopen({str(asked)!r}, 'a').write('{number} ')\n")
            return made

        ctx.ctx("plugin", "install", str(version("one", "1.0")))
        asked.write_text("")  # the trial and the mount have asked for its tools so far
        for _ in range(2):
            ctx.umount()
            ctx.mount()
            assert "counted" in tools(ctx)
        assert asked.read_text() == ""
        ctx.umount()
        ctx.ctx("plugin", "install", str(version("two", "1.1")))
        assert asked.read_text() == "1.1 "
        ctx.mount()
        assert asked.read_text() == "1.1 1.1 "
        assert said(ctx, "counted") == "two 0"
        # The kept description does not stand for the files: a changed file is refused all the same.
        ctx.umount()
        (ctx.state / "plugins/counted/lib/counted_plugin.py").write_text("plugin = []")
        ctx.mount()
        assert "counted" not in tools(ctx)
        assert "changed since it was installed" in broken(ctx)


def test_a_purged_plugin_leaves_nothing_in_the_tree(mount: Ctx, tmp_path: Path) -> None:
    # abi.md 11.28
    mount.ctx("plugin", "install", str(plugins.program(tmp_path, "purged")))
    (mount.state / "plugins/purged/manifest.toml").write_text("name = ")
    mount.ctx("plugin", "enable", "purged", check=False)
    assert said(mount, "purged") == "hello 0"
    assert "the former version, as the new one is refused" in origin(mount, "purged")
    mount.ctx("plugin", "uninstall", "purged", "--purge")
    assert "purged" not in tools(mount)
    assert broken(mount) == ""
    with pytest.raises(FileNotFoundError):
        mount.call("purged")


def test_of_changes_in_a_burst_the_last_counts(mount: Ctx, tmp_path: Path) -> None:
    # abi.md 11.28
    mount.ctx("plugin", "install", str(plugins.program(tmp_path, "burst")))
    for last in (False, True):
        for on in (not last, last) * 10:
            choose(mount.config, "burst", on)
            os.kill(mount.pid, signal.SIGHUP)
        until(lambda: tools(mount), lambda there: ("burst" in there) is last)  # noqa: B023
    # The state seen may be that of the change before the last, but the last change stays in force.
    until(lambda: mount.ctx("run", "burst", check=False).stdout, lambda heard: '"hello 0' in heard)
    mount.ctx("plugin", "uninstall", "burst", "--purge")


def test_a_daemon_elsewhere_is_given_what_it_looks_for(python: Path, tmp_path: Path) -> None:
    # The mount command names its directories, and no later command names them again.
    with mounted(python) as elsewhere:
        elsewhere.umount()
        named = {"CTX_STATE", "CTX_CONFIG"}
        plain = {name: value for name, value in elsewhere.environ.items() if name not in named}
        words = ["--state", str(elsewhere.state), "--config", str(elsewhere.config)]
        elsewhere.environ.clear()
        elsewhere.environ.update(plain)
        elsewhere.ctx("mount", str(elsewhere.root), *words)
        elsewhere.ctx("plugin", "install", str(plugins.program(tmp_path, "here")))
        assert said(elsewhere, "here") == "hello 0"
        assert (elsewhere.state / "plugins" / "here").is_dir()


def test_whoever_may_not_look_into_the_state_sees_what_is_loaded(mount: Ctx, tmp_path: Path) -> None:
    mount.ctx("plugin", "install", str(plugins.program(tmp_path, "seen")))
    listing = [str(mount.python), "-I", "-m", "cortexfs.cli.main", "plugin", "list", "--json"]
    (row,) = [row for row in json.loads(mount.run(listing, uid=NOBODY).stdout) if row["name"] == "seen"]
    assert (row["version"], row["status"], row["tools"], row["location"]) == ("1.0", "loaded", ["seen"], None)
    mount.ctx("plugin", "uninstall", "seen", "--purge")


def test_copies_that_nobody_needs_are_swept(mount: Ctx, tmp_path: Path) -> None:
    for says in ("one", "two"):
        mount.ctx("plugin", "install", str(plugins.program(tmp_path, "swept", says)))
        assert said(mount, "swept") == f"{says} 0"
    mount.ctx("plugin", "uninstall", "swept", "--purge")
    mount.ctx("plugin", "trust", "list")
    mount.ctx("plugin", "install", str(plugins.program(tmp_path, "other")))
    left = [path.name for path in mount.state.with_name("state-plugins").iterdir()]
    assert [name for name in left if name.startswith("other-")] == left
    mount.ctx("plugin", "uninstall", "other", "--purge")


@pytest.mark.parametrize("support", ["supported", "required_before_execute", "not_supported"])
def test_a_dry_run_comes_first_where_it_has_to(mount: Ctx, tmp_path: Path, support: str) -> None:
    # "dry_run: `supported` tools get `--dry-run`, `required_before_execute` is enforced"
    mount.ctx("plugin", "install", str(plugins.dry(tmp_path, "dry", support)))
    described = mount.run([mount.tool("dry"), "--help"]).stdout
    assert ("--dry-run" in described) == (support != "not_supported")
    dry = mount.call("dry", "--dry-run", "--text", "a")
    if support == "not_supported":
        assert dry.code == "EINVAL"
    else:
        assert dry.output == "would"
    if support == "required_before_execute":
        # policy.md: "the same caller has run it dry before, with the same input ... each dry run is good
        # for one call"
        assert mount.call("dry", "--text", "b").code == "EPERM"
        assert mount.call("dry", "--text", "a", uid=NOBODY).code == "EPERM"
        assert mount.call("dry", input=b'{"text":"a"}').output == "did"
        again = mount.call("dry", "--text", "a")
        assert (again.code, again.status) == ("EPERM", 13)
        assert "needs a dry run first: call it with the same input and --dry-run" in again.message
    else:
        assert mount.call("dry", "--text", "a").output == "did"
    mount.ctx("plugin", "uninstall", "dry", "--purge")


def test_versions_change_under_calls_that_never_stop(mount: Ctx, tmp_path: Path) -> None:
    # "enable/disable/replace/uninstall while calls run": each is of one version, or there is no such tool
    kinds = plugins.KINDS if "CTX_SOAK" in os.environ else {"process": plugins.KINDS["process"]}
    for kind, made in kinds.items():
        name = f"busy-{kind}"
        mount.ctx("plugin", "install", str(made(tmp_path, name)))
        command = [sys.executable, "-c", CALLING, mount.tool(name)]
        callers = [
            subprocess.Popen(command, stdout=subprocess.PIPE, text=True, user=uid, group=uid, cwd=mount.work)
            for uid in (0, NOBODY)
        ]
        try:
            for says in ("one", "two", "three"):
                folder = tmp_path / says
                mount.ctx("plugin", "install", str(made(folder, name, says)))
                assert said(mount, name) == f"{says} 0"
            mount.ctx("plugin", "disable", name)
            mount.ctx("plugin", "enable", name)
            assert said(mount, name) == "three 0"
        finally:
            for caller in callers:
                caller.terminate()
        for caller, uid in zip(callers, (0, NOBODY), strict=True):
            lines = caller.communicate(timeout=PATIENCE)[0].splitlines()
            allowed = {f"0 {says} {uid}" for says in ("hello", "one", "two", "three")}
            # The tool may be gone when it is opened, when its runner looks, or when the daemon looks.
            nowhere = ("No such file", "no CortexFS object is here", "gone from the mount")
            assert {line for line in lines if not any(said in line for said in nowhere)} <= allowed
            assert allowed & set(lines)
        mount.ctx("plugin", "uninstall", name, "--purge")


@pytest.mark.parametrize("kind", plugins.KINDS)
def test_an_agent_uses_plugins_where_it_is_confined(mount: Ctx, tmp_path: Path, kind: str) -> None:
    # The agent's hosts see none of the daemon's files, except the plugin that they run.
    name = f"tool-{kind}"
    mount.ctx("plugin", "install", str(plugins.KINDS[kind](tmp_path, name)))
    # In other modes, a person is asked about every call of a plugin.
    (mount.config / "policy.toml").write_text('mode = "open"\n')
    with agent(mount, "user", name, "shell.exec") as path:
        answer = run(mount, path, script([call(name)], say("done")), uid=NOBODY)
        assert results(answer.frames)[0]["output"] == f"hello {NOBODY}", answer
        # The agent may not change the copies that other users run.
        steal = f"ls {mount.state}-plugins; echo x > {mount.state}-plugins/x"
        task = script([call("shell.exec", cmd=steal)], say("done"))
        answer = run(mount, path, task, cwd=mount.base)
        assert f"{name}-" in results(answer.frames)[0]["output"], answer
        assert "ead-only file system" in results(answer.frames)[0]["output"], answer
    (mount.config / "policy.toml").unlink()
    mount.ctx("plugin", "uninstall", name, "--purge")


def test_a_users_own_daemon_has_plugins_too(home: Path, python: Path, tmp_path: Path) -> None:
    source = home.parent / "plugin"
    for made in plugins.KINDS.values():
        made(source, f"own-{made.__name__}")
    done = as_user(
        home,
        python,
        f"""
        user: $CTX mount ctx
        user: $CTX plugin install {source}/own-program
        user: ctx/tool/own-program
        user: $CTX plugin install {source}/own-native
        user: ctx/tool/own-native
        user: $CTX plugin install {source}/own-python
        user: ctx/tool/own-python
        other: ls .local/state/cortexfs
        user: $CTX umount ctx
        """,
    )
    exits = [int(part.split()[0]) for part in done.stdout.split("-> ")[1:]]
    assert exits == [0, 0, 0, 0, 0, 0, 0, 2, 0], done.stdout
    assert done.stdout.count(f"hello {USER}") == 3
