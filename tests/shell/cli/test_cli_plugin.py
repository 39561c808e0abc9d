"""Finding plugins by their metadata, and `ctx plugin`."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cortexfs import config
from cortexfs.cli import daemons, mounts, reload
from cortexfs.cli.main import main
from cortexfs.core.hostcalls import Plugin
from cortexfs.plugins.install.entry_points import FoundPlugin, found
from cortexfs.state import directories
from tests.shell.cli_tree import STATUS, add, plant
from tests.waiting import PATIENCE


def installed(
    site: Path, distribution: str, version: str, *points: str, group: str = "cortexfs.plugins"
) -> None:
    """Writes a distribution as an installer leaves it. Its code fails when it is imported."""
    information = site / f"{distribution.replace('-', '_')}-{version}.dist-info"
    information.mkdir(parents=True)
    (information / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n"
    )
    (information / "entry_points.txt").write_text(f"[{group}]\n" + "".join(f"{point}\n" for point in points))
    (site / f"{distribution.replace('-', '_')}.py").write_text("raise SystemExit('imported')\n")


def names(plugins: list[FoundPlugin]) -> list[str]:
    return [one.plugin.name for one in plugins]


def test_a_plugin_is_found_without_its_code(tmp_path: Path) -> None:
    installed(tmp_path, "my-notes", "1.2", "notes = my_notes:plugin")
    expected = Plugin("notes", "1.2", "python", "my_notes:plugin")
    assert found([str(tmp_path)]) == [FoundPlugin(expected, "my-notes", str(tmp_path))]
    assert "my_notes" not in sys.modules


def test_other_groups_are_not_ours(tmp_path: Path) -> None:
    installed(tmp_path, "my-notes", "1.2", "notes = my_notes:main", group="console_scripts")
    assert found([str(tmp_path)]) == []


def test_the_order_is_that_of_names(tmp_path: Path) -> None:
    for letter in "cab":
        installed(tmp_path / letter, f"dist-{letter}", "1", f"{letter} = m:p", f"z-{letter} = m:p")
    path = [str(tmp_path / letter) for letter in "bca"]
    assert names(found(path)) == names(found(path[::-1])) == ["a", "b", "c", "z-a", "z-b", "z-c"]


def test_a_name_that_two_offer_belongs_to_neither(tmp_path: Path) -> None:
    installed(tmp_path, "one", "1", "notes = one:plugin")
    installed(tmp_path, "two", "1", "notes = two:plugin", "maps = two:maps")
    offers = {(one.distribution, one.plugin.name): one.fault for one in found([str(tmp_path)])}
    dispute = "the name notes is offered more than once, by one, two; uninstall all but one"
    assert offers == {("one", "notes"): dispute, ("two", "notes"): dispute, ("two", "maps"): None}


def test_a_shadowed_installation_of_the_same_package_does_not_count(tmp_path: Path) -> None:
    installed(tmp_path / "new", "my-notes", "2", "notes = my_notes:plugin")
    installed(tmp_path / "old", "My_Notes", "1", "notes = my_notes:plugin")
    offers = found([str(tmp_path / "new"), str(tmp_path / "old")])
    assert [(one.plugin.version, one.fault) for one in offers] == [("2", None)]


@pytest.mark.parametrize(
    ("point", "fault"),
    [
        ("a.d = m:p", "the name 'a.d' ends in .sock or .d, which the tree reserves"),
        ("a = m", "its entry point 'm' is not of the form module:attribute"),
        ("a = m:p; import os", "its entry point 'm:p; import os' is not of the form module:attribute"),
        ("a = m.n:p.q [extra]", None),
    ],
)
def test_what_is_broken_is_listed_with_the_reason(point: str, fault: str | None, tmp_path: Path) -> None:
    installed(tmp_path, "dist", "1", point)
    assert [one.fault for one in found([str(tmp_path)])] == [fault]


def test_debris_on_the_path_is_passed_over(tmp_path: Path) -> None:
    installed(tmp_path, "dist", "1", "a = m:p")
    (tmp_path / "empty-1.dist-info").mkdir()
    assert names(found([str(tmp_path), str(tmp_path / "absent")])) == ["a"]


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> directories.Places:
    """Installs the plugin notes, and two distributions that both offer the name both; there is no mount."""
    installed(tmp_path / "site", "my-notes", "1.2", "notes = my_notes:plugin")
    installed(tmp_path / "site", "twice", "3", "both = a:p")
    installed(tmp_path / "site", "thrice", "3", "both = b:p")
    monkeypatch.syspath_prepend(tmp_path / "site")
    monkeypatch.setenv("CTX_CONFIG", str(tmp_path / "config"))
    monkeypatch.setenv("CTX_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("CTX_ROOT", str(tmp_path / "ctx"))
    return directories.Places(tmp_path / "state", tmp_path / "config")


def row(capsys: pytest.CaptureFixture[str], name: str) -> dict[str, object]:
    capsys.readouterr()
    assert main(["plugin", "list", "--json"]) == 0
    rows: list[dict[str, object]] = json.loads(capsys.readouterr().out)
    return next(row for row in rows if row["name"] == name)


def test_enabling_lasts(places: directories.Places, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plugin", "enable", "notes"]) == 0
    assert capsys.readouterr().err == "enabled notes; the change takes effect with the next ctx mount\n"
    assert config.enabled(config.load(places)) == ["notes"]
    assert main(["plugin", "disable", "notes"]) == 0
    assert config.enabled(config.load(places)) == []


@pytest.mark.parametrize(
    "text",
    [
        "[plugins]\n",
        '[plugins]\nenabled = [\n  "other",  # not "notes"\n]\n',
        '# "notes"\n[plugins] # [plugins]\nenabled = ["other"]\n\n[limits]\n',
        'plugins = { enabled = ["other"] }',
    ],
)
def test_enabling_leaves_the_configuration_alone(
    text: str, places: directories.Places, capsys: pytest.CaptureFixture[str]
) -> None:
    # A person's own file stays as it is; decisions are written to plugins.json (docs/config.md).
    places.config.mkdir()
    (places.config / "config.toml").write_text(text)
    others = config.enabled(config.load(places))
    assert main(["plugin", "enable", "notes"]) == 0
    assert config.enabled(config.load(places)) == [*others, "notes"]
    assert main(["plugin", "disable", "notes"]) == 0
    assert config.enabled(config.load(places)) == others
    assert (places.config / "config.toml").read_text() == text


@pytest.mark.parametrize(
    ("words", "status", "sentence"),
    [
        ("enable nots", 1, "there is no plugin 'nots'; did you mean notes?"),
        ("enable qqq", 1, "there is no plugin 'qqq'; install it first, see: ctx plugin install --help"),
        ("enable both", 2, "the plugin both cannot be enabled: the name both is offered more than once"),
        ("disable qqq", 1, "there is no plugin 'qqq'; see: ctx plugin list"),
    ],
)
def test_what_cannot_be_enabled_is_said(
    words: str, status: int, sentence: str, places: directories.Places, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plugin", *words.split()]) == status
    assert capsys.readouterr().err.startswith(f"ctx plugin: {sentence}")
    assert not (places.config / "plugins.json").exists()


def test_what_was_uninstalled_can_still_be_disabled(
    places: directories.Places, capsys: pytest.CaptureFixture[str]
) -> None:
    config.choose(places.config, "gone", True)
    assert row(capsys, "gone")["reason"] == "it is not installed, or you may not read it"
    assert main(["plugin", "uninstall", "gone"]) == 1
    told = "pip uninstalls a Python package; to disable the plugin: ctx plugin disable gone\n"
    assert capsys.readouterr().err == f"ctx plugin: ctx has installed no files of gone; {told}"
    assert main(["plugin", "disable", "gone"]) == 0
    assert config.enabled(config.load(places)) == []


@pytest.mark.parametrize("before", ["3", "2\nreloading: yes"])  # that reload began before the change
@pytest.mark.parametrize(
    ("status", "sentence"),
    [
        ("reloads: 4\n", "the change is in effect at {root}"),
        ("reloads: 4\nbroken plugin: notes: ImportError: no pen\n", "it does not load: ImportError: no pen"),
        (
            "reloads: 4\nreload refused: no; mend\n",
            "the mount at {root} refused the change and works as before: no; mend",
        ),
        (
            "reloads: 4\nnot used: a; mend\nnot used: b\n",
            "the change is in effect at {root}, but a; mend, but b",
        ),
        ("reloads: many\n", "the daemon of {root} is still reading the change; see: ctx status"),
        ("reloads: 3\n", "the daemon of {root} is still reading the change; see: ctx status"),
    ],
)
def test_the_running_daemon_is_told_and_waited_for(
    before: str,
    status: str,
    sentence: str,
    places: directories.Places,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    # abi.md 8.7
    daemon = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"])
    root = plant(tmp_path / "ctx")
    said = iter([f"pid: {daemon.pid}\nreloads: {before}\n"])
    monkeypatch.setattr(mounts, "mounted_at", lambda point: mounts.Mount(point, 1, os.getuid(), True))
    found = daemons.RunningDaemon(daemons.PinnedProcess(daemon.pid), str(places.state), str(places.config))
    monkeypatch.setattr(daemons, "of", lambda mount: found)
    monkeypatch.setattr(mounts, "status_text", lambda root: next(said, f"pid: {daemon.pid}\n{status}"))
    monkeypatch.setattr(reload, "RELOAD_SECONDS", 0.01)
    assert main(["plugin", "enable", "notes"]) == ("broken" in status)  # abi.md 8.55
    assert daemon.wait(PATIENCE) == -signal.SIGHUP
    assert capsys.readouterr().err == f"enabled notes; {sentence.format(root=root)}\n"


def test_a_mount_of_somebody_else_is_not_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = plant(tmp_path / "ctx")
    monkeypatch.setattr(mounts, "mounted_at", lambda point: mounts.Mount(point, 1, 1001, True))
    monkeypatch.setattr(os, "getuid", lambda: 1000)
    said = f"the mount at {root} belongs to uid 1001 and does not read your configuration"
    assert reload.tell(str(root)) == f"{said}; a mount of yours does: ctx mount DIR"


def test_list_without_a_mount(places: directories.Places, capsys: pytest.CaptureFixture[str]) -> None:
    assert row(capsys, "notes")["status"] == "disabled"
    config.choose(places.config, "notes", True)
    assert row(capsys, "notes")["status"] == "not mounted"
    assert main(["plugin", "list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    heads = ["NAME", "VERSION", "BOUNDARY", "ENABLED", "STATUS", "PUBLISHER", "TOOLS"]
    assert lines[0].split() == heads
    assert ["notes", "1.2", "python", "yes", "not", "mounted", "-", "-"] in [line.split() for line in lines]


def test_list_says_what_became_of_each(
    places: directories.Places, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config.choose(places.config, "notes", True)
    root = plant(tmp_path / "ctx")
    # The planted status says that notes crashed; the planted note.add has the origin plugin:notes@1.2.
    crashed = row(capsys, "notes")
    assert (crashed["status"], crashed["reason"]) == ("broken", "its process was killed by SIGSEGV")
    (root / "status").write_text(STATUS.replace("broken plugin", "was broken"))
    assert row(capsys, "notes") == {
        "name": "notes",
        "version": "1.2",
        "boundary": "python",
        "enabled": True,
        "status": "loaded",
        "tools": ["note.add"],
        "models": [],
        "commands": [],
        "reason": None,
        "wrong": None,
        "publisher": "",
        "distribution": "my-notes",
        "location": str(tmp_path / "site"),
    }
    # abi.md 11.35
    with (root / "status").open("a") as status:
        status.write("wrong tools: notes: note.rm: its schema is none\n")
    assert row(capsys, "notes")["wrong"] == "note.rm: its schema is none"
    add(root, "tool/other", "Of another plugin.", "plugin:maps@1.2 (replaces that of builtin)", {})
    assert row(capsys, "notes")["tools"] == ["note.add"]
    shutil.rmtree(root / "tool")
    (root / "tool").mkdir()
    assert row(capsys, "notes")["status"] == "no tools"
    add(root, "model/notes/small", "A model.", "plugin:notes@1.2", {})
    assert (row(capsys, "notes")["status"], row(capsys, "notes")["models"]) == ("loaded", ["notes/small"])
    assert main(["plugin", "list", "--root", str(root)]) == 0
    assert "(model notes/small)" in capsys.readouterr().out
    assert row(capsys, "both")["status"] == "broken"
