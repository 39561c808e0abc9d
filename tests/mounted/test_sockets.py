"""Sockets from a program's point of view: their files, the requests that they take, and the answers to
faults (abi.md 5)."""

from __future__ import annotations

import errno
import json
import os
import re
import socket
import stat

import pytest

from tests.mounted.ctx_mount import NOBODY, Ctx
from tests.mounted.talking import ECHO, MAX_LINE, SCRIPT, Frame, Talk, line, one_run, said, talk, text, types

# The files.


def test_an_entry_is_a_socket(ctx: Ctx) -> None:
    # abi.md 5.1
    path = ctx.root / ECHO
    assert stat.S_ISSOCK(path.stat().st_mode)
    assert ctx.run(["test", "-S", str(path)]).returncode == 0
    assert ctx.run(["ls", "-l", str(path)]).stdout.startswith("srw-rw-rw-")  # "Mode 0666"
    listed = ctx.run(["ls", str(path.parent)]).stdout.split()
    assert {"echo", "echo.sock", "echo.d"} <= set(listed)  # abi.md 1.6, 1.7


def test_socat_holds_a_conversation(ctx: Ctx) -> None:
    # abi.md 5.1
    asked = line("ping", id="p") + line("send", input="hello there", session="socat")
    done = ctx.run(["socat", "-t30", "-", f"UNIX-CONNECT:{ctx.root / ECHO}"], input=asked, text=False)
    frames = [json.loads(each) for each in done.stdout.splitlines()]
    assert frames[0] == {"type": "pong", "request": "p"}
    one_run(frames[1:])
    assert text(frames) == "hello there"


def test_netcat_holds_a_conversation(ctx: Ctx) -> None:
    # abi.md 5.1
    if ctx.run(["sh", "-c", "nc -h 2>&1 | grep -q -- -U"]).returncode:
        pytest.skip("no nc that knows -U")
    asked = line("send", input="hello there", session="nc")
    done = ctx.run(["nc", "-N", "-U", str(ctx.root / ECHO)], input=asked, text=False)
    assert text([json.loads(each) for each in done.stdout.splitlines()]) == "hello there"


def test_everybody_may_connect(ctx: Ctx) -> None:
    # abi.md 5.2
    with talk(ctx, uid=NOBODY) as client:
        assert client.is_alive()


def test_only_stream_sockets_can_connect(ctx: Ctx) -> None:
    # abi.md 5.1; unix(7): EPROTOTYPE for another type
    with (
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other,
        pytest.raises(OSError, match="wrong type") as caught,
    ):
        other.connect(str(ctx.root / ECHO))
    assert caught.value.errno == errno.EPROTOTYPE


def test_an_object_without_sessions_has_no_entry(ctx: Ctx) -> None:
    # abi.md 5.5
    assert not [name for name in os.listdir(ctx.root / "tool") if name.endswith(".sock")]
    with pytest.raises(FileNotFoundError):
        Talk(ctx.root / "tool" / "fs.read.sock")


def test_the_daemons_sockets_cannot_be_replaced(ctx: Ctx) -> None:
    # abi.md 1.13: the entries are the tree's; only the daemon binds
    path = str(ctx.root / ECHO)
    with socket.socket(socket.AF_UNIX) as mine, pytest.raises(OSError, match="in use"):
        mine.bind(path)
    with pytest.raises(OSError, match="Read-only file system"):
        os.unlink(path)
    assert ctx.run(["rm", "-f", path], uid=NOBODY).returncode == 1
    with talk(ctx) as client:
        assert client.is_alive()


# Requests.


def test_ping(ctx: Ctx) -> None:
    # abi.md 5.7, 6.2: {"op":"ping"} is answered by {"type":"pong"}
    with talk(ctx) as client:
        client.raw(b'{"op":"ping"}\n')
        assert client.line() == b'{"type":"pong"}'


def test_a_send_and_its_frames(ctx: Ctx) -> None:
    # abi.md 5.13
    frames = said(ctx, "one two", session="frames", id="msg-1")
    run = one_run(frames)
    assert types(frames) == ["start", "message", "delta", "delta", "message", "usage", "done"]
    assert frames[0]["model"] == "debug/echo"
    assert frames[0]["request"] == "msg-1"
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", frames[0]["ts"])  # abi.md 5.38
    # "The log also holds the user's message (role user) after start."
    assert frames[1]["role"] == "user"
    assert frames[1]["content"] == [{"type": "text", "text": "one two"}]
    assert frames[4]["role"] == "assistant"
    assert frames[4]["content"] == [{"type": "text", "text": "one two"}]
    assert frames[-1] == {"type": "done", "id": frames[-1]["id"], "run": run, "status": "ok"}


def test_the_fields_come_in_order(ctx: Ctx) -> None:
    # abi.md 6.1
    for frame in said(ctx, "x", session="order"):
        assert list(frame)[:3] == ["type", "id", "run"]


FRAMES = {  # abi.md 6.1, 6.2; what stands in brackets may be left out
    "start": "model ts [request] [digest]",
    "delta": "text",
    "message": "role content",
    "tool_call": "call name input",
    "tool_result": "call name output is_error",
    "progress": "message",
    "observer": "source content",
    "approval": "call name input effects reason",
    "usage": "input_tokens output_tokens",
    "error": "[request] code message",
    "done": "status [code]",
}


def test_every_frame_has_its_fields(ctx: Ctx) -> None:
    # abi.md 6.1
    steps: list[Frame] = [
        {"delta": "d"},
        {"tool_call": {"name": "fs.read", "input": {"path": "a"}}},
        {"tool_result": {"name": "fs.read", "call": "call1", "output": "o"}},
        {"progress": "half"},
        {"message": "m"},
        {"approval": {"name": "fs.write", "input": {}, "effects": ["write_file"], "reason": "why"}},
        {"usage": {"input_tokens": 1, "output_tokens": 2}},
        {"error": {"code": "EIO", "message": "as asked"}},
    ]
    with talk(ctx, SCRIPT) as client:
        client.play(*steps, session="every-frame", id="m")
        frames = client.until("approval")
        client.ask("approve", run=frames[-1]["run"], call=frames[-1]["call"], decision="deny")
        frames += client.until("done")
    assert set(types(frames)) == set(FRAMES)
    for frame in frames:
        type_, id_, run, *rest = frame
        assert (type_, id_, run) == ("type", "id", "run")
        words = FRAMES[frame["type"]].split()
        required = [word for word in words if not word.startswith("[")]
        assert [name for name in rest if name in required] == required, frame
        assert set(rest) <= {word.strip("[]") for word in words}, frame


@pytest.mark.parametrize(
    "input",
    [
        "hello",
        {"content": "hello"},
        {"content": [{"type": "text", "text": "hello"}]},
        {"messages": [{"role": "user", "content": "hello"}]},
        {"messages": [{"role": "assistant", "content": "no"}, {"role": "user", "content": "hello"}]},
    ],
)
def test_the_shapes_of_an_input(ctx: Ctx, input: object) -> None:
    # abi.md 5.8
    frames = said(ctx, input, session="shapes")
    assert text(frames) == "hello"
    assert frames[1]["content"] == [{"type": "text", "text": "hello"}]


def test_a_run_that_fails(ctx: Ctx) -> None:
    # abi.md 5.13
    steps = '[{"delta":"half"},{"error":{"code":"EIO","message":"the model broke"}}]'
    frames = said(ctx, steps, SCRIPT, session="fails", id="m")
    one_run(frames)
    assert types(frames)[-2:] == ["error", "done"]
    # "start, pong and error echo the `id` of the request"
    assert frames[-2]["request"] == "m"
    assert (frames[-2]["code"], frames[-2]["message"]) == ("EIO", "the model broke")
    assert (frames[-1]["status"], frames[-1]["code"]) == ("error", "EIO")
    assert text(frames) == "half"


def test_overlapping_requests_on_one_connection(ctx: Ctx) -> None:
    # abi.md 5.3
    with talk(ctx, SCRIPT) as client:
        for number in range(8):
            client.play({"sleep": 0.01}, {"delta": f"n{number}"}, session=f"overlap{number}", id=str(number))
            client.ask("ping", id=f"ping{number}")
        frames = client.all()
    pongs = [frame["request"] for frame in frames if frame["type"] == "pong"]
    assert pongs == [f"ping{number}" for number in range(8)]
    runs = {frame["run"]: frame["request"] for frame in frames if frame["type"] == "start"}
    assert len(runs) == 8
    for run, request in runs.items():
        mine = [frame for frame in frames if frame.get("run") == run]
        one_run(mine)
        assert text(mine) == f"n{request}"


def test_requests_may_come_in_any_pieces(ctx: Ctx) -> None:
    # abi.md 5.4: a line is what a newline ends, and not what a write holds
    with talk(ctx) as client:
        for byte in line("ping", id="slow"):
            client.raw(bytes([byte]))
        client.raw(line("ping", id="a") + line("ping", id="b") + b'{"op":"ping"')
        client.raw(b',"id":"c"}\n')
        assert [client.frame()["request"] for _ in range(4)] == ["slow", "a", "b", "c"]


def test_a_last_line_without_newline_counts(ctx: Ctx) -> None:
    # docs/protocol.md: "A last line without a newline counts when you close your side."
    with talk(ctx) as client:
        client.raw(line("send", input="x", session="last") + line("send", input="y", session="last2")[:-1])
        frames = client.all()
    assert {text([f]) for f in frames if f["type"] == "delta"} == {"x", "y"}
    assert types(frames).count("done") == 2


# Answers to faults.


def test_unknown_fields_are_ignored(ctx: Ctx) -> None:
    # abi.md 5.9
    with talk(ctx) as client:
        client.ask("ping", id="p", colour="red", nested={"a": [1]})
        assert client.frame() == {"type": "pong", "request": "p"}
        client.send("x", session="unknown", temperature=1)
        one_run(client.until("done"))


FAULTS = [
    (b'{"op":"dance","id":"f"}', "op"),  # "an unknown op"
    (b'{"id":"f"}', "op"),
    (b'{"op":7,"id":"f"}', "op"),
    (b'{"op":"send","id":"f"}', "input"),
    (b'{"op":"send","id":"f","input":7}', "input"),  # "a wrong type"
    (b'{"op":"send","id":"f","input":{}}', "input"),
    (b'{"op":"send","id":"f","input":""}', "input"),
    (b'{"op":"send","id":"f","input":"x","session":7}', "session"),
    (b'{"op":"send","id":"f","input":"x","session":"../up"}', "session"),
    (b'{"op":"send","id":"f","input":"x","session":"a.sock"}', "session"),
    (b'{"op":"send","id":"f","input":"x","session":"index"}', "session"),
    (b'{"op":"send","id":"f","input":"x","scope":"public"}', "scope"),
    (b'{"op":"send","id":"f","input":"x","cwd":"relative"}', "cwd"),
    (b'{"op":"send","id":"f","input":"x","cwd":7}', "cwd"),
    (b'{"op":"resume","id":"f","after":7}', "after"),
    (b'{"op":"approve","id":"f","run":"r","call":"c","decision":"perhaps"}', "decision"),
    (b'{"op":"approve","id":"f","run":"r"}', "call"),
]


@pytest.mark.parametrize(("asked", "named"), FAULTS)
def test_a_wrong_request(ctx: Ctx, asked: bytes, named: str) -> None:
    # abi.md 5.10
    with talk(ctx) as client:
        client.raw(asked + b"\n")
        error = client.error()
        assert (error["code"], error["request"]) == ("EINVAL", "f")
        assert named in error["message"]
        assert "run" not in error
        assert client.is_alive()


@pytest.mark.parametrize(
    "asked",
    [b"", b"hello", b"[]", b"7", b"null", b'"x"', b'{"op":"ping"', b"\xff\xfe", b"\0" * 9, b"[" * 5000],
)
def test_a_line_that_is_no_object(ctx: Ctx, asked: bytes) -> None:
    # abi.md 5.10
    with talk(ctx) as client:
        client.raw(asked + b"\n")
        assert client.error()["code"] == "EINVAL"
        assert client.is_alive()


def test_cancel_without_an_id_is_refused(ctx: Ctx) -> None:
    # abi.md 5.7
    with talk(ctx) as client:
        client.ask("cancel")
        assert client.error()["code"] == "EINVAL"
        client.ask("cancel", id=7)
        assert client.error()["code"] == "EINVAL"
        assert client.is_alive()


@pytest.mark.parametrize("surplus", [0, 1, 2, 4 * MAX_LINE])
def test_the_longest_line(ctx: Ctx, surplus: int) -> None:
    # abi.md 5.4, 5.11
    head = b'{"op":"ping","id":"long","pad":"'
    asked = head + b"x" * (MAX_LINE + surplus - len(head) - 3) + b'"}\n'
    assert len(asked) == MAX_LINE + surplus
    with talk(ctx) as client:
        client.raw(asked)
        if surplus:
            assert client.error()["code"] == "EMSGSIZE"
        else:
            assert client.frame() == {"type": "pong", "request": "long"}
        assert client.is_alive()


def test_a_long_line_is_answered_before_it_ends(ctx: Ctx) -> None:
    # abi.md 5.11
    with talk(ctx) as client:
        client.raw(b"x" * (MAX_LINE + 1))
        assert client.error()["code"] == "EMSGSIZE"
        client.raw(b"x" * MAX_LINE + b'{"op":"ping"}\n')
        assert client.is_alive()  # the rest of that line was no request


def test_a_long_message_is_split(ctx: Ctx) -> None:
    # abi.md 5.23; here the user's is, as the
    # frame has a longer head than the request
    head = b'{"op":"send","session":"long","input":"'
    words = b"word " * ((MAX_LINE - len(head) - 3) // 5)
    with talk(ctx) as client:
        client.raw(head + words + b'"}\n')
        frames = client.until("done")
    one_run(frames)
    for role in ("user", "assistant"):
        parts = [frame for frame in frames if frame["type"] == "message" and frame["role"] == role]
        assert len(parts) == 2
        assert "".join(part["content"][0]["text"] for part in parts).encode() == words
