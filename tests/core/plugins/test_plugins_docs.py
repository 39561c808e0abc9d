"""The tables of docs/plugins.md match the code, and its examples are valid manifests."""

from __future__ import annotations

import re
import tomllib
from typing import Any, get_args

import msgspec
from msgspec import inspect

from cortexfs.core.manifest import governance
from cortexfs.core.manifest import toml as m
from cortexfs.core.manifest.governance import Mechanism, claims
from cortexfs.core.manifest.toml import decode
from cortexfs.plugins.package import package, tarball
from cortexfs.plugins.trust import signing
from tests.places import PROJECT
from tests.tables import each_of

PAGE = (PROJECT / "docs" / "plugins.md").read_text()
EXAMPLES = re.findall(r"^```toml\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
TABLES: dict[str, type[msgspec.Struct]] = {
    "top": m.Manifest,
    "capabilities": m.ManifestCapabilities,
    "sandbox": m.ManifestSandbox,
    "native": m.Native,
    "native.tools": m.DeclaredProcessTool,
    "python": m.Python,
    "effects": m.ManifestEffect,
    "package": m.Package,
    "conformance": m.Conformance,
    "checks": m.CertificationCheck,
}


def described(kind: inspect.Type) -> str:
    """Returns a type in the notation of the tables."""
    if isinstance(kind, inspect.Metadata):
        return described(kind.type)
    if isinstance(kind, inspect.UnionType):
        return " or ".join(described(each) for each in kind.types if not isinstance(each, inspect.NoneType))
    if isinstance(kind, inspect.LiteralType):
        return ", ".join(f"`{word}`" for word in declared_words(kind))
    if isinstance(kind, inspect.VarTupleType):
        return f"list of {described(kind.item_type)}s"
    plain = {"Str": "string", "Bool": "boolean", "Int": "integer", "Any": "any", "Dict": "table of strings"}
    return plain.get(type(kind).__name__.removesuffix("Type"), "table")


def declared_words(kind: inspect.LiteralType) -> list[str]:
    """Returns the words in the order of the code, as msgspec sorts them."""
    known = (get_args(each) for each in vars(m).values() if {*get_args(each)} == {*kind.values})
    return [*next(known)]


def default(field: inspect.Field) -> str:
    if field.required:
        return "required"
    value = field.default if field.default is not msgspec.NODEFAULT else field.default_factory
    shown = {None: "none", dict: "`{}`", (): "`[]`"}
    if isinstance(value, msgspec.Struct):
        return "all defaults"
    return shown[value] if value in shown else f"`{msgspec.json.encode(value).decode()}`"


def rows(struct: type[msgspec.Struct]) -> list[str]:
    found = inspect.type_info(struct)
    assert isinstance(found, inspect.StructType)
    sentences = [get_args(field.type)[-1] for field in msgspec.structs.fields(struct)]
    return [
        f"| `{field.name}` | {described(field.type)} | {default(field)} | {told} |"
        for field, told in zip(found.fields, sentences, strict=True)
    ]


@each_of("name", TABLES)
def test_a_table_is_that_of_the_code(name: str) -> None:
    part = PAGE.split(f"<!-- table: {name} -->\n")[1].split("\n\n")[0]
    assert part.splitlines()[2:] == rows(TABLES[name])


def test_the_table_of_claims_is_that_of_the_code() -> None:
    told = {row[0]: row[1] for row in re.findall(r"^\| `sandbox\.(.*)` \| (.*) \|$", PAGE, re.MULTILINE)}
    every: list[dict[str, Any]] = [{"level": level} for level in governance.LEVELS]
    every += [{"network": "none"}, {"network": "allowlist"}, {"seccomp": "default"}, {"uid_drop": True}]
    every += [{"filesystem": word} for word in ("plugin_only", "read_only_host", "declared_paths")]
    every += [{"writable_paths": ["/tmp"]}, {"memory_mb": 64}, {"cpu_seconds": 5}]
    held = {}
    for sandbox in every:
        table = {"name": "n", "version": "1", "description": "", "sandbox": sandbox}
        (key,) = sandbox
        claim = next(each for each in claims(decode(table).sandbox) if each.key == f"sandbox.{key}")
        held[f"{key} = {toml(sandbox[key])}"] = claim.text.partition(": held by ")[2]
    assert told == {text: by or "refused" for text, by in held.items()}


def toml(value: object) -> str:
    return msgspec.json.encode(value).decode()


def test_every_mechanism_is_told_of() -> None:
    for mechanism in Mechanism:
        assert mechanism in PAGE


@each_of("text", EXAMPLES)
def test_an_example_is_a_sound_manifest(text: str) -> None:
    found = decode(tomllib.loads(text))
    governance.check_version(found)
    governance.check(found, frozenset(Mechanism))
    governance.check_boundary(found)


def test_there_are_examples() -> None:
    assert len(EXAMPLES) == 3


def test_the_figures_are_those_of_the_code() -> None:
    for figure in (
        f"{tarball.MAX_PACKED >> 20} MiB packed",
        f"{tarball.MAX_UNPACKED >> 20} MiB unpacked",
        f"{tarball.MAX_ENTRIES:,} entries",
        f"`{signing.COMPLETE}`",
        f"`{signing.UPSTREAM}`",
        f"answers to {governance.HOST_VERSION}",
        *(f"`{name}`" for name in package.FILES),
        *(f"`{name}/`" for name in package.FOLDERS),
    ):
        assert figure in " ".join(PAGE.split()), figure
