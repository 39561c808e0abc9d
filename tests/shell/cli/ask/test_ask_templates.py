"""Templates of `ctx ask`: their files, their variables, and the files that are not used."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path

import pytest

from cortexfs.cli.ask import template
from cortexfs.cli.ask.template import AskOptions
from cortexfs.core.errors import Fault

FRENCH = AskOptions(system="translate into $language", defaults={"language": "French"})


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CTX_CONFIG", str(tmp_path))
    return tmp_path / "templates"


def test_a_template_is_kept_as_toml_for_its_user_alone(folder: Path) -> None:
    # abi.md 8.24
    asked = AskOptions(
        system="be\nterse",
        prompt='about "$topic": $input',
        model="openai/gpt-5",
        options={"temperature": 0.5, "stop": ["\n"]},
        schema="name, age int",
        attachments=("/srv/a.pdf",),
        tools=("fs.read",),
        extract=True,
        defaults={"topic": "ants"},
    )
    path = template.save("full", asked)
    assert (path.stat().st_mode & 0o777, path.parent) == (0o600, folder)
    assert folder.stat().st_mode & 0o777 == 0o700
    assert tomllib.loads(path.read_text())["options"] == {"temperature": 0.5, "stop": ["\n"]}
    assert template.load("full") == asked
    assert template.known() == ["full"]


def test_variables_are_given_or_have_a_default() -> None:
    # abi.md 8.24
    assert FRENCH.filled({}, "hi").system == "translate into French"
    filled = FRENCH.filled({"language": "Danish $input"}, "hi")
    assert (filled.system, filled.prompt) == ("translate into Danish $input", "hi")


@pytest.mark.parametrize(
    ("prompt", "said", "whole"),
    [
        ("sum up", "text", "sum up\n\ntext"),
        ("sum up", "", "sum up"),
        ("sum up $input now", "text", "sum up text now"),
        ("it costs $5 and $$input", "text", "it costs $5 and $input\n\ntext"),
        ("", "text $x", "text $x"),
    ],
)
def test_the_text_stands_where_the_template_says_or_at_its_end(prompt: str, said: str, whole: str) -> None:
    # abi.md 8.24
    assert AskOptions(prompt=prompt).filled({}, said).prompt == whole


@pytest.mark.parametrize(
    ("asked", "given", "said", "sentence"),
    [
        (AskOptions(system="in $language"), {}, "x", "$language has no value; say -p language=VALUE"),
        (FRENCH, {"langauge": "x"}, "x", "there is no $langauge; did you mean language?"),
        (AskOptions(prompt="of $input"), {}, "", "needs a text for $input"),
        (AskOptions(prompt="of $input"), {"input": "x"}, "y", "there is no $input"),
    ],
)
def test_what_is_missing_is_told(asked: AskOptions, given: dict[str, str], said: str, sentence: str) -> None:
    # abi.md 8.24
    with pytest.raises(Fault) as fault:
        asked.filled(given, said)
    assert fault.value.code == "EINVAL"
    assert sentence in fault.value.message


def test_the_command_line_counts_more_than_the_template() -> None:
    # abi.md 8.24
    base = AskOptions(model="a/b", tools=("one",), options={"x": 1, "y": 1}, extract=True)
    both = base.under(AskOptions(model="c/d", tools=("two",), options={"x": 2}))
    assert both == AskOptions(model="c/d", tools=("one", "two"), options={"x": 2, "y": 1}, extract=True)


@pytest.mark.parametrize("name", ["../x", "/etc/passwd", "a/b", "..", "", ".hidden", "x" * 65, "a\nb", "a.d"])
def test_a_name_that_leaves_the_folder_is_none(folder: Path, name: str) -> None:
    # issue: "a template name that leaves its folder"
    for attempt in (lambda: template.load(name), lambda: template.save(name, FRENCH)):
        with pytest.raises(Fault) as fault:
            attempt()
        assert fault.value.code == "EINVAL"
    assert not folder.exists()


def test_a_template_that_others_may_have_written_is_not_used(folder: Path) -> None:
    # issue: "another user's template"
    path = template.save("mine", FRENCH)
    path.chmod(0o622)
    with pytest.raises(Fault, match="users other than its owner may write it"):
        template.load("mine")
    path.chmod(0o600)
    folder.chmod(0o777)
    with pytest.raises(Fault, match="users other than its owner may write it"):
        template.load("mine")
    with pytest.raises(Fault, match="users other than its owner may write it"):
        template.save("other", FRENCH)


@pytest.mark.skipif(os.getuid() != 0, reason="only root gives files away")
def test_a_template_of_another_owner_is_not_used(folder: Path) -> None:
    # issue: "another user's template"
    path = template.save("mine", FRENCH)
    os.chown(path, 65534, 65534)
    with pytest.raises(Fault, match="belongs to uid 65534"):
        template.load("mine")


def test_a_link_out_of_the_folder_is_followed_only_to_what_is_believed(folder: Path, tmp_path: Path) -> None:
    # issue: "a template name that leaves its folder"
    template.save("mine", FRENCH)
    stranger = tmp_path / "open"
    stranger.mkdir()
    (stranger / "x.toml").write_text('system = "obey"\n')
    stranger.chmod(0o777)
    (folder / "linked.toml").symlink_to(stranger / "x.toml")
    with pytest.raises(Fault, match="is used"):
        template.load("linked")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("system = ", "not TOML"),
        ("sytem = 'x'", "unknown key sytem; did you mean system?"),
        ("tools = 'fs.read'", "tools: expected array"),
    ],
)
def test_a_wrong_template_names_the_file_and_the_key(folder: Path, text: str, sentence: str) -> None:
    template.save("wrong", FRENCH).write_text(text)
    with pytest.raises(Fault, match=sentence):
        template.load("wrong")


def test_a_missing_one_is_told_with_the_nearest(folder: Path) -> None:
    template.save("french", FRENCH)
    with pytest.raises(Fault, match="no template 'frensh'; did you mean french"):
        template.load("frensh")
