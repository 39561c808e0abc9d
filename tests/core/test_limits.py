"""Each limit's exact edge: the largest accepted value, and the next one, which is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from cortexfs.core import jsontext, manifestjson, value_formats, wire
from cortexfs.core.arguments import parse
from cortexfs.core.arguments.name_patterns import MAX_PATTERNS, expanded
from cortexfs.core.errors import Fault
from cortexfs.core.manifest import own_script, script, semver, targets
from cortexfs.core.manifestjson import rules
from cortexfs.core.names import MAX_COMPONENT
from cortexfs.core.policy import confirming
from cortexfs.core.talk import requests
from cortexfs.core.tree import controls, edits, inodes, places
from tests.core.conversation_pair import new_session
from tests.core.manifest_json import SOUND
from tests.core.tree.test_tree import NOW, make
from tests.tables import each_of


def greeting(argc: int = 0, envc: int = 0, size: int = wire.MAX_STRINGS) -> object:
    said = wire.Hello(*range(len(wire.Hello._fields)))._replace(argc=argc, envc=envc, size=size)
    return wire.hello(wire.HELLO.pack(wire.MAGIC, wire.PROTOCOL, *said))


def message(size: int) -> object:
    return wire.Splitter(100).feed(wire.HEADER.pack(1, size) + b"x" * size)


def schema(size: int) -> object:
    """A target of a host, of exactly so many bytes before packing."""
    bare = msgspec.json.encode(targets.Library(path="", stamp=""))
    return targets.target(targets.Library(path="x" * (size - len(bare))))


def taken(line: bytes) -> object:
    """Decodes a request, and raises a refusal, which is a value otherwise."""
    request = requests.decode(line)
    if isinstance(request, requests.Refusal):
        raise Fault(request.code, request.message)
    return request


def arguments(size: int) -> object:
    return parse.tool_input([b"--a=" + b"x" * (size - 4)], {"properties": {"a": {"type": "string"}}}, bytes)


def values(count: int) -> object:
    """A prompt with so many values: its brackets count, and the commas in its text do not."""
    return parse.prompt([], b'{"input":["' + b"," * count + b'"' + b",1" * (count - 2) + b"]}")


def comment(size: int) -> bytes:
    """A script's comment of exactly so many bytes."""
    lines = b"# tool: x\n" + b"#" * (size - 10)
    assert len(lines) == size
    return lines


def typed(number: str) -> object:
    return parse.tool_input([f"--n={number}".encode()], {"properties": {"n": {"type": "integer"}}}, bytes)


def cwd(size: int) -> object:
    word = b"/" + b"x" * (size - 1)
    return taken(b'{"op":"send","cwd":"%b","input":{"content":"a"}}' % word)


def edited(size: int) -> None:
    room = size - len(msgspec.json.encode({"a": ""}))
    requests.check_edited({"a": "x" * room})


def control(size: int) -> object:
    row = next(row for row in controls.CONTROLS["agent"] if row.name == "system.md")
    return controls.judge(row, b"x" * size)


def homes(count: int) -> None:
    tree = make()
    tree.nodes.homes |= dict.fromkeys(range(1, count), 0)
    tree.home(count, count, NOW)


def runs(count: int) -> None:
    session = new_session()
    for number in range(count):
        session.send(requests.Send(input="a"), f"r{number}")
        session.finish(f"r{number}")


def mounts(count: int) -> None:
    value_formats.mounts("".join(f"/{number}\t/{number}\tro\t-\n" for number in range(count)))


EDGES: dict[str, tuple[Callable[[int], Any], int, str]] = {
    "patterns": (lambda n: expanded(b"\n".join([b"b*"] * n), ["b"]), MAX_PATTERNS, "EINVAL"),
    "a version": (lambda n: semver.parse("1.0.0-" + "x" * (n - 6)), semver.MAX_LENGTH, "EINVAL"),
    "a range": (lambda n: semver.parse_range(" " * (n - 5) + "1.0.0"), semver.MAX_LENGTH, "EINVAL"),
    "a version's number": (lambda n: semver.parse(f"0.{n}.0"), semver.MAX_NUMBER, "EINVAL"),
    "a cwd": (cwd, requests.MAX_CWD, "EINVAL"),
    "an edited input": (edited, requests.MAX_EDITED, "EMSGSIZE"),
    "a control": (control, controls.MAX_VALUE, "EFBIG"),
    "bytes of an edit": (lambda n: edits.resized(bytearray(), n, 100), 100, "EFBIG"),
    "a patch": (lambda n: edits.patched(bytearray(), 0, b"x" * n, 100), 100, "EFBIG"),
    "homes": (homes, inodes.MAX_HOMES, "ENOSPC"),
    "a link": (lambda n: places.check_alias("a", b"x" * n), places.MAX_TARGET, "EINVAL"),
    "a chain of models": (
        lambda n: value_formats.fallback("".join(f"p/m{number}\n" for number in range(n))),
        value_formats.MAX_FALLBACKS,
        "EINVAL",
    ),
    "a table of mounts": (mounts, value_formats.MAX_MOUNTS, "EINVAL"),
    "a greeting's bytes": (lambda n: greeting(size=n), wire.MAX_STRINGS, "EMSGSIZE"),
    "a greeting's arguments": (lambda n: greeting(argc=n), wire.MAX_ARGUMENTS, "EMSGSIZE"),
    "a greeting's variables": (lambda n: greeting(envc=n), wire.MAX_VARIABLES, "EMSGSIZE"),
    "a message": (message, 100, "EPROTO"),
    "values of a prompt": (values, parse.MAX_VALUES, "EMSGSIZE"),
    "bytes of arguments": (arguments, parse.MAX_INPUT, "EMSGSIZE"),
    "a script's comment": (lambda n: script.header_of(comment(n)), script.MAX_HEADER, "EMSGSIZE"),
    "a script's header": (lambda n: script.parsed(comment(n).decode()), script.MAX_HEADER, "EMSGSIZE"),
    "a script's arguments": (
        lambda n: script.parsed("# tool: x" + "".join(f"\n# arg a{number} str: x" for number in range(n))),
        script.MAX_ARGUMENTS,
        "EINVAL",
    ),
    "a script's seconds": (
        lambda n: script.parsed(f"# tool: x\n# timeout: {n}"), script.MAX_SECONDS, "EINVAL",
    ),
    "a script's path": (lambda n: own_script.read("/" + "x" * (n - 1)), own_script.MAX_PATH, "EINVAL"),
    "digits of an integer": (lambda n: typed("9" * n), 19, "EINVAL"),
    "an integer": (lambda n: typed(str(n)), (1 << 64) - 1, "EINVAL"),
    "a manifest.json": (
        lambda n: manifestjson._object(b"{" + b" " * (n - 2) + b"}"), manifestjson.MAX_BYTES, "EINVAL",
    ),
}  # fmt: skip


@each_of("name", EDGES)
def test_the_edge_of(name: str) -> None:
    call, most, code = EDGES[name]
    call(most)
    with pytest.raises(Fault) as caught:
        call(most + 1)
    assert caught.value.code == code


def test_a_link_leads_somewhere() -> None:
    with pytest.raises(Fault, match="a link's target has 1 to"):
        places.check_alias("a", b"")


def test_a_small_target_is_readable_and_a_large_one_packed() -> None:
    assert str(schema(targets._PLAIN)).startswith("{")
    assert not str(schema(targets._PLAIN + 1)).startswith("{")


def test_a_text_is_cut_behind_its_limit() -> None:
    assert jsontext.clipped("abc", 3) == "abc"
    assert jsontext.clipped("abcd", 3) == "abc..."


def test_a_long_name_is_offered_no_other() -> None:
    known = "x" * jsontext.LONGEST_NAME
    assert jsontext.nearest(known, [known])
    assert not jsontext.nearest(known + "x", [known])


def test_a_plugins_name_is_a_component() -> None:
    assert rules.is_plugin_name("x" * MAX_COMPONENT)
    assert not rules.is_plugin_name("x" * (MAX_COMPONENT + 1))


def test_a_plugin_names_so_many_others() -> None:
    for count in (rules.MAX_DEPENDENCIES, rules.MAX_DEPENDENCIES + 1):
        wanted = {f"other-{number}": "^1.0.0" for number in range(count)}
        found = manifestjson.read(msgspec.json.encode(SOUND | {"dependencies": wanted}))
        codes = [problem.category for problem in found.errors + found.warnings]
        assert ("invalid_dependency" in codes) == (count > rules.MAX_DEPENDENCIES)


def test_so_many_problems_are_told() -> None:
    # one of the problems is that this plugin may not listen to events
    events: list[Any] = [f"no-event-{number}" for number in range(manifestjson.MAX_PROBLEMS + 1)]
    for count in (manifestjson.MAX_PROBLEMS, manifestjson.MAX_PROBLEMS + 1):
        found = manifestjson.read(msgspec.json.encode(SOUND | {"events": events[: count - 1]}))
        codes = [problem.category for problem in found.errors + found.warnings]
        assert ("too_many_problems" in codes) == (count > manifestjson.MAX_PROBLEMS)


def test_so_many_dry_runs_are_remembered() -> None:
    ended = confirming.DryRuns()
    for number in range(confirming.MAX_DRY_RUNS):
        ended.add(b"%d" % number, 0)
    assert ended.use(b"0", 0)
    ended.add(b"0", 0)
    ended.add(b"more", 0)
    assert not ended.use(b"1", 0)
    assert ended.use(b"0", 0)


def test_an_id_that_is_too_long_is_not_echoed() -> None:
    for size, echoed in ((requests.MAX_ID, True), (requests.MAX_ID + 1, False)):
        refusal = requests.decode(b'{"op":"none","id":"%b"}' % (b"x" * size))
        assert isinstance(refusal, requests.Refusal)
        assert (refusal.request is not None) == echoed
