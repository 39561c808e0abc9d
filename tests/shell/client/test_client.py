"""The blocking client against a server on a real Unix socket (docs/client.md)."""

from __future__ import annotations

import contextlib
import itertools
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from cortexfs import client
from cortexfs.client import Conversation, Failed, sorting, text
from cortexfs.core import frames
from cortexfs.core.frames import AnyFrame
from cortexfs.core.talk.requests import Ping, Resume, Send
from tests.core.conversation_pair import kinds, texts
from tests.shell import client_server
from tests.shell.client_server import Served, served
from tests.waiting import PATIENCE, until

ANSWERED = "start message delta delta message usage done"

server, slow = client_server.server, client_server.slow


def ping_on(conversation: Conversation) -> None:
    while True:
        conversation.ping()


def test_send_gives_the_frames_of_its_run_up_to_done(server: Served) -> None:
    with Conversation(server.path) as conversation:
        stream = conversation.send("hello there")
        heard = list(stream)
    assert kinds(heard) == ANSWERED
    assert (stream.run, stream.last) == (heard[0].run, "7")


def test_text_joins_the_answer(server: Served) -> None:
    with Conversation(server.path) as conversation:
        assert text(conversation.send("hello there")) == "hellothere"


def test_requests_that_overlap_do_not_mix(server: Served) -> None:
    # abi.md 5.3
    with Conversation(server.path) as conversation:
        first = conversation.send("a b", session="one")
        second = conversation.send("c", session="two")
        assert conversation.ping() > 0
        assert [text(second), text(first)] == ["c", "ab"]


def test_cancel_says_how_the_run_ended(slow: Served) -> None:
    with Conversation(slow.path) as conversation:
        stream = conversation.send("hello")
        assert isinstance(next(stream), frames.Start)
        assert conversation.cancel(str(stream.run)).status == "cancelled"
        assert kinds(list(stream)) == "message done"
        with pytest.raises(Failed, match="EALREADY"):
            conversation.cancel(str(stream.run))
        with pytest.raises(Failed, match="ENOENT"):
            conversation.cancel("nobody")


def test_low_level_requests(server: Served) -> None:
    with Conversation(server.path) as conversation:
        conversation.request(Ping(id="p"))
        conversation.request(Send(input="x"))
        everything = conversation.frames()
        assert kinds([next(everything) for _ in range(7)]) == "pong start message delta message usage done"


def test_an_event_loop_takes_what_is_there(slow: Served) -> None:
    with Conversation(slow.path) as conversation:
        assert conversation.waiting() == []
        conversation.request(Send(input="x"))
        run = slow.until_active()
        slow.say(run, frames.Delta(text="y"))
        heard: list[AnyFrame] = []
        while len(heard) < 3:
            assert select.select([conversation], [], [], PATIENCE)[0]
            heard += conversation.waiting()
        assert kinds(heard) == "start message delta"
        slow.hang_up()
        assert select.select([conversation], [], [], PATIENCE)[0]
        with pytest.raises(Failed, match="EHOSTDOWN"):
            conversation.waiting()
    closed = Conversation(slow.path)
    closed.close()
    with pytest.raises(Failed, match="ECANCELED"):
        closed.waiting()


def test_resume_gives_history_and_then_what_happens(server: Served) -> None:
    with Conversation(server.path) as first, Conversation(server.path) as second:
        list(first.send("one"))
        events = second.resume()
        history = [next(events) for _ in range(6)]
        assert kinds(history) == "start message delta message usage done"
        list(first.send("two"))
        assert texts([next(events) for _ in range(6)]) == ["two"]
        second.close()
        assert list(events) == []  # closing our own connection is no failure
    with Conversation(server.path) as third:
        rest = third.resume(after=history[-2].id)
        assert kinds([next(rest), next(rest)]) == "done start"


def test_an_approval_is_decided_once(slow: Served) -> None:
    with Conversation(slow.path) as conversation:
        stream = conversation.send("x")
        run = slow.until_active()
        slow.say(run, frames.Approval(call="c", name="fs.write", input={}, effects=[], reason=""))
        assert kinds(list(itertools.islice(stream, 3))) == "start message approval"
        with pytest.raises(Failed, match="EINVAL: input: goes with allow_once alone"):
            conversation.approve(run, "c", "deny", {"path": "y"})
        conversation.approve(run, "c", "allow_once", {"path": "y"})
        with pytest.raises(Failed, match="EALREADY"):
            conversation.approve(run, "c", "deny")
        assert [(each.decision, each.input) for each in slow.world.decisions] == [
            ("allow_once", {"path": "y"})
        ]


def test_a_question_of_a_tool_is_answered_once(slow: Served) -> None:
    with Conversation(slow.path) as conversation:
        stream = conversation.send("x")
        asked = frames.Question(call="c", question="c.q1", name="t", message="who?", schema={})
        slow.say(slow.until_active(), asked)
        run = list(itertools.islice(stream, 3))[-1].run
        assert run
        with pytest.raises(Failed, match="ENOENT"):
            conversation.answer(run, "c.q2")
        conversation.answer(run, "c.q1", {"name": "ann"})
        with pytest.raises(Failed, match="EALREADY"):
            conversation.answer(run, "c.q1")
        assert [each.content for each in slow.world.answers] == [{"name": "ann"}]


def test_threads_share_a_conversation(server: Served) -> None:
    answers: dict[int, str] = {}

    def ask(number: int) -> None:
        for turn in range(20):
            answer = text(conversation.send(f"{number} {turn}", session=f"s{number}"))
            answers[number] = answers.get(number, "") + answer + ";"

    with Conversation(server.path) as conversation:
        threads = [threading.Thread(target=ask, args=[number]) for number in range(5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert answers == {n: "".join(f"{n}{turn};" for turn in range(20)) for n in range(5)}


def test_closing_wakes_who_reads(slow: Served) -> None:
    conversation = Conversation(slow.path)
    heard: list[AnyFrame] = []
    stream = conversation.resume()
    thread = threading.Thread(target=lambda: heard.extend(stream))
    thread.start()
    until(lambda: conversation._reader is not None)
    assert conversation.ping() > 0  # answered, whichever thread reads
    conversation.close()
    thread.join(PATIENCE)
    assert not thread.is_alive()
    with pytest.raises(Failed, match="ECANCELED"):
        conversation.ping()


def test_an_interrupt_leaves_the_conversation_as_it_was(slow: Served) -> None:
    def interrupt() -> None:
        until(lambda: conversation._reader is not None)  # just before the reader waits, or while it waits
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    with Conversation(slow.path) as conversation:
        stream = conversation.send("x")
        assert kinds(list(itertools.islice(stream, 2))) == "start message"
        thread = threading.Thread(target=interrupt)
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            next(stream)
        thread.join()
        assert conversation.cancel(str(stream.id)).status == "cancelled"
        assert kinds(list(stream)) == "done"


def test_much_is_said_while_much_is_heard(server: Served) -> None:
    # 30 requests of 64 KiB and their echoes do not fit into two socket buffers
    word = "x" * (1 << 16)
    with Conversation(server.path) as conversation:
        streams = [conversation.send(word, session=f"s{number}") for number in range(30)]
        assert {len(text(stream)) for stream in streams} == {len(word)}


def test_what_is_not_read_is_bounded(slow: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sorting, "MAX_KEPT", 10_000)
    with Conversation(slow.path) as conversation:
        unread = conversation.send("x")
        slow.say(slow.until_active(), *[frames.Delta(text="y" * 1000)] * 20)
        with pytest.raises(Failed, match="ENOBUFS"):
            ping_on(conversation)
        assert kinds(list(itertools.islice(unread, 22))).count("delta") == 20
        assert conversation.ping() > 0


# Failures.


def test_who_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(Failed, match=r"^ENOENT: .*see: ctx ls"):
        Conversation(tmp_path / "nothing")
    with pytest.raises(Failed, match="ENOENT"):
        Conversation(tmp_path / ("d" * 150) / "nothing")
    with pytest.raises(Failed, match="EINVAL"):
        Conversation(tmp_path / ("n" * 150))


def test_who_does_not_listen(tmp_path: Path) -> None:
    # abi.md 5.6
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(tmp_path / "deaf.sock"))
        with pytest.raises(Failed, match=r"^EHOSTDOWN: .*see: ctx status") as caught:
            Conversation(tmp_path / "deaf")
    assert caught.value.run is None


def test_a_server_that_goes_in_the_middle_of_a_run(slow: Served) -> None:
    with Conversation(slow.path) as conversation:
        stream = conversation.send("x")
        slow.until_active()
        slow.hang_up(last=b'{"type":"delta","id":"3","run":"r-2","te')
        heard = [next(stream), next(stream)]
        with pytest.raises(Failed) as caught:
            next(stream)
        assert (kinds(heard), caught.value.code, caught.value.run) == (
            "start message",
            "EHOSTDOWN",
            stream.run,
        )
        with pytest.raises(Failed, match="EHOSTDOWN"):
            conversation.ping()


def test_a_server_that_speaks_something_else(slow: Served) -> None:
    with Conversation(slow.path) as conversation:
        stream = conversation.send("x")
        slow.until_active()
        slow.hang_up(last=b"HTTP/1.1 400 Bad Request\n")
        with pytest.raises(Failed, match=r"^EPROTO: .*not a frame"):
            list(stream)


# Paths and names.


def test_long_paths(tmp_path: Path) -> None:
    # unix(7): sun_path has 108 bytes
    place = tmp_path / ("d" * 100) / ("e" * 100)
    place.mkdir(parents=True)
    with served(tmp_path / "s.sock") as server:
        (place / "echo.sock").symlink_to(server.path)
        with Conversation(place / "echo") as conversation:
            assert conversation.ping() > 0
    assert not [fd for fd in os.listdir("/proc/self/fd") if str(tmp_path) in linked(fd)]


def linked(fd: str) -> str:
    with contextlib.suppress(FileNotFoundError):  # the descriptor of the listing itself
        return os.readlink(f"/proc/self/fd/{fd}")
    return ""


def test_names_paths_and_aliases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CTX_ROOT", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    place = tmp_path / "model" / "debug"
    place.mkdir(parents=True)
    (place / "echo").touch()
    (tmp_path / "model" / "main").symlink_to("debug/echo")
    with served(place / "echo.sock"):
        for name in (
            "model/debug/echo",
            "model/debug/echo.sock",
            "model/main",
            place / "echo",
            str(place / "echo.sock"),
            "~/model/main",
        ):
            with Conversation(name) as conversation:
                assert conversation.ping() > 0


def test_who_needs_no_trio_does_not_import_it() -> None:
    asked = "import sys, cortexfs.client; sys.exit('trio' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", asked], check=False).returncode == 0


# Runs that outlast their connection.


def test_a_send_goes_on_after_a_restart(slow: Served) -> None:
    heard = []
    stream = client.send(slow.path, "x", pauses=[0] * 100)
    for frame in stream:
        heard.append(frame)
        if isinstance(frame, frames.Message) and slow.accepted == 1:
            slow.restart()
    # abi.md 5.30
    assert kinds(heard) == "start message error done"
    assert [int(frame.id or 0) for frame in heard] == [1, 2, 3, 4]
    assert slow.accepted == 2


def test_a_send_whose_connection_breaks_is_said_once(slow: Served) -> None:
    stream = client.send(slow.path, "x", pauses=[0] * 100)
    heard = [next(stream), next(stream)]
    slow.hang_up()
    slow.say(run := slow.until_active(), frames.Delta(text="y"))
    heard.append(next(stream))
    slow.finish(run)
    heard += stream
    assert kinds(heard) == "start message delta done"
    assert len(slow.world.sessions) == len(heard) - 3 == 1


def test_a_session_is_followed_through_restarts(server: Served) -> None:
    with Conversation(server.path) as first:
        list(first.send("a"))
    events = client.resume(server.path, pauses=[0] * 100)
    heard = [next(events) for _ in range(6)]
    for word in ("b", "c"):
        server.restart()
        with Conversation(server.path) as other:
            list(other.send(word))
        heard += [next(events) for _ in range(6)]
    assert [int(frame.id or 0) for frame in heard] == list(range(1, 19))
    events.close()  # type: ignore[attr-defined]


def test_a_daemon_that_stays_away_is_told(slow: Served) -> None:
    stream = client.send(slow.path, "x", pauses=[0] * 3)
    next(stream)
    slow.close()
    with pytest.raises(Failed, match=r"ENOENT|EHOSTDOWN"):
        list(stream)


def test_who_was_never_there_is_not_waited_for(tmp_path: Path) -> None:
    with pytest.raises(Failed, match="ENOENT"):
        next(client.send(tmp_path / "nobody", "x", pauses=[3600]))


def test_a_refused_message_is_not_sent_again(server: Served) -> None:
    with pytest.raises(Failed, match="EINVAL"):
        next(client.send(server.path, " ", pauses=[3600]))
    assert server.accepted == 1


def test_a_temporary_session_ends_with_its_connection(slow: Served) -> None:
    # abi.md 5.24
    stream = client.send(slow.path, "x", scope="temp", pauses=[3600])
    next(stream)
    slow.hang_up()
    with pytest.raises(Failed, match="EHOSTDOWN"):
        list(stream)


def test_low_level_resume_is_no_stream_of_its_own(server: Served) -> None:
    with Conversation(server.path) as conversation:
        list(conversation.send("x"))
        conversation.request(Resume(after="99"))
        with pytest.raises(Failed, match="EINVAL: after"):
            client.check(next(conversation.frames()))
