"""Both sides of the socket protocol on a fake wire, by the sentences of abi.md 5."""

from __future__ import annotations

import pytest

from cortexfs.core import frames, lines
from cortexfs.core.errors import Fault
from cortexfs.core.frames import MAX_LINE, AnyFrame
from cortexfs.core.lines import LineSplitter
from cortexfs.core.talk import requests
from cortexfs.core.talk.protocol import ClientSide
from cortexfs.core.talk.requests import Approve, Cancel, Ping, Resume, Send
from tests.core.conversation_pair import OPENING, World, ids, kinds, texts
from tests.tables import each_of

ANSWER = "start message delta delta message usage done"  # the answer of debug/echo to two words

# The bytes of a client, and the types of the frames that answer them.
TRANSCRIPTS: list[tuple[bytes, str]] = [
    (b'{"op":"ping"}\n', "pong"),
    (b'{"op":"ping"}\r\n{"op":"ping","id":"2"}\n', "pong pong"),
    (b'{"op":"send","id":"m","input":"hello \xf0\x9f\x98\x80"}\n', ANSWER),
    (b'{"op":"send","input":{"content":"a b"}}\n{"op":"send","input":"a b"}\n', f"{ANSWER} {ANSWER}"),
    (b'{"op":"send","input":"a b"}\n{"op":"resume"}\n', ANSWER),
    (b'{"op":"send","id":"m","input":"a b"}\n{"op":"send","id":"m","input":"a c"}\n', f"{ANSWER} error"),
    (b'{"op":"resume","after":"7"}\n{"op":"cancel","id":"r"}\n\n\xff\n{"op":"ping"}\n',
     "error error error error pong"),
    (b'{"op":"approve","run":"r","call":"c","decision":"deny"}\n[]\n{"op":"send"}\n', "error error error"),
]  # fmt: skip


def answers(chunks: list[bytes]) -> tuple[bytes, list[AnyFrame]]:
    """Returns all that a daemon with debug/echo sends to a client that writes these chunks."""
    connection = World(echo=True).connect()
    heard = [frame for chunk in chunks for frame in connection.raw(chunk)]
    return connection.sent, heard


@each_of(("data", "expected"), TRANSCRIPTS)
def test_a_transcript_is_answered_alike_however_it_is_cut(data: bytes, expected: str) -> None:
    sent, heard = answers([data])
    assert kinds(heard) == expected
    assert answers([data[n : n + 1] for n in range(len(data))]) == (sent, heard)
    for cut in range(1, len(data)):
        assert answers([data[:cut], data[cut:]]) == (sent, heard)


@each_of(("data", "expected"), TRANSCRIPTS)
def test_a_client_hears_alike_however_it_is_cut(data: bytes, expected: str) -> None:
    sent, heard = answers([data])
    for cut in range(1, len(sent)):
        client = ClientSide()
        assert client.receive(sent[:cut]) + client.receive(sent[cut:]) == heard
    client = ClientSide()
    assert [frame for n in range(len(sent)) for frame in client.receive(sent[n : n + 1])] == heard
    assert all(client.is_over(run) for run in client.runs)


def test_send() -> None:
    # abi.md 5.13
    connection = World(echo=True).connect()
    heard = connection.ask(Send(id="m", input="hello world"))
    assert kinds(heard) == ANSWER
    assert texts(heard) == ["hello", "world"]
    assert heard[0] == frames.Start(id="1", run="r-2", request="m", model="debug/echo")
    assert ids(heard) == [1, 2, 3, 4, 5, 6, 7]
    assert connection.client.is_over("r-2")


def test_ping_echoes_its_id() -> None:
    # abi.md 5.12
    connection = World().connect()
    assert connection.ask(Ping()) == [frames.Pong()]
    assert connection.ask(Ping(id="p")) == [frames.Pong(request="p")]
    assert connection.sent == b'{"type":"pong"}\n{"type":"pong","request":"p"}\n'


def test_a_refused_line_leaves_the_connection_usable() -> None:
    # abi.md 5.10
    connection = World().connect()
    (error,) = connection.raw(b'{"op":"dance","id":"d"}\n')
    assert isinstance(error, frames.Error)
    assert (error.code, error.request) == ("EINVAL", "d")
    assert connection.ask(Ping()) == [frames.Pong()]


@each_of("more", [0, 1, 2, MAX_LINE, 2 * MAX_LINE])
@each_of("chunk", [4096, 1 << 20, 1 << 24])
def test_a_line_over_1_mib(more: int, chunk: int) -> None:
    # abi.md 5.11
    connection = World().connect()
    line = b'{"op":"ping","x":"%b"}\n'
    data = line % (b"x" * (MAX_LINE - len(line) + 2 + more)) + b'{"op":"ping","id":"next"}\n'
    heard: list[AnyFrame] = []
    for n in range(0, len(data), chunk):
        heard += connection.raw(data[n : n + chunk])
        assert connection.server.held < MAX_LINE
    first, second = heard
    if more:
        assert isinstance(first, frames.Error)
        assert (first.code, first.request, first.run) == ("EMSGSIZE", None, None)
    else:
        assert first == frames.Pong()
    assert second == frames.Pong(request="next")


def test_requests_of_one_connection_overlap() -> None:
    # abi.md 5.3
    # "different sessions run side by side"
    world = World()
    connection = world.connect()
    one = connection.ask(Send(id="1", session="one", input="x"))[0]
    two = connection.ask(Send(id="2", session="two", input="x"))[0]
    assert connection.ask(Ping()) == [frames.Pong()]
    assert one.run
    assert two.run
    world.emit(two.run, frames.Delta(text="b"))
    world.emit(one.run, frames.Delta(text="a"))
    world.finish(one.run)
    assert texts(connection.read()) == ["b", "a"]
    assert (connection.client.is_over(one.run), connection.client.is_over(two.run)) == (True, False)


def test_one_session_answers_in_order_of_arrival() -> None:
    # abi.md 5.15
    world = World()
    one, two = world.connect(), world.connect()
    one.ask(Send(id="a", input="first"))
    assert two.ask(Send(id="b", input="second")) == []
    world.finish("r-3")
    assert kinds(two.read()) == "start message"
    assert kinds(one.read()) == "done"  # and no frame of the other's run
    world.finish("r-4")
    assert (kinds(one.read()), kinds(two.read())) == ("", "done")


def test_the_same_id_again_on_another_connection() -> None:
    # abi.md 5.14
    world = World()
    one, two, late = world.connect(), world.connect(), world.connect()
    asked = Send(id="m", input="x")
    heard = one.ask(asked)
    assert two.ask(asked) == heard
    world.emit("r-4", frames.Delta(text="a"))
    world.finish("r-4")
    heard += one.read()
    assert two.read() == heard[2:]
    assert late.ask(asked) == heard
    (error,) = late.ask(Send(id="m", input="y"))
    assert isinstance(error, frames.Error)
    assert (error.code, error.request) == ("EINVAL", "m")
    # the id belongs to its session
    assert kinds(late.ask(Send(id="m", session="other", input="y"))) == "start message"


def test_the_same_id_again_on_one_connection() -> None:
    # abi.md 5.16
    world = World()
    connection = world.connect()
    asked = Send(id="m", input="x")
    run = connection.ask(asked)[0].run
    opening = frames.Start(run=run, request="m", model="debug/echo")
    assert connection.ask(asked) == [opening]  # the run id alone, without events
    world.finish("r-2", Fault("EIO", "broken"))
    assert kinds(connection.read()) == "error done"
    done = frames.Done(run=run, status="error", code="EIO")
    assert connection.ask(asked) == [opening, done]
    assert not ids(connection.ask(asked))


def test_resume_replays_and_then_follows() -> None:
    # abi.md 5.18
    world = World(echo=True)
    one, two, three = world.connect(), world.connect(), world.connect()
    heard = one.ask(Send(input="a b"))
    assert two.ask(Resume()) == heard
    assert three.ask(Resume(after="3")) == heard[3:]
    more = one.ask(Send(input="c d"))
    assert two.read() == three.read() == more
    assert kinds(more) == ANSWER


def test_resume_of_an_unknown_session() -> None:
    # abi.md 5.19
    world = World(echo=True)
    one, two = world.connect(), world.connect()
    assert one.ask(Resume()) == []
    (error,) = two.ask(Resume(id="r", after="1"))
    assert isinstance(error, frames.Error)
    assert (error.code, error.request) == ("EINVAL", "r")
    heard = two.ask(Send(input="a b"))
    assert one.read() == heard
    assert two.read() == []  # a refused resume follows nothing


def test_a_client_that_comes_back_resumes_where_it_was() -> None:
    # abi.md 5.24
    world = World()
    one = world.connect()
    heard = one.ask(Send(input="x"))
    world.emit("r-2", frames.Delta(text="a"))
    heard += one.read()
    one.leave()
    world.emit("r-2", frames.Delta(text="b"))
    two = world.connect()
    heard += two.ask(Resume(after=heard[-1].id))
    world.emit("r-2", frames.Delta(text="c"))
    world.finish("r-2")
    heard += two.read()
    assert texts(heard) == ["a", "b", "c"]
    assert ids(heard) == list(range(1, 7))


def test_a_client_that_does_not_read_holds_nobody_up() -> None:
    # abi.md 5.15; design: readers of the log at their own position
    world = World(echo=True)
    slow, quick = world.connect(), world.connect()
    slow.reads = False
    slow.ask(Send(input="a b"))
    quick.ask(Resume())
    heard = quick.ask(Send(input="c d"))
    assert (slow.sent, kinds(heard)) == (b"", ANSWER)
    slow.reads = True
    slow.ask(Resume())
    assert slow.sent == quick.sent


def test_whose_sessions() -> None:
    # abi.md 5.17
    world = World(echo=True)
    mine, other = world.connect(1000), world.connect(1001)
    mine.ask(Send(input="a b"))
    assert other.ask(Resume()) == []
    (error,) = other.ask(Cancel(id="r-3"))
    assert isinstance(error, frames.Error)
    assert error.code == "ENOENT"  # the error does not reveal that the run exists
    heard = mine.ask(Send(scope="shared", input="a b"))
    assert other.ask(Resume(scope="shared")) == heard
    temporary = mine.ask(Send(scope="temp", input="a b"))
    assert world.connect(1000).ask(Resume(scope="temp")) == []
    assert ids(temporary) == ids(heard) == [1, 2, 3, 4, 5, 6, 7]


def test_cancel() -> None:
    # abi.md 5.26
    world = World()
    one, two = world.connect(), world.connect()
    one.ask(Send(id="m", input="x"))
    world.emit("r-3", frames.Delta(text="kept"))
    done = frames.Done(id="4", run="r-3", status="cancelled", code="ECANCELED")
    assert two.ask(Cancel(id="r-3")) == [done]
    assert kinds(one.read()) == "delta done"
    for id_, code in {"r-3": "EALREADY", "r-9": "ENOENT"}.items():
        (error,) = two.ask(Cancel(id=id_))
        assert isinstance(error, frames.Error)
        assert (error.code, error.request) == (code, id_)
    assert texts(two.ask(Resume())) == ["kept"]


def test_cancel_of_a_message_that_waits() -> None:
    world = World()
    one, two = world.connect(), world.connect()
    one.ask(Send(input="x"))
    assert two.ask(Send(id="mine", input="y")) == []
    heard = two.ask(Cancel(id="mine"))  # no start frame has named its run yet
    assert kinds(heard) == "start message done"
    assert heard[-1] == frames.Done(id="5", run="r-4", status="cancelled", code="ECANCELED")
    assert kinds(one.read()) == ""
    world.finish("r-3")
    assert (kinds(one.read()), kinds(two.read())) == ("done", "")


def test_approve() -> None:
    # abi.md 5.7
    world = World()
    connection = world.connect()
    connection.ask(Send(input="x"))
    approval = frames.Approval(call="c", name="fs.write", input={}, effects=["write"], reason="policy")
    world.emit("r-2", approval)
    assert kinds(connection.read()) == "approval"
    asked = Approve(run="r-2", call="c", decision="allow_once")
    assert connection.ask(asked) == []
    assert world.decisions == [asked]
    assert kinds(connection.ask(asked)) == "error"
    assert world.decisions == [asked]


def test_a_crash_is_visible_to_resume() -> None:
    # abi.md 5.30
    world = World()
    connection = world.connect()
    asked = Send(id="m", input="x")
    heard = connection.ask(asked)
    connection.ask(Send(id="waits", input="y"))
    world.emit("r-2", frames.Delta(text="a"))
    heard += connection.read()
    world.restart()
    again = world.connect()
    assert kinds(ended := again.ask(Resume(after=heard[-1].id))) == "error done"
    assert ended[-1] == frames.Done(id="5", run="r-2", status="error", code="EIO")
    # a retry finds the end of its run; a message that had not begun begins now
    assert world.connect().ask(asked) == heard + ended
    assert kinds(again.ask(Send(id="waits", input="y"))) == "start message"


def test_deltas_keep_their_order() -> None:
    # abi.md 5.35
    world = World()
    connection = world.connect()
    connection.ask(Send(input="x"))
    for n in range(100):
        world.emit("r-2", frames.Delta(text=str(n)))
        if n % 7 == 0:
            connection.ask(Resume())
    heard = connection.read()
    assert ids(connection.client.receive(b"")) == []
    assert [frame.id for frame in heard] == sorted(
        (frame.id for frame in heard), key=lambda id_: int(id_ or 0)
    )
    assert b"".join(b'"text":"%d"' % n for n in range(100)) == b"".join(
        line[line.index(b'"text"') : -1]
        for line in connection.sent.splitlines()
        if line.startswith(b'{"type":"delta"')
    )


def test_a_last_line_needs_no_newline() -> None:
    # `printf '{"op":"ping"}' | nc -U agent.sock` is answered
    server = LineSplitter()
    assert server.feed(b'{"op":"ping"}') == []
    assert [requests.decode(line) for line in server.feed(b"")] == [Ping()]


@each_of(
    "sent",
    [
        b"hello\n",
        b"{}\n",
        b'{"type":"delta"}\n',
        b'{"type":"delta","id":"1","run":"r"}\n',
        b'{"type":"delta","id":"x","run":"r","text":""}\n',
        b'{"type":"delta","id":"1%b","run":"r","text":""}\n' % (b"0" * 19),
        b'{"type":"delta","id":"1","run":"r","text":""}\n' * 2,
        b'{"type":"delta","id":"%b","run":"r","text":""}\n' % (b"1" * 5000),
        lines.encode(frames.Done(id="1", run="r", status="ok"))
        + lines.encode(frames.Delta(id="2", run="r", text="x")),
        lines.encode(frames.Start(id="1", run="r")) + lines.encode(frames.Start(id="2", run="r")),
        lines.encode(frames.Start(id="1", run="r"))
        + lines.encode(frames.Done(id="2", run="r", status="error")),
        b"x" * MAX_LINE,
    ],
)
def test_a_client_notices_a_server_that_breaks_the_protocol(sent: bytes) -> None:
    with pytest.raises(Fault, match="EPROTO: "):
        ClientSide().receive(sent)


def test_a_client_ignores_what_it_does_not_know() -> None:
    # abi.md 6.4
    heard = ClientSide().receive(b'{"type":"hologram","id":"1","run":"r"}\n{"type":"pong","mood":"good"}\n')
    assert heard == [frames.Pong()]


def test_an_event_id_has_at_most_19_digits() -> None:
    assert ids(ClientSide().receive(b'{"type":"start","id":"1%b","run":"r"}\n' % (b"0" * 18))) == [10**18]


def test_a_client_may_ask_for_history_late() -> None:
    world = World(echo=True)
    world.connect().ask(Send(input="a b"))
    connection = world.connect()
    assert ids(connection.ask(Resume(after="5"))) == [6, 7]
    assert ids(connection.ask(Resume())) == [1, 2, 3, 4, 5]
    assert connection.client.is_over("r-2")


def test_the_opening_is_told_as_it_is() -> None:
    # abi.md 6.1, 6.2
    connection = World(echo=True).connect()
    connection.ask(Send(input="a b"))
    assert OPENING.model == "debug/echo"
    assert connection.sent.startswith(b'{"type":"start","id":"1","run":"r-2","model":"debug/echo"}\n')


def test_an_over_long_request_is_the_clients_fault() -> None:
    with pytest.raises(Fault, match="EMSGSIZE"):
        requests.encode(Send(input="x" * MAX_LINE))
    assert requests.decode(requests.encode(Ping())[:-1]) == Ping()
