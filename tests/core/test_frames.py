"""abi.md 6: the exact bytes of a frame on the wire."""

from __future__ import annotations

from cortexfs.core import frames
from tests.tables import each_of


@each_of(
    ("frame", "line"),
    [
        # abi.md 6.1
        (
            frames.Start(run="r1", model="openai/gpt-4o"),
            b'{"type":"start","run":"r1","model":"openai/gpt-4o"}',
        ),
        (
            frames.Start(id="1", run="r1", agent="coder"),
            b'{"type":"start","id":"1","run":"r1","agent":"coder"}',
        ),
        (frames.Delta(run="r1", text="hello"), b'{"type":"delta","run":"r1","text":"hello"}'),
        (
            frames.Message(id="2", run="r1", role="assistant", content=[frames.Text("x")]),
            b'{"type":"message","id":"2","run":"r1","role":"assistant","content":[{"type":"text","text":"x"}]}',
        ),
        (frames.ReasoningDelta(run="r", text="t"), b'{"type":"reasoning_delta","run":"r","text":"t"}'),
        (
            frames.ToolCall(run="r", call="c", name="n", input={"a": 1}),
            b'{"type":"tool_call","run":"r","call":"c","name":"n","input":{"a":1}}',
        ),
        (
            frames.ToolResult(run="r", call="c", name="n", output="", is_error=False),
            b'{"type":"tool_result","run":"r","call":"c","name":"n","output":"","is_error":false}',
        ),
        (frames.Progress(run="r", message="m"), b'{"type":"progress","run":"r","message":"m"}'),
        (
            frames.Observer(run="r", source="s", content="c"),
            b'{"type":"observer","run":"r","source":"s","content":"c"}',
        ),
        (
            frames.Media(run="r", attachment={"url": "u"}),
            b'{"type":"media","run":"r","attachment":{"url":"u"}}',
        ),
        (
            frames.Usage(run="r", input_tokens=1, output_tokens=2),
            b'{"type":"usage","run":"r","input_tokens":1,"output_tokens":2}',
        ),
        (
            frames.Approval(run="r", call="c", name="n", input={}, effects=["WriteFile"], reason="why"),
            b'{"type":"approval","run":"r","call":"c","name":"n","input":{},"effects":["WriteFile"],"reason":"why"}',
        ),
        (
            frames.Question(run="r", call="c", question="q", name="n", message="m", url="u"),
            b'{"type":"question","run":"r","call":"c","question":"q","name":"n","message":"m","url":"u"}',
        ),
        (
            frames.Error(run="r", code="EACCES", message="permission denied"),
            b'{"type":"error","run":"r","code":"EACCES","message":"permission denied"}',
        ),
        (frames.Done(run="r", status="ok"), b'{"type":"done","run":"r","status":"ok"}'),
        (
            frames.Done(run="r", status="error", code="EIO"),
            b'{"type":"done","run":"r","status":"error","code":"EIO"}',
        ),
        (frames.Pong(), b'{"type":"pong"}'),
        (frames.Pong(request="7"), b'{"type":"pong","request":"7"}'),
    ],
)
def test_every_frame_to_the_byte_and_back(frame: frames.Frame, line: bytes) -> None:
    assert frames.encode(frame) == line + b"\n"
    assert frames.decode(line) == frame


def test_readers_ignore_what_they_do_not_know() -> None:
    # abi.md 6.4
    assert frames.decode(b'{"type":"pong","colour":"red"}') == frames.Pong()


def test_a_frame_is_one_line_whatever_it_says() -> None:
    line = frames.encode(frames.Delta(run="r", text="a\nb\r\u2028\0"))
    assert line.count(b"\n") == 1
    assert frames.decode(line) == frames.Delta(run="r", text="a\nb\r\u2028\0")
