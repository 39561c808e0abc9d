"""The place where an agent works, and as whom: in words, in variables, and as the identity of its tools'
hosts.

    told(view, cwd)                          for its model, before anything else
    environment(setup, identity, root, home) for what its tools run
    hint(identity, setup, cwd, call, tool)   of a call that failed: "" where nothing closed was in its way
    acting(world, setup, powers, ...)        the person, without powers, who sees what the mount table shows

Rules: a sentence names the path and what its user can do. Paths are taken from texts, as models and programs
write them, and are nothing but words: nobody looks whether they are there. Nothing is added to what the
person has. Of an agent that another one has started, both views count.
This file must never know what is on the disk, who is told, or what a tool is called with.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable
from typing import NamedTuple

from msgspec.structs import replace

from cortexfs.agents.permissions import NETWORK, Powers
from cortexfs.agents.ports import AgentPorts
from cortexfs.agents.setup import Setup
from cortexfs.agents.view import SECRETS, View, allowed, caps, hides, opened, view, within
from cortexfs.core.errors import Fault
from cortexfs.core.hostcalls import Identity
from cortexfs.core.manifest.mcp_server import KIND as MCP_SERVER
from cortexfs.core.registry import Object
from cortexfs.core.safe_text import escaped
from cortexfs.core.value_formats import HIDES, TAB

PATH = "/usr/local/bin:/usr/bin:/bin"
REFUSED = ("EACCES", "EPERM", "EROFS")
SAID = ("permission denied", "read-only file system")  # strerror(3), as programs print it
_WORD = re.compile(r"[\w.~/$+@{}-]{2,256}", re.ASCII)
HOMES = "/mcp@"  # in the paths of what MCP servers keep, which their hosts are shown
_NETWORK = re.compile(r"getaddrinfo|EAI_AGAIN|network|resolv|connect|fetch|socket", re.IGNORECASE)
_HOME = re.compile(r"^(?:~|\$HOME|\$\{HOME\})(?=/|$)")


class FailedCall(NamedTuple):
    """A call that failed: how, and its input and what was said of it."""

    code: str
    texts: str

    @property
    def was_refused(self) -> bool:
        said = self.texts.lower()
        return self.code in REFUSED or any(words in said for words in SAID)


def told(world: AgentPorts, setup: Setup, view: View, cwd: str) -> str:
    """Returns where the agent works, and its skills. A directory's name is not to speak to the model, so it
    is one line."""
    line = escaped(cwd).replace("\t", "\\t").replace("\n", "\\n")
    where = f"Your working directory is {line}.{f' {about}' if (about := _at_home(view)) else ''}"
    return "\n\n".join(filter(None, (where, _skills(world, setup))))


def environment(setup: Setup, identity: Identity, root: str, home: str) -> dict[bytes, bytes]:
    """Returns the variables that a tool of an agent's gets."""
    own = {"CTX_ROOT": root, "PATH": f"{PATH}:{root}/bin", "LANG": "C.UTF-8"}
    # Not for programs that would look for their settings there and be refused: git ends then.
    if home and allowed(identity.view or (), f"{home}/.gitconfig"):
        own["HOME"] = home
    if setup.path:
        own["CTX_PATH"] = ":".join(setup.path)
    if identity.scratch:
        own["TMPDIR"] = identity.scratch
    return {key.encode(): value.encode() for key, value in (own | setup.env).items()}


def hint(identity: Identity, setup: Setup, cwd: str, call: FailedCall, tool: Object | None) -> str:
    """Returns the line that a call may have missed, in a sentence: of a path or of the network for an MCP
    server, of a hidden file for any tool. A table of its own was chosen as it is."""
    is_server = tool is not None and tool.plugin_kind == MCP_SERVER
    missing = _missing(identity, setup, call) if is_server else ""
    if missing or setup.mounts:
        return missing
    return _of_hidden(identity.view or (), cwd, call, setup.place)


def _missing(identity: Identity, setup: Setup, call: FailedCall) -> str:
    """A server is a program that nobody here knows: what it says of its failure is all that there is."""
    view = identity.view or ()
    closed = (word for word in _WORD.findall(call.texts) if word.startswith("/") and HOMES not in word)
    path = next((word for word in closed if not allowed(view, word)), "") if call.was_refused else ""
    if path:
        line = TAB.join((path, path, "ro", "-"))
        why = f"{path} is not shown to {setup.place}; where a task needs it, its user writes a mount table,"
        return f"{why} {setup.place}.d/mount, that has, beside the rest: {line}"
    if not identity.network and (call.code == "EHOSTDOWN" or _NETWORK.search(call.texts)):
        why = f"{setup.place} has no network, which this server may want, to install itself, too"
        return f"{why}; a line of {setup.file} gives it: allow {setup.label} network:default connect"
    return ""


def _of_hidden(view: View, cwd: str, call: FailedCall, agent: str) -> str:
    """Returns what to say of a call where a hidden file that its texts name, or the home directory itself,
    can have refused it."""
    if not call.was_refused:
        return ""
    for word in _WORD.findall(call.texts):
        for home in _homes(view):
            path = posixpath.normpath(posixpath.join(cwd, _HOME.sub(home, word)))
            if hides(view, path):
                return _hidden(home, path, agent)
    return _at_home(view)


def _at_home(view: View) -> str:
    """Returns what is so where a home directory is shown; empty where none is."""
    for home in _homes(view):
        if allowed(view, home):
            closed = f"Hidden files in {home} are closed to agents that have no mount table of their own"
            return (
                f"{closed}, and in {home} itself they make, rename and remove nothing: work in its folders."
            )
    return ""


def _hidden(home: str, path: str, agent: str) -> str:
    why = f"{path} is hidden: without lines in {agent}.d/mount an agent sees no hidden files of {home}"
    if any(path.startswith(f"{home}/{name.rstrip('*')}") for name in SECRETS):
        return f"{why}, and keys and passwords are better shown to none."
    line = TAB.join((path, path, "ro", "-"))
    return f"{why}. Where a task needs it, its user writes a table there that has, beside the rest: {line}"


def _homes(view: View) -> list[str]:
    return [path.rstrip("/") for path, letters in view if letters == HIDES]


_ABOUT_SKILLS = "Skills: where one fits the task, read its file with fs.read first, and do as it says."
# Effects for which the default view is writable.
WRITES = frozenset({"write_file", "delete_file", "run_process"})


def acting(
    world: AgentPorts,
    setup: Setup,
    powers: Powers,
    own: Identity,
    tools: Iterable[Object],
    cwd: str,
    home: str,
) -> Identity:
    """Returns the identity of the tools' hosts. Raises EACCES where the person cannot be followed."""
    if own.is_elsewhere:
        raise Fault("EACCES", "agents do not work for callers in containers; call it from outside")
    seen = _view(world, setup, tools, cwd, home)
    return replace(
        own,
        groups=_groups(world, setup, own.groups),
        capabilities=0,
        label=powers.label,
        view=seen if own.view is None else within(seen, own.view),
        caps=tuple(dict.fromkeys((*own.caps, *world.caps, *caps(setup.mounts, home)))),
        network=own.network and powers.allows(*NETWORK),
        delegates=False,
    )


def _view(world: AgentPorts, setup: Setup, tools: Iterable[Object], cwd: str, home: str) -> View:
    kinds = {effect.kind for tool in tools for effect in tool.capabilities.effects}
    seen = view(setup.mounts, cwd, root=world.root, home=home, writable=bool(kinds & WRITES))
    for skill in filter(None, map(world.skill, setup.skills)):
        seen = opened(seen, skill.place, "r")
    return seen


def _skills(world: AgentPorts, setup: Setup) -> str:
    """Returns the paragraph about its skills, for its model; "" where it has none."""
    found = {name: world.skill(name) for name in setup.skills}
    rows = [
        f"- {name}: {one.description} ({one.path})" if one else f"- {name}: its plugin is not there now"
        for name, one in found.items()
    ]
    return "\n".join([_ABOUT_SKILLS, *rows]) if rows else ""


def _groups(world: AgentPorts, setup: Setup, own: tuple[int, ...]) -> tuple[int, ...]:
    """Returns those of the person that the agent's `.d/groups` names; all of them where it names none."""
    kept = tuple(gid for gid in own if gid in setup.groups) if setup.groups else own
    if kept != own and world.serves is not None:
        raise Fault("EACCES", "only a daemon of root can take groups from you; empty the agent's .d/groups")
    return kept
