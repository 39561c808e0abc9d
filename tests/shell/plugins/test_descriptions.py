"""Descriptions of plugins, kept between daemons: used as long as nothing has changed."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from cortexfs.core import hostcalls
from cortexfs.core.registry import Registry
from cortexfs.plugins import description_cache
from cortexfs.plugins.catalog import Catalog
from cortexfs.plugins.description_cache import FOLDER, MAX_FILE, Descriptions
from cortexfs.pool.host import Host
from tests.shell import declaring, esmodules
from tests.shell.calling import serving
from tests.shell.forks import public_directory

MODULE = """
from cortexfs import sdk

@sdk.tool(name="kept.hello")
def hello() -> str:
    "Says hello."
    return "hello"
"""
SAID = (
    b'[{"name":"planted","description":"d","input_schema":{"type":"object"},"timeout_secs":null,'
    b'"capabilities":{"emits_progress":false,"emits_observer_text":false,"background_safe":false}}]'
)
Spoil = Callable[[Path], object]


@pytest.fixture
def place() -> Iterator[Path]:
    with public_directory() as made:
        (made / "code").mkdir()
        yield made / "code"


def python(place: Path, files: str = "f1") -> hostcalls.Plugin:
    (place / "kept_plugin.py").write_text(MODULE)
    return hostcalls.Plugin("kept", "1.0", "python", "kept_plugin:hello", str(place), files=files)


def native(place: Path) -> hostcalls.Plugin:
    path = declaring.build(place, declaring.NATIVE / "fixture.c")
    return replace(declaring.library(path, "kept"), files="f1")


def javascript(place: Path) -> hostcalls.Plugin:
    plugin = esmodules.plugin(place, esmodules.source({"hello": "return 'hello'"}), "kept")
    return replace(plugin, files="f1")


MAKERS = {"python": python, "native": native, "JavaScript": javascript}


async def told(state: Path, *plugins: hostcalls.Plugin) -> tuple[Registry, dict[str, str]]:
    """Returns the catalog of a new daemon: the registry and the broken plugins."""
    (state / "s").unlink(missing_ok=True)  # the socket of the last daemon
    async with serving(state) as world:
        catalog = Catalog(world.pool, Descriptions(state))
        return await catalog.registry(plugins), catalog.broken


def names(registry: Registry) -> set[str]:
    return {key[1] for key, each in registry.objects.items() if each.plugin and each.plugin.name == "kept"}


# -- a kept description is used


@pytest.mark.parametrize("kind", MAKERS)
async def test_a_daemon_does_not_ask_what_the_last_one_knew(kind: str, tmp_path: Path, place: Path) -> None:
    plugin = MAKERS[kind](place)
    first, _ = await told(tmp_path, plugin)
    assert names(first)
    shutil.rmtree(place)  # the plugin cannot be asked any more
    again, broken = await told(tmp_path, plugin)
    assert (names(again), broken) == (names(first), {})
    for key in ((class_, name) for class_, name in first.objects if name in names(first)):
        mine, its = again.objects[key], first.objects[key]
        assert (mine.schema, mine.capabilities, mine.timeout) == (its.schema, its.capabilities, its.timeout)


async def test_the_built_in_tools_are_asked_once(tmp_path: Path) -> None:
    first, _ = await told(tmp_path)
    (tmp_path / "s").unlink()
    async with serving(tmp_path) as world:
        begun: list[Host] = []
        world.pool.started = begun.append
        again = await Catalog(world.pool, Descriptions(tmp_path)).registry(())
    assert (begun, again.objects.keys()) == ([], first.objects.keys())


async def test_one_that_fails_is_asked_by_each_daemon(tmp_path: Path, place: Path) -> None:
    plugin = python(place)
    (place / "kept_plugin.py").write_text("raise SystemExit(3)")
    assert (await told(tmp_path, plugin))[1].keys() == {"kept"}
    python(place)
    shutil.rmtree(place / "__pycache__", ignore_errors=True)
    registry, broken = await told(tmp_path, plugin)
    assert (names(registry), broken) == ({"kept.hello"}, {})


async def test_one_that_fails_is_asked_once_by_a_daemon(tmp_path: Path, place: Path) -> None:
    # abi.md 11.42
    plugin, unmarked = python(place), replace(python(place), name="unmarked", files="")
    (place / "kept_plugin.py").write_text("raise SystemExit(3)")
    async with serving(tmp_path) as world:
        begun: list[str] = []
        world.pool.started = lambda host: begun.append(host.plugin.name)
        catalog = Catalog(world.pool, Descriptions(tmp_path))
        for _ in range(2):
            await catalog.registry([plugin, unmarked])
            assert catalog.broken["kept"].startswith("the plugin kept does not load: SystemExit: 3")
        assert (begun.count("kept"), begun.count("unmarked")) == (1, 2)
        python(place)
        registry = await catalog.registry([replace(plugin, files="f2")])
    assert (names(registry), catalog.broken) == ({"kept.hello"}, {})


async def test_one_that_failed_is_asked_again_when_packages_have_changed(
    tmp_path: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plugin = python(place)  # abi.md 11.42
    (place / "kept_plugin.py").write_text("import a_package_that_is_missing")
    async with serving(tmp_path) as world:
        catalog = Catalog(world.pool, Descriptions(tmp_path))
        await catalog.registry([plugin])
        assert "a_package_that_is_missing" in catalog.broken["kept"]
        python(place)
        monkeypatch.setattr("cortexfs.plugins.description_cache.every_mark", lambda: "another")
        registry = await catalog.registry([plugin])
    assert (names(registry), catalog.broken) == ({"kept.hello"}, {})


# -- a changed or odd description is asked for anew


def _encoded(asked: str, said: bytes) -> bytes:
    return msgspec.json.encode({"asked": asked, "said": msgspec.Raw(said)})


def _written(data: bytes, mode: int = 0o600) -> Spoil:
    def spoil(path: Path) -> None:
        path.write_bytes(data)
        path.chmod(mode)

    return spoil


def _said(said: bytes) -> Spoil:
    """Returns a function that plants this description under the right key."""

    def spoil(path: Path) -> None:
        path.write_bytes(_encoded(msgspec.json.decode(path.read_bytes())["asked"], said))

    return spoil


def _link(path: Path) -> None:
    other = path.with_name("elsewhere")
    path.rename(other)
    path.symlink_to(other)


def _fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path, 0o600)


def _folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _grown(path: Path) -> None:
    with path.open("ab") as file:
        file.truncate(MAX_FILE + 1)


SPOILT: dict[str, Spoil] = {
    "empty": _written(b""),
    "torn": lambda path: os.truncate(path, path.stat().st_size - 3),
    "garbage": _written(b"\xff\x00" * 100),
    "nested without end": _written(b'{"asked":"","said":' + b"[" * 100_000),
    "of another version": _written(_encoded("0" * 64, SAID)),
    "a list of nothing known": _said(b'[{"nam":"planted"}]'),
    "no list": _said(b'"planted"'),
    "no tool's name": _said(SAID.replace(b"planted", b"../planted")),
    "with invalid UTF-8": _said(SAID.replace(b"planted", b"plant\xff")),
    "with a timeout that no tool has": _said(SAID.replace(b'secs":null', b'secs":-1')),
    "that others may write": lambda path: path.chmod(0o622),
    "that others may read": lambda path: path.chmod(0o644),
    "a link": _link,
    "a fifo": _fifo,
    "a directory": _folder,
    "larger than any": _grown,
}


@pytest.mark.parametrize("spoilt", SPOILT)
async def test_a_file_that_is_odd_is_as_if_there_were_none(spoilt: str, tmp_path: Path, place: Path) -> None:
    plugin = python(place)
    await told(tmp_path, plugin)
    SPOILT[spoilt](tmp_path / FOLDER / "kept")
    registry, broken = await told(tmp_path, plugin)
    assert (names(registry), broken) == ({"kept.hello"}, {})
    shutil.rmtree(place)  # the plugin was asked: the next daemon has it anew, unless it cannot be saved
    registry, _ = await told(tmp_path, plugin)
    assert names(registry) == ({"kept.hello"} if spoilt != "a directory" else set())


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a file away")
async def test_a_file_of_somebody_else_counts_for_nothing(tmp_path: Path, place: Path) -> None:
    plugin = python(place)
    await told(tmp_path, plugin)
    kept = tmp_path / FOLDER / "kept"
    _said(SAID)(kept)
    os.chown(kept, 12345, 12345)
    assert names((await told(tmp_path, plugin))[0]) == {"kept.hello"}


@pytest.mark.parametrize(
    "change",
    [
        {"files": "f2"},
        {"version": "1.1"},
        {"target": "kept_plugin:plugin"},
        {"sandbox": hostcalls.Sandbox(network=False)},
        {"keeps": "/somewhere"},
    ],
)
def test_what_a_host_is_told_is_in_the_key(change: dict[str, str], tmp_path: Path) -> None:
    # "never trusted over a changed file"
    kept, plugin = Descriptions(tmp_path), python(tmp_path)
    kept.put("kept", kept.key(plugin), SAID)
    assert kept.get("kept", kept.key(plugin)) == SAID
    assert kept.get("kept", kept.key(replace(plugin, **change))) is None


@pytest.mark.parametrize("around", ["VERSION", "sys.version", "platform.machine", "os.geteuid", "every_mark"])
def test_so_is_what_it_runs_in(around: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept, plugin = Descriptions(tmp_path), python(tmp_path)
    kept.put("kept", kept.key(plugin), SAID)
    another = "another" if around in ("VERSION", "sys.version") else lambda: "another"
    monkeypatch.setattr(f"cortexfs.plugins.description_cache.{around}", another)
    other = Descriptions(tmp_path)
    assert other.get("kept", other.key(plugin)) is None
    kept.put("late", kept.key(plugin), SAID)  # as if the packages changed while the plugin was asked
    assert not (tmp_path / FOLDER / "late").exists()
    kept.renew()
    kept.put("late", kept.key(plugin), SAID)
    assert (tmp_path / FOLDER / "late").exists()


# -- the place of the descriptions


def test_only_the_daemons_user_may_look(tmp_path: Path) -> None:
    kept, plugin = Descriptions(tmp_path), python(tmp_path)
    before = os.umask(0)
    try:
        kept.put("kept", kept.key(plugin), SAID)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / FOLDER).stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / FOLDER / "kept").stat().st_mode) == 0o600


def test_nothing_is_written_through_a_link_that_lies_there(tmp_path: Path) -> None:
    kept, plugin = Descriptions(tmp_path), python(tmp_path)
    (tmp_path / FOLDER).mkdir()
    (tmp_path / "precious").write_text("precious")
    for name in (".kept", "kept"):
        (tmp_path / FOLDER / name).symlink_to(tmp_path / "precious")
    kept.put("kept", kept.key(plugin), SAID)
    assert (tmp_path / "precious").read_text() == "precious"
    assert kept.get("kept", kept.key(plugin)) == SAID


def test_what_is_too_large_is_not_kept_and_a_full_disk_is_in_nobodys_way(tmp_path: Path) -> None:
    kept, plugin = Descriptions(tmp_path), python(tmp_path)
    kept.put("kept", kept.key(plugin), b'"' + b"x" * MAX_FILE + b'"')
    assert not (tmp_path / FOLDER).exists()
    (tmp_path / FOLDER).write_text("in the way")
    kept.put("kept", kept.key(plugin), SAID)
    kept.sweep(())
    assert kept.get("kept", kept.key(plugin)) is None


async def test_of_what_is_gone_nothing_is_kept(tmp_path: Path, place: Path) -> None:
    await told(tmp_path, python(place))
    (tmp_path / FOLDER / "a folder").mkdir()
    (tmp_path / FOLDER / ".kept").write_text("a draft of who was killed")
    await told(tmp_path)
    assert {each.name for each in (tmp_path / FOLDER).iterdir()} == {"a folder", "builtin"}


def test_programs_servers_and_what_nobody_has_looked_at_are_not_kept(tmp_path: Path) -> None:
    kept, plugin = Descriptions(tmp_path), python(tmp_path)
    assert [kept.key(replace(plugin, kind=kind)) for kind in ("process", "mcp-server", "mcp")] == [""] * 3
    assert kept.key(replace(plugin, files="")) == ""


# -- plugins of installed packages


def package(site: Path, *, record: bool = True) -> None:
    info = site / "some_notes-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: some-notes\nVersion: 1.0\n")
    (site / "some_notes").mkdir()
    (site / "some_notes" / "plugin.py").write_text(MODULE)
    if record:
        files = (
            "some_notes/plugin.py",
            "some_notes-1.0.dist-info/METADATA",
            "some_notes-1.0.dist-info/RECORD",
        )
        (info / "RECORD").write_text("".join(f"{file},,\n" for file in files))


def mark(site: Path, module: str = "some_notes.plugin") -> str:
    return description_cache.mark("some-notes", str(site), module)


def test_the_files_of_a_package_mark_it(tmp_path: Path) -> None:
    package(tmp_path)
    before = mark(tmp_path)
    assert before
    assert before == mark(tmp_path)
    (tmp_path / "some_notes" / "plugin.py").write_text(MODULE.replace("hello", "holla"))  # of the same length
    assert mark(tmp_path) not in ("", before)


def test_a_package_whose_files_nobody_can_name_has_no_mark(tmp_path: Path) -> None:
    spoilt: dict[str, Spoil] = {
        "no record": lambda site: (site / "some_notes-1.0.dist-info/RECORD").unlink(),
        "a file gone": lambda site: (site / "some_notes/plugin.py").unlink(),
        "no package": lambda site: shutil.rmtree(site / "some_notes-1.0.dist-info"),
        # as of `pip install -e`: the record points to the code
        "editable": lambda site: (site / "some_notes-1.0.dist-info/RECORD").write_text(
            "__editable__.pth,,\n"
        ),
    }
    for name, spoil in spoilt.items():
        (site := tmp_path / name).mkdir()
        package(site)
        (site / "__editable__.pth").write_text("/elsewhere\n")
        assert mark(site), name
        spoil(site)
        assert mark(site) == "", name
    assert mark(tmp_path) == ""


def test_packages_that_come_and_go_are_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    seen = {description_cache.every_mark()}
    package(tmp_path)
    seen.add(description_cache.every_mark())
    (tmp_path / "other.pth").write_text("/elsewhere\n")
    seen.add(description_cache.every_mark())
    shutil.rmtree(tmp_path / "some_notes-1.0.dist-info")
    seen.add(description_cache.every_mark())
    assert len(seen) == 4
