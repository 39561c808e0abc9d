"""The imports of plugin authors: tools, models, their results, and the runtime that they meet.

The surface of the Rust SDK, in Python, and models, which it has not. It must never import the rest of
cortexfs: that it does not is what makes it an SDK. Importing it is on the way of every plugin's tests, so it
costs 17 ms over a bare interpreter. With dataclasses, which import inspect, it took 29 ms. msgspec alone
takes 29 ms: it is imported where `@tool` and JSON need it, and asyncio (60 ms) where an async tool runs.
"""

from __future__ import annotations

from cortexfs.sdk.effects import (
    DryRunSupport,
    EffectConfirmation,
    EffectReversibility,
    ExecutionScope,
    ToolCapabilities,
    ToolEffect,
    ToolEffectKind,
)
from cortexfs.sdk.function import FunctionTool, ToolOptions, tool
from cortexfs.sdk.models import (
    Model,
    ModelMedia,
    ModelMessage,
    ModelRequest,
    OfferedTool,
    Reasoning,
    ToolCall,
    Usage,
)
from cortexfs.sdk.tools import (
    Attachment,
    ExecutionFailed,
    InvalidInput,
    InvocationContext,
    MemoryRuntime,
    MultiToolPlugin,
    PluginInfo,
    Tool,
    ToolError,
    ToolResult,
    ToolRuntime,
    descriptor,
    run,
    tools_of,
)

SDK_VERSION = "1.6.9"  # the Rust SDK whose surface this is
NATIVE_ABI_VERSION = 1

__all__ = [
    "NATIVE_ABI_VERSION",
    "SDK_VERSION",
    "Attachment",
    "DryRunSupport",
    "EffectConfirmation",
    "EffectReversibility",
    "ExecutionFailed",
    "ExecutionScope",
    "FunctionTool",
    "InvalidInput",
    "InvocationContext",
    "MemoryRuntime",
    "Model",
    "ModelMedia",
    "ModelMessage",
    "ModelRequest",
    "MultiToolPlugin",
    "OfferedTool",
    "PluginInfo",
    "Reasoning",
    "Tool",
    "ToolCall",
    "ToolCapabilities",
    "ToolEffect",
    "ToolEffectKind",
    "ToolError",
    "ToolOptions",
    "ToolResult",
    "ToolRuntime",
    "Usage",
    "descriptor",
    "run",
    "tool",
    "tools_of",
]
