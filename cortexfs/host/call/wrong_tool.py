"""A tool that its plugin describes wrongly: the tree lists it with the reason, and no call of it runs.

Rules: one wrong tool costs that tool, and not the plugin (abi.md 11.35).
This file must never know how a tool is described.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

import msgspec

from cortexfs import sdk
from cortexfs.core.errors import Fault
from cortexfs.host.call.validation import Validator

T = TypeVar("T")


class WrongTool(sdk.Tool):
    def __init__(self, name: str, why: str) -> None:
        self.name = name
        self.description = self._why = why
        self.input_schema = {}

    def facts(self) -> dict[str, Any]:
        return {"fault": self._why}

    def execute(self, input: dict[str, Any]) -> sdk.ToolResult:
        raise sdk.ExecutionFailed(self._why, "EPROTO")


def sound(descriptions: Iterable[Any], type_: type[T]) -> Iterator[T | WrongTool]:
    """Yields each tool of a plugin as an object of `type_`, or a WrongTool for each wrong one."""
    for description in descriptions:
        try:
            yield msgspec.convert(description, type_)
        except msgspec.ValidationError as error:
            name = description.get("name") if isinstance(description, dict) else None
            yield WrongTool(name if isinstance(name, str) else "a tool", f"it is not described: {error}")


def schema_fault(tool: sdk.Tool) -> str:
    """Returns why the schema is wrong; "" if it is right. No input is checked, as that may take for ever."""
    try:
        Validator(tool.input_schema).compile()
    except Fault as fault:
        return fault.message
    return ""
