"""Settings: the keys of config.toml.

Rules: every key has a default, a bound and a sentence in its type; docs/config.md repeats the sentence, and a
test compares them. An unknown key is refused, and the error names the nearest known key, so that no misspelt
limit is silently ignored. A person writes config.toml, and CortexFS never does. The decisions of `ctx plugin
enable` are kept beside it, in plugins.json, and win over it.
This file must never know what a mount or a run is.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import Meta

from cortexfs.core import names, tomltext
from cortexfs.core.errors import Fault
from cortexfs.core.hooks import Failure
from cortexfs.core.models.prices import Currency, Price, Prices
from cortexfs.core.models.usage import UsageLimit
from cortexfs.state import believed, locked_store
from cortexfs.state.directories import Places

FILE = "config.toml"
CHOICES = "plugins.json"
REPLACE: Literal["replace"] = "replace"
# Consent that a plugin takes names of others: all names in its files, or a list such as `tool/fs.read`.
Consent: TypeAlias = Literal["replace"] | tuple[str, ...]
# True, False, or the consent of an enabled plugin.
Choice: TypeAlias = bool | Consent
# People read a configuration; a larger file is a mistake (a log, a device) and not parsed.
MAX_FILE = 1 << 20

# No larger number means more, and one of over 64 bits ends in the middle of a call.
Count: TypeAlias = Annotated[int, Meta(ge=1, le=1 << 32)]
Seconds: TypeAlias = Annotated[float, Meta(gt=0)]


class TurnSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    tool_timeout_secs: Annotated[
        float, Meta(gt=0, le=604800), "Seconds after which a call of a tool that declares no timeout ends."
    ] = 1800


class LimitSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    memory_mib: Annotated[
        int,
        Meta(ge=64, le=1 << 32),
        "Data memory that one host may use, in MiB; a call that needs more fails (EPROTO).",
    ] = 2048
    processes: Annotated[int, Meta(ge=8, le=1 << 32), "Processes and threads that one host may have."] = 512
    open_files: Annotated[int, Meta(ge=64, le=1 << 32), "File descriptors that one host may have open."] = (
        1024
    )
    output_gib: Annotated[Count, "Total output of one run, in GiB; a run that writes more is ended."] = 16
    calls_per_user: Annotated[Count, "Runs that one user may have active at a time."] = 256
    messages_per_user: Annotated[Count, "Messages to sockets that are answered at a time for a user."] = 1024
    connections: Annotated[
        Count,
        "Socket connections served at a time, of all users; a user has a quarter at most. Fewer, if the "
        "daemon may not have four descriptors for each, and 2,560 more.",
    ] = 4096
    depth: Annotated[
        int, Meta(ge=1, le=64), "How deep runs may nest: a tool that calls a tool, and so on."
    ] = 8
    idle_secs: Annotated[
        Seconds, "Seconds without a call after which the host of a built-in tool, or of JavaScript, ends."
    ] = 60
    log_kib: Annotated[
        int, Meta(ge=4), "Size at which the log of an object, or of a user's runs of it, is rotated, in KiB."
    ] = 1024


class CallerSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    sandboxed: Annotated[
        Literal["refuse", "allow"] | tuple[int, ...],
        "Users who may call tools from a sandbox (no_new_privs and a filter of system calls); the "
        "tools run outside of it: a list of uids, `allow` or `refuse`.",
    ] = "refuse"

    def serve_sandboxed(self, uid: int) -> bool:
        return self.sandboxed == "allow" or (self.sandboxed != "refuse" and uid in self.sandboxed)


class PluginSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    enabled: Annotated[
        tuple[str, ...], "Names of the plugins to load; `ctx plugin enable` and `disable` override them."
    ] = ()
    hook_failure: Annotated[
        Failure, "If middleware fails or is late, the call ends (closed) or goes on (open)."
    ] = "closed"


class SessionSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    unused_days: Annotated[
        float, Meta(ge=0), "Days without use after which a session is removed; 0 keeps all."
    ] = 0
    per_object: Annotated[
        int, Meta(ge=0), "How many sessions with one object a user keeps, the newest; 0 keeps all."
    ] = 0
    session_mib: Annotated[
        Count, "Size of a session's log in MiB at which it takes no more messages (EFBIG)."
    ] = 256
    user_mib: Annotated[
        Count, "Size of the logs of a user's sessions, and of all shared ones, in MiB (EDQUOT)."
    ] = 4096
    user_sessions: Annotated[Count, "Sessions that a user may have and that may be shared (EDQUOT)."] = 10_000
    kept: Annotated[tuple[str, ...], "Names of sessions that are removed by hand only."] = ("default",)


class EngineSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    idle_secs: Annotated[
        Seconds, "Seconds without an answer after which the engine of a local model ends."
    ] = 300
    streams: Annotated[
        int, Meta(ge=1, le=64), "Answers that a local model makes at a time; others wait for a turn."
    ] = 2
    threads: Annotated[
        int, Meta(ge=0, le=512), "Threads that read a prompt and make an answer; 0 means one per core."
    ] = 0
    context_tokens: Annotated[
        int,
        Meta(ge=512, le=1 << 20),
        "Tokens of a prompt and its answer, if the model allows so many; they cost memory.",
    ] = 8192


class AgentSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    steps: Annotated[
        Count, "Answers of its model in one run of an agent; CTX_AGENT_STEPS in .d/env overrides it."
    ] = 64
    tokens: Annotated[Count, "Tokens, in and out, that one run of an agent may use."] = 1_000_000
    secs: Annotated[
        Seconds, "Seconds after which an agent's run is ended; waiting for a person does not count."
    ] = 3600
    repeats: Annotated[
        Count, "Times of the same call with the same input in a row; one more ends the run."
    ] = 3
    approval_secs: Annotated[Seconds, "Seconds that an agent waits for an approval; then it is denied."] = 600


class UsageSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    limits: Annotated[
        tuple[UsageLimit, ...],
        "What users may use of models in a month (EDQUOT): `models`, `users`, and `tokens` or `money`.",
    ] = ()
    currency: Annotated[Currency, "The currency of these prices, and of limits in money."] = "USD"
    prices: Annotated[dict[str, Price], "Money for a million tokens, `input` and `output`, by model."] = {}

    @property
    def known(self) -> Prices:
        return Prices(self.currency, self.prices)


class ConfigFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of config.toml."""

    turn: TurnSettings = TurnSettings()
    limits: LimitSettings = LimitSettings()
    sessions: SessionSettings = SessionSettings()
    callers: CallerSettings = CallerSettings()
    plugins: PluginSettings = PluginSettings()
    engine: EngineSettings = EngineSettings()
    agent: AgentSettings = AgentSettings()
    usage: UsageSettings = UsageSettings()


class Config(ConfigFile, frozen=True, kw_only=True):
    """The daemon's whole configuration."""

    state: Path
    directory: Path


def load(where: Places) -> Config:
    """Returns the settings of config.toml, and checks plugins.json. A missing file means the defaults."""
    path = where.config / FILE
    settings = settings_of(believed.content_of(path, MAX_FILE, "configuration") or b"", path)
    choices(where.config)
    return Config(state=where.state, directory=where.config, **msgspec.structs.asdict(settings))


def enabled(config: Config) -> list[str]:
    """Returns the enabled plugins' names, in the order of enabling. Each call reads plugins.json again."""
    decisions = choices(config.directory)
    plugins = [name for name in dict.fromkeys(config.plugins.enabled) if name not in decisions]
    return plugins + [name for name, on in decisions.items() if on is not False]


def consents(config: Config) -> dict[str, Consent]:
    """Returns, by plugin name, the consents to take names of other plugins."""
    return {name: on for name, on in choices(config.directory).items() if not isinstance(on, bool)}


def settings_of(data: bytes, path: Path) -> ConfigFile:
    """Returns the settings of a config.toml's text. Every fault names the file and the key."""
    settings = tomltext.converted(tomltext.table(data, str(path)), ConfigFile, str(path))
    for name in settings.plugins.enabled:
        if fault := names.fault_of(name):
            raise Fault("EINVAL", f"{path}: plugins.enabled: the name {name!r} {fault}")
    return settings


class _Choices(locked_store.LockedStore[dict[str, Choice]]):
    """The decisions of commands."""

    most, mode, folder_mode = MAX_FILE, 0o644, 0o755

    def decode(self, data: bytes) -> dict[str, Choice]:
        try:
            return msgspec.json.decode(data, type=dict[str, Choice]) if data else {}
        except ValueError as problem:
            forms = f'true, false, "{REPLACE}" or a list of names'
            message = f"{self.path} is not a table of plugin names to {forms}"
            raise Fault("EINVAL", f"{message}: {problem}") from None


def choices(directory: Path) -> dict[str, Choice]:
    """Returns the decisions of `ctx plugin enable` and `disable` by plugin name, the newest last."""
    return _Choices(directory / CHOICES, {}).read()


def choose(directory: Path, name: str, on: Choice | None) -> None:
    """Enable or disable a plugin, durably. A reader sees the old choices or the new ones. None forgets."""
    names.check(name)

    def chosen(former: dict[str, Choice]) -> dict[str, Choice]:
        rest = {key: choice for key, choice in former.items() if key != name}
        return rest if on is None else rest | {name: on}  # a plugin that is enabled again comes last

    _Choices(directory / CHOICES, {}).update(chosen)
