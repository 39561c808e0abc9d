"""The imports of plugin authors: tools, models, their results, and the runtime of a call.

This is the surface of the Rust SDK in Python, and models, which the Rust SDK lacks. It never imports the rest
of cortexfs. Every test of a plugin imports it, so it must be cheap: 17 ms over a bare interpreter. With
dataclasses, which import inspect, it took 29 ms. msgspec alone takes 29 ms: it is imported only where `@tool`
and JSON need it, and asyncio (60 ms) only where an async tool runs.
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
