"""The built-in tools as a set: their descriptions, and their working directories when they run.

`call` and `standing` serve the other test_tools files: a call as a host makes it, with memory in the
place of the daemon.
"""

from __future__ import annotations

import ctypes
import errno
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import pytest

from cortexfs.sdk import MemoryRuntime, Tool, ToolEffectKind, ToolError, descriptor, run, tools_of
from cortexfs.tools import plugin
from tests.places import PROJECT

T = TypeVar("T")
CLONE_FS = 0x200
TOOLS: dict[str, Tool] = {tool.name: tool for tool in plugin}

EFFECTS = {
    "fs.read": [ToolEffectKind.READ_FILE],
    "fs.list": [ToolEffectKind.READ_FILE],
    "fs.stat": [ToolEffectKind.READ_FILE],
    "fs.glob": [ToolEffectKind.READ_FILE],
    "fs.search": [ToolEffectKind.READ_FILE],
    "fs.write": [ToolEffectKind.WRITE_FILE],
    "fs.replace": [ToolEffectKind.READ_FILE, ToolEffectKind.WRITE_FILE],
    "shell.exec": [ToolEffectKind.RUN_PROCESS],
    "agent.run": [ToolEffectKind.DELEGATE_WORK],
    "text.word_count": [],
}


class Ran(NamedTuple):
    text: str  # all output of a successful call
    code: str = ""  # the code of a failure as the host would send it; soft errors are EIO
    message: str = ""


def call(name: str, runtime: MemoryRuntime | None = None, /, **input: Any) -> Ran:
    runtime = runtime or MemoryRuntime(name, {"PATH": os.defpath})
    try:
        result = run(TOOLS[name], input, runtime)
    except ToolError as error:
        return Ran(runtime.text, error.code, str(error))
    except OSError as error:
        return Ran(runtime.text, errno.errorcode[error.errno or 0], str(error))
    if result.is_error:
        return Ran(runtime.text, "EIO", result.output)
    return Ran(runtime.text + result.output)


def standing(directory: Path, function: Callable[[], T], umask: int = 0o022) -> T:
    """Run `function` as a host does: in a thread with a working directory and umask of its own."""
    results: list[T] = []

    def work() -> None:
        assert not ctypes.CDLL(None).unshare(CLONE_FS)
        os.chdir(directory)
        os.umask(umask)
        results.append(function())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    return results[0]


def as_nobody(directory: Path, function: Callable[[], str]) -> str:
    """Run `function` in `directory`, in a child that has become uid 65534, and return its result."""
    source, sink = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            os.chdir(directory)  # first, as other users may not be able to get there
            os.setgroups([])
            os.setresgid(65534, 65534, 65534)
            os.setresuid(65534, 65534, 65534)
            os.write(sink, function().encode())
        finally:
            os._exit(0)
    os.close(sink)
    with open(source) as file:
        text = file.read()
    os.waitpid(pid, 0)
    return text


def test_all_are_there_with_their_true_effects() -> None:
    # abi.md 7.5
    found = {tool.name: [effect.kind for effect in tool.capabilities.effects] for tool in tools_of(plugin)[1]}
    assert found == EFFECTS


@pytest.mark.parametrize("tool", plugin, ids=lambda tool: tool.name)
def test_a_description_says_what_when_and_when_not(tool: Tool) -> None:
    # abi.md 10.1
    paragraphs = tool.description.split("\n")
    assert len(paragraphs) > 1
    assert any(line.startswith("Use it") for line in paragraphs)
    assert any(
        words in tool.description
        for words in ("Do not use it", "Prefer fs.", "use fs.write", "use fs.replace")
    )


@pytest.mark.parametrize("tool", plugin, ids=lambda tool: tool.name)
def test_every_property_is_described_and_unknown_ones_are_refused(tool: Tool) -> None:
    schema = descriptor(tool)["input_schema"]
    assert all(each["description"] for each in schema["properties"].values())
    assert schema["additionalProperties"] is False


@pytest.mark.parametrize(
    ("name", "required"),
    [
        ("fs.read", ["path"]),
        ("fs.list", []),
        ("fs.stat", ["path"]),
        ("fs.glob", ["pattern"]),
        ("fs.search", ["pattern"]),
        ("fs.write", ["path", "content"]),
        ("fs.replace", ["path"]),
        ("shell.exec", ["cmd"]),
        ("text.word_count", ["text"]),
    ],
)
def test_bare_words_fill_what_a_user_would_expect(name: str, required: list[str]) -> None:
    # abi.md 4.9
    assert TOOLS[name].input_schema.get("required", []) == required


def test_nothing_is_imported_after_the_tools_are(tmp_path: Path) -> None:
    # a host may later be in a container without the modules
    script = """
import sys
from cortexfs.sdk import MemoryRuntime, run
from cortexfs.tools import plugin
before = set(sys.modules)
inputs = {
    "fs.read": {"path": "/proc/version"}, "fs.list": {}, "fs.stat": {"path": "."},
    "fs.glob": {"pattern": "*"},
    "fs.search": {"pattern": "x"}, "fs.write": {"path": "a", "content": "x\\n"},
    "fs.replace": {"path": "a", "old": "x", "new": "y"}, "shell.exec": {"cmd": ":", "stdin": ""},
    "text.word_count": {"text": "a"},
}
for tool in plugin:
    if tool.name == "agent.run":
        continue  # it needs a mount
    assert not run(tool, inputs[tool.name], MemoryRuntime(tool.name)).is_error
late = set(sys.modules) - before - {"encodings.unicode_escape"}
assert not late, late
"""
    environment = {"PYTHONPATH": str(PROJECT), "PATH": os.defpath}
    subprocess.run([sys.executable, "-c", script], cwd=tmp_path, env=environment, check=True)


def test_two_calls_stand_in_two_places_at_once(tmp_path: Path) -> None:
    # abi.md 4.35
    barrier = threading.Barrier(2)
    before = os.getcwd()

    def one(name: str, umask: int) -> None:
        place = tmp_path / name
        place.mkdir()

        def use() -> None:
            barrier.wait()
            assert call("fs.write", path="here", content=name).text == f"created here: {len(name)} bytes\n"
            assert call("shell.exec", cmd="cat here; umask; pwd").text == f"{name}{umask:04o}\n{place}\n"
            assert call("fs.list").text == f"f\t{len(name)}\there\n"
            assert call("fs.glob", pattern="*").text == "here\n"
            assert call("fs.search", pattern=name).text == f"here:1:{name}\n"

        standing(place, use, umask)
        assert (place / "here").stat().st_mode & 0o777 == 0o666 & ~umask

    threads = [threading.Thread(target=one, args=each) for each in (("left", 0o022), ("rightly", 0o077))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert os.getcwd() == before


@pytest.mark.parametrize("path", ["", "a\0b"])
@pytest.mark.parametrize("name", ["fs.read", "fs.list", "fs.stat", "fs.write", "fs.replace"])
def test_a_path_that_cannot_be_is_the_callers_fault(name: str, path: str) -> None:
    # abi.md 4.29
    more = {"fs.write": {"content": ""}, "fs.replace": {"old": "a", "new": "b"}}.get(name, {})
    assert call(name, path=path, **more).code == "EINVAL"


def test_words_are_counted() -> None:
    # abi.md 10.3
    assert call("text.word_count", text="  one two\nthree ").text == "3 words"
    assert call("text.word_count", text="").text == "0 words"
