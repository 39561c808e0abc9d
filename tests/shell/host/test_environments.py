"""The part of its caller's environment that each kind of plugin gets (abi.md 4.36)."""

from __future__ import annotations

import contextlib
import os
import pwd
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import msgspec
import pytest

from cortexfs.core import hostcalls, wire
from cortexfs.core.registry import Object
from cortexfs.host.process import children
from cortexfs.pool.tool_call import ToolCalls
from tests.places import PROJECT
from tests.shell import declaring, esmodules
from tests.shell.calling import World, serving
from tests.shell.declaring import program, python
from tests.waiting import awaited

PATH = "PATH=/usr/bin:/bin"
RUN = 'const ran = await new Deno.Command("sh", {args: ["-c", args.text]}).output();'
RUNS = f"{RUN} return new TextDecoder().decode(ran.stdout)"
LOOK = 'try { return Deno.env.get("HOME") } catch (e) { return e.name }'
SAYS = "import json, os, sys\n"


@pytest.fixture(scope="session")
def library() -> Iterator[hostcalls.Plugin]:
    place = Path(tempfile.mkdtemp(prefix="cortexfs-native-"))
    place.chmod(0o755)
    yield declaring.library(declaring.build(place, declaring.NATIVE / "environment.c", "-Wall", "-Wextra"))
    shutil.rmtree(place)


def home(place: Path, name: str) -> str:
    """Create a home directory in which git knows its user, and return the variable HOME."""
    (place / name).mkdir()
    (place / name / ".gitconfig").write_text(f"[user]\n\tname = {name.title()}\n")
    return f"HOME={place / name}"


def environment_of(pid: int) -> set[str]:
    """Returns the names of the variables that a process started with."""
    said = Path(f"/proc/{pid}/environ").read_text()
    return {each.partition("=")[0] for each in said.split("\0")}


def is_gone(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


async def looked(world: World, plugin: hostcalls.Plugin, *environ: str) -> str:
    answer = await world.call(world.inode("look", plugin), "{}", environ=environ)
    assert answer.status == 0, answer
    return answer.output


async def test_a_library_reads_the_variables_of_its_caller(tmp_path: Path, library: hostcalls.Plugin) -> None:
    # getenv(3), and a program that looks into the home directory of its user
    mine = home(tmp_path, "ann")
    async with serving(tmp_path) as world:
        said = await looked(
            world, library, mine, PATH, "USER=ann", "LANG=C.UTF-8", "LC_TIME=de_DE", "STRAY=1"
        )
    assert said == f"1 {mine} USER=ann {PATH} LANG=C.UTF-8 LC_TIME=de_DE STRAY=- git=Ann\n"


async def test_a_library_never_reads_the_variables_of_another_call(
    tmp_path: Path, library: hostcalls.Plugin
) -> None:
    # docs/plugins.md: "Each user and set of variables has one state"
    ann, ben = home(tmp_path, "ann"), home(tmp_path, "ben")
    async with serving(tmp_path) as world:
        said = [await looked(world, library, PATH, each) for each in (ann, ben, ann, ben)]
        hosts = len(world.pool)
    assert hosts == 2
    assert [(text.split()[0], text.split("git=")[1]) for text in said] == [
        ("1", "Ann\n"), ("1", "Ben\n"), ("2", "Ann\n"), ("2", "Ben\n")
    ]  # fmt: skip
    assert all("LANG=- " in text and "USER=- " in text for text in said)  # nor its host's


async def test_of_a_call_of_an_agents_it_reads_the_agents(tmp_path: Path, library: hostcalls.Plugin) -> None:
    who = hostcalls.Identity(os.getuid(), os.getgid(), tuple(sorted(os.getgroups())))
    asked = hostcalls.CallRequest(
        "r", hostcalls.Invocation("look"), None, b"{}", 0o22, {b"LANG": b"C.UTF-8", b"PATH": b"/usr/bin"}, "/"
    )
    async with serving(tmp_path) as world:
        tool = Object(class_="tool", name="look", description="", plugin=library)

        async def say(frame: object) -> None:
            pass

        outcome = await ToolCalls(world.pool, 60).call(tool, who, asked, say)
    assert outcome.output.startswith("1 HOME=- USER=- PATH=/usr/bin LANG=C.UTF-8 ")


async def test_a_program_has_what_it_inherits(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    mine = home(tmp_path, "ann")
    command = declaring.script(
        tmp_path / "bin", 'printf \'"%s %s"\' "$(git config --global user.name)" "$STRAY"'
    )
    plugin = declaring.plugin([program(command, name="look", inherited=("PATH", "HOME"))])
    async with serving(tmp_path) as world:
        assert await looked(world, plugin, mine, PATH, "STRAY=1") == "Ann "


async def test_a_warm_program_has_what_it_inherits(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    text = f"{SAYS}call = json.loads(sys.stdin.readline())\n"
    text += "print(json.dumps({'id': call['id'], 'output': json.dumps(dict(os.environ))}), flush=True)"
    tool = program(python(tmp_path / "bin", text), name="look", inherited=("HOME", "LC_ALL"))
    async with serving(tmp_path) as world:
        said = await looked(world, declaring.plugin([tool], "jsonl"), "HOME=/h", PATH, "LC_ALL=C", "STRAY=1")
    assert {"HOME": "/h", "LC_ALL": "C"}.items() <= msgspec.json.decode(said).items()
    assert not {"PATH", "STRAY"} & msgspec.json.decode(said).keys()


async def test_a_warm_program_never_has_the_variables_of_another_call(tmp_path: Path) -> None:
    # abi.md 11.10: "Calls with other inherited variables have a program of their own, 4 at most"
    (tmp_path / "bin").mkdir()
    text = f"{SAYS}for line in sys.stdin:\n    call = json.loads(line)\n"
    text += "    said = [os.environ['HOME'], os.getpid()]\n"
    text += "    print(json.dumps({'id': call['id'], 'output': json.dumps(said)}), flush=True)"
    tool = program(python(tmp_path / "bin", text), name="look", inherited=("HOME", "CORTEXFS_CWD"))
    plugin = declaring.plugin([tool], "jsonl")
    async with serving(tmp_path) as world:

        async def called(home: str, where: Path = tmp_path) -> int:
            with contextlib.chdir(where):
                said, pid = msgspec.json.decode(await looked(world, plugin, f"HOME={home}", "TZ=UTC"))
            assert said == home
            return int(pid)

        pids = [await called(home) for home in ("/1", "/2", "/3", "/4")]
        assert len(set(pids)) == 4
        assert [await called(home) for home in ("/1", "/2", "/3", "/4")] == pids
        assert await called("/1", tmp_path / "bin") == pids[0]  # a new directory needs no other one
        await called("/5")
        await awaited(partial(is_gone, pids[0]))
        assert await called("/1") not in pids


async def test_python_has_them_in_its_runtime(tmp_path: Path) -> None:
    (tmp_path / "environment_tool.py").write_text(
        "from cortexfs.sdk import ToolRuntime, tool\n"
        "import json, os\n"
        '@tool(name="look")\n'
        "def look(runtime: ToolRuntime) -> str:\n"
        '    """Look."""\n'
        '    return json.dumps([dict(runtime.environ), os.environ.get("HOME")])\n'
    )
    plugin = hostcalls.Plugin("p", "1", "python", "environment_tool:look", str(tmp_path))
    async with serving(tmp_path) as world:
        said = [
            msgspec.json.decode(await looked(world, plugin, f"HOME={where}", "TZ=UTC", "STRAY=1"))
            for where in ("/one", "/two")
        ]
        assert len(world.pool) == 1
    assert said == [[{"HOME": where, "TZ": "UTC"}, None] for where in ("/one", "/two")]


async def test_programs_of_a_module_have_them_and_the_module_has_none(tmp_path: Path) -> None:
    mine = home(tmp_path, "ann")
    text = esmodules.source({"look": RUNS, "home": LOOK})
    async with serving(tmp_path) as world:
        plugin = esmodules.plugin(tmp_path / "p", text, capabilities=("tools", "shell:run"))
        asked = msgspec.json.encode({"text": "git config --global user.name; env"}).decode()
        environ = (mine, PATH, "USER=ann", "STRAY=1")
        answer = await world.call(world.inode("look", plugin), asked, environ=environ)
        assert answer.status == 0, answer
        assert answer.output.splitlines()[0] == "Ann"
        assert {mine, PATH, "USER=ann"} <= set(answer.output.splitlines())
        assert "STRAY" not in answer.output
        seen = await world.call(world.inode("home", plugin), '{"text":""}', environ=environ)
        assert seen.output in ("NotCapable", "PermissionDenied")


async def test_without_the_right_to_run_programs_there_is_nothing(tmp_path: Path) -> None:
    async with serving(tmp_path) as world:
        plugin = esmodules.plugin(tmp_path / "p", esmodules.source({"look": "return 'here'"}))
        answer = await world.call(world.inode("look", plugin), '{"text":""}', environ=("HOME=/h", PATH))
        assert answer.output == "here"
        (deno,) = esmodules.deno(world)
        assert "HOME" not in environment_of(deno)


def test_who_has_no_caller_has_what_the_system_knows() -> None:
    user = pwd.getpwuid(os.geteuid())
    own = {"HOME": user.pw_dir, "USER": user.pw_name, "LOGNAME": user.pw_name}
    assert children.variables_of_user() == own


def test_the_runner_sends_what_the_daemon_takes() -> None:
    source = PROJECT / "runner" / "outgoing.c"
    (table,) = re.findall(r"ALLOWED\[\] = \{(.*?)\};", source.read_text(), re.DOTALL)
    sent = set(re.findall(r'"(\w+)"', table))
    assert sent == {name.decode() for name in wire.ENVIRONMENT} | {"LC_"}
    assert not any(map(wire.is_passed_on, (b"KEEP_ME", b"LD_PRELOAD", b"LC", b"")))


assert sys.platform == "linux"
