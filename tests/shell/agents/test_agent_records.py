"""Records of agents: each reads back as it was written, and a damaged one harms no other. A removed agent
leaves nothing behind for the next agent of its name."""

from __future__ import annotations

import errno
import json
import os
import stat
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyfuse3 import FUSEError

from cortexfs.agents import defaults, records
from cortexfs.agents.records import AgentRecord
from cortexfs.core.errors import Fault
from cortexfs.core.names import MAX_COMPONENT
from cortexfs.core.policy import rules
from cortexfs.core.registry import Object, Registry
from cortexfs.core.tree.controls import CONTROLS, LOG, line_ended
from cortexfs.state.control_store import ControlStore
from tests.shell.handlers import World, caller

TOOLS = ["fs.list", "fs.read", "shell.exec"]


def record(name: str = "coder", **more: Any) -> AgentRecord:
    texts = defaults.controls(name, "main", ["fs.read"])
    return AgentRecord(
        name=name, created=1000.5, uid=7, gid=8, description="Writes code.", controls=texts, **more
    )


def loaded(state: Path) -> dict[str, Object]:
    return {object_.name: object_ for object_ in records.load(state, 5.0).objects}


def shown(object_: Object, name: str) -> str:
    (control,) = [row for row in CONTROLS["agent"] if row.name == name]
    return line_ended(control.render(object_)).decode()


# agent/base.


def test_base_is_there_without_a_record_and_may_read(tmp_path: Path) -> None:
    # "`agent/base` exists after set-up with read-only tools"
    found, broken = records.load(tmp_path, 5.0)
    (base,) = found
    assert (base.key, base.origin, base.status, base.registered) == (
        ("agent", "base"),
        "builtin",
        "ready",
        5.0,
    )
    assert shown(base, "model") == "main\n"
    assert shown(base, "label") == "user_u:agent_r:base_t:s0\n"
    assert shown(base, "tools").split() == list(defaults.BASE_TOOLS)
    allowed = {(rule.class_, rule.name) for rule in rules.parse(shown(base, "policy"))}
    assert allowed == {("model", "main"), *(("tool", name) for name in defaults.BASE_TOOLS)}
    assert not broken
    assert not list(tmp_path.iterdir())


def test_base_does_not_change_from_one_reload_to_the_next(tmp_path: Path) -> None:
    assert records.load(tmp_path, 5.0) == records.load(tmp_path, 5.0)


def test_a_record_of_its_name_wins(tmp_path: Path) -> None:
    records.put(tmp_path, record("base"))
    assert [(each.name, each.description) for each in records.load(tmp_path).objects] == [
        ("base", "Writes code.")
    ]


# Records.


def test_an_agent_is_what_its_record_says(tmp_path: Path) -> None:
    records.put(tmp_path, record())
    agent = loaded(tmp_path)["coder"]
    assert (agent.origin, agent.status, agent.registered) == ("agent", "ready", 1000.5)
    assert [shown(agent, name) for name in ("owner", "uid", "gid")] == ["7\n", "7\n", "8\n"]
    assert shown(agent, "policy") == "allow coder_t model:main use\nallow coder_t tool:fs.read execute\n"
    assert json.loads(shown(agent, "meta.json"))["description"] == "Writes code."
    fixed = {"iso": "shared", "life": "owned", "root": "/", "cwd": "/", "window": "auto", "approval": "auto"}
    assert {name: shown(agent, name).strip() for name in fixed} == fixed
    assert shown(agent, "env") == "CTX_AGENT_STEPS=64\n"
    assert [shown(agent, name) for name in ("groups", "parent", "path", "mount", "pid")] == [""] * 5


def test_every_default_is_a_value_that_could_be_written(tmp_path: Path) -> None:
    records.put(tmp_path, record())
    for object_ in loaded(tmp_path).values():
        for control in CONTROLS["agent"]:
            if control.check:
                control.check(shown(object_, control.name))


def test_a_record_is_private_and_nothing_else_is_left(tmp_path: Path) -> None:
    records.put(tmp_path, record())
    assert os.listdir(tmp_path / "agents") == ["coder.json"]
    assert stat.S_IMODE((tmp_path / "agents/coder.json").stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "agents").stat().st_mode) == 0o700


def test_a_name_is_taken_once(tmp_path: Path) -> None:
    records.put(tmp_path, record())
    before = (tmp_path / "agents/coder.json").read_bytes()
    with pytest.raises(Fault) as caught:
        records.put(tmp_path, record())
    assert caught.value.code == "EEXIST"
    assert (tmp_path / "agents/coder.json").read_bytes() == before
    records.remove(tmp_path, "coder")
    with pytest.raises(Fault) as caught:
        records.remove(tmp_path, "coder")
    assert caught.value.code == "ENOENT"
    assert os.listdir(tmp_path / "agents") == []


@pytest.mark.parametrize("name", ["", "a/b", "../x", ".hidden", "x.d", "x" * (MAX_COMPONENT + 1)])
def test_a_name_outside_the_grammar_is_refused_where_it_enters(name: str, tmp_path: Path) -> None:
    # abi.md 2.4
    with pytest.raises(Fault) as caught:
        records.put(tmp_path, record(name))
    assert caught.value.code == "EINVAL"
    assert not list(tmp_path.rglob("*.json"))


DAMAGES = {
    "cut": b'{"name": "coder", "crea',
    "not an object": b"[]",
    "no owner": b'{"name": "coder", "created": 1.0}',
    "owner is no uid": b'{"name": "coder", "created": 1.0, "uid": -1, "gid": 0}',
    "made before time": b'{"name": "coder", "created": -1, "uid": 0, "gid": 0}',
    "made after time": b'{"name": "coder", "created": 1e300, "uid": 0, "gid": 0}',
    "of another name": b'{"name": "other", "created": 1.0, "uid": 0, "gid": 0}',
    "no control": b'{"name": "coder", "created": 1.0, "uid": 0, "gid": 0, "controls": {"pid": "1"}}',
    "a bad value": b'{"name": "coder", "created": 1.0, "uid": 0, "gid": 0, "controls": {"approval": "no"}}',
    "deep": b"[" * 100_000,
    "large": b" " * (records.MAX_FILE + 1),
    "not text": b"\xff\xfe",
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=list(DAMAGES))
def test_a_damaged_record_is_a_sentence_and_the_others_work(damage: bytes, tmp_path: Path) -> None:
    # abi.md 5.6
    records.put(tmp_path, record("other"))
    (tmp_path / "agents/coder.json").write_bytes(damage)
    found, broken = records.load(tmp_path)
    status = {object_.name: object_.status for object_ in found}
    assert list(broken) == ["coder"]
    assert broken["coder"].count("\n") == 0
    assert status == {"base": "ready", "coder": f"broken: {broken['coder']}", "other": "ready"}
    (coder,) = [object_ for object_ in found if object_.name == "coder"]
    assert shown(coder, "policy") == shown(coder, "tools") == shown(coder, "label") == ""


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
FIELDS = st.fixed_dictionaries(
    {"name": st.just("coder"), "created": JSON, "uid": JSON, "gid": JSON},
    optional={
        "description": JSON,
        "controls": st.dictionaries(st.sampled_from([row.name for row in CONTROLS["agent"]]), JSON) | JSON,
    },
)


@given(FIELDS)
def test_whatever_stands_in_a_record_the_tree_can_show_it(fields: dict[str, Any]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "agents").mkdir()
        (Path(folder) / "agents/coder.json").write_text(json.dumps(fields))
        found, broken = records.load(Path(folder))
    (agent,) = [object_ for object_ in found if object_.name == "coder"]
    assert (agent.status == "ready") == (not broken)
    for control in CONTROLS["agent"]:
        value = shown(agent, control.name) if control.name != LOG else ""
        if control.check and not broken:
            control.check(value)


def test_what_is_no_record_is_left_alone(tmp_path: Path) -> None:
    records.put(tmp_path, record())
    for name in (".coder.json.123", "coder.json~", "README", "coder.json.bak"):
        (tmp_path / "agents" / name).write_text("{")
    (tmp_path / "agents" / "a b.json").write_text("{}")
    found, broken = records.load(tmp_path)
    assert [object_.name for object_ in found] == ["base", "coder"]
    assert list(broken) == ["a b"]


def test_a_folder_that_cannot_be_read_is_a_fault_and_not_an_empty_one(tmp_path: Path) -> None:
    # otherwise all agents would seem to be removed, and the values written into them would be deleted
    (tmp_path / "agents").write_text("")
    with pytest.raises(Fault, match="agents cannot be read"):
        records.load(tmp_path)


def test_labels_are_of_the_grammar_and_unique() -> None:
    assert defaults.type_of("coder") == "coder_t"
    assert defaults.type_of("c++") == "c___t"
    assert defaults.type_of("coder", {"coder_t", "coder_2_t"}) == "coder_3_t"
    for name in ("a" * MAX_COMPONENT, "9+" * (MAX_COMPONENT // 2)):
        first = defaults.type_of(name)
        rules.parse(f"allow {first} tool:x execute\n")
        assert rules.type_of(defaults.label(defaults.type_of(name, {first}))) not in ("", first)


# In the tree.


def registry(*agents: str, status: str = "ready") -> Registry:
    tools = [Object(class_="tool", name=name, description="") for name in TOOLS]
    made = [
        Object(
            class_="agent",
            name=name,
            description="",
            status=status,
            extra=defaults.controls(name, "main", ["fs.read"]),
        )
        for name in agents
    ]
    return Registry({object_.key: object_ for object_ in (*tools, *made)})


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


async def test_patterns_are_expanded_as_they_are_written(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    # abi.md 3.13
    await world.fs.apply(registry("coder"))
    await world.put("agent/coder.d/tools", b"fs.*\nnotes.add\n")
    assert await world.read("agent/coder.d/tools") == b"fs.list\nfs.read\nnotes.add\n"
    with pytest.raises(FUSEError):
        await world.put("agent/coder.d/tools", b"fs.raed*\n")
    assert "did you mean fs.read" in caplog.text
    assert await world.read("agent/coder.d/tools") == b"fs.list\nfs.read\nnotes.add\n"
    assert (
        ControlStore(world.state).load().values["agent", "coder"]["tools"].data
        == b"fs.list\nfs.read\nnotes.add\n"
    )


async def test_a_pattern_comes_in_by_a_rename_too(world: World) -> None:
    # abi.md 3.14
    await world.fs.apply(registry("coder"))
    folder = await world.find("agent/coder.d")
    info, _ = await world.fs.create(folder, b"tools~", 0o644, os.O_WRONLY, caller())
    await world.fs.write(info.fh, 0, b"shell.*\n")
    await world.fs.release(info.fh)
    await world.fs.rename(folder, b"tools~", folder, b"tools", 0, caller())
    assert await world.read("agent/coder.d/tools") == b"shell.exec\n"


async def test_an_agent_that_goes_takes_along_what_was_written_into_it(world: World) -> None:
    # "its written controls removed too so that a new agent of that name starts afresh"
    await world.fs.apply(registry("coder", "other"))
    for name in ("coder", "other"):
        await world.put(f"agent/{name}.d/approval", b"ask\n")
        await world.put(f"agent/{name}.d/policy", b"# nothing\n")
    await world.fs.unlink(await world.find("agent/coder.d"), b"model", caller())
    late = await world.fs.open(await world.find("agent/coder.d/tools"), os.O_WRONLY | os.O_TRUNC, caller())
    await world.fs.write(late.fh, 0, b"shell.exec\n")
    await world.fs.apply(registry("other"))
    assert not (world.state / "agent/coder.d").exists()
    await world.fs.flush(late.fh)  # the file behind this handle is removed
    await world.fs.release(late.fh)
    await world.fs.apply(registry("coder", "other"))
    assert await world.read("agent/coder.d/approval") == b"auto\n"
    assert await world.read("agent/coder.d/model") == b"main\n"
    assert await world.read("agent/coder.d/tools") == b"fs.read\n"
    assert await world.read("agent/other.d/approval") == b"ask\n"
    assert set(ControlStore(world.state).load().values) == {("agent", "other")}


async def test_a_disk_that_keeps_what_should_go_does_not_stop_the_reload(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await world.fs.apply(registry("coder"))
    await world.put("agent/coder.d/approval", b"ask\n")

    def full(_store: ControlStore, _key: tuple[str, str]) -> None:
        raise OSError(errno.EIO, "bad sector")

    with monkeypatch.context() as broken:
        broken.setattr(ControlStore, "drop_values", full)
        await world.fs.apply(registry())
    assert "bad sector" in caplog.text
    await world.fs.apply(registry("coder"))
    assert await world.read("agent/coder.d/approval") == b"auto\n"


async def test_one_that_went_while_nothing_was_mounted_leaves_nothing_either(world: World) -> None:
    await world.fs.apply(registry("coder"))
    await world.put("agent/coder.d/approval", b"ask\n")
    world.again()
    await world.fs.apply(registry())
    await world.fs.apply(registry("coder"))
    assert await world.read("agent/coder.d/approval") == b"auto\n"


async def test_a_broken_agent_keeps_what_was_written_into_it(world: World) -> None:
    await world.fs.apply(registry("coder"))
    await world.put("agent/coder.d/approval", b"ask\n")
    await world.fs.apply(registry("coder", status="broken: its record cannot be read"))
    await world.fs.apply(registry("coder"))
    assert await world.read("agent/coder.d/approval") == b"ask\n"


async def test_a_tool_that_goes_keeps_its_policy(world: World) -> None:
    # the plugin of the tool may be disabled for a while
    await world.put("tool/shell.d/policy", b"allow a_t tool:shell execute\n")
    await world.fs.apply(registry())
    assert ("tool", "shell") in ControlStore(world.state).load().values


async def test_what_a_person_put_beside_the_values_stays(world: World, tmp_path: Path) -> None:
    await world.fs.apply(registry("coder"))
    await world.put("agent/coder.d/approval", b"ask\n")
    (world.state / "agent/coder.d/notes").write_text("mine")
    await world.fs.apply(registry())
    assert os.listdir(world.state / "agent/coder.d") == ["notes"]
