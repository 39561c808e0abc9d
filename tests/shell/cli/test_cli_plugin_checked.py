"""`ctx plugin install` refuses a plugin that fails `ctx plugin test`, and scaffolds contain no traps."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from cortexfs import config
from cortexfs.cli import mounts
from cortexfs.core.errors import Fault
from cortexfs.core.manifest.toml import DeclaredProcessTool
from cortexfs.plugins.package.targets import resolve
from cortexfs.state import directories
from tests.shell import plugin_commands
from tests.shell.cli_tree import add, plant
from tests.shell.plugin_commands import Said, edit, hello

places, said = plugin_commands.places, plugin_commands.said


@pytest.mark.parametrize(
    ("found", "written", "sentence"),
    [
        ("= {}", "= {}\nmax_output_bytes = 0", '"tool hello output limit": max_output_bytes is 0'),
        (
            "= {}",
            '= {}\ninherit_env = ["PATH", "KEEP_ME", "LC_ALL", "API_KEY"]',
            '"tool hello env allowlist": inherit_env names KEEP_ME, API_KEY, which callers do not pass on',
        ),
        ('"tools"', "", '"capability declaration": capabilities.provides must not be empty'),
    ],
)
def test_what_fails_its_test_is_not_installed(
    places: directories.Places, said: Said, found: str, written: str, sentence: str
) -> None:
    # abi.md 11.26
    edit(hello(Path("hello")), found, written)
    assert said("test", "hello")[0] == 1
    # test, review and install use the same code for it
    assert sentence.partition(": ")[2] in said("review", "hello")[1]
    status, _, err = said("install", "hello")
    assert status == 2
    assert f"plugin 'hello' fails the check {sentence}" in err
    assert "see: ctx plugin test" in err
    assert not (places.state / "plugins" / "hello").exists()


def test_a_plugin_has_the_skills_that_it_provides(places: directories.Places, said: Said) -> None:
    # abi.md 11.44
    folder = hello(Path("hello"))
    edit(folder, '"tools"', '"tools", "skills", "prompts"')
    missing = "fail: skills and prompts (provides names skills and prompts, and the plugin has none)"
    assert missing in said("review", "hello")[1]
    (folder / "skills/deep").mkdir(parents=True)
    (folder / "skills/deep/notes.md").write_text("x")
    status, out, _ = said("test", "hello")
    assert (status, "fail: skills and prompts (skills/deep is no skill: it has no SKILL.md)" in out) == (
        1,
        True,
    )
    assert said("install", "hello")[0] == 2
    (folder / "skills/tidy.md").write_text("Tidies.")
    assert "ok: skills and prompts" in said("review", "hello")[1]
    (folder / "skills/latin.md").write_bytes(b"\xff")
    (folder / "skills/empty.txt").touch()
    (folder / "skills/long.md").write_text("x" * 300_000)
    (folder / "skills/a b.md").write_text("x")
    (folder / "skills/picture.png").write_text("x")
    status, _, err = said("install", "hello")
    assert status == 0
    for why in (
        "deep is no skill: it has no SKILL.md",
        "latin.md is no skill: its text is not UTF-8",
        "empty.txt is no skill: its text is empty",
        "long.md is no skill: its text is over 256 KiB",
        "a b.md is no skill: ",
    ):
        assert f"warning: skills/{why}" in err
    assert "picture" not in err


def test_a_program_that_nobody_may_run_is_not_installed(places: directories.Places, said: Said) -> None:
    # abi.md 11.26
    folder = hello(Path("hello"))
    (folder / "bin/hello").chmod(0o644)
    status, _, err = said("install", "hello")
    assert (status, "it is not executable: chmod +x bin/hello" in err) == (2, True)
    assert not (places.state / "plugins" / "hello").exists()


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("echo hi\n", "it is no program: write a first line that names its interpreter, as #!/bin/sh or "),
        ("#!/no/such/sh\necho hi\n", "its #! line names /no/such/sh, which is no program here: install it"),
        ("#!/bin/sh\r\necho hi\r\n", "its first line ends in CR LF: write its lines with LF alone"),
    ],
)
def test_a_program_that_the_kernel_cannot_start_is_not_installed(
    places: directories.Places, said: Said, text: str, why: str
) -> None:
    # abi.md 11.48
    (hello(Path("hello")) / "bin/hello").write_bytes(text.encode())
    assert f"fail: tool hello command is a program ({why}" in said("test", "hello")[1]
    status, _, err = said("install", "hello")
    assert (status, why in err) == (2, True)


def test_a_command_without_the_comment_of_a_script_is_no_script(
    places: directories.Places, said: Said
) -> None:
    # abi.md 12.17
    folder = hello(Path("hello"))
    edit(folder, "[[native.tools]]", '[native]\nprotocol = "argv"\n[[native.tools]]')
    why = "the comment at its top has no line of the form: # tool: DESCRIPTION"
    assert f"fail: tool hello command is a script ({why})" in said("test", "hello")[1]
    status, _, err = said("install", "hello")
    assert (status, f'fails the check "tool hello command is a script": {why}' in err) == (2, True)
    (folder / "bin/hello").write_text("#!/bin/sh\n# tool: Say hello.\necho hello\n")
    assert "ok: tool hello command is a script" in said("test", "hello")[1]


@pytest.mark.parametrize("template", ["process", "native", "python"])
def test_no_scaffold_limits_what_interpreters_need(
    places: directories.Places, said: Said, template: str
) -> None:
    # A limit of memory (abi.md 11.11) would end some of them before they begin.
    said.ok("new", "notes", "notes", "--template", template)
    manifest = tomllib.loads(Path("notes/manifest.toml").read_text())
    tools = manifest.get("native", {}).get("tools", [])
    assert not any("max_memory_bytes" in tool for tool in tools)
    assert "memory_mb" not in manifest.get("sandbox", {})


def test_a_test_fails_where_the_name_of_a_tool_is_taken(
    places: directories.Places, said: Said, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # abi.md 11.38
    hello(Path("hello"))
    said.ok("test", "hello")
    roots = [plant(tmp_path / "mounted")]
    monkeypatch.setattr(mounts, "answering", lambda given: str(roots[-1]))
    said.ok("test", "hello")
    add(roots[-1], "tool/hello", "Greets.", "plugin:other@1.2", {})
    status, out, _ = said("test", "hello")
    why = "fail: tool/hello (it is already one of plugin:other@1.2; to take that name: --replace)"
    assert (status, why in out) == (1, True)
    config.choose(places.config, "hello", ("tool/hello",))
    said.ok("test", "hello")
    config.choose(places.config, "hello", True)
    roots.append(plant(tmp_path / "other"))
    add(roots[-1], "tool/hello", "Greets.", "plugin:hello@0.0.9", {})
    said.ok("test", "hello")


def test_a_plugin_that_is_gone_is_a_fault_of_its_tool(tmp_path: Path) -> None:
    # abi.md 11.9
    tool = DeclaredProcessTool("t", "A tool", "/bin/sh", {})
    with pytest.raises(Fault, match=r"process tool 't' cannot canonicalize plugin directory .*/gone: "):
        resolve(tool, tmp_path / "gone")
