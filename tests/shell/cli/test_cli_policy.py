"""`ctx policy explain` and `ctx policy lint` on a tree of plain files."""

from __future__ import annotations

import json
import os
import pwd
from pathlib import Path
from typing import Any

import pytest

from cortexfs.cli import mounts
from cortexfs.cli.main import main
from cortexfs.cli.mounts import Mount
from cortexfs.cli.shell import complete
from cortexfs.core.policy.decision import LAYERS
from tests.shell.cli_tree import add, ctx, plant

READS = "read_file - reversible on_risk not_supported\n"
WRITES = "write_file /srv reversible on_risk required_before_execute\n"
LINE = "allow base_t tool:fs.read execute"
USER = pwd.getpwuid(os.getuid()).pw_name


def controls(root: Path, name: str, **files: str) -> None:
    for file, text in files.items():
        (root / f"{name}.d" / file).write_text(text)


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Returns the usual tree with the files that policy reads, and an agent with one permission."""
    root = plant(tmp_path / "ctx")
    root.chmod(0o755)
    monkeypatch.setenv("CTX_ROOT", str(root))
    monkeypatch.setenv("CTX_CONFIG", str(tmp_path / "config"))
    (tmp_path / "config").mkdir()
    (root / "status").write_text("version: 0.1.0\npid: 4194999\n")
    controls(root, "tool/fs.read", origin="builtin\n", effects=READS, policy="", cap="")
    controls(root, "tool/note.add", origin="plugin:notes@1.2\n", effects=WRITES, policy="")
    controls(root, "model/openai/gpt-5", policy="")
    add(root, "agent/base", "", "builtin", None)
    controls(
        root,
        "agent/base",
        label="user_u:agent_r:base_t:s0\n",
        policy=f"{LINE}\n",
        tools="fs.read\n",
        approval="auto\n",
    )
    return root


def explained(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, Any]]:
    status = main(["policy", "explain", *words, "--json"])
    said: dict[str, Any] = json.loads(capsys.readouterr().out)
    return status, said


def linted(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, list[dict[str, str]]]:
    status = main(["policy", "lint", *words, "--json"])
    return status, json.loads(capsys.readouterr().out)


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    status = main(["policy", *words])
    said = capsys.readouterr()
    assert not said.out
    return status, said.err


# explain


def test_a_person_is_judged_by_mode_bits(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # abi.md 7.2
    status, said = explained(capsys, USER, "tool/fs.read")
    assert status == 0
    assert said["allowed"]
    assert said["rule"].startswith("mode 0555 of tool/fs.read, owner ")
    assert (said["caller"], said["object"], said["permission"]) == (USER, "tool/fs.read", "execute")


def test_a_uid_needs_no_name(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, said = explained(capsys, "3999999", "model/main")
    assert (status, said["caller"], said["object"]) == (0, "uid 3999999", "model/openai/gpt-5")


def test_a_mode_that_forbids_is_exit_status_13(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # abi.md 4.23
    (root / "tool/fs.read").chmod(0o500)
    status, said = explained(capsys, "3999999", "fs.read")
    assert status == 13
    assert not said["allowed"]
    why = "Unix permissions do not let uid 3999999 execute tool/fs.read"
    assert said["reason"] == f"uid 3999999 may not execute tool:fs.read: {why}"


def test_a_folder_on_the_way_counts(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (root / "tool").chmod(0o700)
    _, said = explained(capsys, "3999999", "fs.read")
    assert said["rule"].startswith("mode 0700 of tool, ")


def test_a_line_of_its_policy_allows_an_agent(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # abi.md 7.4
    assert main(["policy", "explain", "agent/base", "tool/fs.read"]) == 0
    first, rule, blank, heads, *rows = capsys.readouterr().out.splitlines()
    assert first == f"agent/base may execute tool:fs.read: its policy says: {LINE}"
    assert (rule, blank) == ("rule: agent/base.d/policy:1", "")
    assert heads.split() == ["LAYER", "RESULT", "RULE", "WHY"]
    assert [row.partition("  ")[0] for row in rows] == list(LAYERS)


def test_an_agent_is_denied_by_default(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # abi.md 7.3
    status, said = explained(capsys, "agent/base", "note.add")
    assert status == 13
    assert said["rule"] == "agent/base.d/policy (default deny)"
    assert said["reason"].endswith("its policy lacks the line: allow base_t tool:note.add execute")


@pytest.mark.parametrize(
    ("object_", "line"),
    [
        ("model/main", "allow base_t model:openai/gpt-5 use"),
        ("agent/base", "allow base_t agent:base start"),
    ],
)
def test_models_are_used_and_agents_started(
    object_: str, line: str, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert explained(capsys, "agent/base", object_)[0] == 13
    controls(root, "agent/base", policy=f"{line}\n")
    status, said = explained(capsys, "agent/base", object_)
    assert (status, said["confirm"]) == (0, object_ == "agent/base")  # a start is delegate_work


def test_an_objects_policy_with_lines_must_allow_too(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    controls(root, "tool/fs.read", policy="allow other_t tool:fs.read execute\n")
    status, said = explained(capsys, "agent/base", "fs.read")
    assert (status, said["rule"]) == (13, "tool/fs.read.d/policy")


def test_effects_and_modes_decide_who_is_asked(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # abi.md 7.5
    controls(root, "agent/base", policy="allow base_t tool:note.add execute\n")
    controls(root, "tool/note.add", cap="dry_run_flag\ndry_run_trusted\n")
    _, said = explained(capsys, "agent/base", "note.add")
    assert (said["allowed"], said["confirm"], said["dry_run_first"]) == (True, True, True)
    assert "write_file on /srv is require_confirmation" in said["reason"]
    _, said = explained(capsys, "agent/base", "note.add", "--mode", "open")
    assert (said["allowed"], said["confirm"]) == (True, False)
    _, said = explained(capsys, USER, "note.add")
    assert (said["allowed"], said["confirm"], said["dry_run_first"]) == (True, False, True)
    status, said = explained(capsys, "agent/base", "note.add", "--dry-run")
    assert (status, said["dry_run_first"]) == (0, False)
    assert "write_file" not in said["reason"]  # a trusted dry run has no known effects


def test_a_dry_run_is_explained_as_it_is_decided(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # abi.md 4.49
    controls(root, "agent/base", policy="allow base_t tool:note.add execute\n")
    controls(root, "tool/note.add", cap="dry_run_flag\n")
    status, said = explained(capsys, "agent/base", "note.add", "--dry-run")
    assert (status, said["confirm"]) == (0, True)
    assert "write_file on /srv is require_confirmation" in said["reason"]
    controls(root, "tool/note.add", cap="")
    status, said = explained(capsys, "agent/base", "note.add", "--dry-run")
    assert (status, said["allowed"]) == (13, False)
    assert "note.add has no dry run" in said["reason"]
    _, said = explained(capsys, "agent/base", "note.add", "--mode", "open")
    assert (said["confirm"], said["dry_run_first"]) == (True, False)


def test_policy_toml_is_read(root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config/policy.toml").write_text('deny = ["fs.*"]\n')
    status, said = explained(capsys, "agent/base", "fs.read")
    assert (status, said["rule"]) == (13, "policy.toml: mode = balanced")
    assert explained(capsys, "agent/base", "fs.read", "--config", str(tmp_path))[0] == 0


def test_approval_ask_asks(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    controls(root, "agent/base", approval="ask\n")
    assert explained(capsys, "agent/base", "fs.read")[1]["confirm"]


def test_an_agent_works_for_somebody(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # abi.md 7.1
    (root / "tool/fs.read").chmod(0o500)
    assert explained(capsys, "agent/base", "fs.read")[0] == 0
    status, said = explained(capsys, "agent/base", "fs.read", "--user", "3999999")
    assert (status, said["steps"][1]["result"]) == (13, "deny")


def test_an_agent_without_a_label_is_denied(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (root / "agent/base.d/label").unlink()
    status, said = explained(capsys, "agent/base", "fs.read")
    assert (status, said["rule"]) == (13, "no label")


def test_the_daemon_of_a_user_serves_no_other(
    root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # abi.md 4.37
    monkeypatch.setattr(mounts, "mounted_at", lambda point: Mount(point, 1, 3999999, False))
    assert explained(capsys, USER, "fs.read")[0] == 13
    assert explained(capsys, "3999999", "fs.read")[0] == 0


@pytest.mark.parametrize(
    ("words", "status", "sentence"),
    [
        (["nobody-here", "fs.read"], 1, "there is no user 'nobody-here'; give a name, a uid or agent/NAME"),
        (["4294967296", "fs.read"], 2, "4294967296 is no uid; the highest is 4294967295"),
        (["9" * 5000, "fs.read"], 2, "9 is no uid"),
        (["agent/nil", "fs.read"], 1, "there is no object 'agent/nil'"),
        (["tool/fs.read", "fs.read"], 2, "'tool/fs.read' is not a caller; name a user, a uid or agent"),
        ([USER, "fs.raed"], 1, "there is no object 'fs.raed'; did you mean fs.read?"),
        ([USER, "/etc/passwd"], 2, "'/etc/passwd' is no object of this mount; see: ctx ls"),
        ([USER, "fs.read", "--user", "root"], 2, "--user goes with an agent alone"),
        ([USER], 2, "OBJECT is missing"),
        (["agent/base", "fs.read", "--mode", "loose"], 2, "'loose' is unknown; it can be "),
    ],
)
def test_a_wrong_question_is_one_sentence(
    words: list[str], status: int, sentence: str, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = refused(capsys, "explain", *words)
    assert said[0] == status
    assert sentence in said[1]
    assert said[1].count("\n") == 1


def test_a_wrong_file_is_named(root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config/policy.toml").write_text("modus = 1\n")
    assert "policy.toml: unknown key modus" in refused(capsys, "explain", USER, "fs.read")[1]
    (tmp_path / "config/policy.toml").unlink()
    controls(root, "tool/fs.read", policy="\nallow all\n")
    status, said = refused(capsys, "explain", USER, "fs.read")
    assert status == 2
    assert "tool/fs.read.d/policy: line 2: 'allow all' is not of the form" in said
    controls(root, "tool/fs.read", policy="", effects="read_file\n")
    for verb in (["explain", USER, "fs.read"], ["lint"]):
        assert "tool/fs.read.d/effects: line 1: an effect needs kind" in refused(capsys, *verb)[1]


# lint


def test_lint_finds_nothing_wrong(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, found = linted(capsys)
    assert status == 0
    assert [(one["level"], one["code"]) for one in found] == [("info", "POLICY_OK")]
    assert "tools (2), agents (1), plugins (1)" in found[0]["why"]


def test_lint_reads_every_file(root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config/policy.toml").write_text('auto_approve_up_to = "block"\n[tools.gone]\n')
    (root / "status").write_text("version: 0.1.0\nbroken plugin: maps: its process: killed\n")
    controls(root, "tool/fs.read", policy="allow x_t tool:fs.read execute\n")
    controls(root, "model/openai/gpt-5", policy="deny\n")
    controls(root, "agent/base", tools="fs.read\nnote.add\n")
    status, found = linted(capsys)
    assert status == 1
    assert {(one["code"], one["subject"]) for one in found} == {
        ("RISK_AUTO_APPROVES_BLOCK", "policy.toml"),
        ("RISK_TOOL_UNKNOWN", "policy.toml"),
        ("PLUGIN_MANIFEST_UNAVAILABLE", "maps"),
        ("POLICY_LABEL_UNKNOWN", "tool/fs.read.d/policy:1"),
        ("POLICY_LINE_INVALID", "model/openai/gpt-5.d/policy:1"),
        ("AGENT_TOOL_NOT_ALLOWED", "agent/base"),
    }
    assert next(one["why"] for one in found if one["subject"] == "maps") == "its process: killed"


MANIFEST = """
name = "notes"
version = "1.2"
description = "d"
cortex_version = "1.6.0"
trust = "reviewed_process"
[capabilities]
provides = ["tools"]
secrets = true
background = true
[sandbox]
uid_drop = true
[native]
isolation = "trusted_in_process"
"""


def test_lint_reads_the_manifests_of_plugins(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # issue: "`ctx policy lint` with the codes of section 6"
    monkeypatch.setenv("CTX_STATE", str(tmp_path / "state"))
    folder = tmp_path / "state" / "plugins" / "notes"
    folder.mkdir(parents=True)
    (folder / "manifest.toml").write_text(MANIFEST)
    status, found = linted(capsys)
    assert status == 1
    codes = {one["code"] for one in found if one["subject"] == "notes"}
    assert codes == {
        "PLUGIN_GOVERNANCE_INVALID",
        "PLUGIN_PACKAGE_GOVERNANCE_GAP",
        "NATIVE_PLUGIN_WITHOUT_RISK_PROFILE",
        "PLUGIN_SECRET_ACCESS_UNGATED",
        "PLUGIN_BACKGROUND_WITHOUT_RISK_PROFILE",
    }
    (folder / "manifest.toml").write_text("name")
    _, found = linted(capsys)
    assert "PLUGIN_MANIFEST_UNAVAILABLE" in {one["code"] for one in found if one["subject"] == "notes"}


def test_warnings_do_not_fail(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    controls(root, "agent/base", policy=f"{LINE}\nallow base_t tool:gone execute\n")
    assert main(["policy", "lint"]) == 0
    heads, row = capsys.readouterr().out.splitlines()
    assert heads.split() == ["LEVEL", "CODE", "SUBJECT", "WHY"]
    assert row.split()[:3] == ["warning", "POLICY_OBJECT_UNKNOWN", "agent/base.d/policy:2"]
    assert row.endswith("; correct the name, or remove the line")


def test_settings_that_are_wrong_are_a_finding(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config/policy.toml").write_text("[\n")
    status, (found,) = linted(capsys)
    assert (status, found["code"]) == (1, "RISK_SETTINGS_INVALID")


# both


@pytest.mark.parametrize("verb", ["explain", "lint"])
def test_help_has_examples(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    # abi.md 8.8
    assert main(["policy", verb, "--help"]) == 0
    said = capsys.readouterr().out
    assert f"examples:\n  ctx policy {verb}" in said
    assert "--json" in said


def test_no_mount_is_69(tmp_path: Path) -> None:
    # abi.md 4.24
    done = ctx("policy", "lint", root=tmp_path / "nothing")
    assert (done.returncode, done.stdout) == (69, "")
    assert "no CortexFS is mounted at" in done.stderr


def test_callers_and_objects_are_completed(root: Path) -> None:
    assert complete.candidates(["ctx", "policy", ""]) == ["explain", "reset", "lint"]
    assert complete.candidates(["ctx", "policy", "explain", "agent/"]) == ["agent/base"]
    assert USER in complete.candidates(["ctx", "policy", "explain", USER[:2]])
    assert complete.candidates(["ctx", "policy", "explain", "agent/base", "fs."]) == ["fs.read"]


def test_a_line_for_an_alias_is_about_what_it_leads_to(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # policy.md: "an alias means whatever it leads to"
    controls(root, "agent/base", policy=f"{LINE}\nallow base_t model:main use\n")
    status, said = explained(capsys, "agent/base", "model/main")
    assert (status, said["rule"]) == (0, "agent/base.d/policy:2")
    assert explained(capsys, "agent/base", "model/openai/gpt-5")[0] == 13
    assert [one["code"] for one in linted(capsys)[1]] == ["POLICY_OK"]
    (root / "model" / "main").unlink()
    assert [one["code"] for one in linted(capsys)[1]] == ["POLICY_OBJECT_UNKNOWN"]


# the mount view


def test_the_line_of_the_mount_table_is_explained(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # abi.md 7.4; the same code decides about calls
    view = {}
    for table in ("", "/srv\t/srv\tro\t-\n", f"/srv\t/srv\tro\t-\n{root}/tool\t{root}/tool\tro\t-\n"):
        controls(root, "agent/base", mount=table)
        status, said = explained(capsys, "agent/base", "fs.read")
        (step,) = (one for one in said["steps"] if one["layer"] == "mount view")
        view[table.count("\n")] = (status, step["result"], step["rule"])
    assert view[0] == (0, "pass", "agent/base.d/mount is empty (default view)")
    assert view[1] == (13, "deny", "agent/base.d/mount (no line)")
    assert view[2] == (0, "pass", f"agent/base.d/mount:2: {root}/tool {root}/tool ro -")


def test_an_agents_own_model_is_no_matter_of_its_table(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    policy = "allow base_t model:main use\nallow base_t model:openai/gpt-5 use\n"
    controls(root, "agent/base", mount="/srv\t/srv\tro\t-\n", model="main\n", policy=policy, tools="")
    assert explained(capsys, "agent/base", "model/main")[0] == 0
    status, said = explained(capsys, "agent/base", "openai/gpt-5")  # named by a program of its tools
    assert (status, said["rule"]) == (13, "agent/base.d/mount (no line)")
    assert [one["code"] for one in linted(capsys)[1]] == ["POLICY_OBJECT_HIDDEN"]
