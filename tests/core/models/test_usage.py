"""The usage of calls, and its monthly limits."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from cortexfs.core.errors import Fault
from cortexfs.core.models.prices import Price, Prices
from cortexfs.core.models.usage import UsageLimit, UsageLine, admit, decoded, following, summed
from tests.tables import each_of

PRICES = Prices("EUR", {"openai/*": Price(2.0, 8.0)})
DAY = "2026-11-25"


def line(day: str, model: str, tokens: int, money: float = 0, agent: str = "") -> UsageLine:
    return UsageLine(day, model, agent, 1, tokens, 0, money)


def refusal(limit: UsageLimit, *lines: UsageLine, uid: int = 1000, model: str = "openai/gpt") -> str:
    """Returns the sentence of EDQUOT, or an empty text."""
    try:
        admit([limit], uid, model, lines, DAY, PRICES)
    except Fault as fault:
        return fault.message if fault.code == "EDQUOT" else f"not {fault.code}"
    return ""


def test_lines_of_a_day_model_and_agent_are_one() -> None:
    sums = summed([line(DAY, "a/b", 1), line(DAY, "a/b", 2, 0.5), line(DAY, "a/b", 4, agent="coder")])
    assert list(sums.values()) == [
        UsageLine(DAY, "a/b", "", 2, 3, 0, 0.5),
        UsageLine(DAY, "a/b", "coder", 1, 4, 0),
    ]


def test_what_a_crash_has_torn_is_passed_over() -> None:
    whole = msgspec.json.encode(line(DAY, "a/b", 1))
    assert (
        decoded(whole + b"\n" + whole[:20] + whole + b"\n\xff\n[]\n" + whole + b"\n" + whole[:9])
        == [line(DAY, "a/b", 1)] * 2
    )


def test_a_limit_is_for_each_user_and_all_its_models_together() -> None:
    # abi.md 8.20
    limit = UsageLimit(("openai/*", "groq/*"), tokens=100)
    assert not refusal(limit, line(DAY, "openai/gpt", 60), line(DAY, "groq/llama", 39))
    assert refusal(limit, line(DAY, "openai/gpt", 60), line(DAY, "groq/llama", 40))
    assert not refusal(limit, line(DAY, "other/model", 1000))
    assert not refusal(limit, line(DAY, "openai/gpt", 1000), model="other/model")


def test_it_says_what_was_used_the_limit_and_when_it_begins_anew() -> None:
    # abi.md 8.20
    assert refusal(UsageLimit(("openai/*",), tokens=1_000_000), line(DAY, "openai/gpt", 1_000_412)) == (
        "1,000,412 tokens of 1,000,000 tokens are used this month for openai/*; "
        "the limit begins again on 2026-12-01"
    )
    assert "20.5000 EUR of 20.0000 EUR are used this month for *" in refusal(
        UsageLimit(money=20), line(DAY, "openai/gpt", 1, 20.5)
    )


def test_a_month_begins_anew() -> None:
    # abi.md 8.20
    limit = UsageLimit(tokens=10)
    assert not refusal(limit, line("2026-10-31", "openai/gpt", 10), line("2025-11-25", "openai/gpt", 10))
    assert refusal(limit, line("2026-11-01", "openai/gpt", 10))
    assert (following("2026-11-25"), following("2026-12-01")) == ("2026-12-01", "2027-01-01")


def test_all_but_root_have_a_limit_that_names_nobody() -> None:
    # abi.md 8.20
    used = line(DAY, "openai/gpt", 10)
    assert refusal(UsageLimit(tokens=10), used)
    assert not refusal(UsageLimit(tokens=10), used, uid=0)
    assert refusal(UsageLimit(users=(0,), tokens=10), used, uid=0)
    assert not refusal(UsageLimit(users=(0,), tokens=10), used)


def test_a_limit_in_money_admits_no_model_without_a_price() -> None:
    # abi.md 8.20
    assert "groq/llama has no price" in refusal(UsageLimit(money=1), model="groq/llama")
    assert not refusal(UsageLimit(tokens=1), model="groq/llama")


def test_a_limit_in_money_admits_until_it_is_used_up() -> None:
    # abi.md 8.20
    limit = UsageLimit(money=20)
    assert not refusal(limit, line(DAY, "openai/gpt", 1, 19.5))
    assert refusal(limit, line(DAY, "openai/gpt", 1, 19.5), line(DAY, "openai/gpt", 1, 0.5))


@each_of("table", [{}, {"tokens": 1, "money": 1}, {"tokens": 0}, {"money": -1}, {"token": 1}])
def test_what_is_no_limit_is_refused(table: dict[str, Any]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(table, UsageLimit)
