"""ESM plugins of tests, written as the tools of a module."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cortexfs.core import hostcalls
from cortexfs.core.manifest import targets
from cortexfs.plugins.package import targets as files
from tests.shell.calling import World

PARAM = '{name: "text", type: "string", description: "A text"}'


def tool(body: str, name: str = "tool", params: str = PARAM, capabilities: str = "[]") -> str:
    """Returns the entry of a tool in `tools`. The body has `args` and `ctx`, and returns the output."""
    return f"""{{
      definition: {{name: "{name}", description: "A tool", params: [{params}], capabilities: {capabilities}}},
      async execute(args, ctx) {{
        const output = await (async () => {{ {body} }})();
        return {{toolName: "{name}", success: true, output: String(output), durationMs: 1}};
      }},
    }}"""


def source(tools: Mapping[str, str], more: str = "") -> str:
    made = ",\n".join(tool(body, name) for name, body in tools.items())
    return f"{more}\nexport const tools = [{made}];\n"


def plugin(folder: Path, text: str, name: str = "fixture", **fields: Any) -> hostcalls.Plugin:
    """Create a plugin from this source, and return it as a daemon would describe it to a host."""
    folder.mkdir(mode=0o755, exist_ok=True)
    entry = folder / "mod.ts"
    entry.write_text(text)
    entry.chmod(0o644)
    declared = files.esm(str(entry), **{"capabilities": ("tools",)} | fields)
    return hostcalls.Plugin(name, "1.0.0", targets.ESM, targets.target(declared))


def deno(world: World) -> list[int]:
    """Returns the processes that hosts of this world have started."""
    found: list[int] = []
    for host in world.pool.by_pid:
        for task in Path(f"/proc/{host}/task").iterdir():
            with contextlib.suppress(OSError):  # the thread may have just ended
                found += map(int, (task / "children").read_text().split())
    return found


def opened(path: Path, *pids: int) -> list[int]:
    """Returns those of these processes that have this file open, once for each descriptor."""
    found: list[int] = []
    for pid in pids:
        for each in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):  # the descriptor may have just been closed
                found += [pid] * (each.readlink() == path)
    return found


def tried(body: str) -> str:
    """Returns a body that returns the result of `body`, or the reason why `body` failed."""
    failed = "return `not: ${e} ${e.cause}`"
    return f"try {{ return 'got ' + await (async () => {{ {body} }})() }} catch (e) {{ {failed} }}"


def attacks(bodies: dict[str, str]) -> dict[str, str]:
    return {name: tried(body) for name, body in bodies.items()}
