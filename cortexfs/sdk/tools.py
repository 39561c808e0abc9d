"""Tools, their results, and the runtime of a call; a host finds and runs tools with this.

Rules: getters of the Rust SDK are attributes here. Builders return new values, as every value is
frozen. One tool instance serves all calls, from many threads at once. A host runs any tool through
`run` and finds a plugin's tools through `tools_of`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from types import ModuleType
from typing import Any, NamedTuple, TypeAlias

from cortexfs.sdk.effects import ExecutionScope, ToolCapabilities

Events: TypeAlias = tuple[type[tuple[Any, ...]], ...]


class Attachment(NamedTuple):
    """An image, audio, video or file that a tool made."""

    media_type: str  # image, audio, video or file
    mime_type: str
    url: str  # a local path or a URL
    caption: str | None = None
    size: int | None = None  # in bytes


class ToolResult(NamedTuple):
    """The result of a tool. An error here is for the calling model to see and correct."""

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
    """The tool could not do its work. `code` names an errno for scripts."""

    _kind = "execution failed"

    def __init__(self, message: str, code: str = "EIO") -> None:
        super().__init__(message)
        self.code = code


class InvocationContext(NamedTuple):
    """The caller of a tool, and the origin of the call."""

    tool_name: str
    session_id: str | None = None
    actor: str | None = None
    source: str | None = None  # the transport: exec, socket, agent, mcp ...
    execution_scope: ExecutionScope = ExecutionScope.FOREGROUND
    dry_run: bool = False  # report the effects and do nothing; only for tools with `dry_run_flag`

    @property
    def is_background(self) -> bool:
        return self.execution_scope == ExecutionScope.BACKGROUND

    @property
    def is_foreground(self) -> bool:
        return self.execution_scope == ExecutionScope.FOREGROUND


class ToolRuntime:
    """The host of a running tool. A host overrides the `emit` methods.

    Any thread of the tool may use it.
    """

    def __init__(self, invocation: InvocationContext, environ: Mapping[str, str] | None = None) -> None:
        self.invocation = invocation
        self.environ: Mapping[str, str] = environ or {}  # the caller's; `os.environ` is the host's
        self.cancelled = False  # the caller has left; long loops check it
        self._on_cancel: list[Callable[[], object]] = []

    def emit(self, text: str) -> None:
        """Send a piece of output now. This may block while the caller is slow to read."""

    def emit_event(self, event: tuple[Any, ...]) -> None:
        """Send a value that is no text: of a type in the tool's `events`, or an attachment between pieces of
        output."""

    def emit_progress(self, message: str) -> None:
        """Report progress."""

    def emit_observer(self, source: str | None, content: str) -> None:
        """Leave a note for the parent turn. It is never shown to the user."""

    def on_cancel(self, callback: Callable[[], object]) -> None:
        """Call `callback` once on cancel, from another thread; at once if the call was cancelled before."""
        self._on_cancel.append(callback)  # before reading `cancelled`, as cancel() uses the other order
        if self.cancelled:
            self.cancel()

    def cancel(self) -> None:
        """Cancel the call, for hosts and tests. Raises the error of the first callback that fails."""
        self.cancelled = True
        failure: Exception | None = None
        while self._on_cancel:
            try:
                callback = self._on_cancel.pop()
            except IndexError:  # another thread took the last callback
                break
            try:
                callback()
            except Exception as error:  # the other callbacks still run
                failure = failure or error
        if failure:
            raise failure


class MemoryRuntime(ToolRuntime):
    """A runtime for tests, which keeps all that the tool emits."""

    def __init__(self, tool_name: str = "test", environ: Mapping[str, str] | None = None) -> None:
        super().__init__(InvocationContext(tool_name), environ)
        self.emitted: list[str] = []
        self.events: list[tuple[Any, ...]] = []
        self.progress: list[str] = []
        self.observed: list[tuple[str | None, str]] = []

    @property
    def text(self) -> str:
        return "".join(self.emitted)

    def emit(self, text: str) -> None:
        self.emitted.append(text)

    def emit_event(self, event: tuple[Any, ...]) -> None:
        self.events.append(event)

    def emit_progress(self, message: str) -> None:
        self.progress.append(message)

    def emit_observer(self, source: str | None, content: str) -> None:
        self.observed.append((source, content))


class Tool:
    """A tool, which callers can run. Its attributes are set on the class or on the instance.

    Override `execute`, or `execute_with_runtime` to get the runtime too. Both may return any value
    that `run` accepts, and are called from several threads at once.
    """

    name: str  # lowercase with underscores; unique among all tools
    description: str  # for a model: what it does, when to use it and when not
    input_schema: Mapping[str, Any]  # JSON Schema of an object
    timeout_secs: int | None = None  # None: the host's default
    dry_run_flag: bool = False  # it accepts --dry-run, and obeys `runtime.invocation.dry_run`
    capabilities: ToolCapabilities = ToolCapabilities()
    events: Events = ()  # types of its pieces beside text (sdk/models.py)

    def facts(self) -> dict[str, Any]:
        """Returns facts of this kind of tool for the daemon, beside those of every tool."""
        return {}

    def execute(self, input: dict[str, Any]) -> object:
        raise NotImplementedError(f"{type(self).__name__} defines no execute")

    def execute_with_runtime(self, input: dict[str, Any], runtime: ToolRuntime) -> object:
        return self.execute(input)


class PluginInfo(NamedTuple):
    """The facts about a plugin; `name` is that of its manifest."""

    name: str
    version: str
    description: str


class MultiToolPlugin:
    """Several tools under one name. The class is constructed without arguments."""

    plugin_info: PluginInfo

    def create_tools(self) -> Iterable[Tool]:
        """Returns the tools, which live as long as the host. A host calls this once."""
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
            value = _awaited(value, runtime, tool.events)
        elif isinstance(value, Iterator):
            value = _streamed(value, runtime, tool.events)
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


def _emit(piece: object, runtime: ToolRuntime, events: Events) -> None:
    if isinstance(piece, events):
        runtime.emit_event(piece)
    elif isinstance(piece, str):
        runtime.emit(piece)
    else:
        words = " or ".join(("str", *(each.__name__ for each in events)))
        raise TypeError(f"a tool yielded {type(piece).__name__}; only {words} can be streamed")


def _streamed(pieces: Iterator[object], runtime: ToolRuntime, events: Events) -> object:
    """Emit each piece until the call is cancelled. Returns the return value."""
    try:
        while not runtime.cancelled:
            try:
                piece = next(pieces)
            except StopIteration as end:
                return end.value
            _emit(piece, runtime, events)
        raise _cancelled()
    finally:
        if close := getattr(pieces, "close", None):
            close()  # a generator's own `finally` runs now, in this thread


def _awaited(
    value: Awaitable[object] | AsyncIterator[object], runtime: ToolRuntime, events: Events
) -> object:
    import asyncio

    async def main() -> object:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None

        def cancel() -> None:
            with suppress(RuntimeError):  # the loop has closed, so the task has ended
                loop.call_soon_threadsafe(task.cancel)

        runtime.on_cancel(cancel)
        if isinstance(value, Awaitable):
            return await value
        async for piece in value:
            _emit(piece, runtime, events)
        return None

    runner = asyncio.Runner()
    loop = runner.get_loop()
    try:
        return runner.run(main())
    except asyncio.CancelledError:
        raise _cancelled() from None
    finally:
        try:
            runner.close()
        finally:
            # If a cancellation struck while the loop was being closed, it cannot be closed any more. Without
            # this, its finalizer would complain.
            if not loop.is_closed():
                loop._closed = True  # type: ignore[attr-defined]


def _cancelled() -> ExecutionFailed:
    return ExecutionFailed("cancelled", "ECANCELED")


def descriptor(tool: Tool) -> dict[str, Any]:
    """Returns the tool as values for JSON, in the form of the native ABI."""
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
        **({"dry_run_flag": True} if tool.dry_run_flag else {}),
        **tool.facts(),
    }


_EXPECTED = "expected a MultiToolPlugin, a Tool, a list of Tools, or a module with `plugin` or tools"
_MEMBERS: dict[str, tuple[Any, str]] = {
    "name": (str, "a string that is not empty"),
    "description": (str, "a string that is not empty"),
    "input_schema": (Mapping, "a JSON Schema, as a dict"),
    "timeout_secs": (int | None, "whole seconds or None"),
    "capabilities": (ToolCapabilities, "ToolCapabilities"),
    "dry_run_flag": (bool, "True or False"),
}


def tools_of(target: object) -> tuple[PluginInfo | None, list[Tool]]:
    """Returns the tools that an entry point of the group `cortexfs.plugins` names."""
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
    """Returns checked instances by name. Of two with one name, the later wins."""
    if not isinstance(tools, Iterable):
        raise TypeError(f"{_EXPECTED}; got {tools!r}")
    return list({tool.name: tool for tool in map(checked, tools)}.values())


def checked(tool: object) -> Tool:
    if isinstance(tool, type) and issubclass(tool, Tool):
        tool = tool()
    if not isinstance(tool, Tool):
        raise TypeError(f"{_EXPECTED}; got {tool!r}")
    for member, (kind, words) in _MEMBERS.items():
        value = getattr(tool, member, None)
        if not isinstance(value, kind) or value == "":
            raise TypeError(f"{type(tool).__name__}.{member} must be {words}, not {value!r}")
    if tool.dry_run_flag and type(tool).execute_with_runtime is Tool.execute_with_runtime:
        raise TypeError(f"{type(tool).__name__} has dry_run_flag, but no execute_with_runtime to receive it")
    return tool
