"""manifest.json: from bytes to a checked value.

`read` returns all problems. `checked` returns the manifest, or raises a Fault with one sentence. Other
modules: fields (the keys), problems (the categories, and checks of JSON types), rules (checks of values),
entry (the place of the code), fetched, capabilities, settings, widgets, wasm_layout.

Rules: a manifest that has passed here is sound, and no other code checks it again.
This file must never know where a manifest lies, nor run anything that it names.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

import msgspec

from cortexfs.core import jsontext
from cortexfs.core.errors import Fault
from cortexfs.core.manifestjson import problems
from cortexfs.core.manifestjson.fields import JsonManifest
from cortexfs.core.manifestjson.problems import Problem
from cortexfs.core.manifestjson.rules import RULES

FILE = "manifest.json"
MAX_BYTES = 1 << 20  # the largest real manifest has 20 KB
MAX_PROBLEMS = 100  # a limit for hostile files, as the search for the likely key of each takes time


class ManifestReading(msgspec.Struct, frozen=True):
    manifest: JsonManifest | None  # None: there are errors
    errors: tuple[Problem, ...] = ()
    warnings: tuple[Problem, ...] = ()


def read(data: bytes) -> ManifestReading:
    """Returns a manifest and all problems in it. Rules are checked only if all JSON types are right."""
    try:
        value = _object(data)
    except Fault as fault:
        return ManifestReading(None, (Problem("invalid_json", "", fault.message, "write one JSON object"),))
    found = _limited(problems.of_shape(value, problems.type_of(JsonManifest)))
    if any(problem.is_error for problem in found):
        return _sorted(None, found)
    manifest = msgspec.convert(value, JsonManifest)
    found += _limited(problem for rule in RULES for problem in rule(manifest))
    return _sorted(manifest, found)


def checked(data: bytes, file: str = FILE) -> tuple[JsonManifest, tuple[Problem, ...]]:
    """Returns the manifest and its warnings. Raises EINVAL with the first error as a sentence."""
    result = read(data)
    if result.manifest is None:
        rest = len(result.errors) - 1
        message = result.errors[0].sentence(file)
        raise Fault("EINVAL", f"{message} ({rest} more)" if rest else message)
    return result.manifest, result.warnings


def _object(data: bytes) -> dict[str, Any]:
    if len(data) > MAX_BYTES:
        raise Fault("EINVAL", f"is larger than {MAX_BYTES} bytes")
    value = jsontext.decode(data, "the file")
    if not isinstance(value, dict):
        raise Fault("EINVAL", f"is {jsontext.shown(value)}")
    ui = value.get("ui")
    if isinstance(ui, dict) and isinstance(section := ui.get("settings"), dict):  # some have only one section
        value["ui"] = ui | {"settings": [{"section": value.get("name", "")} | section]}
    return value


def _limited(found: Iterator[Problem]) -> list[Problem]:
    """Returns all problems, or the first MAX_PROBLEMS and an error that there are more."""
    first = list(islice(found, MAX_PROBLEMS + 1))
    if len(first) > MAX_PROBLEMS:
        first[-1] = Problem(
            "too_many_problems", "", f"has more than {MAX_PROBLEMS} problems", "correct these first"
        )
    return first


def _sorted(manifest: JsonManifest | None, found: list[Problem]) -> ManifestReading:
    errors = tuple(problem for problem in found if problem.is_error)
    warnings = tuple(problem for problem in found if not problem.is_error)
    return ManifestReading(None if errors else manifest, errors, warnings)
