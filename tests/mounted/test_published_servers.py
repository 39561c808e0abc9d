"""MCP servers of npm and PyPI on a mount (`make test-mcp`): every tool of theirs is called.

They are those of the protocol's own project. None of them knows us, and we know none of them.
"""

from __future__ import annotations

import gzip
import json
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.mounted.ctx_mount import Ctx, mounted
from tests.mounted.mcp_clients import PUBLISHED, from_npm

NPM = "@modelcontextprotocol/server-"
VERSION = "2026.8.31"
OF_NPM = {
    "everything": "everything",
    "files": "filesystem",
    "memory": "memory",
    "thinking": "sequential-thinking",
}
OF_PYPI = ("git", "time", "fetch")
WITH_A_TASK = {"everything.simulate-research-query"}  # its calls are tasks

# Tools in an order that works, each with its input and a part of what it says; WORK is a folder of the test.
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
    packages = from_npm("published", *(f"{NPM}{name}@{VERSION}" for name in OF_NPM.values()))
    with mounted(python) as ctx:
        git = ["git", "-c", "user.name=ann", "-c", "user.email=ann@example.com"]
        repository = ctx.work / "repo"
        subprocess.run(["git", "init", "-q", "-b", "main", repository], check=True)
        (repository / "file").write_text("one\n")
        (ctx.work / "sound.wav").write_bytes(b"RIFF$\0\0\0WAVE")
        subprocess.run([*git, "-C", repository, "add", "."], check=True)
        subprocess.run([*git, "-C", repository, "commit", "-qm", "first"], check=True)
        (repository / "file").write_text("one\ntwo\n")
        for key, value in (("user.name", "ann"), ("user.email", "ann@example.com")):
            subprocess.run(["git", "-C", repository, "config", key, value], check=True)
        for name, of in OF_NPM.items():
            words = [str(ctx.work)] if of == "filesystem" else []
            kept = [f"--env=MEMORY_FILE_PATH={ctx.work}/memory.json"] if of == "memory" else []
            program = str(packages / f"node_modules/{NPM}{of}/dist/index.js")
            ctx.ctx("mcp", "add", name, *kept, "--", "node", program, *words)
        for name in OF_PYPI:
            words = ["--allow-private-ips"] if name == "fetch" else []
            ctx.ctx("mcp", "add", name, "--", str(PUBLISHED / f"bin/mcp-server-{name}"), *words)
        yield ctx


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


def media(place: Ctx, name: str, **input: object) -> list[dict[str, Any]]:
    said = place.call(name, json.dumps(input))
    assert not said.code, said.message
    return [frame["attachment"] for frame in said.frames if frame["type"] == "media"]


@pytest.fixture
def leftovers() -> Iterator[set[Path]]:
    """Files of media, whose folders are their reader's to remove."""
    found: set[Path] = set()
    yield found
    for path in found:
        shutil.rmtree(path.parent, ignore_errors=True)


@pytest.fixture(scope="module")
def web(place: Ctx) -> Iterator[str]:
    """The address of a page."""
    (place.work / "page.html").write_text("<html><body><h1>Hello, stranger</h1></body></html>")
    handler = partial(QuietHandler, directory=str(place.work))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


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
    assert tools - {name for name, *_ in CALLS} <= WITH_A_TASK


def test_what_a_tool_links_to_can_be_read(place: Ctx, leftovers: set[Path]) -> None:
    # docs/mcp.md: a link is media, and its address an input of NAME.read_resource
    (link,) = media(place, "everything.gzip-file-as-resource", data="data:text/plain,hi")
    (file,) = media(place, "everything.read_resource", uri=link["url"])
    leftovers.add(Path(file["url"]))
    assert gzip.decompress(Path(file["url"]).read_bytes()) == b"hi"
