"""Failed calls of a provider leave nothing in the memory of the daemon, however large their texts are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.mounted.acting import ByModel, acting
from tests.mounted.ctx_mount import Answer, Ctx, mounted
from tests.mounted.outside import KEY
from tests.shell.provider_server import SSE, Cut, Move, Request, chunks, said, status
from tests.waiting import SOAK, until

CALLS = 100 if SOAK else 8  # of each kind
AT_ONCE = 4
MEGABYTES = 30  # the most that the daemon may grow
LARGE = "x" * (4 << 20)
ANSWERS: dict[str, Sequence[Move]] = {
    "gone": status(404, {"error": {"message": LARGE}}),
    "busy": status(429, {"error": {"message": LARGE}}, retry_after="3600"),
    "cut": [SSE, *chunks(said("a"), said(LARGE[:-300])), Cut()],
    "wide": [SSE, *chunks(said("a"), said(LARGE))],
}


class Forgetful(ByModel):
    async def moves(self, request: Request) -> Sequence[Move]:
        self.requests.clear()
        return await super().moves(request)


@pytest.fixture(scope="module")
def ctx(python: Path) -> Iterator[Ctx]:
    with acting(Forgetful(ANSWERS)) as provider, mounted(python) as mount:
        names = ", ".join(f'"{name}"' for name in ANSWERS)
        for name, models, url in (
            ("acted", names, provider.base_url),
            ("keyless", '"m"', provider.base_url),
            ("refused", '"m"', "http://127.0.0.1:9/v1"),
        ):
            file = mount.config / "providers" / f"{name}.toml"
            file.parent.mkdir(exist_ok=True)
            rows = f'base_url = "{url}"', 'format = "openai.chat"', f"models = [{models}]", "listed = false"
            key = ["[key]", 'env = "NOWHERE"'] if name == "keyless" else []
            file.write_text("\n".join([*rows, *key]))
        secrets = mount.state / "secrets"
        secrets.mkdir(mode=0o700, exist_ok=True)
        for name in ("acted", "refused"):
            (secrets / name).touch(0o600)
            (secrets / name).write_text(KEY)
        mount.umount()
        mount.mount()
        yield mount


def asked(ctx: Ctx, model: str, times: int) -> list[Answer]:
    words = [str(ctx.root / "model" / model), "-"]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return [
            Answer(done)
            for done in pool.map(lambda _: ctx.run(words, input=LARGE.encode(), text=False), range(times))
        ]


def resident(ctx: Ctx) -> int:
    """Returns the resident memory of the daemon in MiB."""
    status = Path(f"/proc/{ctx.pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) >> 10


@pytest.mark.parametrize(
    ("model", "code"),
    [
        ("acted/gone", "ENOENT"),
        ("acted/busy", "EAGAIN"),
        ("acted/cut", "EREMOTEIO"),
        ("acted/wide", "EREMOTEIO"),
        ("keyless/m", "EACCES"),
        ("refused/m", "EHOSTDOWN"),
    ],
)
def test_a_failed_call_leaves_nothing(ctx: Ctx, model: str, code: str) -> None:
    asked(ctx, model, AT_ONCE)  # reserves the memory that so many calls at a time need
    before = resident(ctx)
    answers = asked(ctx, model, CALLS)
    assert {answer.code for answer in answers} == {code}, answers[0].message
    until(lambda: resident(ctx) - before, lambda grown: grown < MEGABYTES)
