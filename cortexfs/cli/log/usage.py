"""`ctx log --usage`: the user's own tokens by day, model and agent, and their cost.

Rules: the daemon has counted each answer, even if its session is gone (`.usage` in the user's home). Costs
use the user's own prices; a limit uses the prices of the person who set it.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import msgspec

from cortexfs.cli import mounts, output, prices
from cortexfs.cli.log.index import Wanted
from cortexfs.core.models.prices import Prices
from cortexfs.core.models.usage import ToldLimit, UsageLine, decoded, summed

_HEADS = ("day", "model", "agent", "calls", "tokens in", "out", "cost")


def show(root: str, query: Wanted, as_json: bool) -> None:
    known, today = prices.load(), _day(time.time())
    path = Path(root, "home", str(os.getuid()), "model", ".usage")
    lines = summed(decoded(path.read_bytes() if path.exists() else b"")).values()
    costs = [
        (line, known.cost(line.model, line.input_tokens, line.output_tokens))
        for line in sorted(lines, key=lambda line: line.key, reverse=True)
        if query.model.lower() in line.model.lower()
        and query.agent in ("", line.agent)
        and line.day >= _day(query.since)
    ]
    texts = mounts.facts(mounts.status_text(root)).get("usage limit", [])
    limits = [msgspec.json.decode(text, type=ToldLimit) for text in texts]
    own = [(limit, limit.used(lines, today)) for limit in limits if limit.applies(os.getuid())]
    if as_json:
        days = [msgspec.structs.asdict(line) | {"cost": cost} for line, cost in costs]
        limit_rows = [msgspec.structs.asdict(limit) | {"used": used} for limit, used in own]
        return output.emit({"currency": known.currency, "usage": days, "limits": limit_rows})
    rows = [(line.day, line.model, line.agent, *_counts(line), known.text(cost)) for line, cost in costs]
    total = sum((line for line, _ in costs), UsageLine("total", ""))
    cost = known.text(sum(cost or 0 for _, cost in costs) if known.models else None)
    output.table(_HEADS, [*rows, ("total", "", "", *_counts(total), cost)])
    for limit, used in own:
        print(limit.sentence(used, today, Prices(limit.currency)))


def _counts(line: UsageLine) -> tuple[str, ...]:
    return tuple(f"{count:,}" for count in (line.calls, line.input_tokens, line.output_tokens))


def _day(seconds: float) -> str:
    return time.strftime("%Y-%m-%d", time.gmtime(seconds))
