"""The usage of a provider's models on a mount is counted, shown to each user, and limited."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.mounted import outside
from tests.mounted.ctx_mount import NOBODY, Answer, Ctx, mounted, wait_gone
from tests.mounted.outside import KEY

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="asks as other users, which only root can")

OTHER = 12345
CONFIG = f"""
[usage]
currency = "EUR"
prices."katan/*" = {{input = 1000, output = 1000}}

[[usage.limits]]
models = ["katan/*"]
users = [{NOBODY}]
tokens = 100

[[usage.limits]]
users = [{OTHER}]
money = 0.05
"""


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with outside.katan() as address:
        yield address


@pytest.fixture
def limited(python: Path, url: str) -> Iterator[Ctx]:
    with mounted(python, config=CONFIG) as ctx:
        ctx.ctx("provider", "add", "katan", "--base-url", f"{url}/v1", "--format", "openai.chat")
        secret = [str(ctx.python), "-I", "-m", "cortexfs.cli.main", "provider", "secret", "set", "katan"]
        ctx.run(secret, input=KEY + "\n", check=True)
        yield ctx


def ask(ctx: Ctx, uid: int = NOBODY, *words: str) -> Answer:
    return Answer(
        ctx.run([str(ctx.root / "model/katan/echo-1"), *(words or ("hello",))], uid=uid, text=False)
    )


def as_user(ctx: Ctx, *words: str, uid: int = NOBODY) -> subprocess.CompletedProcess[str]:
    program = [str(ctx.python), "-I", "-m", "cortexfs.cli.main"]
    return ctx.run([*program, *words], uid=uid, env={"CTX_CONFIG": str(ctx.base / "none")})


def usage(ctx: Ctx, uid: int = NOBODY) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(as_user(ctx, "log", "--usage", "--json", uid=uid).stdout)
    return found


def use_up(ctx: Ctx, uid: int = NOBODY) -> Answer:
    """Ask until the limit is reached; returns the first refusal."""
    for _ in range(50):
        answer = ask(ctx, uid)
        if answer.status:
            return answer
    raise AssertionError("there is no limit")


def test_over_the_limit_a_user_is_told_so_and_others_are_not(limited: Ctx) -> None:
    # abi.md 8.20
    refused = use_up(limited)
    assert (refused.code, refused.status) == ("EDQUOT", 1)
    [used] = usage(limited)["limits"]
    assert used["used"] >= used["tokens"] == 100
    assert f"{used['used']} tokens of 100 tokens are used this month for katan/*" in refused.message
    assert "the limit begins again on 20" in refused.message
    assert ask(limited, 0).status == 0
    assert ask(limited, OTHER).status == 0
    # A socket refuses as well.
    said = as_user(limited, "send", "katan/echo-1", "hello", "--output", "text")
    assert (said.returncode, "are used this month" in said.stderr) == (1, True)


def test_a_limit_in_money_counts_by_the_prices_of_whoever_has_set_it(limited: Ctx) -> None:
    # abi.md 8.20
    refused = use_up(limited, OTHER)
    assert refused.code == "EDQUOT"
    assert "EUR of 0.0500 EUR are used this month for *" in refused.message


def test_a_kill_loses_nothing(limited: Ctx) -> None:
    # abi.md 8.20
    use_up(limited)
    before = usage(limited)
    pid = limited.pid
    os.kill(pid, signal.SIGKILL)
    assert wait_gone(pid)
    limited.mount()
    assert usage(limited) == before
    assert ask(limited).code == "EDQUOT"


def test_ones_own_use_is_shown_and_nobody_elses(limited: Ctx) -> None:
    # abi.md 8.21
    asked = ask(limited)
    [frame] = [frame for frame in asked.frames if frame["type"] == "usage"]
    ask(limited, OTHER)
    [row] = usage(limited)["usage"]
    assert (row["model"], row["agent"], row["calls"]) == ("katan/echo-1", "", 1)
    assert (row["input_tokens"], row["output_tokens"]) == (frame["input_tokens"], frame["output_tokens"])
    assert frame["model"] == "katan/echo-1"  # abi.md 6.5
    shown = as_user(limited, "log", "--usage").stdout.splitlines()
    assert shown[0].split() == ["DAY", "MODEL", "AGENT", "CALLS", "TOKENS", "IN", "OUT", "COST"]
    assert shown[2].startswith("total")
    assert "of 100 tokens are used this month for" in shown[3]
    assert len(shown) == 4
    assert usage(limited, 0) == {"currency": "USD", "usage": [], "limits": []}


def test_nobody_changes_what_was_used(limited: Ctx) -> None:
    # abi.md 8.21; docs/attacks.md: nobody changes what was used
    ask(limited)
    path = limited.root / f"home/{NOBODY}/model/.usage"
    for words in (["rm", str(path)], ["mv", str(path), f"{path}2"], ["truncate", "-s0", str(path)]):
        assert limited.run(words, uid=NOBODY).returncode != 0, words
    limited.run(["rm", "-rf", str(path.parent)], uid=NOBODY)
    limited.run(["sh", "-c", f"echo '{{}}' >> {path}"], uid=NOBODY)
    assert len(usage(limited)["usage"]) == 1
    mode = limited.run(["stat", "-c", "%a %u", str(path)], uid=NOBODY).stdout.split()
    assert mode == ["600", str(NOBODY)]
    assert ".usage" not in limited.run(["ls", "-a", str(path.parent)], uid=NOBODY).stdout
    assert "Permission denied" in limited.run(["cat", str(path)], uid=OTHER).stderr
    kept = limited.state / f"log/home/{NOBODY}/model/.usage"
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
