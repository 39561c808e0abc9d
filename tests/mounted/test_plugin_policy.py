"""`ctx policy` and installed plugins: the decisions that their manifests and tools lead to for an agent."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.mounted import plugins
from tests.mounted.agents import agent
from tests.mounted.ctx_mount import Ctx, mounted

SECRETS = "secrets = true\nbackground = true\n"


@pytest.fixture(scope="module")
def mount(python: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ctx]:
    where = tmp_path_factory.mktemp("plugins")
    with mounted(python) as ctx:
        reviewed = plugins.program(where, "reviewed", text=SECRETS)
        manifest = reviewed / "manifest.toml"
        manifest.write_text(f'trust = "reviewed_process"\n{manifest.read_text()}')
        for folder in (plugins.program(where, "script"), plugins.native(where, "library"), reviewed):
            ctx.ctx("plugin", "install", str(folder))
        yield ctx


@pytest.fixture
def settings(mount: Ctx) -> Iterator[Path]:
    path = mount.config / "policy.toml"
    yield path
    path.unlink(missing_ok=True)


def explained(ctx: Ctx, *words: str) -> dict[str, Any]:
    said: dict[str, Any] = json.loads(ctx.ctx("policy", "explain", *words, "--json", check=False).stdout)
    return said


def lint(ctx: Ctx) -> tuple[int, set[tuple[str, str]]]:
    """Returns the exit status, and each code with its subject."""
    done = ctx.ctx("policy", "lint", "--json", check=False)
    return done.returncode, {(one["code"], one["subject"]) for one in json.loads(done.stdout)}


def test_every_process_tool_needs_confirmation_in_balanced_mode(mount: Ctx, settings: Path) -> None:
    # abi.md 11.29
    with agent(mount, "reader", "script", "fs.read") as path:
        said = explained(mount, path, "tool/script")
        assert (said["allowed"], said["confirm"]) == (True, True)
        assert "require_confirmation" in said["reason"]
        assert (explained(mount, path, "tool/script", "--mode", "open"))["confirm"] is False
        assert explained(mount, path, "tool/fs.read")["confirm"] is False
        assert explained(mount, "root", "tool/script")["confirm"] is False
        # abi.md 11.29
        settings.write_text("[tools.script]\ntool_risk = 0.0\nblast_radius = 0.0\nirreversibility = 0.0\n")
        assert explained(mount, path, "tool/script")["confirm"] is True
        settings.write_text("[tools.script]\nblock = true\n")
        assert explained(mount, path, "tool/script")["allowed"] is False


def test_lint_sees_installed_plugins(mount: Ctx, settings: Path) -> None:
    # abi.md 11.29
    status, found = lint(mount)
    codes = {(code, subject.split("/")[-1]) for code, subject in found}
    assert status == 1
    assert {
        ("PLUGIN_PACKAGE_GOVERNANCE_GAP", "script"),
        ("NATIVE_PLUGIN_WITHOUT_RISK_PROFILE", "library"),
        ("PLUGIN_SECRET_ACCESS_UNGATED", "reviewed"),
        ("PLUGIN_BACKGROUND_WITHOUT_RISK_PROFILE", "reviewed"),
    } <= codes
    assert ("NATIVE_PLUGIN_WITHOUT_RISK_PROFILE", "script") not in codes  # [[native.tools]] are programs
    assert not [code for code, _ in codes if code == "OPEN_PERMISSION_UNREVIEWED_PLUGIN"]
    settings.write_text(
        "[tools.library]\ntool_risk = 0.2\n[tools.reviewed]\ntool_risk = 0.2\nrequire_confirmation = true\n"
    )
    status, found = lint(mount)
    assert (status, {code for code, _ in found}) == (0, {"PLUGIN_PACKAGE_GOVERNANCE_GAP"})
    settings.write_text(f'mode = "open"\n{settings.read_text()}')
    status, found = lint(mount)
    assert status == 1
    assert "OPEN_PERMISSION_UNREVIEWED_PLUGIN" in {code for code, _ in found}
