"""The path table of sessions: the kind and the owner of each path, and that no other path exists."""

from __future__ import annotations

import stat

from cortexfs.core.tree import session_places
from cortexfs.core.tree.places import HOME_SLOTS, MAIN, MODEL, TOOL
from cortexfs.core.tree.session_places import BIT, PlaceKind, SessionPlace
from cortexfs.tree.open_files import FIRST_HANDLE
from tests.core.tree.test_tree import make
from tests.tables import each_of

MODEL_SESSION = "home/1000/model/debug/echo.d/session"
AGENT_SESSION = "shared/main/agent/coder.d/session"


def at(path: str) -> SessionPlace | None:
    return session_places.at(tuple(path.split("/")))


def there(path: str) -> SessionPlace:
    found = at(path)
    assert found is not None, path
    return found


@each_of("base", [MODEL_SESSION, AGENT_SESSION])
@each_of(
    ("below", "kind"),
    [
        ("", PlaceKind.SESSIONS),
        ("/default", PlaceKind.SESSION),
        ("/default/events.jsonl", PlaceKind.LOG),
        ("/default/messages.jsonl", PlaceKind.GROWING),
        *((f"/default/{name}", PlaceKind.REPLACED) for name in ("latest.md", "state", "cwd", "meta.json")),
        *((f"/default/{name}", PlaceKind.REPLACED) for name in ("created_at", "updated_at")),
        ("/default/context", PlaceKind.CONTEXT),
        *((f"/default/context/{name}", PlaceKind.REPLACED) for name in ("summary.md", "pack.json")),
        ("/default/context/pinned", PlaceKind.PINNED),
        ("/default/context/pinned/12.md", PlaceKind.REPLACED),
        ("/default/context/output", PlaceKind.OUTPUT),
        ("/default/context/output/call_1.txt", PlaceKind.REPLACED),
        ("/index", PlaceKind.INDEX),
        ("/index/list", PlaceKind.REPLACED),
        ("/index/current", PlaceKind.REPLACED),
        ("/index/by-cwd", PlaceKind.BY_CWD),
        ("/index/by-cwd/" + "0af1" * 8, PlaceKind.REPLACED),
    ],
)
def test_the_files_of_the_abi_are_there_and_belong_to_their_object(
    base: str, below: str, kind: PlaceKind
) -> None:
    # abi.md 5.31
    place = there(base + below)
    assert place.kind is kind
    assert place.object == (("model", "debug/echo") if base == MODEL_SESSION else ("agent", "coder"))
    assert place.uid == (1000 if base == MODEL_SESSION else None)
    session = tuple((base + "/default").split("/"))
    assert place.session == (session if below.startswith("/default") else None)


@each_of(
    "path",
    [
        "home/1000/tool/x",
        "home/1000/tool/x.d/session",
        "home/1000/tool/x.d/log.1",
        "home/1000/model/debug/echo",
        "home/1000/model/debug.d",
        "home/1000/model/.hidden",
        "home/1000/model/debug.d/log",
        "home/1000/agent/.d",
        "shared/main/tool",
        "shared/main/agent/coder.d/log",
        f"{MODEL_SESSION}/.new.x",
        f"{MODEL_SESSION}/.removed.17.default",
        f"{MODEL_SESSION}/bad.sock",
        f"{MODEL_SESSION}/default/.new.state",
        f"{MODEL_SESSION}/default/other.txt",
        f"{MODEL_SESSION}/default/state/x",
        f"{AGENT_SESSION}/default/context/events.jsonl",
        f"{AGENT_SESSION}/default/context/pinned/0.md",
        f"{AGENT_SESSION}/default/context/pinned/note.md",
        f"{AGENT_SESSION}/default/context/output/.new.c1.txt",
        f"{AGENT_SESSION}/default/context/output/c1",
        f"{AGENT_SESSION}/default/context/context",
        f"{AGENT_SESSION}/index/context",
        f"{MODEL_SESSION}/index/state",
        f"{MODEL_SESSION}/index/by-cwd/short",
        f"{MODEL_SESSION}/index/by-cwd/{'G' * 32}",
    ],
)
def test_what_is_not_in_the_table_is_not_there(path: str) -> None:
    assert at(path) is None


@each_of("path", ["tool/fs.read.d", "agent/coder.d", "model/debug/echo.d"])
def test_each_user_has_a_log_of_what_he_ran(path: str) -> None:
    # abi.md 3.19
    place = there(f"home/1000/{path}/log")
    assert (place.kind, place.uid, stat.filemode(place.mode)) == (PlaceKind.RUNS, 1000, "-rw-------")
    assert place.made_from is None


def test_names_that_other_folders_have_are_names_of_objects_and_sessions_too() -> None:
    place = there("home/1/model/session/index.d/session/session/state")
    assert place.object == ("model", "session/index")
    assert place.session == tuple(["home", "1", "model", "session", "index.d", "session", "session"])
    assert there("home/1/agent/session.d/session/index").is_index
    assert not there("home/1/agent/index.d/session/state/state").is_index


def test_private_files_are_their_users_alone_and_shared_ones_for_everybody() -> None:
    modes = {
        path: stat.filemode(there(path).mode)
        for base in (MODEL_SESSION, AGENT_SESSION)
        for path in (base, f"{base}/a/state")
    }
    assert list(modes.values()) == ["drwx------", "-rw-------", "drwxr-xr-x", "-rw-r--r--"]


def test_what_is_made_from_logs_says_from_which() -> None:
    session = tuple(f"{MODEL_SESSION}/default".split("/"))
    for name in ("", "/events.jsonl", "/state"):
        assert there(f"{MODEL_SESSION}/default{name}").made_from == session
    for name in ("", "/index", "/index/list", "/index/by-cwd/" + "0" * 32):
        assert there(MODEL_SESSION + name).made_from == session[:-1]
    for path in ("home/1/model", "home/1/model/p", "home/1/model/p/m.d", "shared/main", "shared/main/agent"):
        assert there(path).made_from is None


def test_a_context_is_made_by_runs_and_not_from_logs() -> None:
    for name in ("", "/summary.md", "/output", "/output/c1.txt"):
        place = there(f"{AGENT_SESSION}/context/context{name}")
        assert place.is_context
        assert place.made_from is None
        assert place.session == tuple(f"{AGENT_SESSION}/context".split("/"))
    assert not there(f"{AGENT_SESSION}/context").is_context
    assert not there(f"{AGENT_SESSION}/context/state").is_context


def test_rm_meets_a_log_first_and_the_index_last() -> None:
    names = ("zz", "index", "a")
    sessions = [there(f"{MODEL_SESSION}/{name}") for name in names]
    assert [place.name for place in sorted(sessions, key=session_places.order)] == ["a", "zz", "index"]
    files = [there(f"{MODEL_SESSION}/a/{name}") for name in ("cwd", "state", "events.jsonl")]
    assert sorted(files, key=session_places.order)[0].kind is PlaceKind.LOG


def test_the_trees_folders_that_hold_sessions_are_known_both_ways() -> None:
    tree = make()
    home = tree.home(1000, 1000, 1)
    for folder, path in (
        (home | HOME_SLOTS["model"], "home/1000/model"),
        (home | HOME_SLOTS["agent"], "home/1000/agent"),
        (home | HOME_SLOTS["tool"], "home/1000/tool"),
        (MAIN, "shared/main"),
    ):
        place = tree.nodes.space(folder)
        assert place == there(path)
        assert tree.nodes.folder_of_space(place.parts) == folder
    for folder in (home, MODEL, TOOL, tree.nodes.object_inode(("tool", "shell"))):
        assert tree.nodes.space(folder) is None
    assert tree.nodes.folder_of_space(("home", "1000", "model", "p")) is None


def test_inodes_are_between_the_trees_and_the_handles() -> None:
    assert BIT < FIRST_HANDLE == BIT << 1
