"""host/call/bugs.py: abi.md 4.62, the place in a plugin's files where its bug is."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from cortexfs.core import hostcalls
from cortexfs.host.call import bugs
from cortexfs.plugins.catalog import Catalog
from tests.shell.calling import serving
from tests.shell.forks import public_directory
from tests.waiting import awaited

PLUGIN = """
import os
from cortexfs import sdk
import helping

@sdk.tool(name="buggy")
def buggy() -> str:
    "Has a bug."
    return helping.help()

@sdk.tool(name="refuses")
def refuses() -> str:
    "Says so."
    raise sdk.ExecutionFailed("not today")

@sdk.tool(name="dies")
def dies(word: str) -> str:
    "Ends its process."
    print(word, end="", flush=True)
    os._exit(3)

tools = [buggy, refuses, dies]
"""
HELPING = """
import json

def help():
    return json.loads("{")
"""


@pytest.fixture
def place() -> Iterator[Path]:
    with public_directory() as made:
        (made / "lib").mkdir()
        (made / "lib" / "buggy_plugin.py").write_text(PLUGIN)
        (made / "lib" / "helping.py").write_text(HELPING)
        yield made / "lib"


def python(place: Path) -> hostcalls.Plugin:
    return hostcalls.Plugin("buggy", "1.0", "python", "buggy_plugin:tools", str(place))


async def test_a_bug_is_told_with_its_place(
    tmp_path: Path, place: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "cortexfs")
    async with serving(tmp_path) as world:
        answer = await world.call(world.inode("buggy", python(place)), "{}")
        assert answer.code == "EPROTO"
        assert answer.message.startswith("the tool failed: JSONDecodeError: ")
        assert answer.message.endswith(" (helping.py, line 5)")
        await awaited(lambda: "host output: buggy: Traceback (most recent call last)" in caplog.text)
        assert "cortexfs/host" not in caplog.text
        answer = await world.call(world.inode("refuses", python(place)), "{}")
        assert answer.message == "not today"


@pytest.mark.parametrize(("word", "told"), [("", ""), ("no luck", "; it printed last: no luck")])
async def test_it_is_no_last_word_of_another_call(word: str, told: str, tmp_path: Path, place: Path) -> None:
    async with serving(tmp_path) as world:
        plugin = python(place)
        await world.call(world.inode("buggy", plugin), "{}")
        answer = await world.call(world.inode("dies", plugin), f"word={word}")
    assert answer.message == f"the tool's process exited with status 3 during the call{told}"


async def test_so_is_what_keeps_it_from_loading(tmp_path: Path, place: Path) -> None:
    (place / "helping.py").write_text("import a_module_that_is_missing")
    async with serving(tmp_path) as world:
        catalog = Catalog(world.pool)
        await catalog.registry([python(place)])
    missing = "No module named 'a_module_that_is_missing'"
    why = f"the plugin buggy does not load: ModuleNotFoundError: {missing} (helping.py, line 1)"
    why += "; put its package beside the plugin's modules: pip install --target lib PACKAGE"
    assert catalog.broken == {"buggy": why}


async def test_a_module_of_its_own_that_is_missing_is_in_no_package(tmp_path: Path, place: Path) -> None:
    (place / "helping.py").unlink()
    async with serving(tmp_path) as world:
        catalog = Catalog(world.pool)
        await catalog.registry([replace(python(place), target="away:tools")])
    why = "the plugin buggy does not load: ModuleNotFoundError: No module named 'away'"
    assert catalog.broken == {"buggy": why}


async def test_a_module_of_pythons_that_has_its_name_is_told(tmp_path: Path, place: Path) -> None:
    # docs/plugins.md: "so its name must differ from theirs"
    (place / "json.py").write_text("tools = []")
    async with serving(tmp_path) as world:
        catalog = Catalog(world.pool)
        await catalog.registry([hostcalls.Plugin("buggy", "1.0", "python", "json:tools", str(place))])
    assert catalog.broken["buggy"] == (
        f"the plugin buggy does not load: ImportError: the module json is {json.__file__}; give the plugin's"
        " module another name"
    )


class _Unspeakable(Exception):
    def __str__(self) -> str:
        raise ValueError


def raised(plugin: hostcalls.Plugin, source: str, path: Path) -> str:
    try:
        exec(compile(source, path, "exec"), {"_Unspeakable": _Unspeakable})
    except BaseException as error:
        return bugs.log_bug(plugin, error)
    raise AssertionError


def test_a_package_is_named_with_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "noted").mkdir()
    (tmp_path / "noted" / "__init__.py").touch()
    (tmp_path / "alone.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    for target, file in (("noted.plugin:tools", "noted/plugin.py"), ("alone:tools", "alone.py")):
        plugin = hostcalls.Plugin("noted", "1.0", "python", target)
        assert raised(plugin, "\n\n1 / 0", tmp_path / file) == f" ({file}, line 3)"
        assert raised(plugin, "1 / 0", tmp_path / "elsewhere.py") == ""
    assert "noted" not in sys.modules


def test_an_exception_may_be_of_any_kind(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plugin = hostcalls.Plugin("noted", "1.0", "python", "alone:tools", str(tmp_path))
    assert raised(plugin, "raise _Unspeakable", tmp_path / "alone.py") == " (alone.py, line 1)"
    assert raised(plugin, "raise SystemExit(3)", tmp_path / "alone.py") == " (alone.py, line 1)"
    assert "exception str() failed" in capsys.readouterr().err
    for other in ("none_such:tools", "cortexfs.tools:plugin"):
        named = hostcalls.Plugin("noted", "1.0", "python", other)
        assert raised(named, "1 / 0", tmp_path / "alone.py") == ""
