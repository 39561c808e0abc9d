"""The result of an ended program, and the daemon's description of programs to a host."""

from __future__ import annotations

import os
import re
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cortexfs.core import hostcalls
from cortexfs.core.errors import Fault
from cortexfs.core.manifest import targets
from cortexfs.core.manifest.toml import decode
from cortexfs.host import loaders
from cortexfs.host.process.one_shot import ProcessEnd, result_of
from cortexfs.plugins.catalog import Catalog
from cortexfs.sdk import ExecutionFailed, ToolResult
from tests.shell import declaring
from tests.shell.calling import serving
from tests.shell.declaring import program, script

ANSWERS = [
    # abi.md 11.13
    ("", ToolResult("")),
    (" \n\t", ToolResult("")),
    ('"a\\nb"', ToolResult("a\nb")),
    ('\n{"output":"x"} \n', ToolResult("x")),
    ('{"output":"x","is_error":true}', ToolResult.error("x")),
    ('{"output":"x","is_error":"yes","media":[1],"more":{}}', ToolResult("x")),
    ('{"output":"x","is_error":1}', ToolResult("x")),
]
REFUSED = [
    ("x", ", which is not JSON ("),
    ('"a" "b"', ", which is not JSON ("),
    ("{}garbage", ", which is not JSON ("),
    ("[" * 100_000, ", which is not JSON ("),
    ("1" * 10_000, ", which is not JSON ("),
    ("[]", "must return a JSON string or object with string field 'output'"),
    ("null", "must return a JSON string or object with string field 'output'"),
    ("7", "must return a JSON string or object with string field 'output'"),
    ('{"output":7}', "must return a JSON string or object with string field 'output'"),
    ("{}", "must return a JSON string or object with string field 'output'"),
]
T = program("/bin/t", timeout=4, output_bytes=200_000)


@pytest.mark.parametrize(("said", "result"), ANSWERS)
def test_an_answer(said: str, result: ToolResult) -> None:
    assert result_of(T, ProcessEnd(0, said.encode(), b"on stderr")) == result


@pytest.mark.parametrize(("said", "why"), REFUSED)
def test_no_answer(said: str, why: str) -> None:
    # abi.md 4.30
    with pytest.raises(ExecutionFailed, match="process-isolated tool 't' ") as caught:
        result_of(T, ProcessEnd(0, said.encode(), b""))
    assert why in str(caught.value)
    assert not re.search(r"Error\b|sys\.", str(caught.value))  # no name that only Python programmers know
    # issue 14: "A process tool that prints no JSON is told what to print"
    assert str(caught.value).endswith('it must print one line of JSON, such as {"output": "done"}')
    assert caught.value.code == "EPROTO"


@given(st.binary() | st.text().map(str.encode) | st.recursive(st.none(), st.lists).map(msgspec.json.encode))
def test_whatever_is_said_is_an_answer_or_none(said: bytes) -> None:
    code = None
    try:
        result_of(T, ProcessEnd(0, said, b""))
    except ExecutionFailed as error:
        code = error.code
    assert code in (None, "EPROTO")


def test_bytes_that_are_no_text_are_replaced() -> None:
    # abi.md 11.13
    assert result_of(T, ProcessEnd(0, b'"\xff"', b"")) == ToolResult("\N{REPLACEMENT CHARACTER}")


def test_the_order_of_decision() -> None:
    # abi.md 11.13
    flood = b"x" * 200_001
    with pytest.raises(ExecutionFailed, match="the tool t did not end within 4 s") as caught:
        result_of(T, ProcessEnd(-9, flood, b"", timed_out=True))
    assert caught.value.code == "ETIMEDOUT"  # abi.md 4.30
    told = ToolResult.error("process-isolated tool 't' exceeded output limit of 200000 bytes")
    assert result_of(T, ProcessEnd(3, flood, b"")) == told
    assert result_of(T, ProcessEnd(0, flood[:100_000], flood[:100_001])) == told
    assert result_of(T, ProcessEnd(3, b'"fine"', b" why \n")) == ToolResult.error("why")
    told = ToolResult.error("process-isolated tool 't' ended with exit status: 3")
    assert result_of(T, ProcessEnd(3, b'"fine"', b"")) == told
    for status, text in ((-9, "signal: 9 (SIGKILL)"), (-63, "signal: 63")):
        with pytest.raises(ExecutionFailed) as caught:
            result_of(T, ProcessEnd(status, b"", b""))
        assert str(caught.value).endswith(f"ended with {text}")
        assert caught.value.code == "EPROTO"
    with pytest.raises(ExecutionFailed) as caught:  # abi.md 4.58
        result_of(T, ProcessEnd(-9, b"", b"out of paper\n"))
    assert str(caught.value).endswith("ended with signal: 9 (SIGKILL); it printed last: out of paper")


# -- describing


async def test_programs_are_described_by_their_manifest(tmp_path: Path) -> None:
    # abi.md 11.8
    effect = {
        "kind": "send_message",
        "target": "#x",
        "reversibility": "irreversible",
        "confirmation": "always",
        "dry_run": "supported",
    }
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}}
    tool = {
        "name": "add",
        "description": "Adds",
        "command": "bin/add",
        "input_schema": schema,
        "timeout_secs": 9,
        "effects": [effect],
    }
    native = {"tools": [tool, {**tool, "name": "other", "timeout_secs": 0, "effects": []}]}
    has = {"provides": ["tools"], "file_read": ["/etc"]}
    top = {"name": "n", "version": "1", "description": ""}
    manifest = decode({**top, "capabilities": has, "native": native})
    made = targets.programs(manifest, [(("/x/bin/add",), "/x")] * 2)
    async with serving(tmp_path) as world:
        catalog = Catalog(world.pool)
        registry = await catalog.registry([declaring.plugin(made.tools, name="n")])
        assert catalog.broken == {}
        add = registry.get("tool", "add")
        other = registry.get("tool", "other")
        assert add is not None
        assert other is not None
        assert (add.description, add.timeout, other.timeout) == ("Adds", 9, None)
        assert msgspec.json.decode(add.schema) == schema
        found = [(e.kind, e.target) for e in add.capabilities.effects]
        assert found == [("read_file", "/etc"), ("send_message", "#x"), ("run_process", "plugin subprocess")]
        assert add.origin == "plugin:n@1.0"


def test_what_the_daemon_tells_a_host_is_bounded() -> None:
    many = [
        program("/bin/t", name=f"t{n}", input_schema={"enum": [f"{n}.{i}" for i in range(40)]})
        for n in range(200)
    ]
    told = declaring.plugin(many)
    assert len(told.target) <= targets.MAX_TARGET
    assert [tool.name for tool in targets.declared(told, targets.Programs).tools] == [t.name for t in many]
    with pytest.raises(Fault, match="shorten schemas"):
        declaring.plugin([program("/bin/t", input_schema={"enum": [os.urandom(90_000).hex()]})])


async def test_a_large_plugin_reaches_its_host(tmp_path: Path) -> None:
    schema = {"type": "object", "examples": [os.urandom(30).hex() for _ in range(800)]}
    plugin = declaring.plugin([program(script(tmp_path, "echo '\"large\"'"), input_schema=schema)])
    assert len(plugin.target) > targets.MAX_TARGET // 2
    async with serving(tmp_path) as world:
        assert (await world.call(world.inode("t", plugin), "{}")).output == "large"


def test_of_two_tools_with_one_name_the_later_counts() -> None:
    # abi.md 10.10: "Of two of one name, the later one wins."
    plugin = declaring.plugin([program("/bin/a"), program("/bin/b", timeout=3)])
    ((tool, _),) = loaders.loaded(plugin).values()
    assert tool.timeout_secs == 3


@pytest.mark.parametrize("target", ["", "{}", "z", "z!!!!", "zAAAA", '{"tools":[{"name":1}]}', "null"])
async def test_a_target_that_says_nothing(tmp_path: Path, target: str) -> None:
    async with serving(tmp_path) as world:
        answer = await world.call(world.inode("t", hostcalls.Plugin("p", "1", "process", target)), "{}")
        assert (answer.code, answer.status) == ("EPROTO", 70)


def test_a_schema_has_to_be_an_object() -> None:
    tool = {"name": "t", "description": "d", "command": "c", "input_schema": True}
    manifest = decode({"name": "n", "version": "1", "description": "", "native": {"tools": [tool]}})
    with pytest.raises(Fault, match="process tool 't' has an input_schema that is not an object"):
        targets.programs(manifest, [(("/c",), "/")])
