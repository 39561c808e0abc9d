"""Calls that bypass the streams of the SDK (host/mcp/direct.py, host/mcp/stdio.py), as a host makes them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from mcp_types import CallToolResult, Implementation, InitializeResult, ListToolsResult

from cortexfs import sdk
from cortexfs.core.errors import Fault
from cortexfs.core.manifest.mcp_server import McpTarget
from cortexfs.host.mcp import direct
from cortexfs.host.mcp import tools as mcptools
from cortexfs.host.mcp.keeper import Keeper

# A server that answers from `ANSWERS`, by method and tool, and answers a cancellation with `CANCELLED`.
SERVER = """
import json, sys

def say(**message):
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)

answers, seen = json.loads(sys.argv[1]), []
for line in sys.stdin:
    asked = json.loads(line)
    params = asked.get("params", {})
    if asked["method"] == "notifications/cancelled":
        say(id=params["requestId"], result={"content": []})
    if "id" not in asked:
        continue
    seen.append(asked)
    name = params.get("name") or params.get("cursor")
    if name == "seen":
        said = {"resultType": "complete", "content": [{"type": "text", "text": json.dumps(seen)}]}
    elif name == "same":
        said = {"content": [{"type": "text", "text": params["arguments"]["text"]}]}
    else:
        said = answers.get(params.get("requestState")) or answers.get(name) or answers.get(asked["method"])
    if name == "slow":
        say(method="notifications/progress", params={"progressToken": asked["id"], "progress": 1})
    elif said is None:
        say(id=asked["id"], error={"code": -32601, "message": "no"})
    else:
        say(id=asked["id"], result=said)
"""
OLD = {
    "initialize": {
        "protocolVersion": "2025-06-18",
        "capabilities": {"tools": {}},
        "serverInfo": {"name": "t", "version": "1"},
    }
}
NEW_META = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}
NEW = {
    "server/discover": NEW_META | {"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}},
}
NUMBER = {"type": "object", "properties": {"n": {"type": "integer"}, "none": {"const": None}}}


def tool_of(name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "inputSchema": {"type": "object"}} | more


def listed(*tools: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"tools": list(tools)} | more


@pytest.fixture
def serving() -> Iterator[Callable[[dict[str, Any]], Keeper]]:
    made: list[Keeper] = []

    def make(answers: dict[str, Any]) -> Keeper:
        command = (sys.executable, "-I", "-c", SERVER, json.dumps(answers))
        made.append(Keeper(McpTarget("test", command=command)))
        made[-1].link()
        return made[-1]

    yield make
    for one in made:
        one.close()


def called(keeper: Keeper, name: str, runtime: sdk.ToolRuntime | None = None, **input: Any) -> sdk.ToolResult:
    tool = next(one for one in mcptools.adapted(keeper) if one.name == f"test.{name}")
    return sdk.run(tool, input, runtime or sdk.MemoryRuntime())


def test_a_call_asks_one_question_and_waits_for_nothing_else() -> None:
    # docs/design.md: "a session's call must ask its question and wait for nothing else"
    agreed = InitializeResult.model_validate(OLD["initialize"])
    pages = [ListToolsResult.model_validate(listed(tool_of("a")))]
    session = direct.session(agreed, Implementation(name="t", version="1"), pages, {})
    asked: list[Any] = []

    def answer(*question: Any) -> dict[str, Any]:
        asked.append(question)
        return {"content": [{"type": "text", "text": "well"}]}

    result = direct.driven(session.call_tool("a", {"x": 1}), answer)
    assert isinstance(result, CallToolResult)
    assert [part.text for part in result.content if part.type == "text"] == ["well"]
    assert asked == [("tools/call", {"name": "a", "arguments": {"x": 1}})]


@pytest.mark.parametrize("page", ["first", "second"])
def test_structured_answers_are_held_to_their_schema(
    serving: Callable[[dict[str, Any]], Keeper], page: str
) -> None:
    # docs/mcp.md: EPROTO, "breaks the protocol or its tool's output schema"
    pages = listed(tool_of("first", outputSchema=NUMBER), nextCursor="more")
    more = listed(tool_of("second", outputSchema=NUMBER), tool_of("seen"))
    good = {"content": [], "structuredContent": {"n": 1, "none": None}}
    keeper = serving(OLD | {"tools/list": pages, "more": more, "first": good, "second": good})
    assert json.loads(called(keeper, page).output) == good["structuredContent"]
    lists = [one for one in json.loads(called(keeper, "seen").output) if one["method"] == "tools/list"]
    assert len(lists) == 2  # no call lists the tools again
    bad = {"content": [], "structuredContent": {"n": "one"}}
    keeper = serving(OLD | {"tools/list": pages, "more": more, "first": bad, "second": bad})
    with pytest.raises(Fault) as failed:
        called(keeper, page)
    assert failed.value.code == "EPROTO"
    why = "the MCP server test breaks its tool's output schema: 'one' is not of type 'integer'"
    assert failed.value.message == why


def test_what_has_content_is_not_told_twice_and_sounds_have_their_endings(
    serving: Callable[[dict[str, Any]], Keeper],
) -> None:
    # issue: "Images in structured content are media and not base64 text"; "Audio has its extension"
    sound = {"type": "audio", "mimeType": "audio/wav", "data": "UklGRg=="}
    both = {"content": [sound], "structuredContent": {"result": [sound]}}
    said = called(serving(OLD | {"tools/list": listed(tool_of("plays")), "plays": both}), "plays")
    assert said.output == ""
    (medium,) = said.media
    assert medium.url.endswith(".wav")
    Path(medium.url).unlink()


def test_long_lines_both_ways(serving: Callable[[dict[str, Any]], Keeper]) -> None:
    keeper = serving(OLD | {"tools/list": listed(tool_of("same"))})
    texts = [letter * (1 << 20) for letter in "abcd"]
    with ThreadPoolExecutor(4) as threads:
        said = list(threads.map(lambda text: called(keeper, "same", text=text).output, texts))
    assert said == texts


@pytest.mark.parametrize("odd", [1 << 70, -(1 << 70), "half \ud83d of it"])
def test_what_json_can_say_is_said(serving: Callable[[dict[str, Any]], Keeper], odd: Any) -> None:
    keeper = serving(OLD | {"tools/list": listed(tool_of("seen"))})
    call = json.loads(called(keeper, "seen", odd=odd).output)[-1]
    assert call["params"]["arguments"] == {"odd": odd}


class Leaves(sdk.MemoryRuntime):
    """Cancels once the call has reported progress."""

    def emit_progress(self, message: str) -> None:
        self.cancel()


def test_a_late_answer_is_passed_over(serving: Callable[[dict[str, Any]], Keeper]) -> None:
    # issue 6: "cancel as cancel"
    keeper = serving(OLD | {"tools/list": listed(tool_of("slow"), tool_of("same"))})
    link = keeper.link()
    with pytest.raises(sdk.ExecutionFailed) as failed:
        called(keeper, "slow", Leaves())
    assert failed.value.code == "ECANCELED"
    assert called(keeper, "same", text="on").output == "on"
    assert keeper.link() is link


def test_an_error_is_the_server_s_sentence(serving: Callable[[dict[str, Any]], Keeper]) -> None:
    keeper = serving(OLD | {"tools/list": listed(tool_of("none"))})
    with pytest.raises(Fault, match="says: no"):
        called(keeper, "none")


def test_a_server_of_2026_that_is_not_done_is_asked_again(
    serving: Callable[[dict[str, Any]], Keeper],
) -> None:
    first = {"resultType": "input_required", "requestState": "half"}
    done = {"resultType": "complete", "content": [{"type": "text", "text": "done"}]}
    keeper = serving(NEW | {"tools/list": NEW_META | listed(tool_of("long")), "long": first, "half": done})
    assert called(keeper, "long").output == "done"


def test_a_server_of_2026_alone_is_told_what_it_may_ask(
    serving: Callable[[dict[str, Any]], Keeper],
) -> None:
    # docs/mcp.md: "2026-07-28 to a server that speaks no older one"
    keeper = serving(NEW | {"tools/list": NEW_META | listed(tool_of("seen"))})
    call = json.loads(called(keeper, "seen").output)[-1]
    can = call["params"]["_meta"]["io.modelcontextprotocol/clientCapabilities"]
    assert can == {"elicitation": {"form": {}, "url": {}}}


def test_a_question_in_an_answer_is_refused(serving: Callable[[dict[str, Any]], Keeper]) -> None:
    # issue 6: "elicitation refused clearly"
    form = {"message": "well?", "requestedSchema": {"type": "object", "properties": {}}, "mode": "form"}
    asks = {
        "resultType": "input_required",
        "inputRequests": {"q": {"method": "elicitation/create", "params": form}},
    }
    keeper = serving(NEW | {"tools/list": NEW_META | listed(tool_of("asks")), "asks": asks})
    with pytest.raises(Fault, match="this run of the tool cannot ask a person"):
        called(keeper, "asks")


# A cancellation hits a call that is importing the SDK, with parts of asyncio imported already.
STRUCK = """
import ctypes, sys, threading
from cortexfs.host.mcp import keeper

class Strike(KeyboardInterrupt): ...

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "asyncio.runners" and self in sys.meta_path:
            sys.meta_path.remove(self)
            call = ctypes.c_ulong(threading.main_thread().ident)
            ctypes.pythonapi.PyThreadState_SetAsyncExc(call, ctypes.py_object(Strike))

assert "asyncio" not in sys.modules
sys.meta_path.insert(0, Finder())
try:
    IMPORT
except Strike:
    print("struck")
    IMPORT
    print("imported")
"""


def test_a_first_call_that_is_given_up_leaves_nothing_half_imported() -> None:
    script = STRUCK.replace("IMPORT", "keeper.apart(keeper._link_class)")
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert ran.stdout == "struck\nimported\n", ran.stderr


def test_a_tool_that_is_a_task_alone_is_a_wrong_one(serving: Callable[[dict[str, Any]], Keeper]) -> None:
    # issue: "a taskSupport: required tool is not ready"
    tools = [tool_of(each, execution={"taskSupport": each}) for each in ("required", "optional")]
    keeper = serving(OLD | {"tools/list": listed(*tools)})
    found = {tool.name: sdk.descriptor(tool) for tool in mcptools.adapted(keeper)}
    assert "it runs only as a task" in str(found["test.required"])
    assert "it runs only as a task" not in str(found["test.optional"])


def test_what_breaks_the_protocol_is_a_sentence(serving: Callable[[dict[str, Any]], Keeper]) -> None:
    # issue: "a pydantic dump as an error"
    keeper = serving(OLD | {"tools/list": listed(tool_of("odd")), "odd": {"content": [{"type": "text"}]}})
    with pytest.raises(
        Fault, match=r"EPROTO: the MCP server test does not speak the protocol: .*Field"
    ) as why:
        called(keeper, "odd")
    assert "\n" not in str(why.value)
    assert "pydantic" not in str(why.value)
