"""The offer of `ctx mcp serve` (docs/mcp-serve.md), made from control files like those of a mount."""

from __future__ import annotations

import json
import os
from pathlib import Path

from mcp_types import ImageContent, ResourceLink, TextContent

from cortexfs.client.results import Failed
from cortexfs.core import frames
from cortexfs.core.hostcalls import Effect
from cortexfs.mcp import offer, results
from cortexfs.mcp.offer import McpOffer, hints
from cortexfs.mcp.results import McpResult


def tool(where: Path, name: str, effects: str = "", mode: int = 0o755) -> str:
    path = where / name
    path.write_text("#!/bin/true\n")
    path.chmod(mode)
    controls = where / f"{name}.d"
    controls.mkdir(exist_ok=True)
    (controls / "schema").write_text(json.dumps({"type": "object"}))
    (controls / "description").write_text(f"Does {name}.\n")
    (controls / "effects").write_text(effects)
    return str(path)


def names(offered: McpOffer) -> list[str]:
    found: list[str] = []
    cursor: str | None = None
    while True:
        tools, cursor = offered.page(cursor)
        found += [one.name for one in tools]
        if cursor is None:
            return found


def test_tools_come_in_pages(tmp_path: Path) -> None:
    every = [tool(tmp_path, f"t{number:03}") for number in range(2 * offer.PAGE + 1)]
    offered = McpOffer(lambda: every)
    assert offered.renew()
    assert len(offered.page(None)[0]) == offer.PAGE
    assert names(offered) == sorted(os.path.basename(path) for path in every)
    assert not offered.renew()  # nothing has changed


def test_names_are_of_the_alphabet_of_models_and_each_is_one_tools(tmp_path: Path) -> None:
    every = [tool(tmp_path, name) for name in ("fs.read", "fs_read", "a+b")]
    offered = McpOffer(lambda: every)
    offered.renew()
    assert names(offered) == ["a_b", "fs_read", "fs_read_2"]
    assert offered.path("fs_read") == str(tmp_path / "fs_read")
    assert offered.path("fs_read_2") == offered.path("fs.read") == str(tmp_path / "fs.read")
    assert offered.path("nothing") is None


def test_a_pattern_that_fits_nothing_is_known(tmp_path: Path) -> None:
    every = [tool(tmp_path, name) for name in ("fs.read", "text.count")]
    offered = McpOffer(lambda: every, ("fs.*", "fs_read"))
    offered.renew()
    assert (names(offered), offered.unmet) == (["fs_read"], ["fs_read"])


def test_a_mount_that_does_not_answer_offers_what_it_did(tmp_path: Path) -> None:
    path = tool(tmp_path, "one")
    answers = [True]

    def paths() -> list[str]:
        if not answers[0]:
            raise OSError(107, "Transport endpoint is not connected")
        return [path]

    offered = McpOffer(paths)
    offered.renew()
    answers[0] = False
    assert not offered.renew()
    assert names(offered) == ["one"]


def test_what_cannot_be_read_is_not_offered(tmp_path: Path) -> None:
    good, bad = tool(tmp_path, "good"), tool(tmp_path, "bad", effects="nonsense\n")
    plain = tool(tmp_path, "plain", mode=0o644)
    offered = McpOffer(lambda: [good, bad, plain, str(tmp_path / "gone")])
    offered.renew()
    assert names(offered) == ["good"]


def test_effects_are_hints() -> None:
    # docs/mcp-serve.md: "Effects are hints"
    def said(kind: str, reversibility: str = "reversible") -> tuple[bool | None, bool | None, bool | None]:
        made = hints([Effect(kind, reversibility, "never", "not_supported")])
        return made.read_only_hint, made.destructive_hint, made.open_world_hint

    assert said("read_file") == (True, None, False)
    assert said("network_request") == (True, None, True)
    assert said("write_file") == (False, False, False)
    assert said("delete_file", "irreversible") == (False, True, False)
    assert said("run_process", "partially_reversible") == (False, True, True)
    assert said("something_new", "irreversible") == (False, True, True)
    none = hints([])
    assert (none.read_only_hint, none.destructive_hint, none.open_world_hint) == (True, None, False)


def test_a_long_output_is_cut_and_says_so() -> None:
    # docs/mcp-serve.md: "An output of more than 4 million characters is cut, and says so."
    result = McpResult()
    for _ in range(3):
        result.add(frames.Delta(text="x" * (results.MAX_TEXT // 2)))
    (part,) = result.whole().content
    assert isinstance(part, TextContent)
    assert part.text == "x" * results.MAX_TEXT + f"\n[{results.MAX_TEXT // 2} more characters were cut]"


def test_what_failed_is_said_behind_what_came() -> None:
    result = McpResult()
    result.add(frames.Delta(text="so far"))
    result.fail(Failed("EPROTO", "it broke off"))
    whole = result.whole()
    assert whole.is_error
    assert [part.text for part in whole.content if isinstance(part, TextContent)] == [
        "so far",
        "EPROTO: it broke off",
    ]


def test_pictures_of_one_answer_have_a_bound(tmp_path: Path) -> None:
    result = McpResult()
    picture = tmp_path / "a.png"
    picture.write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(results.MAX_FILE - 8))
    attachment = {"media_type": "image", "mime_type": "image/png", "url": str(picture)}
    for _ in range(6):
        result.add(frames.Media(attachment=attachment))
    kinds = [type(part) for part in result.whole().content]
    assert kinds == [ImageContent] * 4 + [ResourceLink] * 2
