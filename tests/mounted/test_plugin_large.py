"""A library with forty tools, whose descriptors differ as those of many authors would, on a real mount."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.mounted import plugins
from tests.mounted.ctx_mount import Ctx, mounted

COUNT = 40
KINDS = ("read_file", "write_file", "network_request", "run_process", "delete_file", "introspect_runtime")
TIMEOUTS = ("null", "0", "30", "18446744073709551615")
SHAPES: tuple[tuple[dict[str, Any], dict[str, Any]], ...] = (  # a schema, and an input that fits
    ({"type": "object"}, {}),
    ({"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}, {"text": "a\nb"}),
    ({"type": "object", "properties": {"n": {"type": "integer", "minimum": 1}}}, {"n": 3}),
    ({"type": "object", "properties": {"way": {"enum": ["up", "down"]}}, "required": ["way"]}, {"way": "up"}),
    (
        {
            "type": "object",
            "properties": {"items": {"type": "array", "items": {"$ref": "#/$defs/item"}}},
            "$defs": {"item": {"type": "object", "properties": {"id": {"type": "number"}}}},
        },
        {"items": [{"id": 1.5}, {}]},
    ),
)
SOURCE = r"""
#include <cortexfs_plugin.h>
#include <stdio.h>
#include <string.h>

static int state;
static const char *descriptors[] = {DESCRIPTORS};

static CortexBuffer info(void *self)
{
    (void)self;
    return cortex_text("{\"name\":\"forty\",\"version\":\"1.0\",\"description\":\"For tests\"}");
}
static size_t count(void *self)
{
    (void)self;
    return sizeof descriptors / sizeof *descriptors;
}
static CortexBuffer descriptor(void *self, size_t index)
{
    (void)self;
    return cortex_text(descriptors[index]);
}
static CortexBuffer execute(void *self, CortexBuffer name, CortexBuffer input, CortexBuffer invocation)
{
    char said[4096];
    (void)self, (void)invocation;
    snprintf(said, sizeof said, "%.*s %.*s", (int)name.len, (const char *)name.ptr, (int)input.len,
             (const char *)input.ptr);
    return cortex_result(said, 0);
}
static void drop(void *self)
{
    (void)self;
}
CORTEX_PLUGIN(&state, info, count, descriptor, execute, drop)
"""


def descriptor(number: int) -> str:
    schema, _ = SHAPES[number % len(SHAPES)]
    effect = {
        "kind": KINDS[number % len(KINDS)],
        "reversibility": "reversible",
        "confirmation": "never",
        "dry_run": "not_supported",
    }
    about: dict[str, Any] = {"emits_progress": True, "emits_observer_text": False, "background_safe": True}
    about["effects"] = [effect]
    told = {"name": f"dev_tool_{number}", "description": f"Tool {number}. Use it.", "input_schema": schema}
    timeout = TIMEOUTS[number % len(TIMEOUTS)]
    return json.dumps(told | {"capabilities": about})[:-1] + f',"timeout_secs":{timeout}}}'


def source(*texts: str) -> str:
    return SOURCE.replace("DESCRIPTORS", ", ".join(json.dumps(text) for text in texts))


@pytest.fixture(scope="module")
def forty(python: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Ctx, Path]]:
    folder = plugins.library(
        tmp_path_factory.mktemp("forty"), "forty", source(*map(descriptor, range(COUNT)))
    )
    with mounted(python) as ctx:
        ctx.ctx("plugin", "install", str(folder))
        yield ctx, folder


def test_each_of_forty_tools_answers(forty: tuple[Ctx, Path]) -> None:
    # issue: "a library with 40 tools"
    ctx, _ = forty
    for number in range(COUNT):
        _, input_ = SHAPES[number % len(SHAPES)]
        answer = ctx.call(f"dev_tool_{number}", json.dumps(input_))
        name, _, said = answer.output.partition(" ")
        assert (answer.status, name, json.loads(said)) == (0, f"dev_tool_{number}", input_)
    timeouts = [(Path(f"{ctx.tool(f'dev_tool_{n}')}.d") / "timeout").read_text().strip() for n in range(4)]
    assert timeouts == ["1800", "1800", "30", "604800"]


def test_each_is_tried_before_it_is_installed(forty: tuple[Ctx, Path]) -> None:
    ctx, folder = forty
    out = ctx.ctx("plugin", "test", str(folder), "--run", "--yes").stdout
    assert out.count("- ok: tool dev_tool_") == COUNT
    assert "fail:" not in out


def test_one_wrong_tool_leaves_thirty_nine(forty: tuple[Ctx, Path], tmp_path: Path) -> None:
    # abi.md 11.35
    ctx, _ = forty
    wrong = descriptor(7).replace('"integer"', '"intgeer"')
    texts = [wrong if number == 7 else descriptor(number) for number in range(COUNT)]
    done = ctx.ctx("plugin", "install", str(plugins.library(tmp_path, "forty", source(*texts), "1.1")))
    assert "warning: but no caller can call dev_tool_7: the tool's schema is wrong at " in done.stderr
    assert "some of its tools cannot be called: dev_tool_7: the tool's schema is wrong at " in done.stderr
    assert ctx.call("dev_tool_8", '{"way":"up"}').status == 0
    status = (Path(f"{ctx.tool('dev_tool_7')}.d") / "status").read_text()
    assert status.startswith("broken: the tool's schema is wrong at ")
    answer = ctx.call("dev_tool_7", '{"n":1}')
    assert (answer.code, answer.status) == ("EHOSTDOWN", 69)
    assert "the tool's schema is wrong at" in answer.message
    (row,) = [one for one in json.loads(ctx.ctx("plugin", "list", "--json").stdout) if one["name"] == "forty"]
    assert (row["status"], len(row["tools"])) == ("loaded", COUNT)
    assert row["wrong"].startswith("dev_tool_7: ")
