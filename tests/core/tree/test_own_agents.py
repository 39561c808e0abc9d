"""Agents in users' homes, in the tree and in policy: their owners, and that they cannot pass for others.
Quotes without a source are from the issue that asked for agents."""

from __future__ import annotations

import contextlib
import stat

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from cortexfs.core import registry
from cortexfs.core.errors import Fault
from cortexfs.core.policy import rules
from cortexfs.core.policy.confirming import CallerKind
from cortexfs.core.policy.decision import PolicyCaller, PolicyQuery, Thing, decide
from cortexfs.core.registry import Object, Registry
from cortexfs.core.tree import controls, edits, places
from cortexfs.core.tree.places import AGENT, FOLDER, SOCKET, Keep
from cortexfs.core.tree.tree import Tree
from cortexfs.tree import home_objects, open_files, writes
from tests.core.tree.test_tree import EXAMPLES, NOW, at, make, names
from tests.places import PROJECT
from tests.tables import each_of

UID = 1000


def own(name: str, uid: int = UID, status: str = "ready") -> Object:
    return Object(class_="agent", name=name, home=uid, description="", status=status, registered=4.0)


def having(*objects: Object) -> Tree:
    tree = make()
    for one in objects:
        assert one.home is not None
        tree.home(one.home, one.home + 5, NOW)
    show(tree, *objects)
    return tree


def show(tree: Tree, *objects: Object) -> None:
    tree.apply(Registry({**EXAMPLES.objects, **{one.key: one for one in objects}}), NOW)


def test_it_is_in_its_users_home_and_nowhere_else() -> None:
    # abi.md 1.10
    tree = having(own("mine"), own("mine", 2000), own("other", 2000))
    assert names(tree, "home/1000/agent") == ["mine", "mine.d", "mine.sock"]
    assert names(tree, "home/2000/agent")[:3] == ["mine", "mine.d", "mine.sock"]
    assert names(tree, "agent") == ["coder", "coder.d", "coder.sock"]
    assert tree.lookup(AGENT, "mine") is None
    inodes = {at(tree, f"home/{uid}/agent/mine") for uid in (1000, 2000)}
    assert len(inodes) == 2
    for inode in inodes:
        assert (
            tree.nodes.parent(inode) == tree.nodes.homes[inode_uid(tree, inode)] | places.HOME_SLOTS["agent"]
        )


def inode_uid(tree: Tree, inode: int) -> int:
    found = tree.object_at(inode)
    assert found
    assert found.home is not None
    return found.home


def test_it_is_its_users() -> None:
    # abi.md 3.8, 5.2
    tree = having(own("mine"))
    for name, mode in {"mine": 0o555, "mine.sock": 0o600, "mine.d": 0o755, "mine.d/model": 0o644}.items():
        found = tree.attributes(at(tree, f"home/1000/agent/{name}"))
        assert found
        assert (stat.S_IMODE(found.mode), found.uid, found.gid) == (mode, 1000, 1005), name


def test_the_kernel_asks_for_its_names_each_time() -> None:
    # So a user who creates and removes agents need not wait until the kernel has been told.
    tree = having(own("mine"))
    inode = at(tree, "home/1000/agent/mine")
    for each, keep in {
        inode: Keep.NOTHING,
        inode | SOCKET: Keep.NOTHING,
        inode | FOLDER: Keep.PASSING,
    }.items():
        found = tree.attributes(each)
        assert found
        assert found.keep is keep


def test_one_that_is_made_again_is_another_and_nothing_of_the_first_is_kept() -> None:
    tree = having(own("mine"))
    key, first = own("mine").key, at(tree, "home/1000/agent/mine")
    before = tree.values.incarnation(key, "model")
    for _ in range(50):
        show(tree)
        assert tree.attributes(first) is None
        assert tree.lookup(at(tree, "home/1000/agent"), "mine") is None
        blocks = len(tree.nodes.at_block)
        show(tree, own("mine"))
        at(tree, "home/1000/agent/mine")
        assert len(tree.nodes.at_block) == blocks + 1
    assert at(tree, "home/1000/agent/mine") != first
    assert tree.values.incarnation(key, "model") != before  # a file that is still open writes to nothing


def test_a_name_means_ones_own_first_if_that_works() -> None:
    both = Registry({one.key: one for one in (*EXAMPLES, own("coder"), own("coder", 2, "broken: by test"))})
    assert both.key_of("agent", "coder", UID) == ("agent", "home/1000/coder")
    assert both.key_of("agent", "coder", 2) == both.key_of("agent", "coder", None) == ("agent", "coder")
    assert both.names("agent") == ("coder",)
    assert both.names("agent", UID) == ("coder",)


@each_of("key", [("agent", "coder"), ("agent", "home/7/coder"), ("model", "home/x"), ("tool", "home")])
def test_a_path_is_a_key_and_back(key: registry.Key) -> None:
    assert registry.key_of(registry.path_of(key)) == key


@given(st.text("ahome/01gnt d.", max_size=24))
def test_no_word_of_a_label_means_what_its_path_does_not_say(word: str) -> None:
    key = registry.key_of(word)
    assert registry.path_of(key) == word or key not in {own("mine").key, ("agent", "a")}


# Policy.

RULES = rules.parse("allow mine_t tool:fs.read execute\nallow mine_t agent:home/1000/helper start\n")
MINE = PolicyCaller("home/1000/agent/mine", UID, kind=CallerKind.AGENT, label="mine_t", rules=RULES, home=UID)


def decided(caller: PolicyCaller, *lines: str) -> bool:
    thing = Thing("tool", "fs.read", rules=rules.parse("\n".join(lines)))
    return decide(PolicyQuery(caller, thing, "execute")).allowed


def test_a_label_that_a_user_writes_is_no_agents_of_others() -> None:
    # docs/policy.md: "only the agents that its lines name may have the object"
    line = "allow mine_t tool:fs.read execute"
    assert decided(MINE)
    assert decided(replace(MINE, home=None), line)
    assert not decided(MINE, line)
    assert decided(MINE, "allow home/1000/mine_t tool:fs.read execute")
    assert not decided(replace(MINE, home=2000, uid=2000), "allow home/1000/mine_t tool:fs.read execute")


def test_a_refusal_names_the_line_that_would_allow_it() -> None:
    thing = Thing("tool", "fs.read", rules=rules.parse("allow x_t tool:fs.read execute"))
    said = decide(PolicyQuery(MINE, thing, "execute")).reason
    assert said.endswith("but lacks: allow home/1000/mine_t tool:fs.read execute")


def test_a_users_helper_is_started_by_its_place_only() -> None:
    for name, may in {"home/1000/helper": True, "helper": False, "home/2000/helper": False}.items():
        assert decide(PolicyQuery(MINE, Thing("agent", name), "start")).allowed is may


@each_of("label", ["home/1000/", "home/x/mine_t", "home/01/mine_t", "a/home/1/b", "home/1/a/b", "/x"])
def test_what_is_no_label_in_a_line(label: str) -> None:
    with pytest.raises(Fault, match="is not a label"):
        rules.parse(f"allow {label} tool:fs.read execute")


SPECIAL = (
    "9" * 5000,
    "0" * 5000,
    "a/" * 9000,
    "\t" * 9000,
    "=" * 9000,
    "[" * 9000,
    "\u0663",
    "\udcff",
    "x" * 70_000,
)
WRITABLE = [control for control in controls.CONTROLS["agent"] if control.check]


@each_of("control", WRITABLE)
@each_of("special", SPECIAL)
def test_what_a_user_writes_is_a_value_or_refused(control: controls.Control, special: str) -> None:
    # design.md: "Errors are sentences": any text leads to a Fault and to no other exception
    for text in (special, f"{special}\n", f"a={special}\n", f"/{special}\t/{special}\tro\t-\n"):
        with contextlib.suppress(Fault):
            controls.judge(control, text.encode("utf-8", "surrogateescape"))


@given(st.sampled_from(WRITABLE), st.text("0aé-:/=.*\t\n $[]{}#\x7f", max_size=60))
def test_any_text_is_a_value_or_refused(control: controls.Control, text: str) -> None:
    with contextlib.suppress(Fault):
        assert controls.judge(control, text.encode()).decode().rstrip("\n") == text.rstrip("\n")


def test_the_numbers_that_are_told() -> None:
    # abi.md 1.10
    rule = " ".join((PROJECT / "docs" / "abi.md").read_text().split())
    most, lines = home_objects.MAX_OF_USER, writes.MAX_LINES
    assert f"at most {most} agents and {most} tools of his own, with {lines} lines of policy each" in rule
    mib, open_ = writes.MAX_OF_HOME >> 20, open_files.MAX_OF_HOME
    assert f"{mib} MiB written in their files, {open_} of those open, and {edits.MAX_OF_HOME} temp" in rule
    assert f"all users together have {home_objects.MAX_IN_TREE} such objects" in rule
