"""The prices of models: money for a million tokens, from the configuration.

    [models."openai/gpt-4.1-mini"]
    input = 0.40
    output = 1.60

Rules: no prices are built in, as they would soon be wrong. The cost of a model without a price is unknown,
and never zero. A key is the name of a model, or a pattern with `*`. The longest key that fits counts.
This file must never know where prices are kept.
"""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import Annotated, TypeAlias

import msgspec
from msgspec import Meta

MILLION = 1_000_000
Money: TypeAlias = Annotated[float, Meta(ge=0, le=1e9)]
Currency: TypeAlias = Annotated[str, Meta(max_length=8, pattern=r"^[A-Za-z€$£¥]+\Z")]


class Price(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The money for a million tokens of a model."""

    input: Money
    output: Money


class Prices(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of a file of prices."""

    currency: Currency = "USD"
    models: dict[str, Price] = {}

    def cost(self, model: str, input_tokens: int, output_tokens: int) -> float | None:
        """Returns the money for these tokens of a model, or None if its price is unknown."""
        pattern = nearest_pattern(self.models, model)
        if pattern is None:
            return None
        price = self.models[pattern]
        return (price.input * input_tokens + price.output * output_tokens) / MILLION

    def text(self, cost: float | None) -> str:
        """Returns money for people, such as `0.0123 USD`, or nothing for an unknown cost."""
        return "" if cost is None else f"{cost:.{2 if cost >= 100 else 4}f} {self.currency}"


def nearest_pattern(patterns: Iterable[str], model: str) -> str | None:
    """Returns the longest of these patterns that fits the name of a model, or None."""
    return max((each for each in patterns if fnmatchcase(model, each)), key=len, default=None)
