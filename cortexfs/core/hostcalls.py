"""The messages of daemon, fork server and hosts to each other, as values.

Two channels. A host's control socket (SOCK_SEQPACKET) carries one-byte packets b"c", each with the
call's own stream socket and, but for enclosed hosts, the caller's working directory as SCM_RIGHTS; that
stream then speaks
core/wire.py and begins with one `Request`. The fork server's control socket (SOCK_SEQPACKET) takes
`Spawn` packets and answers with `HostStart` and, later, `HostExit`; as whom hosts may act it learns from
connections alone (`Meet`).
A call has a socket of its own so that one slow reader never holds another up.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, TypeAlias

import msgspec

from cortexfs.core.errors import Fault
from cortexfs.core.mcp_session import ELICITATION

# A name that a manifest may list in inherit_env: the caller's working directory, as the child's is its own.
CALLER_DIRECTORY = "CORTEXFS_CWD"
# Plugin.kind of a library, of a module for Deno, and of one of WebAssembly.
NATIVE, ESM, WASM = "native", "esm", "wasm"
# Of no plugin: a host that makes requests to the providers of its user's own (host/net/exchange.py).
EXCHANGE = "exchange"
# Of an object of another machine: its host is the link to the team (team/remote_objects.py).
TEAM = "team"


class Invocation(msgspec.Struct, frozen=True, array_like=True):
    """The seed's InvocationContext, as far as the daemon knows it."""

    tool_name: str
    session_id: str | None = None
    actor: str | None = None
    source: str | None = None
    background: bool = False


class CallRequest(msgspec.Struct, frozen=True, array_like=True, tag="call"):
    """Run a tool or model. Either `args` (argv, and standard input when wanted) or `input` (JSON) is set."""

    run: str
    invocation: Invocation
    args: list[bytes] | None
    input: bytes | None
    umask: int
    environment: dict[bytes, bytes]
    directory: str = ""  # where to work, when no descriptor of it comes along
    answers: tuple[str, ...] = ()  # the methods of the ToolQuestions that somebody takes


class ShownCallRequest(CallRequest, frozen=True, array_like=True, tag="shown"):
    """A call whose input is shown to the daemon (wire.INPUT), which may change it, before the tool runs."""


class ToolQuestion(msgspec.Struct, frozen=True, omit_defaults=True):
    """A question of a running tool's to the person for whom it runs: a form, or an address to be opened. What
    else an MCP server asks is here as the protocol has it, by its method."""

    message: str = ""
    schema: dict[str, Any] | None = None
    url: str = ""
    method: str = ELICITATION
    params: dict[str, Any] = {}


class ToolAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    content: dict[str, Any] | None = None  # None: it is declined
    refused: str = ""  # why, for who asks


class Describe(msgspec.Struct, frozen=True, array_like=True, tag="describe"):
    """Answer with the plugin's tools, as DESCRIPTORS; not before they are others than those of a `mark`."""

    unlike: str = ""


def mark(descriptors: bytes) -> str:
    """Returns a text that differs from that of any other answer."""
    return _digest(descriptors)


def _digest(data: bytes) -> str:
    import hashlib  # whose OpenSSL takes longer to load than all of this

    return hashlib.sha256(data).hexdigest()


class Enter(msgspec.Struct, frozen=True, array_like=True, tag="enter"):
    """Say whether this caller may have that working directory: done, or a fault."""

    path: str


class Follow(msgspec.Struct, frozen=True, array_like=True, tag="follow"):
    """Answer with these paths, all links followed, as DESCRIPTORS: a JSON list."""

    paths: list[str]


class Reset(msgspec.Struct, frozen=True, array_like=True, tag="reset"):
    """Go on with the settings of this target, which is the plugin's but for them: done, or a fault."""

    target: str


class Converse(msgspec.Struct, frozen=True, array_like=True, tag="converse"):
    """Talk to an agent of another machine as on its socket. What follows are its lines: from here as STDIN,
    which is empty at its end, and from there as they are."""


Request: TypeAlias = CallRequest | ShownCallRequest | Describe | Enter | Follow | Reset


class Effect(msgspec.Struct, frozen=True, omit_defaults=True):
    """A declared side effect; the words are the seed's (sdk.ToolEffect)."""

    kind: str
    reversibility: str
    confirmation: str
    dry_run: str
    target: str = ""


class Capabilities(msgspec.Struct, frozen=True):
    emits_progress: bool = False
    emits_observer_text: bool = False
    background_safe: bool = False
    effects: tuple[Effect, ...] = ()


class ModelFacts(msgspec.Struct, frozen=True):
    """The facts of a model beside those of every tool."""

    cap: tuple[str, ...] = ()
    limit: int | None = None  # tokens


class Descriptor(msgspec.Struct, frozen=True):
    """A tool, or a model, as its plugin describes it; the same JSON as the native ABI's descriptor."""

    name: str
    description: str
    input_schema: dict[str, Any]
    timeout_secs: int | None = None
    capabilities: Capabilities = Capabilities()
    model: ModelFacts | None = None  # of a model
    command: dict[str, Any] | None = None  # of a command of `cortex`: as a manifest.json declares it
    dry_run_flag: bool = False  # it has opted in to dry runs, whatever its effects say of them
    fault: str = ""  # why nobody can call it


class Sandbox(msgspec.Struct, frozen=True, array_like=True):
    """The claims of a plugin's manifest about what it does not do: its hosts cannot, whoever calls. Where
    there is one, it has none of root's powers either."""

    view: tuple[tuple[str, str], ...] | None = None  # as that of an identity
    network: bool = True
    is_filtered: bool = False  # whether the calls of linux/seccomp.py are refused
    memory_bytes: int | None = None  # beyond what an empty host has
    cpu_seconds: int | None = None  # of one host

    @property
    def confines(self) -> bool:
        return self.view is not None or not self.network or self.is_filtered


class Plugin(msgspec.Struct, frozen=True, array_like=True):
    """The code that a host is to hold. kind "python": `target` is "module:attribute"."""

    name: str
    version: str
    kind: str
    target: str
    path: str = ""  # a directory to put first on sys.path; empty for installed packages
    sandbox: Sandbox | None = None
    keeps: str = ""  # a directory with one for each user (host/call/plugin_state.py); empty: none
    files: str = ""  # a hash that is another one when they are; empty: nobody has looked at them
    hooks: tuple[str, ...] = ()  # what it is asked and told (core/hooks.py)
    trusted: bool = False  # whether its publisher is, so that a dry run of its tools is believed
    rights: tuple[Effect, ...] = ()  # what its process may do, whatever its tools say that they do


# The label of who describes a plugin: a host of its own, and closed to others of its uid.
DESCRIBER = "describer"


class Identity(msgspec.Struct, frozen=True, array_like=True):
    """The identity of a host: everything that decides what its code can reach, and so the pool's key."""

    uid: int
    gid: int
    groups: tuple[int, ...]
    capabilities: int = 0  # a bit mask as in CapEff
    # Inode numbers of /proc/PID/ns/{user,mnt,pid,net,ipc,uts,cgroup}; empty: the daemon's own.
    namespaces: tuple[int, ...] = ()
    root: tuple[int, int] = (0, 0)  # mount id and inode of a changed root; zeroes: unchanged
    label: str = ""  # the agent ("agent/coder") whose powers calls from inside it have, and no more
    depth: int = 0  # how many runs it is nested in
    # What it may open, by path, with what of "rwx", and what that hides (value_formats.HIDES); all else is
    # closed. None: it is not confined.
    view: tuple[tuple[str, str], ...] | None = None
    caps: tuple[tuple[str, str], ...] = ()  # paths, with what of "rwx" is the most that a view gives there
    network: bool = True  # whether it may have network sockets
    delegates: bool = False  # whether it is a tool that starts agents, about which was decided as such
    unheard: bool = False  # whether it is inside of a plugin with hooks: nobody is told of what it calls
    variables: str = ""  # a hash of the environment, where that decides (of_call)
    call: str = ""  # the one call of an agent for which it is a host, whose programs make nested calls
    # Of what a script of a client runs: patterns of the tools that it may run, none for all. None: of others.
    script: tuple[str, ...] | None = None
    scratch: str = ""  # a folder that is made for it, and open to it (host/call/plugin_state.py)

    @property
    def is_elsewhere(self) -> bool:
        """Returns True where it is in other namespaces than the daemon, or below another root. A host needs
        descriptors of the caller to get there."""
        return bool(self.namespaces) or self.root != (0, 0)


def of_call(identity: Identity, environment: Mapping[bytes, bytes]) -> Identity:
    """The identity whose host serves a call of a library with this environment, which is that of its process:
    nobody may change it under its threads (getenv(3)). A call with other variables is another host's."""
    if not environment:
        return identity
    said = b"\0".join(b"%b=%b" % pair for pair in sorted(environment.items()))
    return msgspec.structs.replace(identity, variables=_digest(said))


def is_enclosed(plugin: Plugin, identity: Identity) -> bool:
    """Returns whether a host has mounts of its own. It gets no descriptor of a directory: through that, files
    could be changed by way of the caller's mounts (host/confine/readonly_mounts.py)."""
    return identity.view is not None or (plugin.sandbox is not None and plugin.sandbox.view is not None)


NOBODY = 65534
# As whom plugins are described under root: nobody.
DESCRIBING = Identity(NOBODY, NOBODY, (), label=DESCRIBER)


class HostLimits(msgspec.Struct, frozen=True, array_like=True):
    memory_bytes: int
    processes: int
    open_files: int


# A Spawn's bytes: 320 KiB of them are the 65,536 groups that a caller may have.
MAX_SPAWN = 512 << 10


class Meet(msgspec.Struct, frozen=True, array_like=True, tag="meet"):
    """Learn who is at the other end of a connection, the only right, and know them by that number."""

    number: int


class Met(msgspec.Struct, frozen=True, array_like=True, tag="met"):
    """They have been looked at."""

    number: int


class Forget(msgspec.Struct, frozen=True, array_like=True, tag="part"):
    """Know them no more."""

    number: int


class Spawn(msgspec.Struct, frozen=True, array_like=True, tag="spawn"):
    """Start a host. Rights: its control socket; then, where `met` is 0, the connection of whoever calls, from
    which the fork server reads as whom a host may act. `identity` may be less than that, and never more."""

    host: int
    plugin: Plugin
    identity: Identity
    limits: HostLimits
    device: int = 0  # of the daemon's mount, by which host/confine/socket_gate.py knows its objects
    met: int = 0


class KillHost(msgspec.Struct, frozen=True, array_like=True, tag="kill"):
    """Kill a host, also one that is starting; its end is told as any other is."""

    host: int


ToForkServer: TypeAlias = Meet | Forget | Spawn | KillHost


class HostStart(msgspec.Struct, frozen=True, array_like=True, tag="spawned"):
    """The host runs. A `fault` says why it does not."""

    host: int
    pid: int
    fault: tuple[str, str] | None = None


class HostExit(msgspec.Struct, frozen=True, array_like=True, tag="exited"):
    host: int
    status: int  # as os.waitstatus_to_exitcode: negative for a signal


FromForkServer: TypeAlias = HostStart | HostExit | Met


class CallOutcome(NamedTuple):
    """The end of a call of a tool."""

    output: str
    fault: Fault | None = None
    missing: int = 0  # bytes of the output that were not kept
