"""Enabled plugins as the daemon reads them from the disk: checked, copied, and reported truthfully."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cortexfs import config
from cortexfs.config import Config
from cortexfs.core.hostcalls import Plugin
from cortexfs.core.manifest import targets
from cortexfs.core.manifest.toml import Manifest
from cortexfs.plugins import enabled
from cortexfs.plugins.enabled import Offers
from cortexfs.plugins.install import entry_points
from cortexfs.plugins.install import install as installing
from cortexfs.plugins.package import directory, package, records
from cortexfs.plugins.trust import signing
from cortexfs.plugins.trust.trust import TrustStore
from cortexfs.state.directories import place_of
from tests.places import PROJECT
from tests.shell import plugin_files
from tests.shell.plugin_files import SECRET, TOOL, plugin


class World:
    """A state and a configuration, and plugins installed in them."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.config = Config(state=base / "state", directory=base / "config")
        for folder in (base / "state", base / "config"):
            folder.mkdir(exist_ok=True)
        self.offers = Offers(self.config)

    def install(
        self, name: str = "hello", says: str = "hello", enable: bool = True, publisher: str = ""
    ) -> Path:
        source = plugin(self.base / "source" / name, TOOL % "bin/hello", {"bin/hello": says})
        manifest = source / "manifest.toml"
        manifest.write_text(manifest.read_text().replace('name = "hello"\nv', f'name = "{name}"\nv'))
        tree = package.read(source)
        if publisher:
            tree = signing.signed(tree, signing.sign(tree, SECRET, publisher))
        record = records.PluginRecord("a test", records.files_of(tree))
        files = {**tree.files, records.FILE: records.file(record)}
        where = installing.install(self.base / "state" / "plugins", name, files)
        if enable:
            config.choose(self.config.directory, name, True)
        return where

    def fault(self, name: str = "hello") -> str:
        return self.offers.load().faults[name]


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_a_plugin_is_told_as_its_copy(world: World) -> None:
    where = world.install()
    (offered,) = world.offers.load().plugins
    assert (offered.name, offered.version, offered.kind) == ("hello", "0.1.0", targets.PROCESS)
    (tool,) = targets.declared(offered, targets.Programs).tools
    assert Path(tool.argv[0]).read_text() == "hello"
    assert not Path(tool.argv[0]).is_relative_to(where)
    # "in a place that everybody may read"
    assert Path(offered.path).stat().st_mode & 0o777 == 0o755


def test_whose_publisher_is_trusted_is_told(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    # abi.md 4.49
    def trusted() -> dict[str, bool]:
        return {one.name: one.trusted for one in world.offers.load().plugins}

    world.install("unsigned")
    verdict = signing.verify(package.read(world.install("theirs", publisher="example.dev")))
    assert trusted() == {"unsigned": False}  # "its publisher example.dev is not trusted any more"
    store = TrustStore(world.config.state)
    store.add(verdict, "2026-01-01T00:00:00Z")
    assert trusted() == {"unsigned": False, "theirs": True}
    store.remove("example.dev")
    assert trusted() == {"unsigned": False}
    # A Python package that the administrator installed is trusted with more than that.
    packaged = entry_points.FoundPlugin(Plugin("packaged", "1", "python", "m:a"), "packaged", str(world.base))
    monkeypatch.setattr(enabled, "found", lambda: [packaged])
    config.choose(world.config.directory, "packaged", True)
    assert trusted() == {"unsigned": False, "packaged": True}


def test_a_name_that_two_plugins_have_belongs_to_neither(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    # abi.md 11.33
    world.install("hello")
    world.install("other")
    packaged = entry_points.FoundPlugin(Plugin("hello", "1", "python", "m:a"), "packaged", str(world.base))
    monkeypatch.setattr(enabled, "found", lambda: [packaged])
    loaded = world.offers.load()
    assert [one.name for one in loaded.plugins] == ["other"]
    assert loaded.faults == {"hello": "a Python package has a plugin hello, too; uninstall one of them"}


def test_the_order_is_that_of_enabling(world: World) -> None:
    # abi.md 11.30
    for name in ("c", "a", "b"):
        world.install(name)
    world.install("off", enable=False)
    assert [one.name for one in world.offers.load().plugins] == ["c", "a", "b"]


def test_a_fault_is_one_sentence_and_the_others_go_on(world: World) -> None:
    # abi.md 11.18
    (world.install("bad") / "manifest.toml").write_text("name = ")
    world.install("good")
    loaded = world.offers.load()
    assert [one.name for one in loaded.plugins] == ["good"]
    assert "invalid manifest.toml: it is not TOML: " in loaded.faults["bad"]


def test_what_changed_is_named(world: World) -> None:
    where = world.install()
    (where / "bin/hello").write_text("other")
    (where / "bin/more").write_text("")
    assert world.fault() == (
        'it has changed since it was installed: "bin/hello", "bin/more"; install it anew'
    )
    (where / "bin/more").unlink()
    (where / "bin/hello").write_text("hello")
    assert len(world.offers.load().plugins) == 1
    (where / "bin/hello").chmod(0o644)
    assert '"bin/hello"' in world.fault()


@pytest.mark.parametrize(
    ("record", "sentence"),
    [(None, "was put there by hand"), (b"{", "is damaged"), (b'{"source":"x","files":{}}', "it has changed")],
)
def test_a_plugin_that_was_not_installed_is_refused(
    world: World, record: bytes | None, sentence: str
) -> None:
    path = world.install() / records.FILE
    path.unlink() if record is None else path.write_bytes(record)
    assert sentence in world.fault()


def test_a_directory_has_the_name_of_its_plugin(world: World) -> None:
    # abi.md 11.31
    where = world.install()
    where.rename(where.with_name("other"))
    config.choose(world.config.directory, "other", True)
    assert "holds the plugin hello" in world.fault("other")


def test_what_is_missing_and_what_is_taken(world: World) -> None:
    config.choose(world.config.directory, "no-such-plugin", True)
    config.choose(world.config.directory, "builtin", True)
    loaded = world.offers.load()
    assert loaded.faults["no-such-plugin"] == (
        "it is enabled and not installed; install it, or: ctx plugin disable no-such-plugin"
    )
    assert "its name is that of the built-in tools" in loaded.faults["builtin"]


def test_what_did_not_change_is_not_read_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    where = world.install()
    first = world.offers.load()
    read = []
    monkeypatch.setattr(package, "read", lambda folder: read.append(folder))
    assert world.offers.load() == first
    assert not read
    os.utime(where / "bin/hello")  # a new time alone is a reason to read the plugin again
    with pytest.raises(AttributeError):
        world.offers.load()
    assert read == [where]


def test_what_runs_is_what_was_checked(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    # issue: "a manifest that changes between check and use"
    where = world.install()

    def check(manifest: Manifest, available: object) -> None:
        (where / "bin/hello").write_text("evil")
        (where / "manifest.toml").write_text((where / "manifest.toml").read_text().replace("Says", "Does"))

    monkeypatch.setattr(directory, "check", check)  # by then the files have been read
    (offered,) = world.offers.load().plugins
    assert (offered.name, (Path(offered.path) / "bin/hello").read_text()) == ("hello", "hello")
    assert "Says hello" in (Path(offered.path) / "manifest.toml").read_text()
    monkeypatch.undo()
    assert "it has changed since it was installed" in World(world.base).fault()


@pytest.mark.parametrize("damage", ["changed", "added", "mode", "gone"])
def test_a_copy_is_not_believed_by_the_next_daemon(world: World, damage: str) -> None:
    world.install()
    (offered,) = world.offers.load().plugins
    program = Path(offered.path) / "bin/hello"
    if damage == "changed":
        program.write_text("hellp")
    elif damage == "added":
        (program.parent / "more").touch()
    elif damage == "mode":
        program.chmod(0o777)
    else:
        program.unlink()
    assert World(world.base).offers.load().plugins == (offered,)
    assert [path.name for path in program.parent.iterdir()] == ["hello"]
    assert (program.read_text(), program.stat().st_mode & 0o777) == ("hello", 0o755)


def test_copies_that_others_may_change_are_not_used(world: World) -> None:
    world.install()
    place = place_of(world.config.state)
    place.mkdir()
    place.chmod(0o777)
    assert f"others may change {place}, from which plugins run" in world.fault()
    place.rmdir()
    elsewhere = world.base / "elsewhere"
    elsewhere.mkdir()
    place.symlink_to(elsewhere)
    assert world.fault()
    assert not [*elsewhere.iterdir()]


def test_copies_are_kept_while_somebody_uses_them(world: World) -> None:
    world.install()
    (old,) = world.offers.load().plugins
    world.install(says="new")
    (new,) = world.offers.load().plugins
    world.offers.sweep([old])
    assert Path(old.path).is_dir()
    world.offers.sweep([])
    assert (Path(old.path).exists(), Path(new.path).is_dir()) == (False, True)


KILLED = """
import sys
from pathlib import Path
from tests.shell.plugins.test_offers import World
world = World(Path(sys.argv[1]))
print("ready", flush=True)
for number in range(1000):
    world.install(says=f"version {number}" * 1000)
"""


def test_an_installation_that_is_killed_leaves_a_whole_version(world: World) -> None:
    # issue: "Install is atomic: killed anywhere, the old or the new version is whole"
    world.install(says="version 0" * 1000)
    root = PROJECT
    for count in range(6):
        command = [sys.executable, "-c", KILLED, str(world.base)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=root) as child:
            assert child.stdout
            child.stdout.readline()
            place = world.config.state / "plugins" / "hello"
            before = place.stat().st_ino
            # By then the child is somewhere in one of its next installations.
            for seen in itertools.count():
                if place.stat().st_ino != before and seen >= count * 50:
                    break
            child.send_signal(signal.SIGKILL)
        world.offers.settle()
        loaded = world.offers.load()
        assert loaded.faults == {}
        text = (Path(loaded.plugins[0].path) / "bin/hello").read_text()
        assert text == text[: len(text) // 1000] * 1000
        assert sorted(path.name for path in place.parent.iterdir()) == [".lock", "hello"]


def test_a_librarys_tools_are_judged_by_what_its_manifest_names(tmp_path: Path) -> None:
    # policy.md: "of one with a manifest.toml, what its capabilities say"
    named = 'provides = ["tools"]\nprocess = true\nfile_write = ["/x"]\nbackground = true\n'
    text = (plugin_files.NATIVE % "libx.so").replace('provides = ["tools"]\n', named)
    made = enabled.declared(plugin_files.tree(tmp_path, text, {"libx.so": "x"}), tmp_path)
    assert made
    assert [(one.kind, one.target) for one in made.rights] == [
        ("write_file", "/x"),
        ("run_process", "plugin subprocess"),
    ]
    program = plugin_files.full(tmp_path / "program")
    made = enabled.declared(program, tmp_path / "program")
    assert made
    assert made.rights == ()  # its tools have these rights without them
