"""Commands that only list do not import modules that are slow to import and that no listing needs."""

from __future__ import annotations

import subprocess
import sys

import pytest

# Each takes 2 to 15 ms to import, and no listing needs it.
COSTLY = {"asyncio", "hashlib", "importlib.metadata", "inspect", "shutil", "subprocess", "tarfile", "trio"}
if sys.version_info >= (3, 14):
    COSTLY.remove("inspect")  # argparse imports it, for colours
LOOK = """
import sys
from cortexfs.cli import parser
words = sys.argv[1:]
parser.of_command(words[0], words[-1]).parse_args(words[1:])
declared = parser._declared(words[0])
run = declared.verbs[words[1]].run if words[1:] else declared.run
if isinstance(run, str):
    parser._imported(run.rpartition(".")[0])
print(*sys.modules)
"""


# These take 12 ms to import, and only commands that read files of ours need them.
QUIET = {"msgspec", "tomllib"}
LISTINGS = ["status", "ls", "env", "session list", "provider list", "agent list", "tool list", "mcp list"]


@pytest.mark.parametrize("words", [*LISTINGS, "plugin list", "log"])
def test_listings_import_what_they_need(words: str) -> None:
    hashes = {"hashlib"} if words == "log" else set[str]()  # its index hashes names
    files = QUIET if words in ("provider list", "mcp list", "plugin list") else set[str]()
    assert not imported(words) & ((COSTLY | QUIET) - hashes - files)


def imported(words: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", LOOK, *words.split()], check=True, capture_output=True, text=True
    )
    return set(done.stdout.split())


FOUND = """
import sys
from cortexfs.plugins.install.entry_points import found
assert found(["/nowhere/python.zip", "/nowhere"]) == []
print("importlib.metadata" in sys.modules)
"""


def test_a_path_without_plugins_is_looked_at_by_itself() -> None:
    done = subprocess.run([sys.executable, "-c", FOUND], check=True, capture_output=True, text=True)
    assert done.stdout == "False\n"
