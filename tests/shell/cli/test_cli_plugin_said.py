"""`ctx plugin review` and `test`: their reports on a plugin before it is installed."""

from __future__ import annotations

import pytest

from cortexfs.core.manifest.governance import Mechanism
from cortexfs.linux import kernel_support
from tests.shell import plugin_desk
from tests.shell.plugin_desk import World
from tests.shell.plugins.test_manifestjson_plugins import plugin

world = plugin_desk.world


def test_a_review_says_what_it_asks_for_and_what_holds_it(world: World) -> None:
    changes = {
        "capabilities": ["tools", "shell:run"],
        "aiDisclosd": {},
        "licence": 1,
        "licenses": [],
        "dependencies": {"below": "^1.0"},
    }
    tools = [{"name": "count", "description": "Counts", "params": []}]
    folder = plugin(world.base / "source", tools=tools, **changes)
    status, out, _ = world.ctx("review", str(folder))
    assert status == 0
    assert [line.strip() for line in out.splitlines()[4:15]] == [
        "Requested capabilities:",
        "- tools: register tools",
        "- shell:run: run commands",
        "Needs:",
        "- below ^1.0",
        "Sandbox:",
        "- reads, writes and runs: no files, no programs and no system calls: held by the WebAssembly engine",
        "- reaches: nothing: held by the host",
        "- 32 MiB of memory and 120 s a call: held by the WebAssembly engine",
        "Recommended risk profile:",
        "[risk.tools.count] effect = RunProcess floor = RequireConfirmation",
    ]
    # abi.md 9.48
    warning = "manifest.json: 3 times a key is unknown and is ignored: aiDisclosd, licence, licenses"
    assert f"    - {warning}\n" in out
    assert "ok: no hash in the manifest" in out
    assert f"warning: {warning}\n" in world.ctx("install", str(folder))[2]
    plugin(world.base / "source", hash=f"sha256:{'0' * 64}")
    assert "- fail: files (" in world.ctx("review", str(folder))[1]


def test_a_panel_without_its_file_is_no_panel(world: World) -> None:
    # abi.md 9.47
    panel = {"id": "main", "title": "Main", "htmlPath": "./ui/main.html"}
    capabilities = ["tools", "ui:panel"]
    folder = plugin(world.base / "source", ui={"panels": [panel]}, capabilities=capabilities)
    said = 'fail: panel main ("./ui/main.html" is not among its files; add it, or mend ui.panels)'
    assert said in world.ctx("review", str(folder))[1]
    assert world.ctx("install", str(folder))[0] == 2
    (folder / "ui").mkdir()
    (folder / "ui/main.html").write_text("<p>Main")
    assert "ok: panel main" in world.ctx("review", str(folder))[1]
    assert world.ctx("install", str(folder))[0] == 0


def test_a_plugin_that_may_bring_nothing_is_not_installed(world: World) -> None:
    # abi.md 11.47
    folder = str(plugin(world.base / "source", capabilities=["fs:read"]))
    said = 'capabilities (it may provide nothing; for tools, write ["tools"])'
    assert f"fail: {said}" in world.ctx("test", folder)[1]
    assert world.ctx("install", folder)[0] == 2


FOLDER, BOTH = "its own folder", "its own folder and its caller's directory"
PUBLIC = "public addresses, and networks that --private names"
BY = "held by Deno and Landlock" if Mechanism.LANDLOCK in kernel_support.available() else "held by Deno"


@pytest.mark.parametrize(
    ("capabilities", "rows"),
    [
        (
            (),
            [
                "runs: no programs: held by Deno",
                f"reads: {FOLDER}: {BY}",
                f"writes: nothing: {BY}",
                "reaches: nothing: held by Deno and seccomp",
            ],
        ),
        (
            ("fs:read", "net:outbound"),
            [
                "runs: no programs: held by Deno",
                f"reads: {BOTH}: {BY}",
                f"writes: nothing: {BY}",
                f"reaches: {PUBLIC}: held by Deno",
            ],
        ),
        (
            ("fs:delete",),
            [
                "runs: no programs: held by Deno",
                f"reads: {FOLDER}: {BY}",
                f"writes: {BOTH}: {BY}",
                "reaches: nothing: held by Deno and seccomp",
            ],
        ),
        (
            ("shell:run", "fs:read"),
            [
                "runs: every program that its caller may run, as its caller: not limited",
                "reads, writes and reaches: everything that its caller may, by these programs: not limited",
            ],
        ),
    ],
)
def test_a_review_says_what_this_plugin_may(
    world: World, capabilities: tuple[str, ...], rows: list[str]
) -> None:
    # issue: "`plugin review` says "held by Deno and Landlock" of a plugin with shell:run, which is not"
    folder = plugin(
        world.base / "source",
        kind="esm",
        runtime="deno",
        entryPoint="./x.js",
        capabilities=["tools", *capabilities],
    )
    (folder / "x.js").write_text("export const tools = [];")
    status, out, _ = world.ctx("review", str(folder))
    assert status == 0, out
    said = [line.removeprefix("    - ") for line in out.splitlines()]
    at = said.index("  Sandbox:") + 1
    assert said[at : at + len(rows)] == rows
    assert said[at + len(rows)] == "some 1 GiB of memory and 30 s a call: held by the host"


def test_a_review_says_where_a_server_is(world: World) -> None:
    for capabilities, where in (
        (["network:fetch"], "https://example.com/x alone, without redirects"),
        ([], "nothing"),
    ):
        folder = plugin(
            world.base / "source",
            kind="mcp",
            runtime="deno",
            entryPoint="https://example.com/x",
            capabilities=capabilities,
        )
        assert f"- reaches: {where}: held by the host" in world.ctx("review", str(folder))[1]


def test_all_that_is_wrong_with_a_manifest_is_said(world: World) -> None:
    # docs/manifest-json.md: "All are told"; abi.md 11.38
    folder = plugin(world.base / "source", kind="wsm", version=1)
    for verb, status in (("review", 1), ("test", 1), ("install", 2)):
        done, out, err = world.ctx(verb, str(folder))
        assert done == status
        assert 'kind: is "wsm"; write one of esm, mcp, wasm; did you mean wasm?' in out + err
        assert "version: is 1; write a string" in out + err
    assert err.endswith("fails 2 checks, and is not installed; see: ctx plugin test\n")


def test_a_plugin_is_tried_without_a_mount(world: World) -> None:
    # an invalid module does not load, and the daemon would give the same reason
    folder = plugin(world.base / "source")
    status, out, _ = world.ctx("test", str(folder), "--run", "--yes")
    assert status == 1
    assert "- fail: loading (" in out
    assert "it does not export plugin_get_abi_version" in out
