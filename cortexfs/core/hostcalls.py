"""The messages of daemon, fork server and hosts to each other, as values.

There are two channels. A host's control socket (SOCK_SEQPACKET) carries one-byte packets b"c". Each has as
SCM_RIGHTS the call's own stream socket and, except for enclosed hosts, the caller's working directory. The
stream carries core/wire.py, and begins with one `Request`. The fork server's control socket (SOCK_SEQPACKET)
takes `Spawn` packets, and answers with `HostStart` and, later, `HostExit`. It learns only from connections
(`Meet`) for which users hosts may act.
A call has a socket of its own so that one slow reader never holds another up.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple, TypeAlias

import msgspec

from cortexfs.core.errors import Fault
from cortexfs.core.mcp_session import ELICITATION

# A name that a manifest may list in inherit_env: the caller's working directory, as the child's is its own.
CALLER_DIRECTORY = "CORTEXFS_CWD"
# Plugin.kind of a library, of a module for Deno, and of a module of WebAssembly.
NATIVE, ESM, WASM = "native", "esm", "wasm"
# Plugin.kind without a plugin: its host makes requests to its user's own providers (host/net/exchange.py).
EXCHANGE = "exchange"
# Plugin.kind of another machine's object, whose host is the link to the team (team/remote_objects.py).
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
    directory: str = ""  # the working directory, when no descriptor of it comes along
    answers: tuple[str, ...] = ()  # the methods of the ToolQuestions that will be answered


class ShownCallRequest(CallRequest, frozen=True, array_like=True, tag="shown"):
    """A call whose input is shown to the daemon (wire.INPUT), which may change it, before the tool runs."""


class ToolQuestion(msgspec.Struct, frozen=True, omit_defaults=True):
    """A question of a running tool to the person for whom it runs: a form, or an address to be opened. Other
    questions of an MCP server have the protocol's `method` and `params`."""

    message: str = ""
    schema: dict[str, Any] | None = None
    url: str = ""
    method: str = ELICITATION
    params: dict[str, Any] = {}


class ToolAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    content: dict[str, Any] | None = None  # None: the question was declined
    refused: str = ""  # the reason of a refusal, for the tool


class Describe(msgspec.Struct, frozen=True, array_like=True, tag="describe"):
    """Answer with the plugin's tools, as DESCRIPTORS, once their `mark` differs from `unlike`."""

    unlike: str = ""


def mark(data: bytes) -> str:
    """Returns a digest: an answer to Describe, or an environment, has another digest than all others."""
    import hashlib  # imported here, as its OpenSSL takes longer to load than this whole module

    return hashlib.sha256(data).hexdigest()


class Enter(msgspec.Struct, frozen=True, array_like=True, tag="enter"):
    """Answer with done if this caller may have that working directory, else with a fault."""

    path: str


class Follow(msgspec.Struct, frozen=True, array_like=True, tag="follow"):
    """Answer with a JSON list of these paths, all links followed, as DESCRIPTORS."""

    paths: list[str]


class Reset(msgspec.Struct, frozen=True, array_like=True, tag="reset"):
    """Go on with the settings of this target, which differs from the plugin's only in them. The answer is
    done, or a fault."""

    target: str


class Converse(msgspec.Struct, frozen=True, array_like=True, tag="converse"):
    """Talk to an agent of another machine as on its socket. The socket's lines follow. Lines to the agent are
    STDIN, which ends with an empty one; lines from the agent come without a header."""


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


class Medium(msgspec.Struct, frozen=True):
    """An attachment, as wire.MEDIA and the native ABI have it."""

    media_type: str
    mime_type: str
    url: str
    caption: str | None = None
    size: Annotated[int, msgspec.Meta(ge=0)] | None = None


class ModelFacts(msgspec.Struct, frozen=True):
    """The facts that a model has beside those of every tool."""

    cap: tuple[str, ...] = ()
    limit: int | None = None  # tokens


class Descriptor(msgspec.Struct, frozen=True):
    """A tool or model, as its plugin describes it. Its JSON is that of the native ABI's descriptor."""

    name: str
    description: str
    input_schema: dict[str, Any]
    timeout_secs: int | None = None
    capabilities: Capabilities = Capabilities()
    model: ModelFacts | None = None  # only models have it
    command: dict[str, Any] | None = None  # only commands of `cortex` have it: as a manifest.json declares it
    dry_run_flag: bool = False  # the tool has opted in to dry runs, whatever its effects declare about them
    fault: str = ""  # the reason why the tool cannot be called


class Sandbox(msgspec.Struct, frozen=True, array_like=True):
    """The limits that a plugin's manifest claims to keep. They are enforced on its hosts, whoever calls.
    A host with a sandbox has none of root's powers either."""

    view: tuple[tuple[str, str], ...] | None = None  # as Identity.view
    network: bool = True
    is_filtered: bool = False  # whether the system calls of linux/seccomp.py are refused
    memory_bytes: int | None = None  # in addition to the memory of an empty host
    cpu_seconds: int | None = None  # for one host

    @property
    def confines(self) -> bool:
        return self.view is not None or not self.network or self.is_filtered


class Plugin(msgspec.Struct, frozen=True, array_like=True):
    """The code that a host runs. For the kind "python", `target` is "module:attribute"."""

    name: str
    version: str
    kind: str
    target: str
    path: str = ""  # a directory to put first on sys.path; empty for installed packages
    sandbox: Sandbox | None = None
    keeps: str = ""  # a directory with a subdirectory for each user (host/call/plugin_state.py); empty: none
    files: str = ""  # a hash that changes when the plugin's files do; empty: the files were not hashed
    hooks: tuple[str, ...] = ()  # its stages of middleware and its events (core/hooks.py)
    trusted: bool = False  # whether its publisher is trusted, so that a dry run of its tools is believed
    rights: tuple[Effect, ...] = ()  # the effects that its process may have, whatever its tools declare


# The label of a host that describes a plugin. It serves nothing else, and is closed to others of its uid.
DESCRIBER = "describer"


class Identity(msgspec.Struct, frozen=True, array_like=True):
    """The identity of a host: all that decides what its code can reach. So it is the pool's key."""

    uid: int
    gid: int
    groups: tuple[int, ...]
    capabilities: int = 0  # a bit mask as in CapEff
    # Inode numbers of /proc/PID/ns/{user,mnt,pid,net,ipc,uts,cgroup}; empty: the daemon's own.
    namespaces: tuple[int, ...] = ()
    root: tuple[int, int] = (0, 0)  # mount id and inode of a changed root; zeroes: unchanged
    label: str = ""  # the agent ("agent/coder") to whose powers calls from inside the host are limited
    depth: int = 0  # the number of runs in which it is nested
    # The paths that it may open, each with letters of "rwx" or with HIDES (core/value_formats.py). All other
    # paths are closed. None: it is not confined.
    view: tuple[tuple[str, str], ...] | None = None
    caps: tuple[tuple[str, str], ...] = ()  # paths, each with the letters of "rwx" that no view exceeds there
    network: bool = True  # whether it may have network sockets
    delegates: bool = False  # whether it is a tool that starts agents, and was allowed as one
    unheard: bool = False  # whether it is inside of a plugin with hooks: its calls are reported to no plugin
    variables: str = ""  # a hash of the environment, for the hosts that need one (of_call)
    call: str = ""  # the one call of an agent that the host serves, whose programs make nested calls
    # For programs of a client's script: patterns of tools that they may run, () for all. None: other hosts.
    script: tuple[str, ...] | None = None
    scratch: str = ""  # a folder that is created for it, and open to it (host/call/plugin_state.py)

    @property
    def is_elsewhere(self) -> bool:
        """Returns True if the caller is in other namespaces than the daemon, or below another root. A host
        needs descriptors of the caller to get there."""
        return bool(self.namespaces) or self.root != (0, 0)


def of_call(identity: Identity, environment: Mapping[bytes, bytes]) -> Identity:
    """Returns the identity whose host serves a library's call with this environment. The environment is that
    of the process: it must not change under its threads (getenv(3)). So other variables need another host."""
    if not environment:
        return identity
    data = b"\0".join(b"%b=%b" % pair for pair in sorted(environment.items()))
    return msgspec.structs.replace(identity, variables=mark(data))


def is_enclosed(plugin: Plugin, identity: Identity) -> bool:
    """Returns True if a host has mounts of its own. Such a host gets no descriptor of a directory, through
    which it could change files on the caller's mounts (host/confine/readonly_mounts.py)."""
    return identity.view is not None or (plugin.sandbox is not None and plugin.sandbox.view is not None)


NOBODY = 65534
# The identity that describes plugins under root's daemon: the user nobody.
DESCRIBING = Identity(NOBODY, NOBODY, (), label=DESCRIBER)


class HostLimits(msgspec.Struct, frozen=True, array_like=True):
    memory_bytes: int
    processes: int
    open_files: int


# Bytes of a Spawn; the 65,536 groups that a caller may have take 320 KiB.
MAX_SPAWN = 512 << 10


class Meet(msgspec.Struct, frozen=True, array_like=True, tag="meet"):
    """Learn the user at the other end of the connection, which is the only right, and keep it by `number`."""

    number: int


class Met(msgspec.Struct, frozen=True, array_like=True, tag="met"):
    """Answer Meet: the connection has been looked at."""

    number: int


class Forget(msgspec.Struct, frozen=True, array_like=True, tag="part"):
    """Forget the user of that number."""

    number: int


class Spawn(msgspec.Struct, frozen=True, array_like=True, tag="spawn"):
    """Start a host. Rights: its control socket, and where `met` is 0 also the caller's connection. From that
    the fork server reads the most that a host may be. `identity` may be less, and never more."""

    host: int
    plugin: Plugin
    identity: Identity
    limits: HostLimits
    device: int = 0  # the daemon's mount, by which host/confine/socket_gate.py knows its objects
    met: int = 0  # the number of a Meet


class KillHost(msgspec.Struct, frozen=True, array_like=True, tag="kill"):
    """Kill a host, also while it starts. A HostExit follows, as for any other end."""

    host: int


ToForkServer: TypeAlias = Meet | Forget | Spawn | KillHost


class HostStart(msgspec.Struct, frozen=True, array_like=True, tag="spawned"):
    """The host runs, or does not run because of `fault`."""

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
