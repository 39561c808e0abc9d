"""Prompts of MCP servers as templates of `ctx ask` (docs/ask.md)."""

from __future__ import annotations

import json

from tests.mounted import mcp_places
from tests.mounted.ctx_mount import Ctx

place = mcp_places.place
ECHO = ("-m", "debug/echo")


def test_a_prompt_is_a_template(place: Ctx) -> None:
    # abi.md 8.36; issue: "prompts (templates of ctx ask ...)"
    said = place.ctx("ask", *ECHO, "-t", "conf.test_simple_prompt").stdout
    assert said == "This is a simple prompt for testing.\n"
    given = ("-p", "arg1=$input", "-p", "arg2=a b")
    said = place.ctx("ask", *ECHO, "-t", "conf.test_prompt_with_arguments", *given, "and more").stdout
    assert "arg1='$input', arg2='a b'" in said  # no variable is expanded at a dollar
    assert said.endswith("\n\nand more\n")


def test_files_of_a_prompt_go_along(place: Ctx) -> None:
    uri = ("-p", "resourceUri=test://x")
    said = place.ctx("ask", *ECHO, "-t", "conf.test_prompt_with_embedded_resource", *uri).stdout
    assert "Embedded resource content" in said
    refused = place.ctx("ask", *ECHO, "-t", "conf.test_prompt_with_image", check=False)
    assert (refused.returncode, "picture" in refused.stderr) == (2, True), refused.stderr


def test_they_are_listed_and_completed(place: Ctx) -> None:
    listed = json.loads(place.ctx("ask", "--templates", "--json").stdout)
    names = {one["template"] for one in listed}
    assert {"conf.test_simple_prompt", "conf.test_prompt_with_arguments"} <= names
    (one,) = [one for one in listed if one["template"] == "conf.test_prompt_with_arguments"]
    assert one["prompt"].endswith("-p arg1=... -p arg2=...")


def test_what_is_wrong_is_a_sentence(place: Ctx) -> None:
    for words, why in (
        (("conf.test_simple",), "has no prompt 'test_simple'"),
        (("conf.test_prompt_with_arguments",), "arg1 has no value; say -p arg1=VALUE"),
        (("conf.test_simple_prompt", "-p", "x=1"), "-p x: there is no such argument"),
        (("nothing.here",), "there is no template 'nothing.here'"),
    ):
        done = place.ctx("ask", *ECHO, "-t", *words, check=False)
        assert (done.returncode in (1, 2), why in done.stderr, "Traceback" in done.stderr) == (
            True,
            True,
            False,
        ), done.stderr


def test_one_of_the_users_own_counts_more(place: Ctx) -> None:
    place.ctx("ask", "--save", "conf.test_simple_prompt", "mine")
    try:
        assert place.ctx("ask", *ECHO, "-t", "conf.test_simple_prompt").stdout == "mine\n"
    finally:
        (place.config / "templates" / "conf.test_simple_prompt.toml").unlink()
