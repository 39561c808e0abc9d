"""Each room imports only what lies below (docs/design.md, "The floor plan"), and core is pure."""

from __future__ import annotations

import functools
import re
from pathlib import Path

PACKAGE = Path(__file__).parent.parent.parent / "cortexfs"
MODULES = sorted(str(path.relative_to(PACKAGE)) for path in PACKAGE.rglob("*.py"))

# The floor plan: the rooms that a room may import, itself included. A file in no row fails.
ROOMS = {
    "config.py": "core state version",
    "version.py": "",
    "core": "core",
    "linux": "core linux",
    "state": "core state",
    "net": "core version net",
    "peers": "core linux peers",
    "sdk": "sdk",
    "tools": "sdk tools",
    "host": "core linux net peers state sdk tools host version",
    "sessions": "core linux state version sessions",
    "pool": "core linux peers state pool",
    "models": "core net state pool version models",
    "agents": "core state models agents",
    "hooks": "core pool models sessions hooks",
    "plugins": "core linux net state peers pool models version config plugins",
    "run": "core peers pool hooks models plugins run",
    "tree": "core linux state sessions agents tree",
    "talk": "core peers pool plugins sessions models tree talk",
    "team": "core linux peers state pool plugins team",
    "daemon": "core linux state peers sessions pool models agents hooks plugins run tree talk team version"
    " config daemon",
    "client": "core client",
    "chat": "core client chat",
    "mcp": "core net sdk client models version mcp",
    "web": "core client chat web",
    "cli": "core linux net state peers sessions pool models agents hooks plugins run tree talk team version"
    " config daemon client chat mcp web sdk cli",
}
# Parts of the hosts' side that run in the installer of plugins, as its caller.
BESIDES = {
    "cli/plugin/install/checks.py": {"host"},
    "cli/plugin/install/install.py": {"host"},
}
TOP = 4  # files beside the rooms, at most
PURE = {
    "__future__", "abc", "base64", "binascii", "bisect", "cortexfs", "collections", "contextlib",
    "dataclasses", "decimal",
    "difflib", "enum", "errno", "functools", "itertools", "math", "msgspec", "re", "string", "struct",
    "textwrap", "types", "typing", "shlex", "json", "operator", "stat", "fnmatch", "heapq",
    "hashlib", "ipaddress", "tomllib", "urllib", "unicodedata", "zlib",
}  # fmt: skip


# Statements as `ruff format` writes them, outside long texts: to parse the whole package takes a second.
IMPORT = re.compile(r"^[ \t]*(?:import (.+)|from (\S+) import (?:\(([^)]*)\)|(.+)))$", re.MULTILINE)


@functools.cache
def imported(module: str) -> set[str]:
    found: set[str] = set()
    for names, source, *parts in IMPORT.findall("".join((PACKAGE / module).read_text().split('"""')[::2])):
        assert not source.startswith("."), f"{module} has a relative import"
        found |= set(listed(names)) or {source}
        if source == "cortexfs":
            found |= {f"cortexfs.{name}" for name in listed("".join(parts))}
    return found


def listed(names: str) -> list[str]:
    """Returns the names in `a, b as c  # why`, on one line or several."""
    return [name.split()[0] for name in re.sub("#.*", "", names).split(",") if name.strip()]


def ours(module: str) -> set[str]:
    return {name.split(".")[1] for name in imported(module) if name.startswith("cortexfs.")}


def test_each_room_imports_what_the_plan_allows() -> None:
    for module in MODULES:
        if module == "__init__.py":
            continue
        room = module.partition("/")[0]
        assert room in ROOMS, f"{module} is in no room"
        besides = ours(module) - set(ROOMS[room].split())
        assert besides == BESIDES.get(module, set()), module


def test_tests_of_a_room_are_found_by_its_path() -> None:
    # the tests of core/tree, for example, are in tests/core/tree
    tests = Path(__file__).parent.parent
    for ring, above in (("core", ("", "core/")), ("shell", ("",))):
        for path in (tests / ring).rglob("test_*.py"):
            room = str(path.parent.relative_to(tests / ring))
            assert ring == "core" or room != ".", path
            assert any((PACKAGE / f"{start}{room}").is_dir() for start in above), path


def test_few_files_are_in_no_room() -> None:
    assert len([module for module in MODULES if "/" not in module]) <= TOP


def test_core_is_pure() -> None:
    # design: "no trio, pyfuse3, os, socket, time, logging"
    for module in MODULES:
        if module.startswith("core/"):
            assert {name.split(".")[0] for name in imported(module)} <= PURE, module


def test_the_package_itself_is_empty() -> None:
    # a program that imports a part of the package must not pay for all of it
    assert not (PACKAGE / "__init__.py").read_text().strip()
