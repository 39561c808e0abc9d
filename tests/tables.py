"""Runs one test over the rows of a table, for tests without fixtures: an item of pytest's for each row
would cost more time than the row itself."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any


def each_of(
    names: str | Sequence[str], rows: Iterable[Any]
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Like `pytest.mark.parametrize`, but within one test. A failure is noted with its row, and the rows
    after that row are not tried."""
    words = names.replace(",", " ").split() if isinstance(names, str) else [*names]
    table = [dict(zip(words, row if len(words) > 1 else (row,), strict=True)) for row in rows]

    def over(test: Callable[..., None]) -> Callable[..., None]:
        def whole(**others: Any) -> None:
            for row in table:
                try:
                    test(**row, **others)
                except Exception as problem:
                    problem.add_note(f"with {repr(row)[:1000]}")
                    raise

        signature = inspect.signature(test)
        left = [given for name, given in signature.parameters.items() if name not in words]
        functools.update_wrapper(whole, test)
        del whole.__dict__["__wrapped__"]  # pytest would take the row's names for fixtures
        whole.__dict__["__signature__"] = signature.replace(parameters=left)
        return whole

    return over
