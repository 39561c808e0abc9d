"""A row of the figures: its subject, its figure and its goal."""

from __future__ import annotations


class Row:
    def __init__(self, what: str, figure: float, unit: str, goal: str, met: bool | None) -> None:
        self.what, self.figure, self.unit, self.goal, self.met = what, figure, unit, goal, met


def below(what: str, figure: float, unit: str, limit: float) -> Row:
    return Row(what, figure, unit, f"<= {limit:g}", figure <= limit)


def above(what: str, figure: float, unit: str, limit: float) -> Row:
    return Row(what, figure, unit, f">= {limit:g}", figure >= limit)


def fact(what: str, figure: float, unit: str) -> Row:
    return Row(what, figure, unit, "", None)
