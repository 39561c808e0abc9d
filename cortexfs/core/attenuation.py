"""What a child agent has beyond its parent: nothing, or it is dropped.

Rules: policy, groups and mounts of a child are within the parent's. Less is fine (rw may become ro), and what
the parent does not see, its child never sees. Paths are compared by whole names, as both tables speak of one
and the same file system; a path with `..` is within nothing.
This file must never know how a mount is made, or whether a path is there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple, TypeAlias

from cortexfs.core import formats, policy
from cortexfs.core.policy import Rule

Names: TypeAlias = tuple[str, ...]  # of a path
# What a mount may be restricted by; a child's must be as restricted.
RESTRICTIONS = ("nosuid", "nodev", "noexec")


class Mount(NamedTuple):
    source: str
    target: str
    writable: bool
    options: frozenset[str] = frozenset()

    @property
    def text(self) -> str:
        options = ",".join(sorted(self.options)) or "-"
        return "\t".join((self.source, self.target, "rw" if self.writable else "ro", options))


class Powers(NamedTuple):
    """What an agent may, as far as a child's must be within it."""

    label: str = ""  # its type
    rules: tuple[Rule, ...] = ()
    groups: frozenset[int] = frozenset()
    mounts: tuple[Mount, ...] = ()


class Excess(NamedTuple):
    """What a child has and its parent has not."""

    what: str  # policy, groups or mount: the control file
    item: str  # its line
    why: str


def mounts_of(text: str) -> tuple[Mount, ...]:
    """The lines of a `mount` control; EINVAL for one that is none."""
    formats.mounts(text)
    return tuple(_mount(*line.split("\t")) for line in text.splitlines())


def excess(child: Powers, parent: Powers) -> tuple[Excess, ...]:
    """All that would have to be dropped for `child` to be within `parent`."""
    return (*_rules(child, parent), *_groups(child, parent), *_mounts(child.mounts, parent.mounts))


def within(child: Powers, parent: Powers) -> Powers:
    """`child` without what it has beyond `parent`."""
    while dropped := {(one.what, one.item) for one in excess(child, parent)}:
        # Again, as a line that was dropped may have been what restricted another.
        child = Powers(
            child.label,
            tuple(rule for rule in child.rules if ("policy", rule.text) not in dropped),
            frozenset(gid for gid in child.groups if ("groups", str(gid)) not in dropped),
            tuple(mount for mount in child.mounts if ("mount", mount.text) not in dropped),
        )
    return child


def access(mounts: Iterable[Mount], path: str) -> str:
    """How a view shows an absolute path: rw, ro, or not at all (an empty string)."""
    names = _names(path)
    over = [mount for mount in mounts if _is_below(names, _names(mount.target))]
    closest = max(over, key=lambda mount: len(_names(mount.target)), default=None)
    return "" if closest is None else "rw" if closest.writable else "ro"


def _mount(source: str, target: str, access: str, options: str) -> Mount:
    words = frozenset() if options == "-" else frozenset(options.split(","))
    return Mount(source, target, access == "rw", words)


def _rules(child: Powers, parent: Powers) -> Iterable[Excess]:
    for rule in child.rules:
        # A line for another label gives this child nothing, and would give it to somebody else's.
        if rule.label != child.label:
            yield Excess(
                "policy", rule.text, f"it is not about the child, whose label is {child.label or 'none'}"
            )
        elif not policy.find(parent.rules, parent.label, *rule[1:4]):
            yield Excess("policy", rule.text, "no line allows its parent the same")


def _groups(child: Powers, parent: Powers) -> Iterable[Excess]:
    for gid in sorted(child.groups - parent.groups):
        yield Excess("groups", str(gid), "its parent is not in this group")


class _Tables(NamedTuple):
    """A child's table and its parent's, and what both need looked up for every line."""

    parent: tuple[Mount, ...]
    hidden: frozenset[Names]  # from the parent
    targets: Counter[Names]  # of the child


def _mounts(child: tuple[Mount, ...], parent: tuple[Mount, ...]) -> Iterable[Excess]:
    tables = _Tables(parent, _hidden(parent), Counter(_names(mount.target) for mount in child))
    for mount in child:
        if why := _beyond(mount, tables):
            yield Excess("mount", mount.text, why)


def _beyond(mount: Mount, tables: _Tables) -> str:
    """Why `mount` shows more than the parent sees; an empty string if it does not."""
    source = _names(mount.source)
    over = [one for one in tables.parent if _is_below(source, _names(one.source))]
    closest = max(over, key=_generosity, default=None)
    if closest is None or any(
        _is_below(source, hidden) and not _is_below(_names(closest.source), hidden)
        for hidden in tables.hidden
    ):
        return "its parent does not see the source"
    if mount.writable and not closest.writable:
        return f"its parent has {closest.source} ro"
    if missing := _restrictions(closest) - mount.options:
        return f"its parent has {closest.source} with {', '.join(sorted(missing))}"
    if "rbind" in mount.options and "rbind" not in closest.options:
        return f"its parent sees no mounts below {closest.source}"
    return _shows_hidden(mount, tables) or _unrestricted(mount, tables)


def _generosity(mount: Mount) -> tuple[int, bool, int]:
    """The order by which one source of several counts: the closest, and of those the one that shows most."""
    return (len(_names(mount.source)), mount.writable, -len(_restrictions(mount)))


def _restrictions(mount: Mount) -> frozenset[str]:
    return mount.options & set(RESTRICTIONS)


def _hidden(mounts: tuple[Mount, ...]) -> frozenset[Names]:
    """The sources over which another mount lies, so that nobody sees them there."""
    found = set()
    for under in mounts:
        for over in mounts:
            target, top = _names(over.target), _names(under.target)
            if target != top and _is_below(target, top):
                found.add(_names(under.source) + target[len(top) :])
    return frozenset(found - {_names(mount.source) for mount in mounts})


def _shows_hidden(mount: Mount, tables: _Tables) -> str:
    """A part that another mount hides from the parent, and none from the child."""
    hidden = next((one for one in sorted(tables.hidden) if _shows(mount, one, tables.targets)), None)
    return f"its parent does not see /{'/'.join(hidden)}" if hidden else ""


def _unrestricted(mount: Mount, tables: _Tables) -> str:
    """A part that the parent has with less, and that the child has not restricted itself."""
    for part in tables.parent:
        source = _names(part.source)
        if source == _names(mount.source) or not _shows(mount, source, tables.targets):
            continue
        if mount.writable and not part.writable:
            return f"its parent has {part.source} in it ro; add a line that says so"
        if missing := _restrictions(part) - mount.options:
            said = ", ".join(sorted(missing))
            return f"its parent has {part.source} in it with {said}; add a line that says so"
    return ""


def _shows(mount: Mount, source: Names, targets: Counter[Names]) -> bool:
    """Whether `source` is in the mount's, and no other line of the child's lies over it."""
    top = _names(mount.source)
    own = _names(mount.target)
    target = own + source[len(top) :]
    return _is_below(source, top) and targets[target] == (target == own)


@lru_cache(maxsize=4 * formats.MAX_MOUNTS)
def _names(path: str) -> Names:
    return tuple(name for name in path.split("/") if name not in ("", "."))


def _is_below(path: Names, folder: Names) -> bool:
    """Whether `path` is `folder` or in it; one that goes up could be anywhere."""
    return ".." not in path and path[: len(folder)] == folder
