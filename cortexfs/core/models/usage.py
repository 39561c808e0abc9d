"""The tokens that a user's calls of models have taken, and the limits for a month.

Rules: days and months are those of UTC. Lines of the same day, model and agent are added up. A limit counts
for each user alone, over all of its models together. A call that was admitted may exceed the limit, and
counts. A limit in money admits no model without a price.
This file must never know where lines are kept, or a clock: the day comes in.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, TypeAlias

import msgspec
from msgspec import Meta

from cortexfs.core.errors import Fault
from cortexfs.core.jsontext import UNREADABLE
from cortexfs.core.models.prices import Prices, nearest_pattern

LARGEST = 1 << 40
UsageKey: TypeAlias = tuple[str, str, str]


class UsageLine(msgspec.Struct, frozen=True, omit_defaults=True):
    """The calls of a model on a day, by a person or one of the person's agents."""

    day: str  # 2026-11-25
    model: str
    agent: str = ""
    calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    money: float = 0  # by the prices of the daemon's configuration

    @property
    def key(self) -> UsageKey:
        return self.day, self.model, self.agent

    def __add__(self, other: UsageLine) -> UsageLine:
        sums = (getattr(self, name) + getattr(other, name) for name in self.__struct_fields__[3:])
        return UsageLine(*self.key, *sums)


_lines = msgspec.json.Decoder(UsageLine)


def bounded(tokens: int) -> int:
    """Returns the tokens that a model reports, limited to a plausible number."""
    return min(max(tokens, 0), LARGEST)


def decoded(data: bytes) -> list[UsageLine]:
    """Returns the lines of a file, except those that a crash has cut."""
    found = []
    for line in data.split(b"\n"):
        try:
            found.append(_lines.decode(line))
        except UNREADABLE:
            continue
    return found


def summed(lines: Iterable[UsageLine]) -> dict[UsageKey, UsageLine]:
    """Returns one line for each day, model and agent."""
    found: dict[UsageKey, UsageLine] = {}
    for line in lines:
        found[line.key] = found[line.key] + line if line.key in found else line
    return found


class UsageLimit(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The tokens, or the money, that each of these users may use in a month, for all models together."""

    models: Annotated[tuple[str, ...], Meta(min_length=1)] = ("*",)  # an empty list would limit no model
    users: tuple[int, ...] = ()  # empty: all but root
    tokens: Annotated[int, Meta(ge=1)] | None = None
    money: Annotated[float, Meta(gt=0)] | None = None

    def __post_init__(self) -> None:
        if (self.tokens is None) == (self.money is None):
            raise ValueError("expected either tokens or money")

    def applies(self, uid: int) -> bool:
        return uid in self.users if self.users else uid != 0

    def covers(self, model: str) -> bool:
        return nearest_pattern(self.models, model) is not None

    def used(self, lines: Iterable[UsageLine], day: str) -> float:
        """Returns the amount of tokens or money that is used in the month of that day."""
        entries = [line for line in lines if line.day[:7] == day[:7] and self.covers(line.model)]
        if self.money is not None:
            return sum(line.money for line in entries)
        return sum(line.input_tokens + line.output_tokens for line in entries)

    def amount_text(self, amount: float, prices: Prices) -> str:
        return prices.text(amount) if self.money is not None else f"{amount:,.0f} tokens"

    def sentence(self, used: float, day: str, prices: Prices) -> str:
        limit = self.amount_text(self.tokens or self.money or 0, prices)
        return (
            f"{self.amount_text(used, prices)} of {limit} are used this month for {', '.join(self.models)}; "
            f"the limit begins again on {following(day)}"
        )


class ToldLimit(UsageLimit, frozen=True, kw_only=True):
    """A limit as `status` shows it, in JSON."""

    currency: str


def following(day: str) -> str:
    """Returns the first day of the next month."""
    year, month = int(day[:4]), int(day[5:7])
    return f"{year + month // 12}-{month % 12 + 1:02}-01"


def admit(
    limits: Iterable[UsageLimit], uid: int, model: str, lines: Iterable[UsageLine], day: str, prices: Prices
) -> None:
    """Raises EDQUOT if a user may not call the model any more this month, or it has no price."""
    for limit in limits:
        if not (limit.applies(uid) and limit.covers(model)):
            continue
        if limit.money is not None and prices.cost(model, 0, 0) is None:
            why = f"{model} has no price in [usage.prices] of config.toml, which your limit in money needs"
            raise Fault("EDQUOT", f"{why}; ask the administrator of this mount")
        used = limit.used(lines, day)
        if used >= (limit.tokens or limit.money or 0):
            raise Fault("EDQUOT", limit.sentence(used, day, prices))
