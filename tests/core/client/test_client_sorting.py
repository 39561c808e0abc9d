"""Each frame on a shared connection goes to its own request (cortexfs/client/sorting.py), without sockets."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from cortexfs.client import sorting
from cortexfs.client.results import Failed, text
from cortexfs.client.sorting import Inbox, Sorter
from cortexfs.core import frames
from cortexfs.core.errors import Fault
from cortexfs.core.frames import AnyFrame
from cortexfs.core.talk.requests import AnyRequest, Approve, Cancel, Ping, Resume, Send
from tests.core.conversation_pair import World, kinds, texts
from tests.tables import each_of

ANSWERED = "start message delta delta message usage done"


class Talk:
    """A sorter connected to a world."""

    def __init__(self, world: World, split: int = 1 << 20) -> None:
        self.sorter = Sorter("echo.sock")
        self.connection = world.connect()
        self.split = split
        self._read = 0

    def ask(self, request: AnyRequest) -> Inbox:
        inbox = self.sorter.open(request)
        self.connection.raw(self.sorter.encode(request))
        self.read()
        return inbox

    def read(self) -> None:
        new, self._read = self.connection.sent[self._read :], len(self.connection.sent)
        for start in range(0, len(new), self.split):
            self.sorter.receive(new[start : start + self.split])


def taken(inbox: Inbox) -> list[AnyFrame]:
    found = []
    while inbox.is_ready and (frame := inbox.take()) is not None:
        found.append(frame)
    return found


def test_a_run_that_could_not_be_written_is_over() -> None:
    # abi.md 5.12: on a full disk there is no start, and the error has the id of the message
    sorter = Sorter("echo.sock")
    inbox = sorter.open(Send(id="1", session="one", input="a"))
    error = frames.Error(run="r1", request="1", code="ENOSPC", message="make room")
    sorter.receive(frames.encode(error) + frames.encode(frames.Done(run="r1", status="error", code="ENOSPC")))
    assert kinds(taken(inbox)) == "error done"
    assert inbox.is_over


@each_of("split", [1, 2, 3, 7, 64, 1 << 20])
def test_overlapping_requests_whatever_the_pieces(split: int) -> None:
    # abi.md 5.3
    talk = Talk(World(echo=True), split)
    first = talk.sorter.open(one := Send(id="1", session="one", input="a b"))
    second = talk.sorter.open(two := Send(id="2", session="two", input="c d"))
    ping = talk.sorter.open(three := Ping(id="3"))
    for request in (one, two, three):
        talk.connection.raw(talk.sorter.encode(request))
    talk.read()
    assert [kinds(taken(each)) for each in (first, second, ping)] == [ANSWERED, ANSWERED, ""]
    assert (first.is_over, second.is_over, ping.is_over) == (True, True, True)
    assert first.run != second.run


def test_every_byte_split_of_a_transcript() -> None:
    world = World(echo=True)
    whole = Talk(world)
    whole.ask(Send(id="s", input="a b"))
    transcript = whole.connection.sent
    for cut in range(len(transcript) + 1):
        sorter = Sorter("echo.sock")
        inbox = sorter.open(Send(id="s", input="a b"))
        for part in (transcript[:cut], transcript[cut:]):
            if part:
                sorter.receive(part)
        assert kinds(taken(inbox)) == ANSWERED
        sorter.receive(b"")
        assert inbox.take() is None  # for a finished run the end of the connection is no failure


def test_every_cut_of_a_transcript_is_a_lost_connection() -> None:
    world = World(echo=True)
    whole = Talk(world)
    whole.ask(Send(id="s", input="a b"))
    for cut in range(len(whole.connection.sent)):
        sorter = Sorter("echo.sock")
        inbox = sorter.open(Send(id="s", input="a b"))
        if cut:
            sorter.receive(whole.connection.sent[:cut])
        sorter.receive(b"")
        with pytest.raises(Failed) as caught:
            taken(inbox)
        assert caught.value.code == "EHOSTDOWN"


def test_a_resume_has_the_session_and_the_send_its_run() -> None:
    talk = Talk(World(echo=True))
    taken(talk.ask(Send(id="0", input="before")))
    other = Talk(talk.connection.world)
    events = other.ask(Resume(id="r"))
    own = other.ask(Send(id="1", input="mine"))
    elsewhere = other.ask(Send(id="2", input="else", session="elsewhere"))
    talk.ask(Send(id="3", input="theirs"))
    other.read()
    assert texts(taken(own)) == ["mine"]
    assert texts(taken(elsewhere)) == ["else"]
    assert texts(taken(events)) == ["before", "mine", "theirs"]


def test_one_session_is_followed_at_a_time() -> None:
    talk = Talk(World())
    events = talk.ask(Resume(id="r"))
    with pytest.raises(Failed, match="EBUSY"):
        talk.sorter.open(Resume(id="q"))
    events.stop()
    assert talk.ask(Resume(id="q")).fault is None


def test_a_refused_send_fails_alone() -> None:
    talk = Talk(World(echo=True))
    refused = talk.ask(Send(id="1", session="not/a/name", input="x"))
    with pytest.raises(Failed, match=r"^EINVAL: session: "):
        refused.take()
    assert text(taken(talk.ask(Send(id="2", input="x")))) == "x"


def test_a_send_that_is_under_way_is_not_sent_twice() -> None:
    talk = Talk(World())
    first = talk.ask(Send(id="1", input="x"))
    with pytest.raises(Failed, match="EBUSY"):
        talk.ask(Send(id="1", input="x"))
    talk.connection.world.finish(str(taken(first)[0].run))
    talk.read()
    assert kinds(taken(first)) == "done"
    # protocol.md: "if it has had the `done`, a `start` and a `done` without event ids"
    assert kinds(taken(talk.ask(Send(id="1", input="x")))) == "start done"


def test_cancel_by_run_and_by_send() -> None:
    talk = Talk(World())
    first, second = talk.ask(Send(id="1", input="x")), talk.ask(Send(id="2", input="y"))
    waiting = talk.ask(Cancel(id="2"))
    assert kinds(taken(waiting)) == "done"
    assert kinds(taken(second)) == "start message done"
    assert kinds(taken(talk.ask(Cancel(id=str(taken(first)[0].run))))) == "done"
    assert kinds(taken(first)) == "done"


def test_cancel_from_elsewhere() -> None:
    # abi.md 5.26
    talk = Talk(World())
    talk.ask(Send(id="1", input="x"))
    assert kinds(taken(Talk(talk.connection.world).ask(Cancel(id="1")))) == "done"


@each_of(("id_", "code"), [("1", "EALREADY"), ("nobody", "ENOENT")])
def test_a_refused_cancel_is_no_refused_send(id_: str, code: str) -> None:
    # abi.md 5.27
    talk = Talk(World(echo=True))
    sent = talk.ask(Send(id="1", input="x"))
    with pytest.raises(Failed, match=code):
        talk.ask(Cancel(id=id_)).take()
    assert text(taken(sent)) == "x"


def test_a_cancel_is_refused_while_the_send_has_heard_nothing() -> None:
    talk = Talk(World(echo=True))
    talk.connection.reads = False
    sent = talk.ask(Send(id="1", input="x"))
    with pytest.raises(Failed, match="EALREADY"):
        talk.ask(Cancel(id="1")).take()
    talk.connection.reads = True
    talk.connection.follow_up()
    talk.read()
    assert text(taken(sent)) == "x"


def test_an_approval_that_nobody_asked_for_is_refused() -> None:
    talk = Talk(World())
    sent = talk.ask(Send(id="1", input="x"))
    refused = talk.ask(Approve(id="a", run=str(taken(sent)[0].run), call="c", decision="deny"))
    with pytest.raises(Failed, match="ENOENT"):
        refused.take()
    assert sent.fault is None


@each_of(
    "garbage",
    [b"hello\n", b"[1]\n", b'{"type":"delta"}\n', b"\xff\xfe\n", b"x" * (1 << 20), b"[" * 5000 + b"\n"],
)  # fmt: skip
def test_garbage_ends_everything_with_eproto(garbage: bytes) -> None:
    sorter = Sorter("echo.sock")
    inbox = sorter.open(Ping(id="p"))
    sorter.receive(garbage)
    with pytest.raises(Failed, match=r"^EPROTO: echo.sock: the server sent"):
        inbox.take()
    assert isinstance(sorter.fault, Fault)
    with pytest.raises(Failed, match="EPROTO"):
        sorter.open(Ping(id="q")).take()  # later requests get the error too


def test_what_later_versions_say_is_ignored() -> None:
    # abi.md 6.4
    sorter = Sorter("echo.sock")
    inbox = sorter.open(Ping(id="p"))
    sorter.receive(b'{"type":"hologram","run":"r","depth":3}\n{"type":"pong","request":"p","colour":"red"}\n')
    assert inbox.is_over


def test_the_last_words_of_a_server_are_the_reason() -> None:
    # abi.md 5.25
    sorter = Sorter("echo.sock")
    inbox = sorter.open(Ping(id="p"))
    sorter.receive(frames.encode(frames.Error(code="EAGAIN", message="too many connections; close some")))
    sorter.receive(b"")
    with pytest.raises(Failed, match="EAGAIN: too many"):
        inbox.take()


def test_what_waits_for_others_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sorting, "MAX_KEPT", 1000)
    talk = Talk(World())
    unread = talk.ask(Send(id="1", input="x"))
    talk.connection.world.emit(str(unread.run), *[frames.Delta(text="y" * 100)] * 8)
    talk.sorter.check_room()
    talk.read()
    assert unread.held > 1000
    with pytest.raises(Failed, match="ENOBUFS"):
        talk.sorter.check_room()
    taken(unread)
    assert unread.held == 0
    talk.sorter.check_room()


def test_what_is_kept_counts_by_its_bytes() -> None:
    talk = Talk(World(), split=100)
    unread = talk.ask(Send(id="1", input="x"))
    talk.connection.world.emit(str(unread.run), frames.Delta(text="y" * 5000))
    talk.read()
    assert len(talk.connection.sent) - 50 < unread.held <= len(talk.connection.sent)


def test_who_let_go_of_an_inbox_is_kept_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sorting, "MAX_KEPT", 1000)
    talk = Talk(World())
    run = str(taken(talk.ask(Send(id="1", input="x")))[0].run)
    closed = talk.ask(Send(id="2", input="x", session="other"))
    talk.connection.world.emit(str(closed.run), *[frames.Delta(text="y" * 100)] * 4)
    closed.stop()
    talk.connection.world.emit(run, *[frames.Delta(text="y" * 100)] * 20)
    talk.read()
    talk.sorter.check_room()
    assert closed.take() is None


@each_of("input_", ["\ud800", {"content": object()}, "x" * frames.MAX_LINE])
def test_what_cannot_be_a_line_is_refused_here(input_: str) -> None:
    with pytest.raises(Failed, match=r"^(EINVAL|EMSGSIZE): the request"):
        Sorter("echo.sock").encode(Send(input=input_))


@each_of(
    ("said", "code"),
    [
        ([frames.Error(code="EIO", message="no")], "EIO"),
        ([frames.Done(status="cancelled")], "ECANCELED"),
        ([frames.Done(status="error", code="ENOENT")], "ENOENT"),
        ([frames.Done(status="error")], "EIO"),
    ],
)
def test_text_raises_what_the_run_failed_of(said: list[AnyFrame], code: str) -> None:
    with pytest.raises(Failed) as caught:
        text([frames.Delta(text="so far"), *said])
    assert caught.value.code == code


def test_text_is_the_deltas_or_else_the_messages() -> None:
    whole: list[AnyFrame] = [
        frames.Message(role="user", content=[frames.Text("hi")]),
        frames.Message(role="assistant", content=[frames.Text("a"), frames.Text("b")]),
    ]
    assert text(whole) == "ab"
    assert text([frames.Delta(text="c"), *whole, frames.Done(status="ok")]) == "c"


def test_the_sorter_is_pure() -> None:
    path = Path(sorting.__file__)
    imported = {
        node.module if isinstance(node, ast.ImportFrom) else node.names[0].name
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Import | ast.ImportFrom)
    }
    assert not imported & {"os", "socket", "threading", "time", "trio", "select"}
