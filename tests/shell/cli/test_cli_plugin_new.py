"""`ctx plugin` on files, without a mount: new, test and review."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

from cortexfs.core import wire
from cortexfs.state import directories
from tests.shell import plugin_commands
from tests.shell.plugin_commands import Said, edit, hello

places, said = plugin_commands.places, plugin_commands.said


# -- new and test


@pytest.mark.parametrize("template", ["process", "native", "python", "esm"])
def test_a_template_works_unchanged(places: directories.Places, said: Said, template: str) -> None:
    # issue: "ctx plugin new (process, native C, python templates that pass test and run unchanged)"
    assert f"ctx plugin test cortex-plugin-my-{template} --run" in said.ok(
        "new", f"my-{template}", "--template", template
    )
    folder = f"cortex-plugin-my-{template}"
    if template == "native":
        subprocess.run(["make", "-s", "-C", folder], check=True, capture_output=True)
    out = said.ok("test", folder, "--run", "--yes")
    assert f"ok: it loads, with my-{template}" in out
    assert "words" in out.splitlines()[-1]
    assert "fail:" not in out
    said.ok("install", folder)


def test_templates_of_models_and_skills_work_unchanged(places: directories.Places, said: Said) -> None:
    said.ok("new", "my-mind", "mind", "--template", "model")
    question = '{"messages":[{"role":"user","text":"example"}]}'
    out = said.ok("test", "mind", "--run", "--yes")
    assert f"ok: model my-mind/small called with {question}: example" in out
    said.ok("install", "mind")
    said.ok("new", "my-skill", "skill", "--template", "skill")
    said.ok("test", "skill", "--run", "--yes")
    said.ok("install", "skill")
    assert (places.state / "plugins/my-skill/skills/review.md").exists()


def test_a_manifest_means_its_plugin(
    places: directories.Places, said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    hello(Path("hello"))
    for verb in ("review", "test", "pack", "install"):
        said.ok(verb, "hello/manifest.toml")
    monkeypatch.chdir("hello")
    said.ok("test", "manifest.toml")


def test_nothing_is_written_over(places: directories.Places, said: Said) -> None:
    Path("there").mkdir()
    status, _, err = said("new", "notes", "there")
    assert (status, err) == (1, "ctx plugin: there is there already; name another directory\n")
    assert said("new", "../notes")[0] == 2
    assert '"my_notes" is not kebab-case; write it like' in said("new", "my_notes", "--template", "esm")[2]
    assert not Path("cortex-plugin-my_notes").exists()


def test_a_required_name_that_is_no_property_is_warned_of(places: directories.Places, said: Said) -> None:
    schema = '{ type = "object", properties = { how = {} }, required = ["hwo"] }'
    edit(hello(Path("hello")), "input_schema = {}", f"input_schema = {schema}")
    warned = "tool hello: input_schema requires hwo, and has no such property; did you mean how?"
    assert f"- {warned}" in said.ok("review", "hello")
    assert f"warning: {warned}" in said("install", "hello")[2]


def test_an_unknown_word_of_provides_is_warned_of(places: directories.Places, said: Said) -> None:
    edit(hello(Path("hello")), 'provides = ["tools"]', 'provides = ["tools", "skils"]')
    warned = 'capabilities.provides: "skils" is unknown and is ignored; did you mean skills?'
    assert said.ok("review", "hello").count(f"- {warned}") == 1
    assert f"warning: {warned}" in said("install", "hello")[2]


def test_a_review_as_json(places: directories.Places, said: Said) -> None:
    edit(hello(Path("hello")), 'description = "', 'nonsense = "')
    assert said("review", "hello", "--json")[0] == 2  # nothing is printed of what cannot be read
    hello(Path("other"))
    for verb in ("review", "test"):
        told = json.loads(said.ok(verb, "other", "--json"))
        assert (told["plugin"], told["trust"]) == ("hello", "unreviewed_process")
        assert {"check": "governance", "fault": None} in told["checks"]
        assert "missing package signature" in told["warnings"]
    Path("wrong").mkdir()
    Path("wrong/manifest.json").write_text('{"name": "wrong"}')
    status, out, _ = said("review", "wrong", "--json")
    assert (status, json.loads(out)["plugin"]) == (1, None)
    assert "wrong/manifest.json: kind: is missing" in out


def test_a_refusal_names_the_plugin(places: directories.Places, said: Said) -> None:
    edit(hello(Path("hello")), "1.6.0", "9.9.9")
    assert said("install", "hello")[2].startswith("ctx plugin: plugin 'hello': it needs 9.9.9 or newer")


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        # abi.md 11.3
        (lambda folder: edit(folder, 'version = "0.1.0"', 'version = " "'), "version is blank"),
        # abi.md 11.26
        (lambda folder: (folder / "bin/hello").chmod(0o644), "it is not executable: chmod +x bin/hello"),
        (lambda folder: (folder / "bin/hello").unlink(), "is not among its files"),
        (lambda folder: edit(folder, "input_schema = {}", "input_schema = 7"), "it is not a table"),
        (lambda folder: edit(folder, "= {}", '= { type = "no such" }'), "has no sound input_schema"),
        (lambda folder: edit(folder, "= {}", "= {}\nmax_output_bytes = 0"), "max_output_bytes is 0"),
        # abi.md 11.10
        (
            lambda folder: edit(folder, "= {}", '= {}\ninherit_env = ["API_KEY"]'),
            "inherit_env names API_KEY, which callers do not pass on",
        ),
        (
            lambda folder: edit(folder, "= {}", '= {}\ninherit_env = ["HOME", "KEEP_ME"]'),
            "inherit_env names KEEP_ME, which callers do not pass on; it may name COLUMNS CTX_MCP_SESSION",
        ),
        (lambda folder: edit(folder, '"tools"', ""), "capabilities.provides must not be empty"),
        (lambda folder: edit(folder, "1.6.0", "9.9.9"), "it needs 9.9.9 or newer"),
        (
            lambda folder: edit(folder, "[capabilities]", "[sandbox]\nuid_drop = true\n[capabilities]"),
            "uid_drop is not enforced by this runtime",
        ),
    ],
)
def test_a_failing_check_fails_the_test(
    places: directories.Places, said: Said, change: object, sentence: str
) -> None:
    folder = hello(Path("hello"))
    assert callable(change)
    change(folder)
    status, out, _ = said("test", "hello")
    assert status == 1
    assert any("fail:" in line and sentence in line for line in out.splitlines()), out
    assert "Conformance: local checks failed" in out


def test_what_callers_pass_on_may_be_inherited(places: directories.Places, said: Said) -> None:
    # docs/ctx.md lists them; docs/plugins.md: "and the caller's working directory in `CORTEXFS_CWD`"
    known = [name.decode() for name in (*wire.ENVIRONMENT, b"LC_ALL")]
    edit(hello(Path("hello")), "= {}", f"= {{}}\ninherit_env = {json.dumps([*known, 'CORTEXFS_CWD'])}")
    said.ok("test", "hello")
    assert "ok: tool hello env allowlist" in said.ok("review", "hello")


def test_a_test_gives_a_tool_no_more_than_a_call_would(
    places: directories.Places, said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A tool must not work in its test alone.
    said.ok("new", "looks", "--template", "python")
    (module,) = Path("cortex-plugin-looks/lib").glob("*.py")
    (kind,) = re.findall(r"entry = \"\w+:(\w+)\"", Path("cortex-plugin-looks/manifest.toml").read_text())
    module.write_text(
        "from cortexfs.sdk import ToolRuntime, tool\n"
        f'@tool(name="looks")\ndef {kind}(runtime: ToolRuntime) -> str:\n    """Look."""\n'
        '    return " ".join(runtime.environ.get(name, "-") for name in ("TZ", "KEEP_ME"))\n'
    )
    monkeypatch.setenv("KEEP_ME", "kept")
    monkeypatch.setenv("TZ", "UTC")
    assert "called with {}: UTC -" in said.ok("test", "cortex-plugin-looks", "--run", "--yes")


def test_a_tool_that_breaks_fails_the_test_that_runs_it(places: directories.Places, said: Said) -> None:
    folder = hello(Path("hello"))
    (folder / "bin/hello").write_text("#!/bin/sh\necho '{'\n")
    said.ok("test", "hello")
    status, out, _ = said("test", "hello", "--run", "--yes")
    assert status == 1
    assert "fail: tool hello called with {} (EPROTO: " in out
    (folder / "bin/hello").write_text("#!/bin/sh\necho no pen >&2; exit 3\n")
    assert "ok: tool hello called with {}: EIO: no pen" in said.ok("test", "hello", "--run", "--yes")


# -- review


def test_a_review_says_what_is_asked_for_and_what_holds_it(places: directories.Places, said: Said) -> None:
    # issue: "prints for each plugin what is enforced by what"
    claims = '[sandbox]\nnetwork = "none"\nfilesystem = "plugin_only"\nmemory_mb = 64\nuid_drop = true\n'
    folder = hello(Path("hello"), claims)
    edit(folder, '"tools"]', '"tools"]\nfile_write = ["/tmp/x"]\nbackground = true')
    (folder / "notes.txt").write_text("")
    out = said.ok("review", "hello")
    for line in (
        "Plugin review: hello v0.1.0",
        "  Trust: UnreviewedProcess",
        "  Signature: unsigned (manifest hash missing; binary hash not applicable; signature missing)",
        "  Conformance: local checks failed; no package certificate",
        "    - write files: /tmp/x",
        "    - does not request host secrets",
        "    - run in background",
        "    - reads: /usr, /bin, /sbin, /lib, /lib64, its own folder: held by Landlock",
        "    - writes: nothing: held by Landlock",
        "    - reaches: nothing: held by Landlock and seccomp",
        "    - runs: /usr, /bin, /sbin, /lib, /lib64, its own folder: held by Landlock",
        "    - sandbox.level = child_process: held by a process of its own",
        "    - sandbox.network = none: held by Landlock and seccomp",
        "    - sandbox.filesystem = plugin_only: held by Landlock",
        "    - sandbox.memory_mb = 64: held by resource limits",
        "    - sandbox.uid_drop = true: REFUSED, uid_drop is not enforced by this runtime",
        '    [risk.tools.hello] effect = WriteFile target = "/tmp/x" floor = RequireConfirmation',
        "    - notes.txt",
        "    - missing publisher_id",
        "    - ok: manifest identity",
    ):
        assert line in out.splitlines(), line
    edit(folder, claims, "")
    said_of_all = said.ok("review", "hello").splitlines()
    for what in ("reads", "writes", "reaches", "runs"):
        assert f"    - {what}: everything that its caller may, as its caller: not limited" in said_of_all


def test_a_review_recommends_the_floors_that_policy_has(places: directories.Places, said: Said) -> None:
    # abi.md 11.29
    folder = hello(Path("hello"))
    harmless = 'reversibility = "reversible", confirmation = "never", dry_run = "not_supported"'
    kinds = ("read_file", "network_request", "send_message", "delete_file")
    effects = ", ".join(f'{{ kind = "{kind}", {harmless} }}' for kind in kinds)
    edit(folder, "= {}", f"= {{}}\neffects = [{effects}]")
    rows = [line.split(" effect = ") for line in said.ok("review", "hello").splitlines()]
    assert [row[1] for row in rows if row[1:]] == [
        "NetworkRequest floor = Review",
        "SendMessage floor = RequireConfirmation",
        "DeleteFile floor = Block",
        'RunProcess target = "plugin subprocess" floor = RequireConfirmation',
    ]


def test_a_package_is_reviewed_as_its_directory_is(places: directories.Places, said: Said) -> None:
    hello(Path("hello"))
    said.ok("pack", "hello", "hello.cpx")
    assert said.ok("review", "hello.cpx") == said.ok("review", "hello")
    Path("bad.cpx").write_bytes(b"no gzip")
    assert "bad.cpx is refused: it is not gzip" in said("review", "bad.cpx")[2]
