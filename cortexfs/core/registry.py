"""What there is to run: an immutable snapshot of all objects.

Rules: names are checked here, the last gate before the tree. A registry never changes; the daemon
makes a new one and `diff` says what became different. Iteration is in the order of names.
This file must never know where objects come from or how they are shown.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple, TypeAlias

import msgspec

from cortexfs.core import calls, names
from cortexfs.core.errors import Fault

Key: TypeAlias = tuple[str, str]  # class, name


class Object(msgspec.Struct, frozen=True, kw_only=True):
    class_: str
    name: str
    description: str
    schema: bytes = b"{}"  # compact JSON
    capabilities: calls.Capabilities = calls.Capabilities()
    timeout: float | None = None  # seconds; None: the configured default
    plugin: calls.Plugin | None = None
    origin: str = "builtin"
    status: str = "ready"  # or "broken: why"
    registered: float = 0.0  # seconds since the epoch
    extra: Mapping[str, str] = {}  # values of controls that only some classes have

    @property
    def key(self) -> Key:
        return (self.class_, self.name)


class Changes(NamedTuple):
    added: tuple[Key, ...]
    removed: tuple[Key, ...]
    changed: tuple[Key, ...]


class Registry:
    def __init__(self, objects: Mapping[Key, Object] = MappingProxyType({})) -> None:
        for key, object_ in objects.items():
            names.check_object(*key)
            if key != object_.key:
                raise Fault("EINVAL", f"{object_.class_} {object_.name} is registered as {' '.join(key)}")
        self.objects: Mapping[Key, Object] = MappingProxyType(dict(sorted(objects.items())))
        self._names: dict[str, tuple[str, ...]] = {
            class_: tuple(name for owner, name in self.objects if owner == class_) for class_ in names.CLASSES
        }
        self.providers: Mapping[str, tuple[str, ...]] = _by_provider(self._names["model"])

    def __len__(self) -> int:
        return len(self.objects)

    def __iter__(self) -> Iterator[Object]:
        return iter(self.objects.values())

    def get(self, class_: str, name: str) -> Object | None:
        return self.objects.get((class_, name))

    def names(self, class_: str) -> tuple[str, ...]:
        return self._names[class_]


def diff(old: Registry, new: Registry) -> Changes:
    return Changes(
        added=tuple(key for key in new.objects if key not in old.objects),
        removed=tuple(key for key in old.objects if key not in new.objects),
        changed=tuple(
            key for key, object_ in new.objects.items() if old.objects.get(key, object_) != object_
        ),
    )


def _by_provider(models: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
    providers: dict[str, list[str]] = {}
    for name in models:
        provider, _, leaf = name.partition("/")
        providers.setdefault(provider, []).append(leaf)
    return {provider: tuple(leaves) for provider, leaves in providers.items()}
