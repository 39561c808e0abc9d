"""The bytes that reach a model for five tasks over servers of the MCP project: with the tools offered one
by one, and through one shell. Bytes do not depend on how busy a machine is.

A client of `ctx mcp serve` does each task both ways, with the calls of a model that knows how to do it.
Definitions are the names, descriptions and inputs in `tools/list`, counted once: a model pays for them with
each question. Results are the texts of all results. Calls are the inputs that the model writes.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from mcp import Client
from mcp_types import CallToolResult, TextContent, Tool

from cortexfs.mcp.offer import described
from tests.mounted import mcp_published_servers
from tests.mounted.ctx_mount import Ctx
from tests.mounted.mcp_clients import over_stdio
from tests.mounted.mcp_published_servers import OF_NPM, OF_PYPI

LINES = 1200  # of the log that the first task reads
COMMITS = 60
SERVERS = (*OF_NPM, *OF_PYPI)
ALLOW = tuple(word for name in SERVERS for word in ("--allow", f"{name}.*"))
ZONES = ("Asia/Tokyo", "America/New_York", "Europe/Berlin", "Australia/Sydney", "Africa/Nairobi")


class Task(NamedTuple):
    """A task; in its words WORK and HTTP stand for a folder and an address."""

    title: str
    calls: list[tuple[str, dict[str, Any]]]
    looks: list[tuple[str, dict[str, Any]]]  # looking up the tools of the script
    script: str


def _looks(words: str, *names: str) -> list[tuple[str, dict[str, Any]]]:
    return [("find", {"words": words}), ("describe", {"names": list(names)})]


TASKS = (
    Task(
        "count the errors of each part in a log of 1,200 lines",
        [("files.read_text_file", {"path": "WORK/app.log"})],
        _looks("read text file", "files.read_text_file"),
        "$CTX_ROOT/tool/files.read_text_file --path WORK/app.log"
        " | grep ERROR | cut -d' ' -f3 | sort | uniq -c",
    ),
    Task(
        "who made most of 60 commits",
        [("git.git_log", {"repo_path": "WORK/repo", "max_count": 100})],
        _looks("git log", "git.git_log"),
        "$CTX_ROOT/tool/git.git_log --repo_path WORK/repo --max_count 100"
        " | grep Author | sort | uniq -c | sort -rn | head -1",
    ),
    Task(
        "keep 40 people of a file in the graph, and count them there",
        [
            ("files.read_text_file", {"path": "WORK/people.txt"}),
            (
                "memory.create_entities",
                {
                    "entities": [
                        {
                            "name": f"person {number}",
                            "entityType": "person",
                            "observations": ["is in the file"],
                        }
                        for number in range(40)
                    ]
                },
            ),
            ("memory.read_graph", {}),
        ],
        _looks("create entities in graph", "memory.create_entities", "memory.read_graph"),
        'jq -Rn \'{entities: [inputs | {name: ., entityType: "person", observations: ["is in the file"]}]}\''
        " WORK/people.txt | $CTX_ROOT/tool/memory.create_entities >/dev/null;"
        " $CTX_ROOT/tool/memory.read_graph | jq '.entities | length'",
    ),
    Task(
        "one time in five zones",
        [
            ("time.convert_time", {"source_timezone": "UTC", "time": "12:00", "target_timezone": zone})
            for zone in ZONES
        ],
        _looks("convert time", "time.convert_time"),
        f"for zone in {' '.join(ZONES)}; do $CTX_ROOT/tool/time.convert_time --source_timezone UTC"
        " --time 12:00 --target_timezone $zone"
        " | jq -r '.target.timezone + \" \" + .target.datetime[11:16]'; done",
    ),
    Task(
        "the headings of a page of 600 lines",
        [("fetch.fetch", {"url": "HTTP/long.html", "max_length": 100_000})],
        _looks("fetch page", "fetch.fetch"),
        "$CTX_ROOT/tool/fetch.fetch --url HTTP/long.html --max_length 100000 | grep '^#'",
    ),
)


class Passed(NamedTuple):
    """Bytes of each kind."""

    results: int
    calls: int


class TaskFigures(NamedTuple):
    title: str
    one_by_one: Passed
    shell: Passed  # including the bytes of looking up tools
    printed: int  # output of the script alone


class CodeFigures(NamedTuple):
    tools: int
    definitions: int
    shell_definitions: int
    preset_definition: int  # of shell.exec, the only tool of an agent with --preset code
    tasks: tuple[TaskFigures, ...]


def prepare(ctx: Ctx) -> None:
    """Write the files that the tasks read."""
    parts = ("store", "web", "mail", "index", "queue")
    levels = ("INFO", "INFO", "ERROR", "INFO", "DEBUG", "WARN", "INFO")
    lines = (
        f"12:{number // 60 % 60:02}:{number % 60:02} {levels[number % 7]} {parts[number % 5]}"
        f" request {number} took {number * 7 % 900} ms and was answered by worker {number % 16}\n"
        for number in range(LINES)
    )
    (ctx.work / "app.log").write_text("".join(lines))
    (ctx.work / "people.txt").write_text("".join(f"person {number}\n" for number in range(40)))
    sections = (
        f"<h2>Chapter {number}</h2>"
        + "".join(f"<p>Line {line} of it says little.</p>\n" for line in range(50))
        for number in range(12)
    )
    (ctx.work / "long.html").write_text(f"<html><body><h1>Long</h1>{''.join(sections)}</body></html>")
    for number in range(COMMITS):
        name = "ann" if number % 3 else "bob"
        who = ["-c", f"user.name={name}", "-c", f"user.email={name}@example.com"]
        commit = ["commit", "-q", "--allow-empty", "-m", f"Change {number}: say less in part {number % 7}"]
        subprocess.run(["git", *who, "-C", str(ctx.work / "repo"), *commit], check=True)


def measured(ctx: Ctx, address: str) -> CodeFigures:
    plain, plain_tools = _done(ctx, address, lambda task: task.calls, *ALLOW)
    looked, _ = _done(ctx, address, lambda task: task.looks, "--code", *ALLOW)
    ran, code_tools = _done(ctx, address, lambda task: [("run", {"script": task.script})], "--code", *ALLOW)
    tasks = (
        TaskFigures(task.title, one, Passed(look.results + run.results, look.calls + run.calls), run.results)
        for task, one, look, run in zip(TASKS, plain, looked, ran, strict=True)
    )
    preset = _size([described("shell.exec", ctx.tool("shell.exec"))])
    return CodeFigures(len(plain_tools), _size(plain_tools), _size(code_tools), preset, tuple(tasks))


def _done(
    ctx: Ctx, address: str, calls: Callable[[Task], list[tuple[str, dict[str, Any]]]], *more: str
) -> tuple[list[Passed], list[Tool]]:
    """Returns the bytes passed for each task, and the offered tools."""
    passed: list[Passed] = []
    tools: list[Tool] = []

    async def use(client: Client) -> None:
        tools.extend((await client.list_tools()).tools)
        named = {tool.title or tool.name: tool.name for tool in tools}
        for task in TASKS:
            results = given = 0
            for name, input_ in calls(task):
                words = json.dumps(input_).replace("WORK", str(ctx.work)).replace("HTTP", address)
                said = await client.call_tool(named.get(name, name), json.loads(words))
                results += len(_text(said).encode())
                given += len(words)
            passed.append(Passed(results, given))

    over_stdio(ctx, use, *more)
    return passed, tools


def _text(result: CallToolResult) -> str:
    text = "".join(part.text for part in result.content if isinstance(part, TextContent))
    assert not result.is_error, text
    return text


def _size(tools: list[Tool]) -> int:
    """Returns the bytes of the tools' definitions, in the form that an API takes."""
    shown: list[Mapping[str, Any]] = [
        {"name": tool.name, "description": tool.description, "input_schema": tool.input_schema}
        for tool in tools
    ]
    return len(json.dumps(shown, separators=(",", ":")))


def table(figures: CodeFigures) -> str:
    """Returns the table of docs/code-mode.md."""
    share = 100 * figures.shell_definitions / figures.definitions
    lines = [
        "| | one by one | through the shell | share |",
        "|---|---|---|---|",
        f"| definitions of {figures.tools} tools, at each question | {figures.definitions:,}"
        f" | {figures.shell_definitions:,} | {share:.1f} % |",
    ]
    lines.append(
        f"| the one of an agent with `--preset code` | | {figures.preset_definition:,}"
        f" | {100 * figures.preset_definition / figures.definitions:.1f} % |"
    )
    for task in figures.tasks:
        one, shell = task.one_by_one.results, task.shell.results
        lines.append(f"| results: {task.title} | {one:,} | {shell:,} | {100 * shell / one:.1f} % |")
        lines.append(
            f"| of these, without looking tools up | | {task.printed:,} | {100 * task.printed / one:.1f} % |"
        )
        lines.append(f"| what the model writes for it | {task.one_by_one.calls:,} | {task.shell.calls:,} | |")
    return "\n".join(lines) + "\n"


def figures(ctx: Ctx) -> CodeFigures:
    mcp_published_servers.add(ctx)
    prepare(ctx)
    with mcp_published_servers.page(ctx) as address:
        return measured(ctx, address)


if __name__ == "__main__":
    from tests.mounted.ctx_mount import interpreter, mounted

    with interpreter() as python, mounted(python) as mount:
        print(table(figures(mount)))
