"""The seeds' interface: every default and method that the seeds promise, by table where there is one."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest

from cortexfs import sdk
from cortexfs.sdk import (
    Attachment,
    DryRunSupport,
    EffectConfirmation,
    EffectReversibility,
    ExecutionScope,
    InvocationContext,
    MemoryRuntime,
    MultiToolPlugin,
    PluginInfo,
    Tool,
    ToolCapabilities,
    ToolEffect,
    ToolEffectKind,
    ToolError,
    ToolResult,
    ToolRuntime,
)
from tests.places import PROJECT
from tests.tables import each_of

PNG = Attachment("image", "image/png", "/tmp/a.png")


class WordCount(Tool):
    name = "word_count"
    description = "Count words in a text string."
    input_schema = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}  # noqa: RUF012

    def execute(self, input: dict[str, Any]) -> ToolResult:
        if not isinstance(input.get("text"), str):
            raise sdk.InvalidInput("missing 'text' field")
        return ToolResult.success(f"{len(input['text'].split())} words")


class MyPlugin(MultiToolPlugin):
    plugin_info = PluginInfo("my-plugin", "0.1.0", "My custom tools for Cortex")

    def create_tools(self) -> list[Tool]:
        return [WordCount()]


class Kind(NamedTuple):
    word: str
    debug: str
    reversibility: str
    confirmation: str
    mutating: bool


# abi.md 10.6
KINDS = [
    Kind("read_file", "ReadFile", "reversible", "on_risk", False),
    Kind("read_secret", "ReadSecret", "irreversible", "always", False),
    Kind("write_file", "WriteFile", "partially_reversible", "always", True),
    Kind("delete_file", "DeleteFile", "irreversible", "always", True),
    Kind("run_process", "RunProcess", "partially_reversible", "always", True),
    Kind("network_request", "NetworkRequest", "reversible", "on_risk", False),
    Kind("send_message", "SendMessage", "irreversible", "always", True),
    Kind("spend_money", "SpendMoney", "irreversible", "always", True),
    Kind("deploy", "Deploy", "irreversible", "always", True),
    Kind("modify_credential", "ModifyCredential", "irreversible", "always", True),
    Kind("persist_memory", "PersistMemory", "partially_reversible", "always", True),
    Kind("publish_content", "PublishContent", "irreversible", "always", True),
    Kind("schedule_task", "ScheduleTask", "partially_reversible", "always", True),
    Kind("generate_media", "GenerateMedia", "partially_reversible", "always", True),
    Kind("introspect_runtime", "IntrospectRuntime", "reversible", "on_risk", False),
    Kind("delegate_work", "DelegateWork", "partially_reversible", "always", True),
]


def test_there_are_exactly_the_kinds_of_the_seed_in_its_order() -> None:
    assert [kind.value for kind in ToolEffectKind] == [row.word for row in KINDS]


@each_of("row", KINDS)
def test_an_effect_takes_its_defaults_from_its_kind(row: Kind) -> None:
    # abi.md 10.6
    effect = ToolEffect(ToolEffectKind(row.word))
    assert effect == (row.word, "", row.reversibility, row.confirmation, "not_supported")
    assert effect.is_mutating is effect.kind.is_mutating is row.mutating
    # abi.md 10.7
    assert effect.label == row.debug
    assert effect.with_target("a b").label == f"{row.debug}:a b"


WORDS = [
    (EffectReversibility, "reversible partially_reversible irreversible"),
    (EffectConfirmation, "never on_risk always"),
    (DryRunSupport, "not_supported supported required_before_execute"),
    (ExecutionScope, "foreground background"),
]


@each_of(("enum", "words"), WORDS)
def test_words_are_snake_case(enum: Any, words: str) -> None:
    # abi.md 10.8
    assert [member.value for member in enum] == words.split()


def test_effect_builders_change_one_thing_and_leave_the_original() -> None:
    # abi.md 10.7
    plain = ToolEffect(ToolEffectKind.WRITE_FILE)
    built = (
        plain.with_target("/etc")
        .with_reversibility(EffectReversibility.REVERSIBLE)
        .with_confirmation(EffectConfirmation.NEVER)
        .with_dry_run(DryRunSupport.SUPPORTED)
    )
    assert isinstance(built, ToolEffect)
    assert built == ("write_file", "/etc", "reversible", "never", "supported")
    assert plain == ToolEffect(ToolEffectKind.WRITE_FILE)


@each_of("words", [("chmod",), ("read_file", "", "sometimes"), ("read_file", "", None, "maybe")])
def test_an_effect_refuses_words_that_the_seed_does_not_have(words: Any) -> None:
    with pytest.raises(ValueError, match=words[-1]):
        ToolEffect(*words)
    with pytest.raises(ValueError, match=words[-1]):
        ToolEffect(ToolEffectKind.READ_FILE)._replace(**dict(zip(ToolEffect._fields, words, strict=False)))


def test_capabilities_are_off_by_default_and_collect_effects() -> None:
    # abi.md 10.5, 10.7
    read, write = ToolEffect(ToolEffectKind.READ_FILE), ToolEffect(ToolEffectKind.WRITE_FILE)
    assert ToolCapabilities() == (False, False, False, ())
    assert ToolCapabilities().with_effect(read).with_effects([write, read]).effects == (read, write, read)


def test_results() -> None:
    # abi.md 10.9
    assert ToolResult.success("fine") == ("fine", (), False)
    assert ToolResult.error("file not found") == ("file not found", (), True)
    result = ToolResult.error("x").with_media(PNG).with_media_many([PNG, PNG])
    assert result == ("x", (PNG, PNG, PNG), True)


def test_an_attachment_needs_no_caption_and_no_size() -> None:
    # abi.md 10.9
    assert PNG.caption is None
    assert PNG.size is None


ERRORS = [
    (sdk.InvalidInput("X"), "invalid input: X", "EINVAL"),
    (sdk.ExecutionFailed("X"), "execution failed: X", "EIO"),
    (sdk.ExecutionFailed("X", code="ENOENT"), "execution failed: X", "ENOENT"),
]


@each_of(("error", "text", "code"), ERRORS)
def test_errors_display_as_in_the_seed_and_carry_their_code(error: ToolError, text: str, code: str) -> None:
    # abi.md 4.29, 10.3
    assert isinstance(error, ToolError)
    assert str(error) == text
    assert error.code == code


def test_an_invocation_is_in_the_foreground_by_default() -> None:
    # abi.md 10.11
    context = InvocationContext("t")
    assert tuple(context) == ("t", None, None, None, "foreground", False)
    assert (context.is_foreground, context.is_background) == (True, False)
    late = InvocationContext("t", execution_scope="background")  # type: ignore[arg-type]  # a word does
    assert (late.is_foreground, late.is_background) == (False, True)


def test_versions() -> None:
    assert (sdk.SDK_VERSION, sdk.NATIVE_ABI_VERSION) == ("1.6.9", 1)


def test_a_tool_has_the_defaults_of_the_seed() -> None:
    # abi.md 10.4, 10.5
    tool = WordCount()
    assert tool.timeout_secs is None
    assert tool.capabilities == ToolCapabilities()
    # abi.md 10.3: without a runtime of its own it is executed as it is
    assert tool.execute_with_runtime({"text": "a b c"}, MemoryRuntime()) == tool.execute({"text": "a b c"})
    with pytest.raises(sdk.InvalidInput, match="missing 'text' field"):
        tool.execute({})


def test_a_tool_may_override_execute_with_runtime_alone() -> None:
    class WhoAmI(WordCount):
        def execute_with_runtime(self, input: dict[str, Any], runtime: ToolRuntime) -> ToolResult:
            runtime.emit_progress("half")
            runtime.emit_observer(None, "note")
            return ToolResult.success(f"{runtime.invocation.tool_name} {runtime.environ['HOME']}")

    runtime = MemoryRuntime("whoami", {"HOME": "/h"})
    assert sdk.run(WhoAmI(), {}, runtime).output == "whoami /h"
    assert (runtime.progress, runtime.observed) == (["half"], [(None, "note")])


def test_a_tool_without_execute_says_so() -> None:
    class Empty(Tool):
        pass

    with pytest.raises(NotImplementedError, match="Empty defines no execute"):
        Empty().execute({})


def test_a_descriptor_is_that_of_the_native_abi() -> None:
    # abi.md 10.8
    assert json.loads(json.dumps(sdk.descriptor(WordCount()))) == {
        "name": "word_count",
        "description": "Count words in a text string.",
        "input_schema": WordCount.input_schema,
        "timeout_secs": None,
        "capabilities": {"emits_progress": False, "emits_observer_text": False, "background_safe": False},
    }


def test_a_descriptor_leaves_an_empty_target_out() -> None:
    # abi.md 10.8
    class Careful(WordCount):
        capabilities = ToolCapabilities(background_safe=True).with_effects(
            [ToolEffect(ToolEffectKind.READ_FILE, "/etc"), ToolEffect(ToolEffectKind.DEPLOY)]
        )

    capabilities = json.loads(json.dumps(sdk.descriptor(Careful())))["capabilities"]
    assert capabilities["background_safe"] is True
    assert capabilities["effects"] == [
        {
            "kind": "read_file",
            "target": "/etc",
            "reversibility": "reversible",
            "confirmation": "on_risk",
            "dry_run": "not_supported",
        },
        {
            "kind": "deploy",
            "reversibility": "irreversible",
            "confirmation": "always",
            "dry_run": "not_supported",
        },
    ]


def module(**names: object) -> ModuleType:
    made = ModuleType("made")
    vars(made).update(names)
    return made


COLLECTED = [
    (MyPlugin, MyPlugin.plugin_info),
    (MyPlugin(), MyPlugin.plugin_info),
    (module(plugin=MyPlugin), MyPlugin.plugin_info),
    (module(plugin=module(plugin=MyPlugin())), MyPlugin.plugin_info),
    (module(plugin=[WordCount()]), None),
    (module(word_count=WordCount(), other=1), None),
    ([WordCount()], None),
    ((WordCount,), None),
    (WordCount(), None),
    (WordCount, None),
]


@each_of(("target", "info"), COLLECTED)
def test_an_entry_point_may_name_any_of_these(target: object, info: PluginInfo | None) -> None:
    found, tools = sdk.tools_of(target)
    assert found == info
    assert [tool.name for tool in tools] == ["word_count"]


def test_of_two_tools_with_one_name_the_later_wins() -> None:
    # abi.md 10.10: the later one wins
    first, other, second = WordCount(), WordCount(), WordCount()
    other.name = "other"
    assert sdk.tools_of([first, other, second])[1] == [second, other]


def test_a_plugin_may_have_no_tools() -> None:
    # abi.md 10.10
    class Bare(MyPlugin):
        def create_tools(self) -> list[Tool]:
            return []

    assert sdk.tools_of(Bare) == (MyPlugin.plugin_info, [])


def broken(**members: object) -> type[Tool]:
    return type("Broken", (WordCount,), members)


def bad_plugin(**members: object) -> type[MultiToolPlugin]:
    return type("BadPlugin", (MyPlugin,), members)


REFUSED: list[tuple[object, str]] = [
    (3, "expected a MultiToolPlugin, .* got 3"),
    (None, "got None"),
    (int, "got <class 'int'>"),
    ([], "found none"),
    (module(), "found none"),
    (module(plugin=7), "got 7"),
    ([WordCount(), "x"], "got 'x'"),
    (broken(name=""), "Broken.name must be a string .* not ''"),
    (broken(name=None), "Broken.name must be a string .* not None"),
    (broken(description=""), "Broken.description must be"),
    (broken(input_schema="{}"), "Broken.input_schema must be a JSON Schema, as a dict, not '{}'"),
    (broken(timeout_secs="3"), "Broken.timeout_secs must be whole seconds or None"),
    (broken(capabilities=None), "Broken.capabilities must be ToolCapabilities"),
    (bad_plugin(plugin_info="me"), r"BadPlugin\.plugin_info must be a PluginInfo"),
    (bad_plugin(create_tools=lambda self: None), "expected a .* got None"),
]


@each_of(("target", "words"), REFUSED)
def test_what_is_no_plugin_is_refused_with_what_was_expected(target: object, words: str) -> None:
    # abi.md 10.1
    with pytest.raises(TypeError, match=words):
        sdk.tools_of(target)


def test_on_cancel_calls_each_callback_once() -> None:
    calls: list[str] = []
    runtime = MemoryRuntime()
    runtime.on_cancel(lambda: calls.append("before"))
    assert not runtime.cancelled
    runtime.cancel()
    runtime.cancel()
    runtime.on_cancel(lambda: calls.append("after"))
    assert runtime.cancelled
    assert calls == ["before", "after"]


def test_a_callback_that_raises_keeps_no_other_from_its_turn() -> None:
    calls: list[str] = []
    runtime = MemoryRuntime()
    runtime.on_cancel(lambda: calls.append("last"))
    runtime.on_cancel(partial(int, "seven"))
    with pytest.raises(ValueError, match="seven"):
        runtime.cancel()
    assert calls == ["last"]


def test_on_cancel_loses_no_callback_to_a_race() -> None:
    for _ in range(50):
        runtime = MemoryRuntime()
        calls: list[int] = []
        canceller = threading.Thread(target=runtime.cancel)
        canceller.start()
        for number in range(20):
            runtime.on_cancel(partial(calls.append, number))
        canceller.join()
        assert sorted(calls) == list(range(20))


def test_a_bare_runtime_ignores_what_is_emitted() -> None:
    # abi.md 10.12: one that hears nothing
    runtime = ToolRuntime(InvocationContext("t"))
    runtime.emit("x")
    runtime.emit_progress("x")
    runtime.emit_observer("me", "x")
    assert runtime.environ == {}


ROOT = PROJECT


def test_importing_the_sdk_imports_nothing_heavy_and_nothing_of_ours() -> None:
    # abi.md 10.13
    code = "import sys, cortexfs.sdk; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    ours = {name for name in loaded if name.startswith("cortexfs")} - {"cortexfs"}
    assert all(name == "cortexfs.sdk" or name.startswith("cortexfs.sdk.") for name in ours)
    assert not loaded & {"trio", "pyfuse3", "msgspec", "asyncio", "inspect", "dataclasses"}


def test_no_function_of_the_sdk_imports_the_rest_of_cortexfs() -> None:
    names = []
    for path in Path(sdk.__file__).parent.glob("*.py"):
        tree = ast.parse(path.read_text())
        names += [
            alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names
        ]
        names += [node.module or "." for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    foreign = [name for name in names if not f"{name}.".startswith("cortexfs.sdk.")]
    assert foreign
    assert {name.split(".")[0] for name in foreign} <= {*sys.stdlib_module_names, "msgspec"}
