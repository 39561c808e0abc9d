"""`ctx plugin permissions` and `config`, and the dependencies between plugins, without a mount."""

from __future__ import annotations

import io
import json
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from msgspec.structs import replace

from cortexfs import config
from cortexfs.cli import mounts
from cortexfs.cli.mounts import Mount
from cortexfs.core.errors import Fault
from cortexfs.plugins.enabled import Offers
from cortexfs.plugins.install.decisions import STORE, DecisionStore
from cortexfs.plugins.trust import secret_box
from tests.shell import plugin_desk, plugin_files
from tests.shell.plugin_desk import World
from tests.shell.plugins.test_manifestjson_plugins import plugin

world = plugin_desk.world

SETTINGS = {
    "ui": {
        "settings": [
            {
                "section": "All",
                "fields": [
                    {"key": "folder", "label": "Folder", "type": "text", "defaultValue": "~/notes"},
                    {"key": "most", "label": "At most", "type": "number", "defaultValue": 10},
                    {"key": "token", "label": "Token", "type": "secret", "defaultValue": ""},
                ],
            }
        ]
    },
    # docs/manifest-json.md: "A key that stands in config.settings alone takes any JSON value"
    "config": {"settings": {"most": 20, "tags": ["a"]}},
}


def test_what_counts_is_declared_less_denied_and_granted(world: World) -> None:
    # abi.md 9.26
    world.install("notes", capabilities=["tools", "network:fetch"])
    said = json.loads(world.ctx("permissions", "notes", "--json")[1])
    assert [(one["capability"], one["effective"]) for one in said["capabilities"]] == [
        ("tools", True),
        ("network:fetch", True),
    ]
    words = ("--set", "network:fetch=deny", "--set", "fs:read=grant", "--private", "10.0.0.0/8, 127.0.0.0/8")
    status, _, err = world.ctx("permissions", "notes", *words)
    assert (status, err) == (
        0,
        "changed the permissions of notes; the change takes effect with the next ctx mount\n",
    )
    lines = world.ctx("permissions", "notes")[1].splitlines()
    assert [line.split()[:2] for line in lines[1:]] == [
        ["tools", "yes"],
        ["fs:read", "yes"],
        ["network:fetch", "no"],
    ]
    module = world.config_of("notes")
    assert module.capabilities == ("tools", "fs:read")
    assert module.private == ("10.0.0.0/8", "127.0.0.0/8")
    # the decisions hold for another version, too
    world.install("notes", capabilities=["tools", "network:fetch"], version="1.1.0")
    assert world.config_of("notes").capabilities == ("tools", "fs:read")
    world.ctx("permissions", "notes", "--set", "network:fetch=default", "--private", "")
    module = world.config_of("notes")
    assert (module.capabilities, module.private) == (("tools", "fs:read", "network:fetch"), ())


def test_a_key_is_made_once_whoever_asks(tmp_path: Path) -> None:
    # issue 6: one plugin system with several boundaries, which commands and the daemon use side by side
    folder = (tmp_path / secret_box.KEY_FILE).parent
    folder.mkdir()
    for pid in range(os.getpid(), os.getpid() + 3):  # drafts of killed writers, in a container with few pids
        (folder / f".plugin-settings.{pid}").write_bytes(b"half")
    with ThreadPoolExecutor(16) as many:
        made = [
            *many.map(lambda text: secret_box.seal(tmp_path, "notes", "token", text), map(str, range(16)))
        ]
    opened = [secret_box.unseal(tmp_path, "notes", "token", sealed) for sealed in made]
    assert opened == [*map(str, range(16))]
    assert len([*folder.iterdir()]) == 4


def test_a_key_that_others_could_have_read_is_refused(tmp_path: Path) -> None:
    sealed = secret_box.seal(tmp_path, "notes", "token", "s3cret")
    key = tmp_path / secret_box.KEY_FILE
    key.chmod(0o640)
    with pytest.raises(Fault, match=rf"^EACCES: {key} is open to others \(mode 0640\); close it with: chmod"):
        secret_box.unseal(tmp_path, "notes", "token", sealed)
    key.chmod(0o600)
    assert secret_box.unseal(tmp_path, "notes", "token", sealed) == "s3cret"
    key.unlink()  # without it no secret opens, and no reader waits for a pipe in its place
    with pytest.raises(Fault, match="was not encrypted with the key of this state; set it again"):
        secret_box.unseal(tmp_path, "notes", "token", sealed)
    key.unlink()
    os.mkfifo(key, 0o600)
    with pytest.raises(Fault, match="is no regular file; remove it"):
        secret_box.unseal(tmp_path, "notes", "token", sealed)


def test_what_a_killed_writer_left_is_in_nobodys_way(tmp_path: Path) -> None:
    store = DecisionStore(tmp_path)
    (tmp_path / f".{STORE}.new").write_text("{half")
    store.change("notes", lambda chosen: replace(chosen, config={"a": 1}))
    assert store.of("notes").config == {"a": 1}
    assert not (tmp_path / f".{STORE}.new").exists()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("notes --set fs:raed=deny", '"fs:raed" is no capability; did you mean fs:read?'),
        ("notes --set fs:read", '"fs:read" is no decision; write fs:read=grant, fs:read=deny or fs:read=def'),
        ("notes --set fs:read=yes", '"fs:read=yes" is no decision; write fs:read=grant'),
        ("notes --private 10.0.0.1/8", "--private: 10.0.0.1/8 has host bits set; write networks like"),
        ("nots --set fs:read=deny", "no plugin 'nots' is installed in"),
        ("hello --set fs:read=deny", "hello has a manifest.toml, and only that file has its settings"),
    ],
)
def test_what_cannot_be_decided_is_said(world: World, words: str, sentence: str) -> None:
    world.install("notes")
    tool = plugin_files.plugin(
        world.base / "hello", plugin_files.TOOL % "bin/hello", {"bin/hello": "#!/bin/sh\n"}
    )
    world.ctx("install", str(tool))
    status, _, err = world.ctx("permissions", *words.split())
    assert status != 0
    assert sentence in err
    assert DecisionStore(world.where.state).read() == {}


def test_settings_have_their_defaults_and_what_is_set(world: World) -> None:
    world.install("notes", **SETTINGS)
    assert world.config_of("notes").config == {"folder": "~/notes", "most": 20, "token": "", "tags": ["a"]}
    assert world.ctx("config", "notes", "most") == (0, "20\n", "")
    for words in (("most", "30"), ("tags", '["b"]'), ("folder", "/srv")):
        assert world.ctx("config", "notes", *words)[0] == 0
    assert world.config_of("notes").config == {"folder": "/srv", "most": 30, "token": "", "tags": ["b"]}
    lines = world.ctx("config", "notes")[1].splitlines()
    assert lines[1].split() == ["folder", "/srv", "set", "text", "Folder"]
    assert world.ctx("config", "notes", "most", "--unset")[2].startswith("unset most of notes; ")
    assert json.loads(world.ctx("config", "notes", "--json")[1])["most"] == 20
    # docs/manifest-json.md: a setting that was made for another version counts only if it fits this one
    world.install("notes", config={"settings": {"folder": 3, "tags": None}}, version="2.0.0")
    assert world.config_of("notes").config == {"folder": "/srv", "tags": ["b"]}


def test_a_secret_is_shown_to_nobody(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    # abi.md 9.21
    world.install("notes", **SETTINGS)
    monkeypatch.setattr(sys, "stdin", io.StringIO("s3cret\n"))
    status, out, err = world.ctx("config", "notes", "token", "-")
    said = [out, err, *world.ctx("config", "notes", "token"), *world.ctx("config", "notes")]
    said += world.ctx("config", "notes", "--json")
    assert status == 0
    assert "s3cret" not in "".join(map(str, said))
    assert "********" in "".join(map(str, said))
    assert world.config_of("notes").config["token"] == "s3cret"
    # only the daemon's user may read the file
    assert DecisionStore(world.where.state).path.stat().st_mode & 0o777 == 0o600
    # in another version the key is not secret: the stored secret is neither shown nor passed on
    world.install("notes", config={"settings": {"token": "mine"}}, version="1.1.0")
    assert world.ctx("config", "notes", "token")[1] == "mine\n"
    assert world.config_of("notes").config == {"token": "mine"}


def test_a_secret_is_stored_encrypted(world: World) -> None:
    # abi.md 9.21
    world.install("notes", **SETTINGS)
    world.install("other", **SETTINGS)
    for name, secret in (("notes", "s3cret"), ("other", "s3cret")):
        assert world.ctx("config", name, "token", secret)[0] == 0
    store = DecisionStore(world.where.state)
    everything = [path.read_bytes() for path in world.where.state.rglob("*") if path.is_file()]
    assert not any(b"s3cret" in data for data in everything)
    key = world.where.state / secret_box.KEY_FILE
    assert (key.stat().st_mode & 0o777, key.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    assert [world.config_of(name).config["token"] for name in ("notes", "other")] == ["s3cret"] * 2
    # each secret is encrypted anew, and opens only in its own place
    sealed = store.of("other").secrets["token"]
    assert sealed != store.of("notes").secrets["token"]
    store.change("notes", lambda chosen: replace(chosen, secrets={"token": sealed}))
    (why,) = Offers(config.load(world.where)).load().faults.values()
    mend = "set it again: ctx plugin config notes token -"
    assert why == f"the secret token was not encrypted with the key of this state; {mend}"
    assert world.ctx("config", "notes", "token", "again")[0] == 0
    assert world.config_of("notes").config["token"] == "again"
    assert world.ctx("config", "notes", "token", "--unset")[0] == 0
    assert store.of("notes").secrets == {}
    assert world.config_of("notes").config["token"] == ""


@pytest.mark.parametrize("sealed", ["", "a", "AAAA", "A" * 64, "ä"])
def test_what_was_never_sealed_is_no_secret(tmp_path: Path, sealed: str) -> None:
    secret_box.seal(tmp_path, "notes", "token", "s3cret")
    with pytest.raises(Fault, match=r"^EBADMSG: the secret token was not encrypted"):
        secret_box.unseal(tmp_path, "notes", "token", sealed)
    (tmp_path / secret_box.KEY_FILE).write_bytes(b"short")
    with pytest.raises(Fault, match="is not a key; remove it"):
        secret_box.unseal(tmp_path, "notes", "token", sealed)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("mots",), "'mots' is no setting of notes; did you mean most?"),
        (("most", "many"), 'most: expected a number, got "many"'),
        (("--unset",), "--unset wants a key and no value"),
        (("folder", "x" * 30_000), "the settings of notes would be over 24 KiB"),
    ],
)
def test_what_cannot_be_set_is_said(world: World, words: tuple[str, ...], sentence: str) -> None:
    world.install("notes", **SETTINGS)
    status, _, err = world.ctx("config", "notes", *words)
    assert status != 0
    assert sentence in err


def test_purging_forgets_what_was_decided(world: World) -> None:
    world.install("notes", **SETTINGS)
    world.ctx("config", "notes", "most", "30")
    world.ctx("permissions", "notes", "--set", "fs:read=grant")
    world.ctx("uninstall", "notes")
    assert DecisionStore(world.where.state).of("notes").config == {"most": 30}
    world.ctx("uninstall", "notes", "--purge")
    assert DecisionStore(world.where.state).read() == {}


@pytest.mark.parametrize(("owner", "whose"), [(0, "root"), (4711, "uid 4711")])
def test_a_plugin_of_anothers_mount_is_its_owners(
    world: World, monkeypatch: pytest.MonkeyPatch, owner: int, whose: str
) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 4712)
    monkeypatch.setattr(mounts, "mounted_at", lambda point: Mount(point, 1, owner, True))
    status, _, said = world.ctx("config", "notes")
    assert (status, "no plugin 'notes' is installed in" in said) == (1, True)
    assert f"is the mount of {whose}, and its owner alone decides about its plugins" in said


# -- needs


def test_a_dependency_that_is_missing_refuses_to_enable(world: World) -> None:
    # abi.md 9.11
    why = "top needs below ^1.0, which is not installed; install it with ctx plugin install below"
    # abi.md 11.38: the plugin also fails its test
    top = str(plugin(world.base / "source" / "top", name="top", dependencies={"below": "^1.0"}))
    assert f"fail: needs ({why})" in world.ctx("test", top)[1]
    status, _, err = world.ctx("install", top)
    assert (status, err) == (1, f"installed top 1.0.0, unsigned; it is not enabled: {why}\n")
    status, _, err = world.ctx("enable", "top")
    assert (status, err) == (13, f"ctx plugin: the plugin top cannot be enabled: {why}\n")
    world.install("below", version="2.0.0")
    assert "top needs below ^1.0, and below 2.0.0 is installed" in world.ctx("enable", "top")[2]
    lower = plugin(world.base / "source" / "below", name="below", version="1.3.0")
    world.ctx("install", str(lower), "--replace")
    assert world.ctx("enable", "top")[0] == 0
    loaded = Offers(config.load(world.where)).load()
    assert [one.name for one in loaded.plugins] == ["below", "top"]


def test_a_cycle_refuses_to_enable(world: World) -> None:
    world.install("one", dependencies={"two": "*"})
    why = "which is a cycle; their authors must break it"
    assert why in world.install("two", dependencies={"one": "*"})[2]
    assert why in world.ctx("enable", "one")[2]
    assert config.enabled(config.load(world.where)) == []


def test_peers_of_each_other_are_enabled_one_after_the_other(world: World) -> None:
    # docs/manifest-json.md: "two plugins can be peers of each other"
    assert world.install("one", peerDependencies={"two": "*"})[0] == 1
    assert world.install("two", peerDependencies={"one": "*"})[0] == 0
    loaded = Offers(config.load(world.where)).load()
    assert loaded.faults["two"].startswith("two needs one *, which is not enabled; enable it with")
    assert world.ctx("enable", "one")[0] == 0
    assert [one.name for one in Offers(config.load(world.where)).load().plugins] == ["two", "one"]


def test_this_host_has_a_version(world: World) -> None:
    # the wild: "peerDependencies": {"cortex": ">=0.51.0"}
    assert world.install("fits", peerDependencies={"cortex": ">=0.51.0"})[0] == 0
    told = world.install("later", peerDependencies={"cortex": "^0.54.0"})[2]
    assert "later needs cortex ^0.54.0, and this host is cortex 0.53.1" in told


def test_a_plugin_of_the_other_kind_can_be_needed(world: World) -> None:
    tool = plugin_files.plugin(
        world.base / "hello", plugin_files.TOOL % "bin/hello", {"bin/hello": "#!/bin/sh\n"}
    )
    world.ctx("install", str(tool))
    assert world.install("top", dependencies={"hello": "~0.1"})[0] == 0
    world.ctx("disable", "hello")
    loaded = Offers(config.load(world.where)).load()
    assert "top needs hello ~0.1, which is not enabled" in loaded.faults["top"]


def test_what_loses_a_dependency_does_not_go_on(world: World) -> None:
    world.install("below")
    world.install("top", dependencies={"below": "*"})
    offers = Offers(config.load(world.where))
    assert offers.load().withdrawn == frozenset()
    world.ctx("disable", "below")
    assert offers.load().withdrawn == {"top"}
    # but if a new version needs too much, the former version goes on
    world.ctx("enable", "below")
    offers.load()
    world.install("top", dependencies={"below": "^9"}, version="2.0.0")
    loaded = offers.load()
    assert "top needs below ^9, and below 1.0.0 is installed" in loaded.faults["top"]
    assert loaded.withdrawn == frozenset()
