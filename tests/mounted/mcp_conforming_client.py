"""The client of the official conformance suite: `ctx mcp` on a mount, as a person would use it.

    python mcp_conforming_client.py CTX... URL

The suite passes its scenario and credentials in the environment. The product knows no scenario.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from urllib.request import urlopen

ARGUMENTS = {"integer": "2", "number": "2", "string": "text", "boolean": "true"}
METADATA = "https://conformance-test.local/client-metadata.json"  # the suite knows this address


def main(*ctx: str) -> int:
    scenario = os.environ["MCP_CONFORMANCE_SCENARIO"]
    context = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT", "{}"))
    *words, url = ctx
    name = "s-" + "".join(letter if letter.isalnum() else "-" for letter in scenario)[-28:].strip("-")
    environ = os.environ | {"BROWSER": f"{sys.executable} {__file__} --browse %s"}

    def run(*more: str, input: str = "") -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [*words, "mcp", *more], capture_output=True, text=True, check=False, input=input, env=environ
        )
        print(" ".join(more), done.returncode, done.stdout, done.stderr, file=sys.stderr)
        return done

    run("add", name, "--replace", "--url", url)

    def log_in(*more: str) -> None:
        secret = context.get("client_secret", "")
        known = ["--client-id", context["client_id"], "--client-secret"] if secret else []
        run("login", name, "--client-metadata", METADATA, *known, *more, input=secret)

    if scenario.startswith("auth/"):
        log_in()
    seen = run("inspect", name, "--json")
    for tool in json.loads(seen.stdout)["tools"] if seen.returncode == 0 else ():
        wanted = tool["inputSchema"].get("properties", {})
        given = [f"{key}={ARGUMENTS.get(one.get('type'), 'x')}" for key, one in wanted.items()]
        called = run("call", "--yes", name, tool["name"], *given)
        if "--scope" in called.stderr and "step-up" in scenario:
            log_in("--scope", called.stderr.split("--scope ")[1].strip().strip("'"))
            run("call", "--yes", name, tool["name"], *given)
    run("remove", name)
    return 0


if __name__ == "__main__":
    if sys.argv[1] == "--browse":
        urlopen(sys.argv[2]).read()  # plays a person who agrees at once
    else:
        sys.exit(main(*sys.argv[1:]))
