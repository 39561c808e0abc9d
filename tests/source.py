"""The source of the package, for tests of how it is written.

Rules: definitions are sought among statements only, as to look into each expression takes five times as long.
This module must never know what a test wants of the definitions.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

Definition = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
BLOCKS = ("body", "handlers", "orelse", "finalbody", "cases")  # fields that hold statements


def definitions(node: ast.AST) -> Iterator[Definition]:
    """Yields the node and all modules, classes and functions below it."""
    if isinstance(node, Definition):
        yield node
    for block in BLOCKS:
        below = getattr(node, block, None)
        for each in below if isinstance(below, list) else ():
            yield from definitions(each)
