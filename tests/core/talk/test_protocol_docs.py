"""docs/protocol.md is the reference of the wire: its tables match the code, and its examples are true."""

from __future__ import annotations

import re
from typing import Any, Literal, get_args, get_origin, get_type_hints

import msgspec

from cortexfs import config
from cortexfs.core import frames, jsontext, names
from cortexfs.core.errors import EXIT_FAILED, EXIT_STATUS
from cortexfs.core.talk import protocol, requests, session
from cortexfs.core.talk.requests import Input, SessionKey
from cortexfs.peers import guests
from cortexfs.sessions import memory_log, store
from tests.core.conversation_pair import World
from tests.places import PROJECT
from tests.tables import each_of

ROOT = PROJECT
PAGE = (ROOT / "docs" / "protocol.md").read_text()
OURS = ROOT / "cortexfs"
SOURCES = [
    OURS / "core" / "lines.py",
    OURS / "peers" / "guests.py",
    *(OURS / "core" / "talk" / f"{name}.py" for name in ("requests", "session", "protocol")),
    *(OURS / "talk" / f"{name}.py" for name in ("conversations", "connection", "listener")),
    *(OURS / "sessions").glob("*.py"),
]
FRAMES = {str(each.__struct_config__.tag): each for each in get_args(frames.AnyFrame)}


def table(first_column: str) -> list[list[str]]:
    """Returns the rows of the table whose head begins with this word."""
    _, _, rest = PAGE.partition(f"| {first_column} |")
    lines = rest.split("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def words(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def test_the_table_of_frames() -> None:
    base = len(frames.Frame.__struct_fields__)
    assert [(words(row[0])[0], words(row[1])) for row in table("frame")] == [
        (type_, list(each.__struct_fields__[base:])) for type_, each in FRAMES.items()
    ]
    assert re.findall(r"on the line: `(\w+)`, `(\w+)`, `(\w+)`, `(\w+)`", PAGE) == [
        ("type", *frames.Frame.__struct_fields__)
    ]


def value_of(hint: Any) -> str:
    if get_origin(hint) is Literal:
        return " ".join(f"`{choice}`" for choice in get_args(hint))
    if hint is bool:
        return "boolean"
    if hint == dict[str, Any] | None:
        return "object"
    return "string or object" if hint == Input else "string"


def default_of(field: msgspec.structs.FieldInfo) -> str:
    if field.required:
        return "required"
    if isinstance(field.default, bool):
        return f"`{str(field.default).lower()}`"
    return "" if field.default is None else f'`"{field.default}"`'


def test_the_table_of_requests() -> None:
    rows, op = [], ""
    for row in table("op"):
        op = (words(row[0]) or [op])[0]
        rows.append((op, *words(row[1]), row[2], row[3]))
    assert rows == [
        (op, field.name, value_of(get_type_hints(each)[field.name]), default_of(field))
        for op, each in requests.REQUESTS.items()
        for field in msgspec.structs.fields(each)
    ]


def test_the_table_of_transitions() -> None:
    told: dict[str, dict[str, str]] = {state: {} for state in session.TRANSITIONS}
    for state, triggers, after in table("state of a run"):
        told[state] |= dict.fromkeys(words(triggers), after)
    assert told == session.TRANSITIONS


def test_the_table_of_exit_statuses() -> None:
    told = {code: int(row[1]) for row in table("code") for code in words(row[0]) or [row[0]]}
    assert told == {"none": 0, **EXIT_STATUS, "any other": EXIT_FAILED}


def test_every_code_that_answers_is_told() -> None:
    _, _, section = PAGE.partition("### Codes")
    told = set(re.findall(r"`(E[A-Z]+)`", section.partition("### Limits")[0]))
    used = {code for path in SOURCES for code in re.findall(r'"(E[A-Z]+)"', path.read_text())}
    assert told == used - {"EPROTO"}  # which blames the other program, and answers no request


def test_the_table_of_limits() -> None:
    told = [int(re.findall(r"\d+", row[1])[0]) for row in table("what")]
    assert told == [
        frames.MAX_LINE,
        requests.MAX_ID,
        requests.MAX_CWD,
        requests.MAX_EDITED >> 10,
        config.LimitSettings().connections // guests.SHARE,
        session.MAX_WAITING,
        session.MAX_RUNS,
        protocol.MAX_FOLLOWED,
        guests.MAX_HELD >> 20,
        guests.MAX_UNREAD,
        store.SessionLimits().temp_session >> 20,
        (store.SessionLimits().temp_total // memory_log.SHARE) >> 20,
        store.SessionLimits().temp_total >> 20,
        jsontext.MAX_DEPTH,
        jsontext.INTEGERS.stop.bit_length() - 1,
    ]
    assert f"none is `{names.INDEX}`" in PAGE


def examples() -> list[list[str]]:
    return [re.findall(r"^    (\{.*)$", block, re.M) for block in re.findall(r"(?:^    \{.*\n)+", PAGE, re.M)]


@each_of("line", [line for block in examples() for line in block if '"type"' in line])
def test_the_frames_shown_are_frames(line: str) -> None:
    assert frames.encode(frames.decode(line.encode())).decode() == line + "\n"


def test_the_conversation_shown_is_what_is_said() -> None:
    request, *shown = examples()[1]
    world = World()
    connection = world.connect()
    connection.raw(request.encode() + b"\n")
    (active,) = (each.active for each in world.sessions.values() if each.active)
    world.emit(
        active.run,
        frames.Delta(text="hello"),
        frames.Message(role="assistant", content=[frames.Text("hello")]),
        frames.Usage(input_tokens=1, output_tokens=1),
    )
    world.finish(active.run)
    assert world.sessions.keys() == {SessionKey("private", 1000, "default")}
    said = connection.sent.decode().replace(active.run, "r1")
    assert re.sub(r',"digest":"\w+"', "", said).splitlines() == shown
