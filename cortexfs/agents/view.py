"""The paths that an agent's tools may open: its mount table as pairs of a path and the rights below it.

    view(table, cwd, root=..., home=..., writable=...)   -> (("/srv/project", "rwx"), ("/usr", "rx"), ...)
    within(child, parent)                                -> the paths that both of them show
    caps(table, home)                                    -> the most that such a view may show
    may_write(view, caps, path)                          -> True if both let a path be written

Rules: a path may be opened with the letters of every entry that covers it, as in Landlock: an entry adds to
the entries above it and takes nothing back. A path that no entry covers is closed. Entries need not exist.
The default view hides the home directory's hidden files except those in `HOME`; an entry hides them, too.
This file must never know what is on the disk, or how a view is enforced.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeAlias

from cortexfs.core import value_formats
from cortexfs.core.errors import Fault
from cortexfs.core.value_formats import HIDES, is_below, rights

View: TypeAlias = tuple[tuple[str, str], ...]

LETTERS = f"rwx{HIDES}"

# The paths that programs need to run at all. None of them has files of a user's own.
SYSTEM: Mapping[str, str] = {
    "/usr": "rx",
    "/bin": "rx",
    "/sbin": "rx",
    "/lib": "rx",
    "/lib64": "rx",
    "/lib32": "rx",
    "/opt": "rx",
    "/etc": "r",
    "/proc": "r",
    "/dev/null": "rw",
    "/dev/zero": "rw",
    "/dev/full": "rw",
    "/dev/random": "r",
    "/dev/urandom": "r",
}

# The hidden files of a home directory that programs need. None is writable, as others run them, too.
HOME: Mapping[str, str] = {
    ".gitconfig": "r",
    ".config/git": "r",
    ".cargo/bin": "rx",
    ".rustup": "rx",
    ".local/bin": "rx",
}

# Keys and passwords: closed even if the working directory is the hidden folder around them.
SECRETS = (
    ".ssh",
    ".gnupg",
    ".netrc",
    ".git-credentials",
    ".config/git/credentials",
    ".cargo/credentials*",
    ".aws",
    ".azure",
    ".kube",
    ".docker",
    ".config/gcloud",
    ".config/gh",
    ".local/share/keyrings",
    ".password-store",
    ".pgpass",
    ".pypirc",
)


def view(mounts: str, cwd: str, *, root: str, home: str, writable: bool) -> View:
    """Returns the view of a mount table, the text of `.d/mount`. An empty table gives the default view: the
    working directory, writable if `writable`, the system's programs, and the tree at `root` itself. Hidden
    files of `home`, the user's home directory, are left out. `home` is empty if there is none.

    A process that was put nowhere is in `/`, so `/` does not count as a chosen place to work in. As the
    working directory it opens nothing, instead of everything.
    """
    if not is_text(cwd):
        raise Fault("EINVAL", f"agents work in no directory whose name is not UTF-8: {cwd!a}")
    if mounts:
        value_formats.path_mounts(mounts)
        return _ordered((line.split("\t")[1], rights(line)) for line in mounts.removesuffix("\n").split("\n"))
    places = {root: "rx", cwd: "rwx" if writable else "rx"}
    chosen = ((_plain(path), letters) for path, letters in places.items() if not _goes_up(path))
    needed = [(f"{home}/", HIDES), *((f"{home}/{name}", mode) for name, mode in HOME.items())] if home else ()
    return _ordered((*SYSTEM.items(), *needed, *((path, letters) for path, letters in chosen if path != "/")))


def home_of(path: str) -> str:
    """Returns a home directory as views name it, or an empty text if it cannot be a user's own."""
    return "" if _goes_up(path) or not is_text(path) or _plain(path) == "/" else _plain(path)


def caps(mounts: str, home: str) -> View:
    """Returns the most rights that the default view gives in a home directory. A name that ends in `*` covers
    all names that begin so. A mount table of the agent's own was chosen, and has no such limit."""
    if mounts or not home:
        return ()
    most = {**dict.fromkeys(SECRETS, ""), **HOME}
    return tuple((f"{home}/{name}", letters) for name, letters in most.items())


def opened(view: View, path: str, letters: str) -> View:
    """Returns the view with this path added."""
    return _ordered((*view, (path, letters)))


def may_write(view: View, most: View, path: str) -> bool:
    """Returns True if a view opens a path for writing and its caps let it."""
    capped = (
        letters
        for above, letters in most
        if (path.startswith(above[:-1]) if above.endswith("*") else is_below(path, above))
    )
    return "w" in allowed(view, path) and all("w" in letters for letters in capped)


def within(child: View, parent: View) -> View:
    """Returns the view of what both views show, for an agent that another agent has started."""
    entries = (*child, *parent)
    paths = {path for path, letters in entries if letters != HIDES}
    shared = ((path, _common(allowed(child, path), allowed(parent, path))) for path in paths)
    return _ordered((*shared, *(entry for entry in entries if entry[1] == HIDES)))


def allowed(view: View, path: str) -> str:
    """Returns the letters with which a view opens a path. A path that is relative or has `..` is closed."""
    if _goes_up(path):
        return ""
    plain = _plain(path)
    hidden = [begins for begins in _hidden(view) if plain.startswith(begins)]
    covering = ((above, letters) for above, letters in view if is_below(plain, above) and letters != HIDES)
    return _letters(
        "".join(letters for above, letters in covering if all(above.startswith(start) for start in hidden))
    )


def hides(view: View, path: str) -> bool:
    """Returns True for a hidden file of a home directory that the view leaves out, and for paths below it."""
    return any(_plain(path).startswith(begins) for begins in _hidden(view)) and not allowed(view, path)


def _hidden(view: View) -> list[str]:
    """Returns the beginnings of hidden paths."""
    return [f"{path}." for path, letters in view if letters == HIDES]


def is_text(path: str) -> bool:
    """Returns True if a path is UTF-8, so that it can be sent to a model or a host."""
    return not any("\ud800" <= character <= "\udfff" for character in path)


def _common(letters: str, other: str) -> str:
    return "".join(letter for letter in letters if letter in other)


def _letters(letters: str) -> str:
    return "".join(letter for letter in LETTERS if letter in letters)


def _ordered(entries: Iterable[tuple[str, str]]) -> View:
    """Returns the entries sorted by path, each path once, without entries that open nothing."""
    found: dict[str, str] = {}
    for path, letters in entries:
        found[path] = _letters(found.get(path, "") + letters)
    return tuple((path, letters) for path, letters in sorted(found.items()) if letters)


def _goes_up(path: str) -> bool:
    return not path.startswith("/") or ".." in path.split("/")


def _plain(path: str) -> str:
    return "/" + "/".join(name for name in path.split("/") if name not in ("", "."))
