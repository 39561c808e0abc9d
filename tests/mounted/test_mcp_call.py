"""`ctx mcp call` and `ctx mcp inspect`: MCP servers from a shell, added or not (docs/mcp.md)."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from tests.mounted import mcp_places
from tests.mounted.ctx_mount import Ctx

place = mcp_places.place


@pytest.fixture
def program(place: Ctx) -> list[str]:
    """The command line of a server that was not added."""
    return mcp_places.program(place)


def test_a_server_that_was_added_is_called_by_way_of_the_mount(place: Ctx) -> None:
    done = place.ctx("mcp", "call", "conf", "test_simple_text")
    assert done.stdout == "This is a simple text response for testing.\n"
    log = Path(f"{place.tool('conf.test_simple_text')}.d/log").read_text()
    assert '"status":"ok"' in log
    asked = place.ctx("mcp", "call", "--yes", "conf", "test_elicitation_sep1034_defaults")
    assert '"name": "John Doe"' in asked.stdout
    declined = place.ctx("mcp", "call", "conf", "test_elicitation_sep1034_defaults")
    assert "action=decline" in declined.stdout
    assert "the server asks: Please review; answer on a terminal, or say --yes" in declined.stderr


def test_one_that_was_not_is_started(place: Ctx, program: list[str]) -> None:
    # issue: "work without adding anything"
    words = shlex.join(program)
    done = place.ctx("mcp", "call", words, "test_tool_with_progress")
    assert (done.stdout, done.stderr.splitlines()) == ("progressed\n", ["0/100", "50/100", "100/100"])
    failed = place.ctx("mcp", "call", words, "test_error_handling", check=False)
    assert (failed.returncode, failed.stdout) == (1, "")
    assert "intentionally returns an error" in failed.stderr
    raw = json.loads(place.ctx("mcp", "call", "--json", words, "test_image_content").stdout)
    assert raw["content"][0]["mimeType"] == "image/png"
    text = place.ctx("mcp", "call", words, "test_image_content")
    assert (text.stdout, "--json has it" in text.stderr) == ("", True)


def test_an_error_of_an_object_has_its_exit_status(place: Ctx) -> None:
    # docs/ctx.md: "2 | wrong arguments or input | EINVAL, EMSGSIZE"
    words = shlex.join([str(place.python), "-I", "-m", "cortexfs.cli.main", "mcp", "serve"])
    for given, status in (([], 2), (["--path", "/no/such"], 1)):
        done = place.ctx("mcp", "call", words, "fs_read", *given, check=False)
        assert (done.returncode, done.stdout) == (status, ""), done.stderr


def test_what_a_server_offers_is_shown(place: Ctx, program: list[str]) -> None:
    shown = place.ctx("mcp", "inspect", "--", *program).stdout
    assert shown.startswith("A conforming server 1.0.0 (")
    assert "test://static-text" in shown
    assert "test_simple_prompt" in shown
    said = json.loads(place.ctx("mcp", "inspect", "conf", "--json").stdout)
    assert {tool["name"] for tool in said["tools"]} >= {"test_simple_text"}
    assert [one["uriTemplate"] for one in said["templates"]] == ["test://template/{id}/data"]


@pytest.mark.parametrize(
    ("words", "status", "why"),
    [
        (("call", "conf", "test_simple_txt"), 1, "did you mean test_simple_text?"),
        (("call", "conf", "test_elicitation", "--nope", "1"), 2, "--nope"),
        (("call", "/no/such/program", "x"), 69, "/no/such/program cannot be used: No such file or directory"),
        (("call", "comf", "x"), 1, "there is no MCP server and no program 'comf'; did you mean conf?"),
        (("inspect", "comf"), 1, "there is no MCP server and no program 'comf'; did you mean conf?"),
        (("call", "no-such-program a", "x"), 1, "there is no program 'no-such-program' in PATH"),
        (("call", 'sh -c "echo', "x"), 2, "the command line 'sh -c \"echo': no closing quotation"),
        (("call", "http://127.0.0.1:1/mcp", "x"), 69, "cannot be reached"),
        (("inspect",), 2, "say which server"),
        (("call", "--header", "Authorization: x", "http://127.0.0.1:1/mcp", "x"), 2, "looks like a secret"),
        (("call", "/bin/true", "x"), 70, "/bin/true ended the connection; is it an MCP server?"),
        (("login", "nope"), 1, "there is no MCP server 'nope'"),
        (("login", "conf"), 2, "is a program; only servers with a URL"),
        (("logout", "conf"), 1, "there is no login at conf"),
    ],
)
def test_what_is_wrong_is_a_sentence(place: Ctx, words: tuple[str, ...], status: int, why: str) -> None:
    done = place.ctx("mcp", *words, check=False)
    assert (done.returncode, why in done.stderr) == (status, True), done.stderr
    assert "Traceback" not in done.stderr
