"""Child agents are within their parents: policy, groups and mounts, and what would have to be dropped."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cortexfs.core.attenuation import Mount, Powers, access, excess, mounts_of, within
from cortexfs.core.errors import Fault
from cortexfs.core.policy import parse


def powers(policy: str = "", groups: tuple[int, ...] = (), mounts: str = "", label: str = "a_t") -> Powers:
    return Powers(label, parse(policy), frozenset(groups), mounts_of(mounts))


def mount(source: str, access: str = "rw", options: str = "-", target: str = "") -> str:
    return f"{source}\t{target or source}\t{access}\t{options}\n"


def beyond(child: str, parent: str) -> list[tuple[str, str]]:
    """Of mount tables: the lines that go beyond, and why."""
    found = excess(powers(mounts=child), powers(mounts=parent))
    assert {one.what for one in found} <= {"mount"}
    return [(one.item.split("\t")[0], one.why) for one in found]


def test_less_is_fine() -> None:
    # upstream 9.1: "policy, groups, mounts ⊆ parent"
    parent = powers(
        "allow a_t tool:x execute\nallow a_t tool:y execute\n", (1, 2), mount("/srv") + mount("/usr", "ro")
    )
    child = powers("allow b_t tool:x execute\n", (2,), mount("/srv/work", "ro"), label="b_t")
    assert excess(child, parent) == ()
    assert within(child, parent) == child
    assert excess(powers(), parent) == ()
    assert excess(parent, parent) == ()


def test_a_permission_that_the_parent_lacks_is_named() -> None:
    parent = powers("allow a_t tool:x execute\nallow other_t tool:y execute\n")
    child = powers(
        "allow b_t tool:x execute\nallow b_t tool:y execute\nallow b_t agent:x start\n", label="b_t"
    )
    assert [one.item for one in excess(child, parent)] == [
        "allow b_t tool:y execute",
        "allow b_t agent:x start",
    ]
    assert {one.why for one in excess(child, parent)} == {"no line allows its parent the same"}
    assert [rule.text for rule in within(child, parent).rules] == ["allow b_t tool:x execute"]


def test_a_line_for_another_label_is_dropped() -> None:
    parent = powers("allow a_t tool:x execute\n")
    (one,) = excess(powers("allow a_t tool:x execute\n", label="b_t"), parent)
    assert one.why == "it is not about the child, whose label is b_t"


def test_a_group_that_the_parent_lacks_is_named() -> None:
    found = excess(powers(groups=(5, 7)), powers(groups=(5,)))
    assert [(one.what, one.item) for one in found] == [("groups", "7")]
    assert within(powers(groups=(5, 7)), powers(groups=(5,))).groups == {5}


@pytest.mark.parametrize(
    ("child", "parent", "why"),
    [
        (mount("/srv"), mount("/srv", "ro"), "its parent has /srv ro"),
        (mount("/etc", "ro"), mount("/srv"), "its parent does not see the source"),
        (mount("/srv2", "ro"), mount("/srv"), "its parent does not see the source"),
        (mount("/", "ro"), mount("/srv"), "its parent does not see the source"),
        (mount("/srv/../etc", "ro"), mount("/srv"), "its parent does not see the source"),
        (mount("/srv/a", "rw"), mount("/srv") + mount("/srv/a", "ro"), "its parent has /srv/a ro"),
        (mount("/srv"), mount("/srv") + mount("/srv/a", "ro"), "its parent has /srv/a in it ro; add a line"),
        (mount("/srv"), mount("/srv", "rw", "nosuid,noexec"), "its parent has /srv with noexec, nosuid"),
        (
            mount("/srv"),
            mount("/srv") + mount("/srv/a", "rw", "noexec"),
            "its parent has /srv/a in it with noexec; add a line",
        ),
        (mount("/srv", "rw", "rbind"), mount("/srv", "rw", "bind"), "its parent sees no mounts below /srv"),
        (
            mount("/srv"),
            mount("/srv") + mount("/empty", target="/srv/a"),
            "its parent does not see /srv/a",
        ),
        (
            mount("/srv/a/b"),
            mount("/srv") + mount("/empty", target="/srv/a"),
            "its parent does not see the source",
        ),
    ],
)
def test_a_mount_that_shows_more_is_named(child: str, parent: str, why: str) -> None:
    # upstream 9.1: "rw→ro ok, hidden→visible never"
    ((_, said),) = beyond(child, parent)
    assert why in said
    assert within(powers(mounts=child), powers(mounts=parent)).mounts == ()


@pytest.mark.parametrize(
    ("child", "parent"),
    [
        (mount("/srv", "ro"), mount("/srv")),
        (mount("/srv/", "ro"), mount("//srv/./")),
        (mount("/srv/a/b"), mount("/srv")),
        (mount("/srv", target="/elsewhere"), mount("/srv")),
        (mount("/srv", "ro"), mount("/srv") + mount("/srv/a", "ro")),
        (mount("/srv") + mount("/srv/a", "ro"), mount("/srv") + mount("/srv/a", "ro")),
        (mount("/srv/a"), mount("/srv", "ro") + mount("/srv/a")),
        (mount("/srv"), mount("/srv", "ro", target="/one") + mount("/srv", target="/two")),
        (mount("/srv", "rw", "noexec"), mount("/srv")),
        (mount("/srv") + mount("/empty", target="/srv/a"), mount("/srv") + mount("/empty", target="/srv/a")),
    ],
)
def test_a_mount_that_shows_no_more_is_kept(child: str, parent: str) -> None:
    assert beyond(child, parent) == []


def test_a_restriction_that_is_dropped_takes_with_it_what_it_restricted() -> None:
    parent = powers(mounts=mount("/srv") + mount("/srv/a", "ro", "noexec"))
    child = powers(mounts=mount("/srv") + mount("/srv/a", "ro"))
    assert within(child, parent).mounts == ()


PATHS = st.sampled_from(["/", "/a", "/a/b", "/a/b/c", "/b", "/a/../b"])
TABLES = st.lists(
    st.builds(
        Mount, PATHS, PATHS, st.booleans(), st.frozensets(st.sampled_from(["nosuid", "noexec"]), max_size=1)
    ),
    max_size=4,
).map(tuple)
RULES = st.lists(st.sampled_from(["allow a_t tool:x execute\n", "allow b_t tool:x execute\n"])).map("".join)
POWERS = st.builds(
    Powers, st.sampled_from(["a_t", "b_t"]), RULES.map(parse), st.frozensets(st.integers(0, 3)), TABLES
)


@settings(max_examples=20)
@given(POWERS, POWERS)
def test_what_is_left_is_within(child: Powers, parent: Powers) -> None:
    left = within(child, parent)
    assert excess(left, parent) == ()
    assert set(left.mounts) <= set(child.mounts)
    assert left.groups <= parent.groups


def shown(table: tuple[Mount, ...], path: str) -> int:
    """How a host's path is seen through a table, by trying it: 0 not at all, 1 ro, 2 rw."""
    best = 0
    for one in table:
        source, target = one.source.rstrip("/"), one.target.rstrip("/")
        if ".." not in source + target and (path == source or path.startswith(f"{source}/")):
            at = target + path[len(source) :]
            over = [
                m for m in table if at == m.target.rstrip("/") or at.startswith(f"{m.target.rstrip('/')}/")
            ]
            if max(over, key=lambda m: len(m.target.rstrip("/"))) == one:
                best = max(best, 2 if one.writable else 1)
    return best


PLAIN = st.lists(
    st.builds(Mount, *[st.sampled_from(["/a", "/a/b", "/a/b/c", "/b"])] * 2, st.booleans()),
    max_size=4,
    unique_by=lambda mount: mount.target,
).map(tuple)


@settings(max_examples=20)
@given(PLAIN, PLAIN)
def test_no_path_is_seen_that_the_parent_does_not_see(
    child: tuple[Mount, ...], parent: tuple[Mount, ...]
) -> None:
    # upstream 9.1: "hidden→visible never"
    left = within(Powers(mounts=child), Powers(mounts=parent)).mounts
    for path in ("/a", "/a/x", "/a/b", "/a/b/x", "/a/b/c", "/a/b/c/x", "/b", "/b/x", "/c"):
        assert shown(left, path) <= shown(parent, path)


def test_a_view_shows_what_its_closest_mount_says() -> None:
    view = mounts_of(mount("/srv", target="/job") + mount("/etc", "ro", target="/job/etc"))
    assert access(view, "/job/x") == "rw"
    assert access(view, "/job/etc/passwd") == "ro"
    assert [access(view, path) for path in ("/srv", "/jobs", "/", "/job/../x")] == ["", "", "", ""]


def test_a_table_that_is_none_is_refused() -> None:
    with pytest.raises(Fault, match="line 1"):
        mounts_of("/srv /srv rw -\n")
    with pytest.raises(Fault, match="65 mounts are more than a table of 64"):
        mounts_of("".join(mount(f"/{at}") for at in range(65)))


def test_the_longest_tables_are_compared_at_once() -> None:
    """Each line lies in the one before; whoever writes a table must not hold the daemon up with it."""
    deep = tuple(Mount("/a" * at, "/b" * (65 - at), False) for at in range(1, 65))
    assert within(Powers(mounts=deep), Powers(mounts=deep[:32])).mounts
