"""The official conformance suite of MCP on `ctx mcp serve --server` (`make test-mcp`).

The scenarios name tools, resources and prompts. The server of mcp_conforming.py has them. The product knows
no scenario.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mounted.ctx_mount import Ctx, mounted
from tests.mounted.mcp_clients import NODE, from_npm, served
from tests.mounted.mcp_places import command, declare, quiet, tool_is
from tests.waiting import PATIENCE

SUITE = "@modelcontextprotocol/conformance@0.1.16"
HERE = Path(__file__).parent
LINE = re.compile(r"^([✓✗]) (\S+): (\d+) passed, (\d+) failed", re.MULTILINE)
SERVER = [
    "server-initialize",
    "logging-set-level",
    "ping",
    "completion-complete",
    "tools-list",
    "tools-call-simple-text",
    "tools-call-image",
    "tools-call-audio",
    "tools-call-embedded-resource",
    "tools-call-mixed-content",
    "tools-call-with-logging",
    "tools-call-error",
    "tools-call-with-progress",
    "tools-call-sampling",
    "tools-call-elicitation",
    "json-schema-2020-12",
    "elicitation-sep1034-defaults",
    "server-sse-polling",
    "server-sse-multiple-streams",
    "elicitation-sep1330-enums",
    "resources-list",
    "resources-read-text",
    "resources-read-binary",
    "resources-templates-read",
    "resources-subscribe",
    "resources-unsubscribe",
    "prompts-list",
    "prompts-get-simple",
    "prompts-get-with-args",
    "prompts-get-embedded-resource",
    "prompts-get-with-image",
    "dns-rebinding-protection",
]


@pytest.fixture(scope="module")
def suite() -> list[str]:
    if not NODE.exists():
        pytest.fail("the suite needs a newer Node.js; run: make test-mcp")
    return [
        str(NODE),
        str(from_npm("conformance", SUITE) / f"node_modules/{SUITE.rpartition('@')[0]}/dist/index.js"),
    ]


@pytest.fixture(scope="module")
def place(python: Path) -> Iterator[Ctx]:
    with mounted(python) as ctx:
        shutil.copy(HERE / "mcp_conforming.py", ctx.work)
        declare(ctx, "conf", command(str(quiet(ctx, python)), "-I", str(ctx.work / "mcp_conforming.py")))
        tool_is(ctx, "conf.test_simple_text")
        yield ctx


@pytest.fixture(scope="module")
def judged(place: Ctx, suite: list[str]) -> dict[str, tuple[int, int, str]]:
    """The number of checks that passed and that failed, for each scenario, and the whole output."""
    with served(place, "--server", "conf") as server:
        words = [sys.executable, str(HERE / "mcp_bearing.py"), server.url, server.token]
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as proxy:
            assert proxy.stdout is not None
            url = proxy.stdout.readline().strip()
            done = subprocess.run(
                [*suite, "server", "--suite", "all", "--url", url],
                capture_output=True,
                text=True,
                check=False,
                env={"PATH": os.environ["PATH"], "HOME": str(place.work)},
            )
            proxy.terminate()
    found = LINE.findall(done.stdout)
    return {name: (int(passed), int(failed), done.stdout) for _, name, passed, failed in found}


@pytest.mark.parametrize("scenario", SERVER)
def test_server(judged: dict[str, tuple[int, int, str]], scenario: str) -> None:
    passed, failed, said = judged[scenario]
    assert passed or scenario == "server-sse-polling", said  # it is about a tool that has to exist
    assert not failed, said


def test_no_scenario_is_forgotten(judged: dict[str, tuple[int, int, str]]) -> None:
    assert judged.keys() == set(SERVER)


CLIENT = """
initialize tools_call elicitation-sep1034-client-defaults sse-retry auth/metadata-default auth/metadata-var1
auth/metadata-var2 auth/metadata-var3 auth/basic-cimd auth/scope-from-www-authenticate
auth/scope-from-scopes-supported auth/scope-omitted-when-undefined auth/scope-step-up auth/scope-retry-limit
auth/token-endpoint-auth-basic auth/token-endpoint-auth-post auth/token-endpoint-auth-none
auth/pre-registration auth/2025-03-26-oauth-endpoint-fallback
""".split()  # noqa: SIM905


@pytest.mark.parametrize("scenario", CLIENT)
def test_client(place: Ctx, suite: list[str], scenario: str) -> None:
    driver = HERE / "mcp_conforming_client.py"
    program = f"{sys.executable} {driver} {place.python} -I -m cortexfs.cli.main"
    done = subprocess.run(
        [*suite, "client", "--command", program, "--scenario", scenario, "--timeout", str(PATIENCE * 1000)],
        capture_output=True,
        text=True,
        check=False,
        env=place.environ | {"PATH": os.environ["PATH"], "HOME": str(place.work)},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "OVERALL: PASSED" in done.stdout + done.stderr
