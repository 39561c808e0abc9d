"""Imports go one way (docs/design.md, "Imports go one way"), and core is pure."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parent.parent.parent / "cortexfs"
MODULES = sorted(str(path.relative_to(PACKAGE)) for path in PACKAGE.rglob("*.py"))

# Which of our own modules a layer may import: prefixes of their dotted names.
LAYERS = {
    "core/": ("core",),
    "sdk/": ("sdk",),
    "host/": ("core", "sdk", "host", "tools"),
    "tools/": ("sdk", "tools"),
    "plugins/": ("core", "plugins", "version"),
    "client/": ("core", "client"),
    "chat/": ("core", "client", "chat"),
    "models/": ("core", "models"),
    "mcp/": ("core", "sdk", "models", "client", "mcp", "version"),
    "agents/": ("core", "models", "agents"),
}
SHELLS_NEVER = ("cli", "daemon")  # what nothing but the commands and the daemon itself may import
PURE = {
    "__future__", "abc", "base64", "binascii", "bisect", "cortexfs", "collections", "contextlib",
    "dataclasses", "decimal",
    "difflib", "enum", "errno", "functools", "itertools", "math", "msgspec", "re", "string", "struct",
    "textwrap", "types", "typing", "shlex", "json", "operator", "stat", "fnmatch", "heapq",
    "hashlib", "ipaddress", "urllib",
}  # fmt: skip


def statements(tree: ast.AST) -> Iterator[ast.AST]:
    """Not expressions, which are most of a tree: nothing is imported there."""
    for field in ("body", "handlers", "orelse", "finalbody", "cases"):
        for node in getattr(tree, field, ()):
            yield node
            yield from statements(node)


@functools.cache
def imported(module: str) -> set[str]:
    found: set[str] = set()
    for node in statements(ast.parse((PACKAGE / module).read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert not node.level, f"{module} has a relative import"
            found.add(node.module)
            if node.module == "cortexfs":
                found |= {f"cortexfs.{alias.name}" for alias in node.names}
    return found


def ours(module: str) -> set[str]:
    return {name.split(".")[1] for name in imported(module) if name.startswith("cortexfs.")}


def test_a_layer_imports_only_what_lies_below() -> None:
    for module in MODULES:
        allowed = next((set(below) for layer, below in LAYERS.items() if module.startswith(layer)), None)
        if allowed is not None:
            assert ours(module) <= allowed, module
        elif not module.startswith(("cli/", "daemon")):
            assert not ours(module) & set(SHELLS_NEVER), module


def test_core_is_pure() -> None:
    # design: "no trio, pyfuse3, os, socket, time, logging"
    for module in MODULES:
        if module.startswith("core/"):
            assert {name.split(".")[0] for name in imported(module)} <= PURE, module


def test_the_package_itself_is_empty() -> None:
    # whoever imports a part of it must not pay for the whole
    assert not (PACKAGE / "__init__.py").read_text().strip()
