// The official MCP client for Node.js: list the tools of a server and make calls, and print what came as JSON.
// The argument says where the server is ({command, args} or {url, token}) and what to call.
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StdioClientTransport } from "@modelcontextprotocol/sdk/client/stdio.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";

const asked = JSON.parse(process.argv[2]);
const transport = asked.url
  ? new StreamableHTTPClientTransport(new URL(asked.url), {
      requestInit: { headers: { Authorization: `Bearer ${asked.token}` } },
    })
  : new StdioClientTransport({ command: asked.command, args: asked.args, env: process.env });
const client = new Client({ name: "test", version: "1" });
await client.connect(transport);
const tools = (await client.listTools()).tools;
const results = [];
const progress = [];
for (const [name, input] of asked.calls) {
  const onprogress = (told) => progress.push(told.message);
  results.push(await client.callTool({ name, arguments: input }, undefined, { onprogress }));
}
console.log(JSON.stringify({ tools, results, progress, server: client.getServerVersion() }));
await client.close();
