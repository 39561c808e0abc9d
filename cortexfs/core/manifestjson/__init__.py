"""manifest.json: read, checked and told, from bytes to a value.

`read` says everything that is wrong; `checked` is for whoever wants the manifest or one sentence. Beside
them: fields (what it may say), shape and rules (what is checked), problems (the categories), entry (where the
code is); capabilities (what it may do), settings, needs (which plugins it wants), lifecycle (hooks, exports,
events), tools.

Rules: a manifest that has passed here is sound, and nothing further in checks it again.
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
MAX_BYTES = 1 << 20  # the largest real one has 20 KB
MAX_PROBLEMS = 100  # to name the likely key takes time for each, so a hostile file does not get more


class ManifestReading(msgspec.Struct, frozen=True):
    manifest: JsonManifest | None  # None: there are errors
    errors: tuple[Problem, ...] = ()
    warnings: tuple[Problem, ...] = ()


def read(data: bytes) -> ManifestReading:
    """A manifest and everything that is wrong with it. Rules are looked at once the JSON types are right."""
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
    """The manifest and its warnings, or EINVAL with the first error as a sentence."""
    result = read(data)
    if result.manifest is None:
        more = len(result.errors) - 1
        told = result.errors[0].told(file)
        raise Fault("EINVAL", f"{told} ({more} more)" if more else told)
    return result.manifest, result.warnings


def _object(data: bytes) -> dict[str, Any]:
    if len(data) > MAX_BYTES:
        raise Fault("EINVAL", f"is larger than {MAX_BYTES} bytes")
    value = jsontext.decode(data, "the file")
    if not isinstance(value, dict):
        raise Fault("EINVAL", f"is {jsontext.shown(value)}")
    ui = value.get("ui")
    if isinstance(ui, dict) and isinstance(one := ui.get("settings"), dict):  # as in the wild: one section
        value["ui"] = ui | {"settings": [{"section": value.get("name", "")} | one]}
    return value


def _limited(found: Iterator[Problem]) -> list[Problem]:
    """All problems, or the first of them and an error that says so: none is passed over in silence."""
    some = list(islice(found, MAX_PROBLEMS + 1))
    if len(some) > MAX_PROBLEMS:
        some[-1] = Problem(
            "too_many_problems", "", f"has more than {MAX_PROBLEMS} problems", "mend these first"
        )
    return some


def _sorted(manifest: JsonManifest | None, found: list[Problem]) -> ManifestReading:
    errors = tuple(problem for problem in found if problem.is_error)
    warnings = tuple(problem for problem in found if not problem.is_error)
    return ManifestReading(None if errors else manifest, errors, warnings)
