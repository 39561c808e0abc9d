"""The prices of models: the price that counts, and models without a known price."""

from __future__ import annotations

import msgspec
import pytest

from cortexfs.core.models.prices import Price, Prices
from tests.tables import each_of

PRICES = Prices(
    models={
        "openai/*": Price(2.0, 8.0),
        "openai/gpt-4.1-mini": Price(0.4, 1.6),
        "local/*": Price(0, 0),
    }
)


def test_a_price_is_for_a_million_tokens_and_the_longest_name_counts() -> None:
    # abi.md 8.13
    assert PRICES.cost("openai/gpt-4.1-mini", 1_000_000, 500_000) == pytest.approx(0.4 + 0.8)
    assert PRICES.cost("openai/gpt-5", 1_000_000, 500_000) == pytest.approx(2.0 + 4.0)
    assert PRICES.cost("local/smollm2", 5, 5) == 0


def test_what_has_no_price_costs_what_is_not_known() -> None:
    # abi.md 8.13: never nothing
    assert PRICES.cost("anthropic/claude", 10, 10) is None
    assert PRICES.text(None) == ""
    assert PRICES.text(0.01234) == "0.0123 USD"
    assert PRICES.text(1234.5) == "1234.50 USD"


@each_of(("cost", "text"), [(99.99, "99.9900 USD"), (100, "100.00 USD")])
def test_money_from_100_on_has_two_decimals(cost: float, text: str) -> None:
    assert PRICES.text(cost) == text


@each_of(
    "table",
    [
        {"models": {"a/b": {"input": -1, "output": 0}}},
        {"models": {"a/b": {"input": float("nan"), "output": 0}}},
        {"models": {"a/b": {"input": 1}}},
        {"models": {"a/b": {"input": 1, "output": 1, "outptu": 2}}},
        {"currency": "\x1b[31m"},
        {"model": {}},
    ],
)
def test_what_is_no_price_is_refused(table: dict[str, object]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(table, Prices)
