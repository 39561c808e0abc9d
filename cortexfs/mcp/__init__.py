"""The tools of a mount for clients of the Model Context Protocol (docs/mcp-serve.md).

Only what serves or speaks MCP imports these modules, or the `mcp` SDK: its import costs 0.8 s.
"""
