"""What plugin authors import: tools, their results, and the runtime that they meet.

Rules: the surface of the Rust SDK, in Python. Getters there are attributes here; builders return
new values, for every value is frozen. One tool instance serves all calls, from many threads at once.
A host runs any tool through `run` and finds a plugin's tools through `tools_of`.
This file must never import the rest of cortexfs: that it does not is what makes it an SDK.

Importing it is on the way of every plugin's tests, so it costs 17 ms over a bare interpreter. With
dataclasses, which import inspect, it took 29 ms. msgspec alone takes 29 ms: it is imported where
`@tool` and JSON need it, and asyncio (60 ms) where an async tool runs.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from enum import StrEnum
from functools import partial
from types import ModuleType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Generic,
    NamedTuple,
    ParamSpec,
    TypedDict,
    TypeVar,
    Unpack,
    get_origin,
    get_type_hints,
    overload,
)

if TYPE_CHECKING:
    import msgspec

SDK_VERSION = "1.6.9"  # the Rust SDK whose surface this is
NATIVE_ABI_VERSION = 1


class ExecutionScope(StrEnum):
    """Whether a call belongs to a user-visible turn or to background maintenance."""

    FOREGROUND = "foreground"
    BACKGROUND = "background"


class EffectReversibility(StrEnum):
    """Whether an effect can be undone."""

    REVERSIBLE = "reversible"
    PARTIALLY_REVERSIBLE = "partially_reversible"
    IRREVERSIBLE = "irreversible"


class EffectConfirmation(StrEnum):
    """When somebody is to be asked before an effect happens."""

    NEVER = "never"
    ON_RISK = "on_risk"
    ALWAYS = "always"


class DryRunSupport(StrEnum):
    """Whether a tool can show an effect before it happens."""

    NOT_SUPPORTED = "not_supported"
    SUPPORTED = "supported"
    REQUIRED_BEFORE_EXECUTE = "required_before_execute"


class ToolEffectKind(StrEnum):
    """The side effects that a tool may declare."""

    READ_FILE = "read_file"
    READ_SECRET = "read_secret"
    WRITE_FILE = "write_file"
    DELETE_FILE = "delete_file"
    RUN_PROCESS = "run_process"
    NETWORK_REQUEST = "network_request"
    SEND_MESSAGE = "send_message"
    SPEND_MONEY = "spend_money"
    DEPLOY = "deploy"
    MODIFY_CREDENTIAL = "modify_credential"
    PERSIST_MEMORY = "persist_memory"
    PUBLISH_CONTENT = "publish_content"
    SCHEDULE_TASK = "schedule_task"
    GENERATE_MEDIA = "generate_media"
    INTROSPECT_RUNTIME = "introspect_runtime"
    DELEGATE_WORK = "delegate_work"

    @property
    def is_mutating(self) -> bool:
        return self not in _HARMLESS and self is not ToolEffectKind.READ_SECRET

    @property
    def default_reversibility(self) -> EffectReversibility:
        if self in _HARMLESS:
            return EffectReversibility.REVERSIBLE
        if self in _FINAL:
            return EffectReversibility.IRREVERSIBLE
        return EffectReversibility.PARTIALLY_REVERSIBLE

    @property
    def default_confirmation(self) -> EffectConfirmation:
        return EffectConfirmation.ON_RISK if self in _HARMLESS else EffectConfirmation.ALWAYS


_HARMLESS = {ToolEffectKind.READ_FILE, ToolEffectKind.NETWORK_REQUEST, ToolEffectKind.INTROSPECT_RUNTIME}
_FINAL = {
    ToolEffectKind.READ_SECRET,
    ToolEffectKind.DELETE_FILE,
    ToolEffectKind.SEND_MESSAGE,
    ToolEffectKind.SPEND_MONEY,
    ToolEffectKind.DEPLOY,
    ToolEffectKind.MODIFY_CREDENTIAL,
    ToolEffectKind.PUBLISH_CONTENT,
}


class _Effect(NamedTuple):
    kind: ToolEffectKind
    target: str
    reversibility: EffectReversibility
    confirmation: EffectConfirmation
    dry_run: DryRunSupport


class ToolEffect(_Effect):
    """One declared side effect on a target: a path, a host, a channel or another name."""

    def __new__(
        cls,
        kind: ToolEffectKind,
        target: str = "",
        reversibility: EffectReversibility | None = None,  # None: as the kind has it
        confirmation: EffectConfirmation | None = None,
        dry_run: DryRunSupport = DryRunSupport.NOT_SUPPORTED,
    ) -> ToolEffect:
        kind = ToolEffectKind(kind)  # so the plain words do as well
        undone = EffectReversibility(reversibility or kind.default_reversibility)
        asked = EffectConfirmation(confirmation or kind.default_confirmation)
        return super().__new__(cls, kind, target, undone, asked, DryRunSupport(dry_run))

    def with_target(self, target: str) -> ToolEffect:
        return self._replace(target=target)

    def with_reversibility(self, reversibility: EffectReversibility) -> ToolEffect:
        return self._replace(reversibility=reversibility)

    def with_confirmation(self, confirmation: EffectConfirmation) -> ToolEffect:
        return self._replace(confirmation=confirmation)

    def with_dry_run(self, dry_run: DryRunSupport) -> ToolEffect:
        return self._replace(dry_run=dry_run)

    @property
    def is_mutating(self) -> bool:
        return self.kind.is_mutating

    @property
    def label(self) -> str:
        """`WriteFile:target`, or `WriteFile` without a target."""
        kind = "".join(word.capitalize() for word in self.kind.split("_"))
        return f"{kind}:{self.target}" if self.target else kind


class ToolCapabilities(NamedTuple):
    """How a tool takes part in a run; hints, which policy reads."""

    emits_progress: bool = False
    emits_observer_text: bool = False
    background_safe: bool = False
    effects: tuple[ToolEffect, ...] = ()

    def with_effect(self, effect: ToolEffect) -> ToolCapabilities:
        return self.with_effects([effect])

    def with_effects(self, effects: Iterable[ToolEffect]) -> ToolCapabilities:
        return self._replace(effects=(*self.effects, *effects))


class Attachment(NamedTuple):
    """An image, audio, video or file that a tool made."""

    media_type: str  # image, audio, video or file
    mime_type: str
    url: str  # a local path or a URL
    caption: str | None = None
    size: int | None = None  # in bytes


class ToolResult(NamedTuple):
    """What a tool answers. An error here is one that the asking model should see and may mend."""

    output: str
    media: tuple[Attachment, ...] = ()
    is_error: bool = False

    @classmethod
    def success(cls, output: str) -> ToolResult:
        return cls(output)

    @classmethod
    def error(cls, output: str) -> ToolResult:
        return cls(output, is_error=True)

    def with_media(self, attachment: Attachment) -> ToolResult:
        return self.with_media_many([attachment])

    def with_media_many(self, media: Iterable[Attachment]) -> ToolResult:
        return self._replace(media=(*self.media, *media))


class ToolError(Exception):
    """A hard failure. Raise one of its two subclasses."""

    code = "EIO"  # an errno name
    _kind = "tool error"

    def __str__(self) -> str:
        return f"{self._kind}: {super().__str__()}"


class InvalidInput(ToolError):
    """The input is malformed or lacks something."""

    code = "EINVAL"
    _kind = "invalid input"


class ExecutionFailed(ToolError):
    """The tool could not do its work; `code` names an errno, so that scripts can tell why."""

    _kind = "execution failed"

    def __init__(self, message: str, code: str = "EIO") -> None:
        super().__init__(message)
        self.code = code


class InvocationContext(NamedTuple):
    """Who calls, and from where."""

    tool_name: str
    session_id: str | None = None
    actor: str | None = None
    source: str | None = None  # the transport: exec, socket, agent, mcp ...
    execution_scope: ExecutionScope = ExecutionScope.FOREGROUND

    @property
    def is_background(self) -> bool:
        return self.execution_scope is ExecutionScope.BACKGROUND

    @property
    def is_foreground(self) -> bool:
        return self.execution_scope is ExecutionScope.FOREGROUND


class ToolRuntime:
    """The host, as a running tool sees it; a host overrides the three `emit` methods.

    All of it may be used from any thread of the tool.
    """

    def __init__(self, invocation: InvocationContext, environ: Mapping[str, str] | None = None) -> None:
        self.invocation = invocation
        self.environ: Mapping[str, str] = environ or {}  # the caller's; `os.environ` is the host's
        self.cancelled = False  # the caller wants no more: long loops look at it
        self._on_cancel: list[Callable[[], object]] = []

    def emit(self, text: str) -> None:
        """Send a piece of output now. It may block while the caller is slow to read."""

    def emit_progress(self, message: str) -> None:
        """Say how far the work is."""

    def emit_observer(self, source: str | None, content: str) -> None:
        """Leave a note for the parent turn. It is never shown to the user."""

    def on_cancel(self, callback: Callable[[], object]) -> None:
        """Call `callback` once, from another thread, on cancel; at once if that has happened."""
        self._on_cancel.append(callback)  # before the look, as cancel() does it the other way round
        if self.cancelled:
            self.cancel()

    def cancel(self) -> None:
        """For hosts and tests: the caller wants no more. What the first bad callback raised passes out."""
        self.cancelled = True
        failure: Exception | None = None
        while self._on_cancel:
            try:
                callback = self._on_cancel.pop()
            except IndexError:  # another thread has taken the last one
                break
            try:
                callback()
            except Exception as error:  # it keeps no other from its turn
                failure = failure or error
        if failure:
            raise failure


class MemoryRuntime(ToolRuntime):
    """A runtime for tests, which keeps what the tool emits."""

    def __init__(self, tool_name: str = "test", environ: Mapping[str, str] | None = None) -> None:
        super().__init__(InvocationContext(tool_name), environ)
        self.emitted: list[str] = []
        self.progress: list[str] = []
        self.observed: list[tuple[str | None, str]] = []

    @property
    def text(self) -> str:
        return "".join(self.emitted)

    def emit(self, text: str) -> None:
        self.emitted.append(text)

    def emit_progress(self, message: str) -> None:
        self.progress.append(message)

    def emit_observer(self, source: str | None, content: str) -> None:
        self.observed.append((source, content))


class Tool:
    """What a caller can run. Its attributes are set on the class or on the instance.

    Override `execute`, or `execute_with_runtime` to meet the runtime too. Both may return any shape
    that `run` knows, and are called from several threads at once.
    """

    name: str  # lowercase with underscores; unique among all tools
    description: str  # for a model: what it does, when to use it and when not
    input_schema: Mapping[str, Any]  # JSON Schema of an object
    timeout_secs: int | None = None  # None: the host's default
    capabilities: ToolCapabilities = ToolCapabilities()

    def execute(self, input: dict[str, Any]) -> object:
        raise NotImplementedError(f"{type(self).__name__} defines no execute")

    def execute_with_runtime(self, input: dict[str, Any], runtime: ToolRuntime) -> object:
        return self.execute(input)


class PluginInfo(NamedTuple):
    """What a plugin is; `name` is that of its manifest."""

    name: str
    version: str
    description: str


class MultiToolPlugin:
    """Several tools under one name. The class is constructed without arguments."""

    plugin_info: PluginInfo

    def create_tools(self) -> Iterable[Tool]:
        """The tools, which live as long as the host; it asks once."""
        raise NotImplementedError(f"{type(self).__name__} defines no create_tools")


def run(tool: Tool, input: dict[str, Any], runtime: ToolRuntime) -> ToolResult:
    """Run any tool; this is what hosts call.

    A tool may return a ToolResult, a str, None (no output) or a value that becomes JSON text; an
    iterator of str, whose pieces are emitted as they come and whose return value is the result; or,
    as an async function or generator, an awaitable or async iterator of these, run by asyncio.
    The whole output is what was emitted, followed by the result's `output`.
    """
    value = tool.execute_with_runtime(input, runtime)
    while not isinstance(value, ToolResult):
        if isinstance(value, Awaitable | AsyncIterator):
            value = _awaited(value, runtime)
        elif isinstance(value, Iterator):
            value = _streamed(value, runtime)
        else:
            value = ToolResult(_text(value))
    return value


def _text(value: object) -> str:
    if value is None or isinstance(value, str):
        return value or ""
    if isinstance(value, bytes | bytearray | memoryview):
        raise TypeError("a tool returned bytes; return text, or an Attachment that names a file")
    import msgspec

    return msgspec.json.encode(value).decode()


def _emit(piece: object, runtime: ToolRuntime) -> None:
    if not isinstance(piece, str):
        raise TypeError(f"a tool yielded {type(piece).__name__}; only str can be streamed")
    runtime.emit(piece)


def _streamed(pieces: Iterator[object], runtime: ToolRuntime) -> object:
    """Emit each piece, until the call is cancelled; the return value."""
    try:
        while not runtime.cancelled:
            try:
                piece = next(pieces)
            except StopIteration as end:
                return end.value
            _emit(piece, runtime)
        raise _cancelled()
    finally:
        if close := getattr(pieces, "close", None):
            close()  # a generator's own `finally` runs now, in this thread


def _awaited(value: Awaitable[object] | AsyncIterator[object], runtime: ToolRuntime) -> object:
    import asyncio

    async def main() -> object:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None

        def cancel() -> None:
            with suppress(RuntimeError):  # the loop has closed: there is nothing left to cancel
                loop.call_soon_threadsafe(task.cancel)

        runtime.on_cancel(cancel)
        if isinstance(value, Awaitable):
            return await value
        async for piece in value:
            _emit(piece, runtime)
        return None

    try:
        return asyncio.run(main())
    except asyncio.CancelledError:
        raise _cancelled() from None


def _cancelled() -> ExecutionFailed:
    return ExecutionFailed("cancelled", "ECANCELED")


def descriptor(tool: Tool) -> dict[str, Any]:
    """The tool as JSON-able values, in the form of the native ABI."""
    capabilities = tool.capabilities._asdict()
    effects = [effect._asdict() for effect in capabilities.pop("effects")]
    for effect in effects:
        if not effect["target"]:
            del effect["target"]
    if effects:
        capabilities["effects"] = effects
    return {
        "name": tool.name,
        "description": tool.description,
        "input_schema": dict(tool.input_schema),
        "timeout_secs": tool.timeout_secs,
        "capabilities": capabilities,
    }


_EXPECTED = "expected a MultiToolPlugin, a Tool, a list of Tools, or a module with `plugin` or tools"
_MEMBERS: dict[str, tuple[Any, str]] = {
    "name": (str, "a string that is not empty"),
    "description": (str, "a string that is not empty"),
    "input_schema": (Mapping, "a JSON Schema, as a dict"),
    "timeout_secs": (int | None, "whole seconds or None"),
    "capabilities": (ToolCapabilities, "ToolCapabilities"),
}


def tools_of(target: object) -> tuple[PluginInfo | None, list[Tool]]:
    """The tools that an entry point of the group `cortexfs.plugins` names."""
    while isinstance(target, ModuleType):  # `plugin` may be a module again
        found = [value for value in vars(target).values() if isinstance(value, Tool)]
        target = getattr(target, "plugin", found)
    if isinstance(target, type) and issubclass(target, MultiToolPlugin):
        target = target()
    if isinstance(target, MultiToolPlugin):
        info = getattr(target, "plugin_info", None)
        if not isinstance(info, PluginInfo):
            raise TypeError(f"{type(target).__name__}.plugin_info must be a PluginInfo")
        return info, _by_name(target.create_tools())
    tools = target if isinstance(target, list | tuple) else [target]
    if not tools:
        raise TypeError(f"{_EXPECTED}; found none")
    return None, _by_name(tools)


def _by_name(tools: Iterable[object]) -> list[Tool]:
    """Checked instances; of two with one name the later wins."""
    if not isinstance(tools, Iterable):
        raise TypeError(f"{_EXPECTED}; got {tools!r}")
    return list({tool.name: tool for tool in map(_checked, tools)}.values())


def _checked(tool: object) -> Tool:
    if isinstance(tool, type) and issubclass(tool, Tool):
        tool = tool()
    if not isinstance(tool, Tool):
        raise TypeError(f"{_EXPECTED}; got {tool!r}")
    for member, (kind, words) in _MEMBERS.items():
        value = getattr(tool, member, None)
        if not isinstance(value, kind) or value == "":
            raise TypeError(f"{type(tool).__name__}.{member} must be {words}, not {value!r}")
    return tool


_P = ParamSpec("_P")
_R = TypeVar("_R")


class ToolOptions(TypedDict, total=False):
    """What `@tool(...)` takes; name and description come from the function otherwise."""

    name: str
    description: str
    timeout_secs: int | None
    effects: Iterable[ToolEffect]
    emits_progress: bool
    emits_observer_text: bool
    background_safe: bool


class FunctionTool(Tool, Generic[_P, _R]):
    """A tool made of a function by `@tool`; calling it calls the function."""

    def __init__(self, function: Callable[_P, _R], **options: Unpack[ToolOptions]) -> None:
        import inspect

        self.function = function
        self.name = options.pop("name", function.__name__)
        self.description = options.pop("description", inspect.getdoc(function) or "")
        self.timeout_secs = options.pop("timeout_secs", None)
        effects = options.pop("effects", ())
        capabilities: Any = options  # what is left
        self.capabilities = ToolCapabilities(**capabilities).with_effects(effects)
        try:
            self._arguments, self._runtime = _arguments(function)
            self.input_schema = _schema(self._arguments)
            _checked(self)
        except (TypeError, NameError) as error:
            raise TypeError(f"@tool cannot make {self.name} a tool: {error}") from error

    def __call__(self, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        return self.function(*args, **kwargs)

    def execute(self, input: dict[str, Any]) -> object:
        return self.execute_with_runtime(input, MemoryRuntime(self.name))

    def execute_with_runtime(self, input: dict[str, Any], runtime: ToolRuntime) -> object:
        import msgspec

        try:
            arguments = msgspec.convert(input, self._arguments, str_keys=True)
        except msgspec.ValidationError as error:
            raise InvalidInput(_with_path(str(error))) from None
        call: Callable[..., object] = self.function
        return call(**msgspec.structs.asdict(arguments), **dict.fromkeys(self._runtime, runtime))


@overload
def tool(function: Callable[_P, _R], /) -> FunctionTool[_P, _R]: ...
@overload
def tool(**options: Unpack[ToolOptions]) -> Callable[[Callable[_P, _R]], FunctionTool[_P, _R]]: ...
def tool(function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
    """Make a tool of a typed function. Its parameters are the input; a ToolRuntime is handed in."""
    return FunctionTool(function, **options) if function else partial(FunctionTool, **options)


def _with_path(message: str) -> str:
    """msgspec's "Expected `int`, got `str` - at `$.n`" as "n: expected int, got str"."""
    what, _, where = message.replace("`", "").partition(" - at ")
    what = what[0].lower() + what[1:]
    return f"{where.replace('$.', '')}: {what}" if where else what


def _arguments(function: Callable[..., object]) -> tuple[type[msgspec.Struct], list[str]]:
    """The function's parameters as a struct, and the names of those that take the runtime."""
    import inspect

    import msgspec

    hints = get_type_hints(function, include_extras=True)
    fields: list[tuple[str, Any, Any]] = []
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise TypeError(f"the parameter {parameter} cannot be given by name")
        if name not in hints:
            raise TypeError(f"the parameter {name} needs a type annotation")
        default = msgspec.NODEFAULT if parameter.default is parameter.empty else parameter.default
        fields.append((name, _described(hints[name]), default))
    runtime = [name for name, hint, _ in fields if hint is ToolRuntime]
    fields = [field for field in fields if field[0] not in runtime]
    return msgspec.defstruct("Input", fields, kw_only=True, forbid_unknown_fields=True), runtime


def _described(hint: Any) -> Any:
    """Annotated[T, "a sentence"] as msgspec wants it."""
    import msgspec

    if get_origin(hint) is not Annotated:
        return hint
    notes = (msgspec.Meta(description=x) if isinstance(x, str) else x for x in hint.__metadata__)
    return Annotated[(hint.__origin__, *notes)]


_REF = "#/$defs/"


def _schema(struct: type[msgspec.Struct]) -> dict[str, Any]:
    import msgspec

    (top,), definitions = msgspec.json.schema_components([struct], ref_template=_REF + "{name}")
    schema: dict[str, Any] = _inlined(definitions.pop(top["$ref"].removeprefix(_REF)), definitions)
    del schema["title"]
    if _REF in str(schema):  # a type that contains itself cannot be written in place
        schema["$defs"] = definitions
    return schema


def _inlined(node: Any, definitions: Mapping[str, Any], inside: tuple[str, ...] = ()) -> Any:
    """Definitions in the place of references, as models and flags of a command line want them."""
    if isinstance(node, list):
        return [_inlined(item, definitions, inside) for item in node]
    if not isinstance(node, dict):
        return node
    name = str(node.get("$ref")).removeprefix(_REF)
    if name in definitions and name not in inside:
        inside = (*inside, name)
        node = {**definitions[name], **node}
        del node["$ref"]
    return {key: _inlined(value, definitions, inside) for key, value in node.items()}
