"""The place where an agent works, in words and in variables, and the identity of its tools' hosts.

    description(world, setup, view, cwd)     for its model, before anything else
    environment(setup, identity, root, home) for the programs that its tools run
    hint(identity, setup, cwd, call, tool)   the closed path or network that may have failed a call, or ""
    acting(world, setup, powers, ...)        the person's identity, without powers, with the agent's view

Rules: a sentence names the path and what its user can do. Paths are taken from texts of models and programs
and are only words: no code here checks that they exist. An identity gets nothing that the person does not
have. If another agent has started this one, both views count.
This file must never know the disk, the readers of its words, or the inputs of tools.
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
MESSAGES = ("permission denied", "read-only file system")  # strerror(3), as programs print it
_WORD = re.compile(r"[\w.~/$+@{}-]{2,256}", re.ASCII)
HOMES = "/mcp@"  # in the paths of MCP servers' own files, which their hosts are shown
_NETWORK = re.compile(r"getaddrinfo|EAI_AGAIN|network|resolv|connect|fetch|socket", re.IGNORECASE)
_HOME = re.compile(r"^(?:~|\$HOME|\$\{HOME\})(?=/|$)")


class FailedCall(NamedTuple):
    """A failed call: its error code, and the text of its input, its error and its output."""

    code: str
    texts: str

    @property
    def was_refused(self) -> bool:
        text = self.texts.lower()
        return self.code in REFUSED or any(words in text for words in MESSAGES)


def description(world: AgentPorts, setup: Setup, view: View, cwd: str) -> str:
    """Returns the agent's working directory and skills, in words. A directory's name is one line, so that it
    cannot pose as text of ours."""
    line = escaped(cwd).replace("\t", "\\t").replace("\n", "\\n")
    sentence = f"Your working directory is {line}.{f' {about}' if (about := _at_home(view)) else ''}"
    return "\n\n".join(filter(None, (sentence, _skills(world, setup))))


def environment(setup: Setup, identity: Identity, root: str, home: str) -> dict[bytes, bytes]:
    """Returns the environment variables of an agent's tools."""
    own = {"CTX_ROOT": root, "PATH": f"{PATH}:{root}/bin", "LANG": "C.UTF-8"}
    # Set only if settings there may be read: programs such as git end when they are refused theirs.
    if home and allowed(identity.view or (), f"{home}/.gitconfig"):
        own["HOME"] = home
    if setup.path:
        own["CTX_PATH"] = ":".join(setup.path)
    if identity.scratch:
        own["TMPDIR"] = identity.scratch
    return {key.encode(): value.encode() for key, value in (own | setup.env).items()}


def hint(identity: Identity, setup: Setup, cwd: str, call: FailedCall, tool: Object | None) -> str:
    """Returns a sentence with the line that a call may have lacked. For an MCP server it is about a path or
    the network, else about a hidden file, unless the agent has a mount table of its own."""
    is_server = tool is not None and tool.plugin_kind == MCP_SERVER
    missing = _missing(identity, setup, call) if is_server else ""
    if missing or setup.mounts:
        return missing
    return _of_hidden(identity.view or (), cwd, call, setup.place)


def _missing(identity: Identity, setup: Setup, call: FailedCall) -> str:
    """Returns the sentence for a server, judged by its texts alone, as its program is unknown here."""
    view = identity.view or ()
    closed = (word for word in _WORD.findall(call.texts) if word.startswith("/") and HOMES not in word)
    path = next((word for word in closed if not allowed(view, word)), "") if call.was_refused else ""
    if path:
        line = TAB.join((path, path, "ro", "-"))
        why = f"{setup.place} cannot see {path}. If a task needs it, its user writes a mount table in"
        return f"{why} {setup.place}.d/mount with this line besides the others: {line}"
    if not identity.network and (call.code == "EHOSTDOWN" or _NETWORK.search(call.texts)):
        why = f"{setup.place} has no network. This server may need it, perhaps to install itself"
        return f"{why}. To allow it, add to {setup.file}: allow {setup.label} network:default connect"
    return ""


def _of_hidden(view: View, cwd: str, call: FailedCall, agent: str) -> str:
    """Returns the note for a call that a hidden file of its texts, or the home directory itself, may have
    refused."""
    if not call.was_refused:
        return ""
    for word in _WORD.findall(call.texts):
        for home in _homes(view):
            path = posixpath.normpath(posixpath.join(cwd, _HOME.sub(home, word)))
            if hides(view, path):
                return _hidden(home, path, agent)
    return _at_home(view)


def _at_home(view: View) -> str:
    """Returns the rule for home directories, in words, or an empty text if the view shows none."""
    for home in _homes(view):
        if allowed(view, home):
            closed = f"Agents without a mount table of their own cannot open hidden files in {home}"
            return f"{closed}, nor make, rename or remove anything in {home} itself; work in its folders."
    return ""


def _hidden(home: str, path: str, agent: str) -> str:
    why = f"{path} is hidden: without lines in {agent}.d/mount an agent sees no hidden files of {home}"
    if any(path.startswith(f"{home}/{name.rstrip('*')}") for name in SECRETS):
        return f"{why}; do not show keys and passwords to agents."
    line = TAB.join((path, path, "ro", "-"))
    return (
        f"{why}. If a task needs it, its user writes a table there with this line besides the others: {line}"
    )


def _homes(view: View) -> list[str]:
    return [path.rstrip("/") for path, letters in view if letters == HIDES]


_ABOUT_SKILLS = "Skills: if one fits the task, first read its file with fs.read, and do as the file says."
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
    """Returns the identity of the tools' hosts. Raises EACCES if the caller is in a container."""
    if own.is_elsewhere:
        raise Fault("EACCES", "agents do not work for callers in containers; call the agent from outside")
    paths = _view(world, setup, tools, cwd, home)
    return replace(
        own,
        groups=_groups(world, setup, own.groups),
        capabilities=0,
        label=powers.label,
        view=paths if own.view is None else within(paths, own.view),
        caps=tuple(dict.fromkeys((*own.caps, *world.caps, *caps(setup.mounts, home)))),
        network=own.network and powers.allows(*NETWORK),
        delegates=False,
    )


def _view(world: AgentPorts, setup: Setup, tools: Iterable[Object], cwd: str, home: str) -> View:
    kinds = {effect.kind for tool in tools for effect in tool.capabilities.effects}
    paths = view(setup.mounts, cwd, root=world.root, home=home, writable=bool(kinds & WRITES))
    for skill in filter(None, map(world.skill, setup.skills)):
        paths = opened(paths, skill.place, "r")
    return paths


def _skills(world: AgentPorts, setup: Setup) -> str:
    """Returns the paragraph about the agent's skills for its model, or an empty text without skills."""
    found = {name: world.skill(name) for name in setup.skills}
    rows = [
        f"- {name}: {each.description} ({each.path})" if each else f"- {name}: its plugin is not loaded now"
        for name, each in found.items()
    ]
    return "\n".join([_ABOUT_SKILLS, *rows]) if rows else ""


def _groups(world: AgentPorts, setup: Setup, own: tuple[int, ...]) -> tuple[int, ...]:
    """Returns the person's groups that the agent's `.d/groups` names, or all of them if it names none."""
    groups = tuple(gid for gid in own if gid in setup.groups) if setup.groups else own
    if groups != own and world.serves is not None:
        raise Fault("EACCES", "only a daemon of root can take groups from you; empty the agent's .d/groups")
    return groups
