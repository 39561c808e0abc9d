"""`@tool`: a typed function as a tool, its schema from its annotations.

msgspec is imported where it is needed, as it would double the cost of importing the SDK.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Generic,
    ParamSpec,
    TypedDict,
    TypeVar,
    Unpack,
    get_origin,
    get_type_hints,
    overload,
)

from cortexfs.sdk.effects import ToolCapabilities, ToolEffect
from cortexfs.sdk.tools import InvalidInput, MemoryRuntime, Tool, ToolRuntime, checked

if TYPE_CHECKING:
    import msgspec

_P = ParamSpec("_P")
_R = TypeVar("_R")


class ToolOptions(TypedDict, total=False):
    """The options of `@tool(...)`; name and description come from the function otherwise."""

    name: str
    description: str
    timeout_secs: int | None
    dry_run_flag: bool
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
        self.dry_run_flag = options.pop("dry_run_flag", False)
        effects = options.pop("effects", ())
        capabilities: Any = options  # the other options
        self.capabilities = ToolCapabilities(**capabilities).with_effects(effects)
        try:
            self._arguments, self._runtime = _arguments(function)
            self.input_schema = _schema(self._arguments)
            if self.dry_run_flag and not self._runtime:
                raise TypeError("dry_run_flag needs a parameter of type ToolRuntime, which tells of dry runs")
            if not self.description:
                raise TypeError("it needs a docstring, or description=...: a model reads what it does")
            checked(self)
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
            # "Expected `int`, got `str` - at `$.n`" becomes "n: expected int, got str".
            message, _, path = str(error).replace("`", "").partition(" - at ")
            message = message[0].lower() + message[1:]
            raise InvalidInput(f"{path.replace('$.', '')}: {message}" if path else message) from None
        call: Callable[..., object] = self.function
        return call(**msgspec.structs.asdict(arguments), **dict.fromkeys(self._runtime, runtime))


@overload
def tool(function: Callable[_P, _R], /) -> FunctionTool[_P, _R]: ...
@overload
def tool(**options: Unpack[ToolOptions]) -> Callable[[Callable[_P, _R]], FunctionTool[_P, _R]]: ...
def tool(function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
    """Make a tool of a typed function. Its parameters are the input; a parameter may take the ToolRuntime."""
    return FunctionTool(function, **options) if function else partial(FunctionTool, **options)


def _arguments(function: Callable[..., object]) -> tuple[type[msgspec.Struct], list[str]]:
    """Returns the function's parameters as a struct, and the names of those that take the runtime."""
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
        fields.append((name, _msgspec_hint(hints[name]), default))
    runtime = [name for name, hint, _ in fields if hint is ToolRuntime]
    fields = [field for field in fields if field[0] not in runtime]
    return msgspec.defstruct("Input", fields, kw_only=True, forbid_unknown_fields=True), runtime


def _msgspec_hint(hint: Any) -> Any:
    """Returns Annotated[T, "a sentence"] in the form that msgspec takes."""
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
    if _REF in str(schema):  # a recursive type cannot be written in place
        schema["$defs"] = definitions
    return schema


def _inlined(node: Any, definitions: Mapping[str, Any], inside: tuple[str, ...] = ()) -> Any:
    """Replace references by their definitions, which models and command lines need."""
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
