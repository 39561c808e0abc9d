"""MCP servers for an agent: the policy lines that their tools need besides their own, and if these exist.

Rules: network access belongs to the whole agent, and not to one server. So it is granted if no other tool of
the agent could use it. Else its line is only shown.
This file must never know how an agent is made.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Collection, Iterator

from msgspec.structs import replace

from cortexfs.agents.permissions import ASKED
from cortexfs.agents.view import allowed, home_of, view
from cortexfs.cli import mounts, objects, output
from cortexfs.cli.agent import policy_facts
from cortexfs.cli.daemons import places_at
from cortexfs.core.errors import Fault
from cortexfs.core.manifest.mcp_server import PREFIX
from cortexfs.core.mcp_session import OBJECT
from cortexfs.core.policy import rules
from cortexfs.core.policy.confirming import CallerKind
from cortexfs.core.policy.decision import ALLOW, DENY, LayerAnswer, PolicyCaller, PolicyQuery, Thing, decide
from cortexfs.core.policy.risk import RatedTool, effects_of
from cortexfs.core.policy.rules import Rule
from cortexfs.plugins.mcp_servers import PATH, Servers

_ORIGIN = f"plugin:{PREFIX}"
_REACHING = frozenset({"run_process", "network_request", "delegate_work"})


def is_of_server(root: str, tool: str) -> bool:
    with contextlib.suppress(Fault, OSError):
        return objects.control(f"{root}/tool/{tool}", "origin").startswith(_ORIGIN)
    return False


def is_for_models(root: str, tool: str) -> bool:
    """Returns False for the object of a server itself, which is for people and programs."""
    return not tool.endswith(f".{OBJECT}") or not is_of_server(root, tool)


def reason(root: str, pattern: str) -> str:
    """Returns the end of the sentence "no tool fits", if the pattern names a server that is not there yet."""
    server = pattern.partition(".")[0]
    broken = mounts.by_name(mounts.facts(mounts.status_text(root)), "broken plugin")
    why = broken.get(f"{PREFIX}{server}", "")
    return f"; the MCP server {server} has none now: {why}" if why else ""


def network_line(root: str, tools: Collection[str], label: str) -> str:
    """Returns the policy line that lets servers use the network, or nothing if they are not to use it."""
    if not any(is_of_server(root, tool) for tool in tools):
        return ""
    line = Rule(label, "network", "default", "connect").text
    others = [tool for tool in tools if not is_of_server(root, tool)]
    if reaching := [tool for tool in others if _reaches(root, tool)]:
        why = f"would have it by the same line of its policy: {line}"
        output.say(f"its MCP servers have no network, as {reaching[0]} {why}")
        return ""
    output.say(f"its MCP servers may use the network, also to install themselves: {line}")
    return f"{line}\n"


def _reaches(root: str, tool: str) -> bool:
    try:
        effects = effects_of(objects.control(f"{root}/tool/{tool}", "effects"))
    except (Fault, OSError):  # the tool does not exist yet
        return True
    return any(effect.kind in _REACHING for effect in effects)


def layers(root: str, query: PolicyQuery, config: str | None) -> Iterator[LayerAnswer]:
    """Yields the answers of the layers behind policy for an agent's call: its server, the server's program,
    the network, and the requests that the server may make."""
    caller, thing = query.caller, query.thing
    if caller.kind is not CallerKind.AGENT or thing.class_ != "tool" or not is_of_server(root, thing.name):
        return
    name = objects.control(f"{root}/tool/{thing.name}", "origin").split("@")[0].removeprefix(_ORIGIN).strip()
    facts = mounts.facts(mounts.status_text(root))
    broken = mounts.by_name(facts, "broken plugin").get(f"{PREFIX}{name}", "")
    yield LayerAnswer("MCP server", "broken" if broken else "pass", broken or f"{name} is loaded", "")
    if program := _program(root, name, config):
        yield _program_layer(root, caller, program)
    rule = rules.find(caller.rules, caller.label, "network", "default", "connect")
    line = Rule(caller.label, "network", "default", "connect").text
    yield LayerAnswer(
        "network",
        "allow" if rule else "closed",
        f"its policy says: {line}" if rule else f"a server that uses the network needs the line: {line}",
        rule.where if rule else caller.file,
    )
    yield from _asks(f"{name}.{OBJECT}", policy_facts.thing(root, f"tool/{name}.{OBJECT}"), query)


def _asks(server: str, itself: Thing, query: PolicyQuery) -> Iterator[LayerAnswer]:
    """Yields a row for each request that the server may make of its client, by the object of the server."""
    for permission, layer in ((rules.SAMPLE, "sampling"), (rules.ROOTS, "roots")):
        thing = replace(itself, tool=RatedTool(server, (ASKED[permission],), builtin=True))
        decision = decide(replace(query, thing=thing, permission=permission))
        why = decision.reason.split(": ", 1)[1]
        yield LayerAnswer(layer, ALLOW if decision.allowed else DENY, why, decision.rule)


def _program(root: str, name: str, config: str | None) -> str:
    """Returns the path of a server's program; empty if it has none, or if this user may not know it."""
    with contextlib.suppress(Fault, OSError):
        where = places_at(root, directory=config)
        server = Servers(where.config, where.state).read(name)
        return shutil.which(server.command, path=server.env.get("PATH", os.environ.get("PATH", PATH))) or ""
    return ""


def _program_layer(root: str, caller: PolicyCaller, program: str) -> LayerAnswer:
    home = home_of(os.path.expanduser("~"))
    here, paths, where = os.getcwd(), (program, os.path.realpath(program)), f"{caller.name}.d/mount"

    def closed_in(cwd: str) -> str:
        agent_view = view(caller.mounts, cwd, root=root, home=home, writable=False)
        return next((path for path in paths if "x" not in allowed(agent_view, path)), "")

    if not (closed := closed_in(here)):
        only = f", but only where the agent works in {here}" if closed_in("/") else ""
        return LayerAnswer("program", "pass", f"{program} is shown{only}", where)
    line = "\t".join((closed, closed, "ro", "-"))
    return LayerAnswer("program", "closed", f"add to the mount table: {line}", where)
