"""Clients by other authors, in their own environment: lists a server's tools, calls them, and prints the
results as JSON. The first argument is the client. The second has the place of the server ({command, args,
env} or {url, token}), and the calls.
"""

import asyncio
import json
import sys
from typing import Any


async def fastmcp(asked: dict[str, Any]) -> dict[str, Any]:
    from fastmcp import Client
    from fastmcp.client.transports import StdioTransport, StreamableHttpTransport

    if "url" in asked:
        transport = StreamableHttpTransport(asked["url"], auth=asked["token"])
    else:
        transport = StdioTransport(asked["command"], asked["args"], env=asked["env"])
    async with Client(transport) as client:
        tools = [tool.name for tool in await client.list_tools()]
        results = []
        for name, input in asked["calls"]:
            said = await client.call_tool(name, input, raise_on_error=False)
            results.append([said.is_error, [part.text for part in said.content if part.type == "text"]])
    return {"tools": tools, "results": results}


async def langchain(asked: dict[str, Any]) -> dict[str, Any]:
    from langchain_mcp_adapters.client import MultiServerMCPClient

    if "url" in asked:
        headers = {"Authorization": f"Bearer {asked['token']}"}
        place = {"transport": "streamable_http", "url": asked["url"], "headers": headers}
    else:
        place = {"transport": "stdio"} | {key: asked[key] for key in ("command", "args", "env")}
    client = MultiServerMCPClient({"ctx": place})
    tools = {tool.name: tool for tool in await client.get_tools()}
    results = []
    for name, input in asked["calls"]:
        said = await tools[name].ainvoke(input)  # the model gets a failure as text too
        texts = [said] if isinstance(said, str) else [part["text"] for part in said]
        results.append(["ENOENT" in texts[0], texts])
    return {"tools": [*tools], "results": results}


print(json.dumps(asyncio.run(globals()[sys.argv[1]](json.loads(sys.argv[2])))))
