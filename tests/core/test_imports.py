"""Imports go one way (docs/design.md, "Imports go one way"), and core is pure."""

from __future__ import annotations

import functools
import re
from pathlib import Path

PACKAGE = Path(__file__).parent.parent.parent / "cortexfs"
MODULES = sorted(str(path.relative_to(PACKAGE)) for path in PACKAGE.rglob("*.py"))

# Which of our own modules a layer may import: prefixes of their dotted names.
LAYERS = {
    "core/": ("core",),
    "sdk/": ("sdk",),
    "host/": ("ancestry", "believed", "caller", "core", "sdk", "host", "tools"),
    "tools/": ("sdk", "tools"),
    "plugins/": ("core", "believed", "plugins", "version"),
    "client/": ("core", "client"),
    "chat/": ("core", "client", "chat"),
    "models/": ("core", "believed", "models"),
    "mcp/": ("core", "sdk", "models", "client", "mcp", "version"),
    "agents/": ("core", "believed", "models", "agents"),
}
SHELLS_NEVER = ("cli", "daemon")  # what nothing but the commands and the daemon itself may import
PURE = {
    "__future__", "abc", "base64", "binascii", "bisect", "cortexfs", "collections", "contextlib",
    "dataclasses", "decimal",
    "difflib", "enum", "errno", "functools", "itertools", "math", "msgspec", "re", "string", "struct",
    "textwrap", "types", "typing", "shlex", "json", "operator", "stat", "fnmatch", "heapq",
    "hashlib", "ipaddress", "urllib", "unicodedata",
}  # fmt: skip


# Statements as `ruff format` leaves them, outside of long texts: to parse the whole package takes a second.
LONG_TEXT = re.compile('""".*?"""', re.DOTALL)
IMPORT = re.compile(r"^[ \t]*(?:import (.+)|from (\S+) import (?:\(([^)]*)\)|(.+)))$", re.MULTILINE)


@functools.cache
def imported(module: str) -> set[str]:
    found: set[str] = set()
    for names, source, *parts in IMPORT.findall(LONG_TEXT.sub("", (PACKAGE / module).read_text())):
        assert not source.startswith("."), f"{module} has a relative import"
        found |= set(listed(names)) or {source}
        if source == "cortexfs":
            found |= {f"cortexfs.{name}" for name in listed("".join(parts))}
    return found


def listed(names: str) -> list[str]:
    """`a, b as c  # why`, on one line or several."""
    return [name.split()[0] for name in re.sub("#.*", "", names).split(",") if name.strip()]


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
