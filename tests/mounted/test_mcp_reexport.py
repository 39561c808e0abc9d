"""`ctx mcp serve --server`: a client gets a server of the mount unchanged, under the mount's policy."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import mcp_types as types
import pytest
from mcp import Client, MCPError

from tests.mounted import mcp_places
from tests.mounted.agents import agent, call, results, say, script, shell, working
from tests.mounted.ctx_mount import Ctx
from tests.mounted.mcp_clients import over_stdio, served, stdio
from tests.mounted.mcp_places import CONFORMING
from tests.waiting import PATIENCE, until

place = mcp_places.place
ERAS = ["legacy", "auto"]  # with the handshake, and as of 2026-07-28
OURS = ("--server", "conf")


def words(result: types.CallToolResult) -> str:
    return "".join(part.text for part in result.content if isinstance(part, types.TextContent))


def processes(ctx: Ctx) -> set[str]:
    """Returns the processes of the server."""
    wanted = os.fsencode(ctx.work / CONFORMING.name)
    found = set()
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if wanted in path.read_bytes().split(b"\0"):
                found.add(path.parent.name)
    return found


@pytest.mark.parametrize("era", ERAS)
def test_a_client_sees_the_server_and_not_us(place: Ctx, era: str) -> None:
    # issue: "re-exports one added server under its own names"; "titles and all hints unchanged"
    async def use(client: Client) -> None:
        info = client.session.server_info
        assert info
        assert (info.name, info.title, info.version) == ("conforming", "A conforming server", "1.0.0")
        assert client.session.instructions == "Ask for what the suite asks for."
        can = client.session.server_capabilities
        assert can
        assert None not in (can.tools, can.resources, can.prompts, can.completions, can.logging)
        assert can.tasks is None  # the server has tasks, and we do not serve them
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert {"test_simple_text", "json_schema_2020_12_tool"} <= tools.keys()
        assert tools["json_schema_2020_12_tool"].input_schema["additionalProperties"] is False
        assert not any(tool.meta for tool in tools.values())
        mixed = await client.call_tool("test_multiple_content_types", {})
        assert [part.type for part in mixed.content] == ["text", "image", "resource"]
        wrong = await client.call_tool("test_error_handling", {})
        assert wrong.is_error
        assert words(wrong) == "This tool intentionally returns an error for testing"
        with pytest.raises(MCPError, match="there is no tool 'nope'"):
            await client.call_tool("nope", {})

    over_stdio(place, use, *OURS, mode=era)


@pytest.mark.parametrize("era", ERAS)
def test_resources_prompts_and_completion_are_the_servers(place: Ctx, era: str) -> None:
    # issue: "Both ways": resources, templates, prompts, completion
    async def use(client: Client) -> None:
        assert (await client.list_resources()).resources[0].uri == "test://static-text"
        templates = (await client.list_resource_templates()).resource_templates
        assert [one.uri_template for one in templates] == ["test://template/{id}/data"]
        (read,) = (await client.read_resource("test://template/5/data")).contents
        assert isinstance(read, types.TextResourceContents)
        assert json.loads(read.text)["id"] == "5"
        with pytest.raises(MCPError, match="there is no test://nothing"):
            await client.read_resource("test://nothing")
        assert len((await client.list_prompts()).prompts) == 4
        said = await client.get_prompt("test_prompt_with_arguments", {"arg1": "a", "arg2": "b"})
        assert isinstance(said.messages[0].content, types.TextContent)
        assert "arg1='a', arg2='b'" in said.messages[0].content.text
        about = types.PromptReference(name="test_prompt_with_arguments")
        found = await client.complete(about, {"name": "arg1", "value": "par"})
        assert found.completion.values == ["paris", "park", "party"]

    over_stdio(place, use, *OURS, mode=era)


def asking(use: Callable[[Client], Awaitable[None]], ctx: Ctx, era: str = "legacy") -> list[str]:
    """Use a client that answers questions. Returns the questions and messages that it received."""
    seen: list[str] = []

    async def elicit(_: Any, params: types.ElicitRequestParams) -> types.ElicitResult:
        seen.append(f"elicit {params.message}")
        return types.ElicitResult(action="accept", content={"username": "ann"})

    async def sample(_: Any, params: types.CreateMessageRequestParams) -> types.CreateMessageResult:
        (asked,) = params.messages
        assert isinstance(asked.content, types.TextContent)
        seen.append(f"sample {asked.content.text}")
        return types.CreateMessageResult(role="assistant", content=types.TextContent(text="hi"), model="m")

    async def log(params: types.LoggingMessageNotificationParams) -> None:
        seen.append(f"log {params.data}")

    async def hear(message: object) -> None:
        if isinstance(message, types.ResourceUpdatedNotification):
            seen.append(f"updated {message.params.uri}")

    options: dict[str, Any] = {"elicitation_callback": elicit, "sampling_callback": sample}
    options |= {"logging_callback": log, "message_handler": hear}
    over_stdio(ctx, use, *OURS, mode=era, **options)
    return seen


@pytest.mark.parametrize("era", ERAS)
def test_questions_reach_the_client_and_answers_the_server(place: Ctx, era: str) -> None:
    # issue: "elicitation", "sampling"; core/mcp_session.py; of a client of 2026-07-28: mcp/rounds.py
    async def use(client: Client) -> None:
        said = await client.call_tool("test_elicitation", {"message": "who?"})
        assert words(said) == 'Elicitation completed: action=accept, content={"username": "ann"}'
        assert words(await client.call_tool("test_sampling", {"prompt": "say hi"})) == "LLM response: hi"

    assert asking(use, place, era) == ["elicit who?", "sample say hi"]


async def refused(_: object, __: object) -> types.ElicitResult:
    raise AssertionError("this client is asked by nobody else's call")


def test_a_client_of_2026_is_asked_for_its_own_calls_alone(place: Ctx) -> None:
    # mcp/rounds.py: "no other client uses that session with the server"
    async def use(client: Client) -> None:
        ask, name = client.session.call_tool, "test_elicitation"
        first = await ask(name, {"message": "one"}, allow_input_required=True)
        second = await ask(name, {"message": "two"}, allow_input_required=True)
        assert words(await client.call_tool("test_simple_text", {}))  # other calls go on meanwhile
        assert (await client.read_resource("test://static-text")).contents
        assert (await client.get_prompt("test_simple_prompt", {})).messages
        for asked, answer in ((second, "ann"), (first, "bob")):
            assert isinstance(asked, types.InputRequiredResult)
            ((key, question),) = (asked.input_requests or {}).items()
            assert isinstance(question, types.ElicitRequest)
            assert question.params.message == {"ann": "two", "bob": "one"}[answer]
            with pytest.raises(MCPError, match="no request with this state waits"):
                await ask("test_simple_text", {}, request_state=asked.request_state)
            said = types.ElicitResult(action="accept", content={"username": answer})
            state = asked.request_state
            done = await ask(name, {}, input_responses={key: said}, request_state=state)
            assert f'{{"username": "{answer}"}}' in words(done)
            with pytest.raises(MCPError, match="make the request anew"):  # it is good once
                await ask(name, {}, input_responses={key: said}, request_state=state)

    over_stdio(place, use, *OURS, mode="auto", elicitation_callback=refused)


def test_logs_and_progress_come_in_their_order(place: Ctx) -> None:
    # issue: "log messages and setLevel"; "progress totals"
    told: list[tuple[float, float | None]] = []

    async def progress(progress: float, total: float | None, message: str | None) -> None:
        told.append((progress, total))

    async def use(client: Client) -> None:
        await client.call_tool("test_tool_with_logging", {})
        await client.call_tool("test_tool_with_progress", {}, progress_callback=progress)

    logged = asking(use, place)
    assert logged == [
        "log Tool execution started",
        "log Tool processing data",
        "log Tool execution completed",
    ]
    assert told == [(0, 100), (50, 100), (100, 100)]


def test_what_is_said_between_calls_is_passed_on(place: Ctx) -> None:
    # issue: "subscriptions"
    heard = anyio.Event()

    async def hear(message: object) -> None:
        if isinstance(message, types.ResourceUpdatedNotification):
            assert message.params.uri == "test://watched-resource"
            heard.set()

    async def use(client: Client) -> None:
        with pytest.warns(match="subscribe is removed"):
            await client.subscribe_resource("test://watched-resource")
        with anyio.fail_after(PATIENCE):
            await heard.wait()

    over_stdio(place, use, *OURS, mode="legacy", message_handler=hear)


def test_a_client_that_answers_nothing_is_asked_nothing(place: Ctx) -> None:
    async def use(client: Client) -> None:
        refused = await client.call_tool("test_elicitation", {"message": "who?"})
        assert refused.is_error
        assert "CortexFS cannot ask the user during this call" in words(refused)

    over_stdio(place, use, *OURS, mode="legacy")


@pytest.mark.parametrize("era", ERAS)
def test_each_client_has_its_own_server_which_ends_with_it(place: Ctx, era: str) -> None:
    before = processes(place)
    theirs: set[str] = set()

    async def use(client: Client) -> None:
        async with Client(stdio(place, *OURS), mode=era) as other:
            await other.call_tool("test_simple_text", {})
            await client.call_tool("test_simple_text", {})
            theirs.update(await anyio.to_thread.run_sync(processes, place) - before)
            assert len(theirs) >= 2  # and perhaps that of their user, which stays

    over_stdio(place, use, *OURS, mode=era)
    until(lambda: theirs & processes(place), lambda left: len(left) <= len(theirs) - 2)


def test_each_call_is_a_run_that_is_logged(place: Ctx) -> None:
    # issue: "with our policy and log"
    async def use(client: Client) -> None:
        await client.call_tool("test_audio_content", {})
        too_much = await client.call_tool("test_elicitation", {"message": 7})
        assert too_much.is_error
        assert words(too_much) == "EINVAL: message: expected string, got number"

    over_stdio(place, use, *OURS, mode="legacy")
    log = Path(f"{place.tool('conf.test_audio_content')}.d/log").read_text().splitlines()
    assert json.loads(log[-1])["status"] == "ok"


def test_only_what_is_allowed_is_offered(place: Ctx) -> None:
    async def use(client: Client) -> None:
        names = {tool.name for tool in (await client.list_tools()).tools}
        assert names == {"test_image_content", "test_audio_content"}
        with pytest.raises(MCPError, match="there is no tool"):
            await client.call_tool("test_simple_text", {})

    over_stdio(place, use, *OURS, "--allow", "conf.test_image*", "--allow", "conf.test_audio*")


def test_a_server_that_is_not_there(place: Ctx) -> None:
    done = place.ctx("mcp", "serve", "--server", "nope", check=False)
    assert done.returncode == 1
    assert "there is no MCP server 'nope'" in done.stderr


def test_over_http_clients_are_kept_apart(place: Ctx) -> None:
    async def use(client: Client) -> None:
        assert words(await client.call_tool("test_simple_text", {})).startswith("This is a simple text")

    with served(place, *OURS) as server:
        server.use(use, mode="legacy")
        server.use(use)


def test_the_object_of_a_server_for_people_and_scripts(place: Ctx) -> None:
    # docs/mcp.md: `NAME.mcp`, `NAME.read_resource`
    prompts = json.loads(place.call("conf.mcp", "prompts/list").output)["prompts"]
    assert prompts[0]["name"] == "test_simple_prompt"
    said = place.call("conf.mcp", "prompts/get", '--params={"name": "test_simple_prompt"}')
    assert "This is a simple prompt" in said.output
    wrong = place.call("conf.mcp", "tools/call")
    assert (wrong.code, "by their own objects" in wrong.message) == ("EINVAL", True)
    assert "is not one of" in place.call("conf.mcp", "nope").message
    for method in ("listen", "resources/subscribe", "logging/setLevel"):  # its calls share a connection
        assert place.call("conf.mcp", method).code == "EINVAL"
    assert place.call("conf.read_resource", "--uri", "test://static-text").output.startswith("This is the")
    picture = place.call("conf.read_resource", "--uri", "test://static-binary")
    (medium,) = [frame["attachment"] for frame in picture.frames if frame["type"] == "media"]
    assert Path(medium["url"]).read_bytes().startswith(b"\x89PNG")
    shutil.rmtree(Path(medium["url"]).parent)
    listed = json.loads(place.call("conf.read_resource").output)
    assert len(listed["resources"]) == 3
    assert len(listed["resourceTemplates"]) == 1
    assert "there is no test://x" in place.call("conf.read_resource", "--uri", "test://x").message
    bad = place.call("conf.test_simple_text", env={"CTX_MCP_SESSION": "x"})
    assert (bad.code, "unset it" in bad.message) == ("EINVAL", True)


def test_an_agent_answers_no_question_to_a_person(place: Ctx) -> None:
    # docs/attacks.md: agents have no session with a server
    tool = place.tool("conf.test_simple_text")
    with agent(place, "sly", "shell.exec", "conf.test_simple_text", "conf.mcp") as path:
        session = f"CTX_MCP_SESSION={'a' * 32}:elicitation"
        for words in (f"{tool}", f"{place.tool('conf.mcp')} answer '--params={{\"id\": 1}}'"):
            assert "an agent has no session" in shell(place, path, f"{session} {words} 2>&1")
        place.put(f"{path}.d/env", session)  # by its owner, or by a tool that may write there
        task = script(call("conf.test_simple_text"), say("x"))
        with working(place, path, task, scope="temp") as client:
            asked = client.until("approval")[-1]
            client.ask("approve", run=asked["run"], call=asked["call"], decision="allow_once")
            (told,) = results(client.until("done", status="ok"))
        assert "an agent has no session" in str(told)


def test_the_object_of_a_server_is_offered_by_its_name_alone(place: Ctx) -> None:
    async def use(client: Client) -> None:
        seen.append({tool.name for tool in (await client.list_tools()).tools})

    seen: list[set[str]] = []
    for patterns in ([], ["--allow", "conf.*"], ["--allow", "conf.mcp"]):
        over_stdio(place, use, *patterns)
    assert ["conf_mcp" in names for names in seen] == [False, False, True]
    assert ["conf_test_simple_text" in names for names in seen] == [True, True, False]


def test_log_messages_are_notes_of_a_run(place: Ctx) -> None:
    # issue: "log messages ... as observer frames"
    said = place.call("conf.test_tool_with_logging")
    notes = [(frame["source"], frame["content"]) for frame in said.frames if frame["type"] == "observer"]
    assert notes[0] == ("conf: info", "Tool execution started")
    assert len(notes) == 3
