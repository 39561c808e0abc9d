"""MCP servers of npm and PyPI on a mount (`make test-mcp`): each of their tools is called.

The servers are those of the protocol's own project. Neither side has code made for the other.
"""

from __future__ import annotations

import gzip
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.bench import code
from tests.mounted.ctx_mount import Ctx, mounted
from tests.mounted.mcp_published_servers import OF_NPM, OF_PYPI, add, npm_packages, page

# These tools ask their client a question, and in a run from a shell nobody can answer it.
WITH_A_QUESTION = {
    "everything.trigger-elicitation-request": "{}",
    "everything.trigger-url-elicitation": '{"url": "https://example.org/"}',
}
WITH_A_TASK = {"everything.simulate-research-query"}  # its calls are tasks

# Tools in an order that works, each with its input and a part of its answer; WORK is a folder of the test.
CALLS: list[tuple[str, dict[str, Any], str]] = [
    ("everything.echo", {"message": "häß"}, "häß"),
    ("everything.get-annotated-message", {"messageType": "error"}, "Error: Operation failed"),
    ("everything.get-env", {}, '"PATH"'),
    ("everything.get-resource-links", {"count": 2}, "2 resource links"),
    ("everything.get-resource-reference", {"resourceType": "Text", "resourceId": 1}, "demo://resource"),
    ("everything.get-structured-content", {"location": "Chicago"}, '"temperature"'),
    ("everything.get-sum", {"a": 2, "b": 40}, "42"),
    ("everything.get-tiny-image", {}, "Here's the image"),
    ("everything.gzip-file-as-resource", {"data": "data:text/plain,hi"}, ""),
    ("everything.read_resource", {"uri": "demo://resource/dynamic/text/1"}, "Resource 1"),
    ("everything.toggle-simulated-logging", {}, "simulated"),
    ("everything.toggle-subscriber-updates", {}, "simulated"),
    ("everything.trigger-long-running-operation", {"duration": 0.1, "steps": 2}, "completed"),
    ("files.list_allowed_directories", {}, "WORK"),
    ("files.create_directory", {"path": "WORK/new"}, "Successfully created"),
    ("files.write_file", {"path": "WORK/new/a.txt", "content": "alpha\nbeta\n"}, "Successfully wrote"),
    (
        "files.edit_file",
        {"path": "WORK/new/a.txt", "edits": [{"oldText": "beta", "newText": "gamma"}]},
        "+gamma",
    ),
    ("files.move_file", {"source": "WORK/new/a.txt", "destination": "WORK/new/b.txt"}, "Successfully moved"),
    ("files.read_text_file", {"path": "WORK/new/b.txt"}, "alpha\ngamma"),
    ("files.read_file", {"path": "WORK/new/b.txt", "head": 1}, "alpha"),
    ("files.read_multiple_files", {"paths": ["WORK/new/b.txt", "WORK/nope"]}, "gamma"),
    ("files.read_media_file", {"path": "WORK/sound.wav"}, ""),
    ("files.list_directory", {"path": "WORK/new"}, "[FILE] b.txt"),
    ("files.list_directory_with_sizes", {"path": "WORK/new", "sortBy": "size"}, "b.txt"),
    ("files.directory_tree", {"path": "WORK/new"}, '"b.txt"'),
    ("files.search_files", {"path": "WORK", "pattern": "**/*.txt"}, "b.txt"),
    ("files.get_file_info", {"path": "WORK/new/b.txt"}, "permissions"),
    (
        "memory.create_entities",
        {"entities": [{"name": "ann", "entityType": "person", "observations": ["is tall"]}]},
        "ann",
    ),
    (
        "memory.create_relations",
        {"relations": [{"from": "ann", "to": "ann", "relationType": "knows"}]},
        "knows",
    ),
    ("memory.add_observations", {"observations": [{"entityName": "ann", "contents": ["sings"]}]}, "sings"),
    ("memory.search_nodes", {"query": "sings"}, "ann"),
    ("memory.open_nodes", {"names": ["ann"]}, "is tall"),
    ("memory.read_graph", {}, "knows"),
    (
        "memory.delete_observations",
        {"deletions": [{"entityName": "ann", "observations": ["sings"]}]},
        "deleted",
    ),
    (
        "memory.delete_relations",
        {"relations": [{"from": "ann", "to": "ann", "relationType": "knows"}]},
        "deleted",
    ),
    ("memory.delete_entities", {"entityNames": ["ann"]}, "deleted"),
    (
        "thinking.sequentialthinking",
        {"thought": "one", "nextThoughtNeeded": False, "thoughtNumber": 1, "totalThoughts": 1},
        "thoughtHistoryLength",
    ),
    ("git.git_status", {"repo_path": "WORK/repo"}, "On branch main"),
    ("git.git_create_branch", {"repo_path": "WORK/repo", "branch_name": "other"}, "other"),
    ("git.git_checkout", {"repo_path": "WORK/repo", "branch_name": "other"}, "other"),
    ("git.git_branch", {"repo_path": "WORK/repo", "branch_type": "local"}, "* other"),
    ("git.git_diff_unstaged", {"repo_path": "WORK/repo"}, "+two"),
    ("git.git_add", {"repo_path": "WORK/repo", "files": ["file"]}, "staged"),
    ("git.git_diff_staged", {"repo_path": "WORK/repo"}, "+two"),
    ("git.git_reset", {"repo_path": "WORK/repo"}, "reset"),
    ("git.git_diff", {"repo_path": "WORK/repo", "target": "main"}, "+two"),
    ("git.git_add", {"repo_path": "WORK/repo", "files": ["file"]}, "staged"),
    ("git.git_commit", {"repo_path": "WORK/repo", "message": "second"}, "committed"),
    ("git.git_log", {"repo_path": "WORK/repo", "max_count": 1}, "second"),
    ("git.git_show", {"repo_path": "WORK/repo", "revision": "HEAD"}, "+two"),
    ("time.get_current_time", {"timezone": "Europe/Berlin"}, '"Europe/Berlin"'),
    (
        "time.convert_time",
        {"source_timezone": "UTC", "time": "12:00", "target_timezone": "Asia/Tokyo"},
        "21:00",
    ),
    ("fetch.fetch", {"url": "HTTP/page.html"}, "Hello, stranger"),
]


@pytest.fixture(scope="module")
def place(python: Path) -> Iterator[Ctx]:
    npm_packages()
    with mounted(python) as ctx:
        add(ctx)
        yield ctx


def media(place: Ctx, name: str, **input: object) -> list[dict[str, Any]]:
    said = place.call(name, json.dumps(input))
    assert not said.code, said.message
    return [frame["attachment"] for frame in said.frames if frame["type"] == "media"]


@pytest.fixture
def leftovers() -> Iterator[set[Path]]:
    """Collects files of media, and removes their folders, as a reader of media has to."""
    found: set[Path] = set()
    yield found
    for path in found:
        shutil.rmtree(path.parent, ignore_errors=True)


@pytest.fixture(scope="module")
def web(place: Ctx) -> Iterator[str]:
    with page(place) as address:
        yield address


def test_every_tool_answers(place: Ctx, web: str, leftovers: set[Path]) -> None:
    # issue: "the official servers of npm and PyPI that install here, every tool of theirs called"
    def real(text: str) -> str:
        return text.replace("WORK", str(place.work)).replace("HTTP", web)

    for name, input, wanted in CALLS:
        said = place.call(name, real(json.dumps(input)))
        assert not said.code, f"{name}: {said.message}"
        assert real(wanted) in said.output, name
        for frame in said.frames:
            if frame["type"] == "media" and frame["attachment"]["url"].startswith("/"):
                leftovers.add(Path(frame["attachment"]["url"]))
    assert {path.suffix for path in leftovers} == {".png", ".wav"}
    tools = {name for name in os.listdir(place.root / "tool") if name.split(".")[0] in (*OF_NPM, *OF_PYPI)}
    tools = {name for name in tools if not name.endswith((".d", ".mcp", ".read_resource", ".sock"))}
    assert tools - {name for name, *_ in CALLS} - WITH_A_QUESTION.keys() <= WITH_A_TASK
    for name, asked in WITH_A_QUESTION.items():
        said = place.call(name, asked)
        assert "this run of the tool cannot ask a person" in f"{said.message} {said.output}", name


def test_what_a_tool_links_to_can_be_read(place: Ctx, leftovers: set[Path]) -> None:
    # docs/mcp.md: a link is media, and its address an input of NAME.read_resource
    (link,) = media(place, "everything.gzip-file-as-resource", data="data:text/plain,hi")
    (file,) = media(place, "everything.read_resource", uri=link["url"])
    leftovers.add(Path(file["url"]))
    assert gzip.decompress(Path(file["url"]).read_bytes()) == b"hi"


def test_a_shell_costs_a_twentieth_of_the_definitions(place: Ctx, web: str) -> None:
    # issue 16: "<= 5 % of the definitions, and a task over 1,000 lines of results passes <= 2 % of them";
    # docs/code-mode.md has this table
    code.prepare(place)
    figures = code.measured(place, web)
    assert figures.tools > 50
    assert figures.shell_definitions <= 0.05 * figures.definitions, code.table(figures)
    assert figures.preset_definition <= 0.05 * figures.definitions, code.table(figures)
    log = figures.tasks[0]
    assert log.shell.results <= 0.02 * log.one_by_one.results, code.table(figures)
