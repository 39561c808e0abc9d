"""Resources and prompts, which `ctx mcp serve` has beside tools (docs/mcp-serve.md)."""

from __future__ import annotations

import os
from pathlib import Path

import anyio
import mcp_types as types
import pytest
from mcp import Client, MCPError

from tests.mounted import mcp_places
from tests.mounted.agents import agent
from tests.mounted.ctx_mount import Ctx
from tests.mounted.mcp_clients import over_stdio
from tests.waiting import PATIENCE

place = mcp_places.place
ERAS = ["legacy", "auto"]


def text_of(said: types.ReadResourceResult) -> str:
    (content,) = said.contents
    assert isinstance(content, types.TextResourceContents)
    return content.text


def prompted(said: types.GetPromptResult) -> str:
    message = said.messages[-1]
    assert isinstance(message.content, types.TextContent)
    return message.content.text


@pytest.mark.parametrize("era", ERAS)
def test_files_of_sessions_and_objects_are_resources(place: Ctx, era: str) -> None:
    # issue: "serve offers sessions' and objects' files"
    place.ctx("send", "debug/echo", "--session", "kept", "hello resources")

    async def use(client: Client) -> None:
        listed: dict[str, types.Resource] = {}
        cursor = None
        while True:
            page = await client.list_resources(cursor=cursor)
            listed |= {one.name: one for one in page.resources}
            if not (cursor := page.next_cursor):
                break
        said = listed["model/debug/echo, session kept"]
        assert said.mime_type == "text/markdown"
        assert "hello resources" in text_of(await client.read_resource(said.uri))
        events = said.uri.replace("latest.md", "events.jsonl")
        assert '"hello resources"' in text_of(await client.read_resource(events))
        about = listed["text.word_count: description"]
        assert text_of(await client.read_resource(about.uri))
        templates = (await client.list_resource_templates()).resource_templates
        made = {one.uri_template for one in templates}
        assert f"{Path(place.root).as_uri()}/tool/{{tool}}.d/{{file}}" in made
        schema = f"{Path(place.root).as_uri()}/tool/text.word_count.d/schema"
        assert '"properties"' in text_of(await client.read_resource(schema))

    over_stdio(place, use, mode=era)


def test_no_other_file_is_one(place: Ctx) -> None:
    # abi.md 8.43
    root = Path(place.root).as_uri()
    secret = place.work / "secret"
    secret.write_text("x")
    wrong = [
        secret.as_uri(),
        f"{root}/../{place.work.name}/secret",
        f"{root}/tool/text.word_count.d/../../../{place.work.name}/secret",
        f"{root}/tool/text.word_count",
        f"{root}/status",
        f"file://host{place.root}/tool/text.word_count.d/schema",
        f"{root}/tool/%00.d/schema",
        f"{root}/tool/nothing.d/schema",
        "test://static-text",
        "file:///etc/passwd",
        "http://[",
        "",
    ]

    async def use(client: Client) -> None:
        for uri in wrong:
            with pytest.raises(MCPError, match="there is no resource"):
                await client.read_resource(uri)

    over_stdio(place, use)


def test_what_bounds_the_tools_bounds_the_files(place: Ctx) -> None:
    root = Path(place.root).as_uri()

    async def use(client: Client) -> None:
        names = [one.name for one in (await client.list_resources()).resources]
        assert names == ["text.word_count: description"]
        session = f"home/{os.getuid()}/model/debug/echo.d/session/kept/latest.md"
        for path in (session, "tool/fs.read.d/schema"):
            with pytest.raises(MCPError, match="there is no resource"):
                await client.read_resource(f"{root}/{path}")
        assert text_of(await client.read_resource(f"{root}/tool/text.word_count.d/schema"))

    over_stdio(place, use, "--allow", "text.word_count")


def test_links_in_results_are_followed(place: Ctx) -> None:
    # issue: "links in results can be followed"
    async def use(client: Client) -> None:
        with pytest.raises(MCPError):
            await client.read_resource("test://linked")
        linked = await client.call_tool("conf_test_link", {})
        (link,) = [part for part in linked.content if isinstance(part, types.ResourceLink)]
        assert "static" in text_of(await client.read_resource(link.uri))

    over_stdio(place, use)


@pytest.mark.filterwarnings("ignore:resources/subscribe is removed")
@pytest.mark.parametrize("era", ERAS)
def test_a_file_that_changes_is_told(place: Ctx, era: str) -> None:
    # issue: "subscribe where a file changes"
    place.ctx("send", "debug/echo", "--session", "watched", "one")
    uri = f"{Path(place.root).as_uri()}/home/{os.getuid()}/model/debug/echo.d/session/watched/latest.md"

    async def use(client: Client) -> None:
        told = anyio.Event()

        async def listen() -> None:
            async with client.listen(resource_subscriptions=[uri]) as events:
                ready.set()
                async for event in events:
                    assert uri in repr(event)
                    told.set()

        async def hear(message: object) -> None:
            if isinstance(message, types.ResourceUpdatedNotification) and str(message.params.uri) == uri:
                told.set()

        ready = anyio.Event()
        heard.append(hear)
        async with anyio.create_task_group() as tasks:
            if era == "legacy":
                await client.subscribe_resource(uri)
            else:
                tasks.start_soon(listen)
                await ready.wait()
            await anyio.to_thread.run_sync(place.ctx, "send", "debug/echo", "--session", "watched", "two")
            with anyio.fail_after(PATIENCE):
                await told.wait()
            tasks.cancel_scope.cancel()

    heard: list[object] = []

    async def pass_on(message: object) -> None:
        for each in heard:
            await each(message)  # type: ignore[operator]

    over_stdio(place, use, mode=era, message_handler=pass_on)


@pytest.mark.parametrize("era", ERAS)
def test_templates_and_agents_are_prompts(place: Ctx, era: str) -> None:
    # issue: "prompts (... served from templates and agents)"
    place.ctx(
        "ask", "--save", "fr", "-s", "translate into $language", "-p", "language=French", "be kind: $input"
    )

    async def use(client: Client) -> None:
        prompts = {one.name: one for one in (await client.list_prompts()).prompts}
        arguments = {one.name: one.required for one in prompts["fr"].arguments or []}
        assert arguments == {"input": True, "language": False}
        assert {"conf.test_prompt_with_arguments", "agent/clerk"} <= prompts.keys()
        said = await client.get_prompt("fr", {"input": "hello", "language": "Danish"})
        assert prompted(said) == "translate into Danish\n\nbe kind: hello"
        made = await client.get_prompt("conf.test_prompt_with_arguments", {"arg1": "$x", "arg2": "b"})
        assert "arg1='$x', arg2='b'" in prompted(made)
        pictured = await client.get_prompt("conf.test_prompt_with_image", {})
        kinds = [message.content.type for message in pictured.messages]
        assert (kinds, "analyze" in prompted(pictured)) == (["image", "text"], True)
        assert pictured.messages[0].content.mime_type == "image/png"  # type: ignore[union-attr]
        task = await client.get_prompt("agent/clerk", {"task": "count the words"})
        assert prompted(task).endswith("count the words")
        for name, values, why in (
            ("frr", {}, "did you mean fr"),
            ("fr", {}, "input"),
            ("fr", {"input": "x", "nope": "y"}, "nope"),
            ("agent/clerk", {}, "takes one argument, task"),
            ("../fr", {}, "there is no prompt"),
        ):
            with pytest.raises(MCPError, match=why):
                await client.get_prompt(name, values)

    try:
        with agent(place, "clerk", "conf.*"):
            over_stdio(place, use, mode=era)
    finally:
        place.config.joinpath("templates", "fr.toml").unlink()


@pytest.mark.parametrize("era", ERAS)
def test_arguments_of_prompts_are_completed(place: Ctx, era: str) -> None:
    # issue: "completion"
    place.ctx("ask", "--save", "fr", "-p", "language=French", "in $language: $input")

    async def use(client: Client) -> None:
        async def completed(name: str, argument: str, value: str) -> list[str]:
            ref = types.PromptReference(name=name)
            return (await client.complete(ref, {"name": argument, "value": value})).completion.values

        assert client.server_capabilities.completions is not None
        assert await completed("conf.test_prompt_with_arguments", "arg1", "par") == ["paris", "park", "party"]
        assert await completed("fr", "language", "Fr") == ["French"]
        assert await completed("fr", "language", "D") == []
        assert await completed("fr", "input", "") == []
        for name, argument in (("fr", "nope"), ("conf.nope", "arg1"), ("../fr", "x")):
            with pytest.raises(MCPError, match="there is no prompt"):
                await completed(name, argument, "")

    try:
        over_stdio(place, use, mode=era)
    finally:
        place.config.joinpath("templates", "fr.toml").unlink()
