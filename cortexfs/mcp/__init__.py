"""The tools of a mount for clients of the Model Context Protocol (docs/mcp-serve.md).

Only code that serves or speaks MCP imports these modules or the `mcp` SDK, whose import costs 0.8 s.
"""
