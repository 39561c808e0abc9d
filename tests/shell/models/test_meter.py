"""The meter and its ledger: the tokens that are counted, the time they are saved, and refusals."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import trio

from cortexfs.core.errors import Fault
from cortexfs.core.frames import Delta, Usage
from cortexfs.core.hostcalls import Identity
from cortexfs.core.models.prices import Price, Prices
from cortexfs.core.models.usage import UsageLimit, UsageLine, decoded
from cortexfs.core.registry import Object
from cortexfs.models.ask.driver import Driver, Turn, Who
from cortexfs.models.ask.model import NoAnswer
from cortexfs.models.meter import Meter
from cortexfs.state import usage_ledger, whole_files
from cortexfs.state.usage_ledger import UsageLedger
from tests.shell import asking

MODEL = Object(class_="model", name="openai/gpt", description="")
PRICES = Prices("EUR", {"openai/*": Price(1.0, 1.0)})
USED = Usage(input_tokens=5, output_tokens=2)


async def answer(turn: Turn) -> None:
    await turn.say(Delta(text="hello"), USED)


def metered(
    root: Path, driver: Driver = answer, limits: Sequence[UsageLimit] = (), object_: Object = MODEL
) -> Driver:
    return Meter(UsageLedger(root), limits, PRICES).around(object_, driver)


def kept(root: Path, uid: int = 1000) -> list[UsageLine]:
    path = root / "home" / str(uid) / "model" / ".usage"
    return decoded(path.read_bytes()) if path.exists() else []


def today() -> str:
    return time.strftime("%Y-%m-%d", time.gmtime())


def run(work: Callable[..., Any], *args: object) -> Any:
    return trio.run(work, *args)


def test_an_answer_is_in_the_file_when_it_has_ended(tmp_path: Path) -> None:
    # abi.md 8.20
    turn = asking.Turn("hi")
    run(metered(tmp_path), turn)
    run(metered(tmp_path), turn)
    money = 7 / 1e6
    assert kept(tmp_path) == [UsageLine(today(), "openai/gpt", "", 1, 5, 2, money)] * 2
    path = tmp_path / "home/1000/model/.usage"
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_usage_says_of_which_model_it_is(tmp_path: Path) -> None:
    # abi.md 6.5
    turn = asking.Turn("hi")
    run(metered(tmp_path), turn)
    assert turn.frames[-1] == Usage(input_tokens=5, output_tokens=2, model="openai/gpt")


def test_what_an_agent_has_asked_is_its_users(tmp_path: Path) -> None:
    turn = asking.Turn("hi")
    turn.who = Who(Identity(1000, 1000, (), label="agent/lead agent/coder"))
    run(metered(tmp_path), turn)
    assert [line.agent for line in kept(tmp_path)] == ["coder"]


@pytest.mark.parametrize("is_cut", [True, False])
def test_to_leave_before_the_tokens_are_told_saves_nothing(tmp_path: Path, is_cut: bool) -> None:
    # abi.md 8.20; docs/attacks.md: "nobody has tokens for nothing by leaving early"
    async def silent(turn: Turn) -> None:
        await turn.say(Delta(text="x" * 400))
        if is_cut:
            await trio.sleep_forever()

    async def left() -> None:
        async with trio.open_nursery() as nursery:
            turn = asking.Turn("y" * 798)
            nursery.start_soon(metered(tmp_path, silent), turn)
            await turn.spoken.wait()
            nursery.cancel_scope.cancel() if is_cut else None

    run(left)
    assert kept(tmp_path) == [UsageLine(today(), "openai/gpt", "", 1, 200, 100, 300 / 1e6)]


def test_what_failed_without_a_word_costs_nothing(tmp_path: Path) -> None:
    async def fails(turn: Turn) -> None:
        raise Fault("EHOSTDOWN", "it is not there")

    with pytest.raises(Fault, match="not there"):
        run(metered(tmp_path, fails), asking.Turn("hi"))
    assert kept(tmp_path) == []


def test_a_model_cannot_give_tokens_back(tmp_path: Path) -> None:
    # docs/attacks.md: token counts reported by a model are bounded
    async def lies(turn: Turn) -> None:
        await turn.say(Delta(text="x"), Usage(input_tokens=-(10**30), output_tokens=10**30))

    run(metered(tmp_path, lies), asking.Turn("hi"))
    assert [(line.input_tokens, line.output_tokens) for line in kept(tmp_path)] == [(0, 1 << 40)]


def test_over_the_limit_nobody_is_asked_and_what_streams_goes_on(tmp_path: Path) -> None:
    # abi.md 8.20
    asked: list[int] = []

    async def both() -> None:
        ledger = UsageLedger(tmp_path)
        go_on = trio.Event()

        async def slow(turn: Turn) -> None:
            asked.append(1)
            await turn.say(Delta(text="begun"))
            await go_on.wait()
            await turn.say(Delta(text=", ended"), USED)

        meter = Meter(ledger, [UsageLimit(tokens=7)], PRICES)
        async with trio.open_nursery() as nursery:
            turn = asking.Turn("hi")
            nursery.start_soon(meter.around(MODEL, slow), turn)
            await turn.spoken.wait()
            await meter.around(MODEL, answer)(asking.Turn("hi"))
            with pytest.raises(NoAnswer, match="7 tokens of 7 tokens are used this month for \\*") as refused:
                await meter.around(MODEL, slow)(asking.Turn("hi"))
            assert refused.value.code == "EDQUOT"
            go_on.set()
        assert turn.output == "begun, ended"

    run(both)
    assert asked == [1]
    with pytest.raises(NoAnswer):  # another daemon, with the same state
        run(metered(tmp_path, answer, [UsageLimit(tokens=7)]), asking.Turn("hi"))


def test_a_model_in_a_home_has_no_limit(tmp_path: Path) -> None:
    # abi.md 8.20: limits are on the keys of whoever runs the mount
    own = Object(class_="model", name="mine", home=1000, description="")
    for _ in range(2):
        run(metered(tmp_path, answer, [UsageLimit(tokens=1)], own), asking.Turn("hi"))
    assert len(kept(tmp_path)) == 2


# The ledger.


def line(tokens: int = 1, model: str = "a/b") -> UsageLine:
    return UsageLine(today(), model, "", 1, tokens, 0)


def test_many_lines_become_their_sum(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage_ledger, "MANY", 10)

    async def many() -> list[UsageLine]:
        ledger = UsageLedger(tmp_path)
        for _ in range(25):
            await ledger.add(1000, line())
        return list(await ledger.of(1000))

    sums = run(many)
    assert [each.input_tokens for each in sums] == [25]
    assert len(kept(tmp_path)) < 10
    assert sum(each.input_tokens for each in kept(tmp_path)) == 25


def test_what_is_old_is_not_kept_for_ever(tmp_path: Path) -> None:
    path = tmp_path / "home/1000/model/.usage"
    path.parent.mkdir(parents=True)
    path.write_bytes(b'{"day":"2001-01-01","model":"a/b","input_tokens":3}\n{"torn')

    async def look() -> list[UsageLine]:
        return list(await UsageLedger(tmp_path).of(1000))

    assert run(look) == []
    assert path.read_bytes() == b""


def test_a_full_disk_holds_nobody_up_and_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def full() -> int:
        ledger = UsageLedger(tmp_path)
        with monkeypatch.context() as patched:

            def no_room(*_: object) -> None:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

            patched.setattr(whole_files, "private", no_room)
            await ledger.add(1000, line(3))
            assert [each.input_tokens for each in await ledger.of(1000)] == [3]
        await ledger.add(1000, line(4))
        return sum(each.input_tokens for each in await ledger.of(1000))

    assert run(full) == 7
    assert sum(each.input_tokens for each in kept(tmp_path)) == 7


def test_calls_that_end_together_share_a_write(tmp_path: Path) -> None:
    async def together() -> None:
        ledger = UsageLedger(tmp_path)
        async with trio.open_nursery() as nursery:
            for _ in range(100):
                nursery.start_soon(ledger.add, 1000, line())

    run(together)
    assert sum(each.calls for each in kept(tmp_path)) == 100
    assert len(kept(tmp_path)) <= 3
