"""What a plugin in Python says of its tools, and what they return, where its types are wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from cortexfs.core import hostcalls
from cortexfs.plugins.catalog import Catalog
from tests.shell.calling import serving
from tests.shell.forks import public_directory
from tests.waiting import awaited

PLUGIN = """
from cortexfs.sdk import *

class Made(Tool):
    description = "Returns what it was made with."
    input_schema = {"type": "object"}

    def __init__(self, name, result=None, **members):
        self.name, self.result = name, result
        vars(self).update(members)

    def execute(self, input):
        return self.result

image = Attachment("image", "image/png", "/a")
tools = [
    Made("number", ToolResult.success(5)),
    Made("fields", ToolResult("").with_media_many(image)),
    Made("no", ToolResult("", is_error="no")),
    Made("size", ToolResult("").with_media(image._replace(size=-5))),
    Made("silent", ToolResult.error(" ")),
    Made("true", timeout_secs=True),
    Made("yes", capabilities=ToolCapabilities(emits_progress="yes")),
]
"""
NAMED = """
from cortexfs.sdk import MultiToolPlugin, PluginInfo, tool

@tool
def one() -> int:
    "Returns one."
    return 1

class Named(MultiToolPlugin):
    plugin_info = PluginInfo("other", "1.0", "")

    def create_tools(self):
        return [one]
"""
WRONG = {
    "number": ("EPROTO", "the tool returned a wrong ToolResult: Expected `str`, got `int` - at `$[0]`"),
    "fields": (
        "EPROTO",
        "the tool returned a wrong ToolResult: Expected `array`, got `str` - at `$[1][0]`",
    ),
    "no": ("EPROTO", "the tool returned a wrong ToolResult: Expected `bool`, got `str` - at `$[2]`"),
    "size": ("EPROTO", "the tool failed: ValidationError: Expected `int` >= 0 - at `$.size`"),
    "silent": ("EIO", "it failed without a message"),
}


async def test_another_name_in_the_code_is_a_line_of_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    # abi.md 11.16
    caplog.set_level("INFO", "cortexfs")
    with public_directory() as place:
        (place / "named_plugin.py").write_text(NAMED)
        plugin = hostcalls.Plugin("named", "1.0", "python", "named_plugin:Named", str(place))
        async with serving(tmp_path) as world:
            assert (await Catalog(world.pool).registry([plugin])).get("tool", "one") is not None
            await awaited(lambda: "plugin 'named': its name is 'other' in its code" in caplog.text)
    assert "its version" not in caplog.text


async def test_wrong_types_cost_the_call_or_the_tool(tmp_path: Path) -> None:
    # abi.md 4.20, 4.30, 11.35
    with public_directory() as place:
        (place / "wrong_types.py").write_text(PLUGIN)
        plugin = hostcalls.Plugin("wrong", "1.0", "python", "wrong_types:tools", str(place))
        async with serving(tmp_path) as world:
            answers = {name: await world.call(world.inode(name, plugin), "{}") for name in WRONG}
            catalog = Catalog(world.pool)
            await catalog.registry([plugin])
    assert {name: (answer.code, answer.message) for name, answer in answers.items()} == WRONG
    assert catalog.broken == {}
    assert catalog.wrong["wrong"] == (
        "true: it cannot be described: ValidationError: Expected `int | null`, got `bool` - at"
        " `$.timeout_secs`; yes: it cannot be described: ValidationError: Expected `bool`, got `str` - at"
        " `$.capabilities.emits_progress`"
    )
