"""The debug models and the choice of drivers, without a daemon or a socket."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest
import trio
import trio.testing

from cortexfs.core import frames
from cortexfs.core.errors import Fault
from cortexfs.core.frames import Approval, Delta, Frame, Message, Question, Usage
from cortexfs.core.hostcalls import Identity
from cortexfs.core.registry import Object, Registry
from cortexfs.core.talk.requests import Decision, Input, Verdict
from cortexfs.core.tree import controls
from cortexfs.core.tree.places import has_socket
from cortexfs.models import debug, drivers
from cortexfs.models.ask.driver import Driver, Who
from cortexfs.models.debug import text_of
from tests.tables import each_of


class Said:
    """A turn that keeps the frames said in it, and the sizes of their batches."""

    uid = 1000
    who = Who(Identity(1000, 1000, ()))
    edited: dict[str, Any] | None = None

    def __init__(self, given: Input, decision: Decision = "deny") -> None:
        self.input = given
        self.decision = decision
        self.session_memory: dict[str, object] = {}
        self.batches: list[int] = []
        self.frames: list[Frame] = []

    async def history(self, room: int) -> list[Message]:
        return []

    async def say(self, *said: Frame) -> None:
        self.batches.append(len(said))
        self.frames += said
        await trio.lowlevel.checkpoint()

    async def settled(self) -> None: ...

    async def ask(self, approval: Approval) -> Verdict:
        await self.say(approval)
        return Verdict(self.decision, self.edited, "as the test says")

    async def question(self, asked: Question) -> Verdict:
        raise NotImplementedError

    @property
    def output(self) -> str:
        return "".join(frame.text for frame in self.frames if isinstance(frame, Delta))


async def played(*steps: dict[str, Any], decision: Decision = "deny") -> Said:
    turn = Said(json.dumps(steps), decision)
    await debug.script(turn)
    return turn


@pytest.mark.parametrize("text", ["a", " a  b\n\nc ", "one two", "  \n", "ä\u2003b"])
async def test_echo_says_a_delta_for_each_word(text: str) -> None:
    turn = Said(text)
    await debug.echo(turn)
    *deltas, message, usage = turn.frames
    assert turn.output == text
    assert sum(bool(delta.text.split()) for delta in deltas if isinstance(delta, Delta)) == len(text.split())
    assert message == Message(role="assistant", content=[frames.Text(text)])
    assert usage == Usage(input_tokens=len(deltas), output_tokens=len(deltas))


async def test_echo_of_white_space_takes_no_longer_than_of_words() -> None:
    turn = Said(" " * (1 << 20))  # a pattern that tries again at each of them would never end
    await debug.echo(turn)
    assert turn.batches == [1, 2]


async def test_echo_says_much_in_batches() -> None:
    turn = Said("w " * 1000)
    await debug.echo(turn)
    assert turn.batches == [256, 256, 256, 232, 2]


@each_of(
    ("value", "text"),
    [
        ("a", "a"),
        ({"input": "a"}, "a"),
        ({"task": "a"}, "a"),
        ({"input": [{"delta": "a"}]}, '[{"delta":"a"}]'),
        ({"content": [{"type": "text", "text": "a"}, {"type": "image"}]}, "a"),
        ({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}, "a"),
    ],
)
def test_the_text_of_an_input(value: Input, text: str) -> None:
    assert text_of(value) == text


def test_an_input_of_another_shape() -> None:
    with pytest.raises(Fault, match=r"EINVAL: messages\[0\]: object missing required field role"):
        text_of({"messages": [{}]})


async def test_a_script_plays_in_order() -> None:
    turn = await played(
        {"progress": "p"},
        {"delta": "a b "},
        {"tool_call": {"name": "t", "input": {"x": 1}}},
        {"burst": 2, "size": 4},
    )
    assert turn.frames == [
        frames.Progress(message="p"),
        Delta(text="a b "),
        frames.ToolCall(call="call3", name="t", input={"x": 1}),
        Delta(text="xxx "),
        Delta(text="xxx "),
        Message(role="assistant", content=[frames.Text("a b xxx xxx ")]),
        Usage(input_tokens=turn.frames[-1].input_tokens, output_tokens=4),  # type: ignore[attr-defined]
    ]


async def test_what_a_script_says_itself_is_not_said_again() -> None:
    turn = await played({"message": "m"}, {"delta": "a"}, {"usage": {"input_tokens": 5, "output_tokens": 6}})
    assert [type(frame) for frame in turn.frames] == [Message, Delta, Usage]
    assert turn.frames[-1] == Usage(input_tokens=5, output_tokens=6)


@pytest.mark.parametrize(("count", "messages"), [(2048, 1), (2049, 0)])
async def test_a_long_answer_has_no_message(count: int, messages: int) -> None:
    # debug.py: "An answer is kept for its message up to MAX_KEPT"
    turn = await played({"burst": count})
    assert sum(isinstance(frame, Message) for frame in turn.frames) == messages
    assert len(turn.output) == count * 32
    assert max(turn.batches) == debug.BATCH


async def test_an_approval_is_asked_for_and_the_decision_said() -> None:
    turn = await played({"approval": {"name": "rm", "call": "c", "reason": "why"}}, decision="allow_once")
    asked = Approval(call="c", name="rm", input={}, effects=[], reason="why")
    assert turn.frames[:2] == [asked, Delta(text="allow_once")]


async def test_an_edited_input_is_said() -> None:
    # ctx.md: "followed by the input where that was edited"
    turn = Said('[{"approval":{"name":"rm"}}]', "allow_once")
    turn.edited = {"path": "other"}
    await debug.script(turn)
    assert turn.output == 'allow_once {"path":"other"}'


async def test_a_script_that_fails() -> None:
    turn = Said('[{"delta":"a"},{"error":{"code":"ENOENT","message":"gone"}},{"delta":"b"}]')
    with pytest.raises(Fault, match="ENOENT: gone"):
        await debug.script(turn)
    assert turn.output == "a"


def test_a_script_that_takes_its_time() -> None:
    async def main() -> None:
        with trio.move_on_after(1e6) as hung:
            await played({"hang": True})
        assert hung.cancelled_caught
        began = trio.current_time()
        await played({"sleep": 3600})
        assert trio.current_time() - began == 3600

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


async def test_a_wrong_script_plays_nothing() -> None:
    turn = Said('[{"delta":"a"},{"dleta":"b"}]')
    with pytest.raises(Fault, match="step 2"):
        await debug.script(turn)
    assert not turn.frames


async def test_a_large_script_is_read_in_a_thread() -> None:
    turn = await played(*[{"delta": "x" * 100}] * 1000)
    assert len(turn.output) == 100_000


# -- as objects


def answering(model: Object, control: str) -> Driver:
    """Returns the driver of a model whose `.d/driver` has this content."""
    given = {"driver": control}
    return drivers.Drivers(lambda key: None, lambda object_, name: given.get(name, "")).chosen(model, "exec")


def test_the_models_are_objects_with_sockets() -> None:
    # issue: "as real model objects with exec, socket and .d/"
    registry = Registry({model.key: model for model in debug.objects(1.0)})
    assert registry.names("model") == ("debug/echo", "debug/script")
    for model in registry:
        assert has_socket(model)
        shown = {control.name: control for control in controls.CONTROLS["model"] if control.name != "log"}
        values = {name: controls.line_ended(control.render(model)) for name, control in shown.items()}
        for name, control in shown.items():
            if control.check and values[name]:
                assert controls.judge(control, values[name]) == values[name]
        assert answering(model, values["driver"].decode()) in drivers.DRIVERS.values()


@each_of(
    ("control", "use", "names"),
    [
        ("debug.echo\n", "exec", ["debug.echo"]),
        # "lookup = use-case then default"
        ("default=a,b\nexec=c\n", "exec", ["c", "a", "b"]),
        ("default=a,b\nexec=c\n", "socket", ["a", "b"]),
        ("agent=a\n", "exec", []),
        ("", "exec", []),
    ],
)
def test_which_drivers_a_control_names(control: str, use: str, names: list[str]) -> None:
    assert drivers.driver_names(control, use) == names


@each_of("control", ["", "other\n", "agent=debug.echo\n"])
def test_a_model_without_a_driver_that_there_is(control: str) -> None:
    with pytest.raises(Fault, match=r"EHOSTDOWN: p/m cannot answer: .*; write one of debug.echo, debug"):
        answering(Object(class_="model", name="p/m", description=""), control)


async def test_a_bug_of_a_driver_is_a_fault(caplog: pytest.LogCaptureFixture) -> None:
    async def broken(turn: Any) -> None:
        raise KeyError("secret")

    with caplog.at_level(logging.ERROR, "cortexfs"):
        fault = await drivers.answered(broken, Said("x"))
    assert fault is not None
    assert fault.code == "EPROTO"
    assert "secret" not in fault.message
    assert await drivers.answered(debug.echo, Said("x")) is None
