"""An immutable snapshot of all objects.

Rules: names are checked here, at the last gate before the tree. A registry never changes: the
daemon makes a new one, and `diff` returns the differences. Iteration is in the order of names.
This file must never know where objects come from or how they are shown.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple, TypeAlias

import msgspec

from cortexfs.core import hostcalls, names
from cortexfs.core.errors import Fault

# Class and name. In homes: ("agent", "home/1000/mine"), ("model", "home/1000/mine/m1"). Names of objects for
# everybody have fewer slashes: models have one, others none.
Key: TypeAlias = tuple[str, str]


HOME = "home/"
OWN = ("agent", "tool")  # the classes of objects that users make in their homes


class Object(msgspec.Struct, frozen=True, kw_only=True):
    class_: str
    name: str
    home: int | None = None  # the uid of the home that it is in; None: it is for everybody
    description: str
    schema: bytes = b"{}"  # compact JSON
    capabilities: hostcalls.Capabilities = hostcalls.Capabilities()
    timeout: float | None = None  # seconds; None: the configured default
    dry_run_flag: bool = False  # a tool with it has dry runs
    plugin: hostcalls.Plugin | None = None
    origin: str = "builtin"
    status: str = "ready"  # or "broken: why"
    registered: float = 0.0  # seconds since the epoch
    extra: Mapping[str, str] = {}  # values of controls that only some classes have
    key: Key = ("", "")  # computed once from class, name and home, as each call needs it

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "key", own_key(self.class_, self.home, self.name))

    @property
    def path(self) -> str:
        """Returns the path below the root of the tree."""
        return path_of(self.key)

    @property
    def plugin_kind(self) -> str:
        """Returns the kind of its plugin, or nothing if it has none."""
        return self.plugin.kind if self.plugin is not None else ""

    @property
    def is_trusted(self) -> bool:
        """Returns True if its plugin's publisher is trusted."""
        return self.plugin is not None and self.plugin.trusted

    def serves(self, uid: int) -> bool:
        """Returns True if the object works for this user. An object in a home works for no other user,
        whatever its mode bits allow."""
        return self.home in (None, uid)


def own_key(class_: str, uid: int | None, name: str) -> Key:
    """Returns the key of an object in the home of a user, or for everybody."""
    return (class_, beginning(uid) + name)


def beginning(home: int | None) -> str:
    """Returns the beginning of the names in the keys of a home's objects: `home/1000/`, or nothing."""
    return "" if home is None else f"{HOME}{home}/"


def is_own(key: Key) -> bool:
    """Returns True if the object is in a home."""
    return key[1].count("/") > 1


def uid_of(key: Key) -> int | None:
    """Returns the uid of the home that the object is in, or None."""
    return int(key[1].split("/")[1]) if is_own(key) else None


def path_of(key: Key) -> str:
    class_, name = key
    if not is_own(key):
        return f"{class_}/{name}"
    home, uid, leaf = name.split("/", 2)
    return f"{home}/{uid}/{class_}/{leaf}"


def key_of(path: str) -> Key:
    """Returns the key of a path, as the inverse of `path_of`. No object has the key of another path."""
    home, uid, class_, name = (path.split("/", 3) + [""] * 3)[:4]
    if f"{home}/" == HOME:
        return (class_, f"{HOME}{uid}/{name}")
    class_, _, name = path.partition("/")
    return (class_, name)


def plain(key: Key) -> Key:
    """Returns class and name, without the home."""
    return (key[0], key[1].split("/", 2)[2]) if is_own(key) else key


class RegistryChanges(NamedTuple):
    added: tuple[Key, ...]
    removed: tuple[Key, ...]
    changed: tuple[Key, ...]


class Registry:
    def __init__(self, objects: Mapping[Key, Object] = MappingProxyType({})) -> None:
        for key, object_ in objects.items():
            names.check_object(object_.class_, object_.name)
            if key != object_.key:
                raise Fault("EINVAL", f"{object_.class_} {object_.name} is registered as {' '.join(key)}")
        self.objects: Mapping[Key, Object] = MappingProxyType(dict(sorted(objects.items())))
        self._names = _by_home(self)
        self._within = _by_folder(name for class_, name in self.objects if class_ == "model")

    def __len__(self) -> int:
        return len(self.objects)

    def __iter__(self) -> Iterator[Object]:
        return iter(self.objects.values())

    def get(self, class_: str, name: str) -> Object | None:
        return self.objects.get((class_, name))

    def names(self, class_: str, home: int | None = None) -> tuple[str, ...]:
        """Returns the names of a class's objects in the home of a user, or of those for everybody."""
        return self._names.get((class_, home), ())

    def within(self, folder: str) -> tuple[str, ...]:
        """Returns the models of a provider, `openai` or `home/1000/mine`, or the providers of a home,
        `home/1000`. For an empty folder it returns the providers for everybody."""
        return self._within.get(folder, ())

    def key_of(self, class_: str, name: str, uid: int | None) -> Key:
        """Returns the key of the object that a name means to a user: the user's own object, or, if it is
        broken or missing, the object for everybody."""
        own = None if uid is None else self.objects.get(own_key(class_, uid, name))
        return own.key if own and not own.status.startswith("broken") else (class_, name)


def diff(old: Registry, new: Registry) -> RegistryChanges:
    return RegistryChanges(
        added=tuple(key for key in new.objects if key not in old.objects),
        removed=tuple(key for key in old.objects if key not in new.objects),
        changed=tuple(
            key for key, object_ in new.objects.items() if old.objects.get(key, object_) != object_
        ),
    )


def _by_home(objects: Iterable[Object]) -> dict[tuple[str, int | None], tuple[str, ...]]:
    homes: dict[tuple[str, int | None], list[str]] = {}
    for object_ in objects:
        homes.setdefault((object_.class_, object_.home), []).append(object_.name)
    return {place: tuple(found) for place, found in homes.items()}


def _by_folder(models: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Returns the models in each provider's folder, and the providers in each folder above."""
    folders: dict[str, dict[str, None]] = {}
    for name in models:
        provider, _, leaf = name.rpartition("/")
        above, _, below = provider.rpartition("/")
        folders.setdefault(provider, {})[leaf] = None
        folders.setdefault(above, {})[below] = None
    return {folder: tuple(found) for folder, found in folders.items()}
