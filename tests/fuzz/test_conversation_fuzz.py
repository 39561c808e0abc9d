"""Any input of a client gets the documented answers, memory is bounded, and other clients notice nothing."""

from __future__ import annotations

import itertools
from typing import Any

import msgspec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cortexfs.core import frames
from cortexfs.core.errors import Fault
from cortexfs.core.frames import MAX_LINE
from cortexfs.core.lines import LineSplitter, encode
from cortexfs.core.talk import requests
from cortexfs.core.talk.protocol import ClientSide, Spans
from cortexfs.core.talk.requests import REQUESTS, AnyRequest, Ping, Refusal, Resume, Send, SessionKey
from cortexfs.core.talk.session import MAX_WAITING
from tests.core.conversation_pair import World, ids

# No test fails because of time, and no example is stored.
CALM = settings(deadline=None, database=None, suppress_health_check=list(HealthCheck))
MANY = settings(CALM, max_examples=400)
FEW = settings(CALM, max_examples=25)

CODES = {"EINVAL", "ENOENT", "EALREADY", "EAGAIN", "EIO"}

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
FIELDS = sorted({field for each in REQUESTS.values() for field in each.__struct_fields__} | {"x"})
LIKELY = st.sampled_from(
    ["default", "private", "shared", "temp", "deny", "/", "hi", "r-2", "m", "1", "3", "", "index",
     {"content": "c"}, {"messages": [{"role": "user", "content": "u"}]}]
)  # fmt: skip
OBJECTS = st.builds(
    lambda op, rest: {"op": op, **rest},
    st.sampled_from([*REQUESTS, "dance", None, 5]),
    st.dictionaries(st.sampled_from(FIELDS), LIKELY | VALUES, max_size=6),
)


def json_line(value: Any) -> bytes:
    try:
        return msgspec.json.encode(value) + b"\n"
    except (UnicodeEncodeError, OverflowError):
        return b"\n"


JSON_LINES = st.one_of(VALUES, OBJECTS, OBJECTS, OBJECTS).map(json_line)
GOOD = st.sampled_from(
    [
        b'{"op":"send","id":"m","session":"default","cwd":"/work","input":"hello"}\n',
        b'{"op":"send","input":{"content":[{"type":"text","text":"\\u00e9"}]}}\n',
        b'{"op":"resume","session":"default","after":"3"}\n',
        b'{"op":"cancel","id":"r-2"}\n',
        b'{"op":"approve","run":"r-2","call":"c","decision":"allow_once"}\n',
        b'{"op":"ping"}\n',
    ]
)


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    """Returns a transcript in which a few bytes were changed, dropped or doubled."""
    data = bytearray(b"".join(draw(st.lists(GOOD, min_size=1, max_size=5))))
    for _ in range(draw(st.integers(0, 5))):
        place = draw(st.integers(0, len(data) - 1))
        size = draw(st.integers(0, 3))
        data[place : place + size] = draw(st.binary(max_size=3) | st.just(bytes(data[place : place + 9])))
        data += b"" if data else b"\n"
    return bytes(data)


STREAMS = st.one_of(
    st.binary(max_size=200), st.lists(JSON_LINES, max_size=8).map(b"".join), mutated(), mutated()
)


def cut(data: bytes, places: list[int]) -> list[bytes]:
    bounds = sorted({place % (len(data) + 1) for place in places} | {0, len(data)})
    chunks = [data[start:stop] for start, stop in itertools.pairwise(bounds)]
    return [chunk for chunk in chunks if chunk]


def received(server: LineSplitter, data: bytes) -> list[AnyRequest | Refusal]:
    return [requests.decode(line) for line in server.feed(data)]


@CALM
@given(STREAMS, st.lists(st.integers(0, 2000), max_size=6))
def test_any_bytes_become_requests_and_refusals(data: bytes, places: list[int]) -> None:
    whole = received(LineSplitter(), data) if data else []
    server, cutting = LineSplitter(), []
    for chunk in cut(data, places):
        cutting += received(server, chunk)
        assert server.held < MAX_LINE
    assert cutting == whole
    assert len(whole) == data.count(b"\n")  # each line gives one refusal or one request
    for each in whole:
        if isinstance(each, Refusal):
            assert each.code == "EINVAL"
            assert each.message
            assert encode(each).count(b"\n") == 1
        else:
            assert requests.decode(requests.encode(each)[:-1]) == each


@CALM
@given(
    st.lists(
        st.tuples(STREAMS, st.sampled_from(["goes on", "finishes", "says", "leaves", "dies"])), max_size=8
    )
)
def test_any_client_gets_frames_that_keep_the_rules(script: list[tuple[bytes, str]]) -> None:
    world = World()
    hostile, calm = world.connect(1000), world.connect(1001)
    calm_run = calm.ask(Send(id="calm", input="x"))[0].run or ""
    for data, event in script:
        # `raw` reads through a Client, which raises on any breach of the protocol.
        for frame in hostile.raw(data + b"\n"):
            assert not isinstance(frame, frames.Error) or frame.code in CODES
        for session in list(world.sessions.values()):
            assert len(session.waiting) <= MAX_WAITING
            active = session.active
            if active and active.run != calm_run:
                if event == "finishes":
                    world.finish(active.run)
                elif event == "says":
                    world.emit(active.run, frames.Delta(text="w"))
        if event == "leaves":
            hostile.leave()
            hostile = world.connect(1000)
        elif event == "dies":
            world.restart()
            hostile, calm = world.connect(1000), world.connect(1001)
            calm_run = calm.ask(Send(input="again"))[0].run or ""
    world.emit(calm_run, frames.Delta(text="calm"))
    world.finish(calm_run)
    assert [frame.run for frame in calm.read() if not isinstance(frame, frames.Start)][-1] == calm_run
    assert calm.client.is_over(calm_run)
    for log in world.logs.values():
        assert [event.number for event in log] == list(range(1, len(log) + 1))
    assert hostile.ask(Ping(id="alive"))[-1] == frames.Pong(request="alive")


@FEW
@given(
    st.lists(st.tuples(st.integers(-2, 2), st.booleans()), min_size=1, max_size=3),
    st.integers(1000, 3 * MAX_LINE),
)
def test_lines_around_1_mib(sizes: list[tuple[int, bool]], chunk: int) -> None:
    data, expected = b"", []
    for extra, is_json in sizes:
        around = b'{"op":"ping","x":"%b"}\n' if is_json else b"%b\n"
        size = MAX_LINE + extra
        data += around % (b"x" * (size - len(around) + 2))
        expected.append("EMSGSIZE" if extra > 0 else "" if is_json else "EINVAL")
    server = LineSplitter()
    heard = []
    for n in range(0, len(data), chunk):
        heard += received(server, data[n : n + chunk])
        assert server.held < MAX_LINE
    assert [each.code if isinstance(each, Refusal) else "" for each in heard] == expected


@FEW
@given(st.text(min_size=1, max_size=50), st.integers(0, 60), st.sampled_from(["delta", "message"]))
def test_any_text_goes_over_the_wire_whole(unit: str, shift: int, type_: str) -> None:
    try:
        unit.encode()
    except UnicodeEncodeError:
        return
    text = "-" * shift + unit * (MAX_LINE // len(unit.encode()) + 1)
    message = frames.Message(run="r", role="user", content=[frames.Text(text)])
    data = encode(frames.Delta(run="r", text=text) if type_ == "delta" else message)
    assert max(map(len, data.splitlines(keepends=True))) <= MAX_LINE
    said = ""
    for frame in ClientSide().receive(data):
        if isinstance(frame, frames.Delta):
            said += frame.text
        elif isinstance(frame, frames.Message):
            said += frame.content[0].text
    assert said == text


@CALM
@given(st.binary(max_size=300))
def test_a_client_hears_frames_or_says_whose_fault_it_is(data: bytes) -> None:
    try:
        ClientSide().receive(data)
        code = "EPROTO"
    except Fault as fault:
        code = fault.code
    assert code == "EPROTO"


@MANY
@given(
    st.lists(
        st.sampled_from(["say", "finish", "other", "all", "after", "retry", "cancel", "stall"]), max_size=30
    ),
    st.data(),
)
def test_each_event_once_whatever_is_asked(steps: list[str], data: st.DataObject) -> None:
    # abi.md 5.16
    world = World()
    other, connection = world.connect(), world.connect()
    key = SessionKey("private", 1000, "default")
    world.session(key)
    heard, wanted = list[int](), set[int]()
    for n, step in enumerate(steps):
        active = world.session(key).active
        last = world.session(key).last
        if step == "say" and active:
            world.emit(active.run, frames.Delta(text=str(n)))
        elif step == "finish" and active:
            world.finish(active.run)
        elif step == "other":
            other.ask(Send(id=f"o{n % 4}", input="x"))
        elif step == "all":
            heard += ids(connection.ask(Resume()))
            wanted.add(0)
        elif step == "after" and last:
            after = data.draw(st.integers(1, last))
            heard += ids(connection.ask(Resume(after=str(after))))
            wanted.add(after)
        elif step == "retry":
            heard += ids(connection.ask(Send(id=f"o{n % 4}", input="x")))
        elif step == "cancel" and active:
            heard += ids(connection.raw(b'{"op":"cancel","id":"%b"}\n' % active.run.encode()))
        elif step == "stall":
            connection.reads = not connection.reads
    connection.reads = True
    connection.follow_up()
    heard += ids(connection.read())
    assert len(heard) == len(set(heard))  # no duplicate
    if wanted:  # and no gap
        assert set(range(min(wanted) + 1, world.session(key).last + 1)) <= set(heard)


@CALM
@given(st.lists(st.tuples(st.integers(0, 40), st.integers(1, 9)), max_size=20))
def test_spans_are_a_set(ranges: list[tuple[int, int]]) -> None:
    spans, numbers = Spans(), set[int]()
    for start, size in ranges:
        spans.add(start, start + size)
        numbers |= set(range(start, start + size))
    assert {n for n in range(60) if n in spans} == numbers
