"""How large a file, class or function may be before it must say why (docs/design.md, "The floor plan")."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.places import PROJECT
from tests.source import definitions

MAX_ATTRIBUTES, MAX_PARAMETERS = 12, 8
MAX_LINES = 400
CLASS = re.compile(r"^class ([A-Z]\w*)", re.MULTILINE)


def classes() -> Iterator[tuple[Path, ast.ClassDef, ast.FunctionDef]]:
    """Yields each class that has a constructor."""
    for path in (PROJECT / "cortexfs").rglob("*.py"):
        source = path.read_text()
        if "def __init__" not in source:
            continue
        for node in definitions(ast.parse(source)):
            if isinstance(node, ast.ClassDef):
                for each in node.body:
                    if isinstance(each, ast.FunctionDef) and each.name == "__init__":
                        yield path, node, each


def attributes(constructor: ast.FunctionDef) -> set[str]:
    return {
        node.attr
        for node in ast.walk(constructor)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
        if isinstance(node.value, ast.Name) and node.value.id == "self"
    }


def test_large_classes_say_why() -> None:
    found = 0
    for path, class_, constructor in classes():
        found += 1
        said = ast.get_docstring(class_) or ""
        place = f"{path.relative_to(PROJECT)}: {class_.name}"
        given = len(constructor.args.args) + len(constructor.args.kwonlyargs) - 1
        if (size := len(attributes(constructor))) > MAX_ATTRIBUTES:
            assert "attribute" in said, f"{place} has {size} attributes, and does not say why"
        if given > MAX_PARAMETERS:
            assert "parameter" in said, f"{place} takes {given} parameters, and does not say why"
    assert found > 200


# The SDK keeps the seed's names, which frames and manifests use as well.
SEEDS = {"ToolCall", "ToolResult", "Usage"}


def test_a_public_class_name_means_one_thing() -> None:
    found: dict[str, list[str]] = {}
    for path in (PROJECT / "cortexfs").rglob("*.py"):
        for name in CLASS.findall(path.read_text()):
            found.setdefault(name, []).append(str(path.relative_to(PROJECT)))
    assert len(found) > 300
    assert {name: paths for name, paths in found.items() if len(paths) > 1 and name not in SEEDS} == {}


def test_no_file_is_longer_than_somebody_reads() -> None:
    paths = [path for room in ("cortexfs", "tests") for path in (PROJECT / room).rglob("*.py")]
    assert len(paths) > 500
    long = {str(path.relative_to(PROJECT)): path.read_text().count("\n") for path in paths}
    assert {path: lines for path, lines in long.items() if lines > MAX_LINES} == {}


def test_bytes_that_are_no_json_are_caught_whatever_is_wrong_with_them() -> None:
    """msgspec's own exceptions cover wrong types only: invalid UTF-8 and too deep JSON raise others."""
    caught = re.compile(r"except .*msgspec\.(MsgspecError|DecodeError)")
    for path in (PROJECT / "cortexfs").rglob("*.py"):
        if path.name != "jsontext.py":
            assert not caught.search(path.read_text()), f"{path}: except UNREADABLE (core/jsontext.py)"
