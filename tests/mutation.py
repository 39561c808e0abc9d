"""Changes one comparison, boolean operator or negation of core/ at a time, and runs the tests on each change.

    python -m tests.mutation                          all of core/, in some ten minutes
    python -m tests.mutation cortexfs/core/policy/*   some files of it

mutmut, from build/mutation, works in a copy of the project below build/. This program prints the changes
that no test noticed. The exit status is 1 if their share is more than MISSED.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).parent.parent
TOOLS, COPY = PROJECT / "build" / "mutation", PROJECT / "build" / "mutants"
MISSED = 0.05
LANES = 2
NOTICED = {"killed", "timeout", "segfault"}
# This test reads the files of the project, each of which differs in the copy.
OF_FILES = "tests/core/test_imports.py"
SETTINGS = """
[tool.mutmut]
source_paths = ["cortexfs"]
only_mutate = {files}
also_copy = ["docs", "README.md", "requirements-dev.lock", "Makefile"]
pytest_add_cli_args = {options}
pytest_add_cli_args_test_selection = ["tests/core"]
"""


def copied(files: list[str]) -> None:
    """Makes the copy of the project in which files are changed, and changes the directory to it."""
    shutil.rmtree(COPY, ignore_errors=True)
    for name in ("cortexfs", "tests", "docs"):
        shutil.copytree(PROJECT / name, COPY / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("README.md", "requirements-dev.lock", "Makefile"):
        shutil.copy(PROJECT / name, COPY)
    options = ["-q", "-p", "no:cacheprovider", f"--ignore={OF_FILES}"]
    settings = SETTINGS.format(files=files, options=options).replace("'", '"')
    (COPY / "pyproject.toml").write_text((PROJECT / "pyproject.toml").read_text() + settings)
    os.chdir(COPY)
    # Import the modules of the copy, not those of this program or of the package's own finder.
    sys.meta_path[:] = [each for each in sys.meta_path if not type(each).__name__.startswith("ScikitBuild")]
    sys.path[:] = [str(TOOLS), *(each for each in sys.path if Path(each).resolve() != PROJECT)]
    for name in [each for each in sys.modules if each.partition(".")[0] == "tests"]:
        del sys.modules[name]
    sys.argv[1:] = []


def changed() -> None:
    """Have mutmut make only changes of comparisons, boolean operators and negations."""
    cst: Any = import_module("libcst")
    file_mutation: Any = import_module("mutmut.mutation.file_mutation")
    mutators: Any = import_module("mutmut.mutation.mutators")

    def swapped(node: Any) -> Iterator[Any]:
        if isinstance(node, cst.BooleanOperation | cst.ComparisonTarget):
            yield from mutators.operator_swap_op(node)
        if isinstance(node, cst.Is | cst.IsNot | cst.In | cst.NotIn):
            yield from mutators.operator_keywords(node)
        if isinstance(node, cst.UnaryOperation) and isinstance(node.operator, cst.Not):
            yield node.expression

    file_mutation.mutation_operators[:] = [(cst.CSTNode, swapped)]


def judged() -> int:
    """Prints the changes that no test noticed, and returns the exit status."""
    words = import_module("mutmut.stats").status_by_exit_code
    shown = import_module("mutmut.mutation.diff_apply").get_diff_for_mutant
    made, missed = 0, []
    for path in sorted(Path("mutants").rglob("*.py.meta")):
        statuses = json.loads(path.read_bytes())["exit_code_by_key"]
        made += len(statuses)
        missed += [name for name, status in statuses.items() if words[status] not in NOTICED]
    for name in missed:
        print(name, *(line for line in shown(name).splitlines() if line[:1] in "-+"), sep="\n")
    share = len(missed) / made if made else 1
    print(f"{made - len(missed)} of {made} changes were noticed, {1 - share:.1%}")
    return share > MISSED


if __name__ == "__main__":
    copied(sys.argv[1:] or ["cortexfs/core/*"])
    changed()
    import_module("mutmut.__main__")._run([], LANES)
    sys.exit(judged())
