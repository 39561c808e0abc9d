"""ESM plugins: tools that are functions of a JavaScript or TypeScript module, in a Deno process of its own.

Main path: `tools` starts the plugin and asks for its tools. `EsmTool` passes a call to the process of its
caller's directory (child.py). permissions.py says what a process may do, and state.py what it keeps.

Rules: a plugin that may access files has one process for each directory of its callers, as Deno's permissions
are set when a process starts; any other plugin has one. A process that ends loses only its own calls and its
memory: the next call starts another. A plugin's answers are checked like any untrusted input.
This file must never know how a call arrives, nor what a manifest looks like.
"""

from __future__ import annotations

import functools
import os
import sqlite3
import sys
import threading
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

import msgspec

from cortexfs import sdk
from cortexfs.core import hostcalls
from cortexfs.core.errors import Fault, timed_out
from cortexfs.core.hooks import CONFIG_CHANGE, HOOK_SECONDS, LIFECYCLE, LISTENER
from cortexfs.core.manifest import targets
from cortexfs.core.manifest.targets import EsmModule
from cortexfs.core.manifestjson import capabilities as permissions
from cortexfs.core.manifestjson.fields import CommandField, ToolParam, input_schema, tool_result
from cortexfs.core.safe_text import PAST
from cortexfs.host.call import plugin_state, wrong_tool
from cortexfs.host.call.effects import effects_of
from cortexfs.host.call.runtime import EARLY_SECONDS, own_umask, sentence
from cortexfs.host.call.wrong_tool import WrongTool
from cortexfs.host.esm import child, hooks, sayings
from cortexfs.host.esm import permissions as esmrights
from cortexfs.host.esm.child import ANYWHERE, DenoChild, ProcessPlace
from cortexfs.host.esm.provider_model import EsmModel
from cortexfs.host.esm.state import EsmState

MAX_PROCESSES = 4  # of a plugin in one host; each takes some 50 MiB
_TRIES = 3  # to find a process that has not just ended


class _Definition(msgspec.Struct, frozen=True):
    """A tool's definition. Other fields, which plugins in the wild have, are ignored."""

    name: str
    description: str
    params: tuple[ToolParam, ...] = ()
    capabilities: tuple[str, ...] | None = None


class _Loaded(msgspec.Struct, frozen=True):
    exports: dict[str, str]
    providers: tuple[str, ...] = ()
    commands: Any = ()


_plugins: list[EsmPlugin] = []


def tools(plugin: hostcalls.Plugin) -> Iterable[sdk.Tool]:
    """Start the plugin and ask for its tools. The status of a tool that wants too much says so."""
    declared = targets.declared(plugin, EsmModule)
    if own := plugin_state.place(plugin):
        declared = msgspec.structs.replace(declared, state=f"{own}/state.sqlite")
    module = EsmPlugin(plugin.name, declared)
    _plugins.append(module)
    found = module.descriptions()
    has = permissions.effective(declared.capabilities, (), ())
    tools = [*_admit(module, found, has)] if has.has("tools") else []
    if not tools and permissions.bringing(has.capabilities) == ["tools"]:
        mend = "export const tools from its module, or register them in onLoad"
        raise module.fault("EINVAL", f"it has the capability tools, but no tool; {mend}")
    models = _models(module) if has.has("config:provider") else ()
    commands = module.commands() if has.has("cli:commands") else ()
    hidden = hooks.hidden(module, has.capabilities, declared.events, commands)
    return [*tools, *models, *hidden]


def _models(plugin: EsmPlugin) -> Iterable[sdk.Tool]:
    """Yields the default model of each declared provider (abi.md 9.22)."""
    for kind, model in plugin.declared.providers.items():
        if kind in plugin.providers:
            yield EsmModel(plugin, kind, model)
        else:
            print(f"{plugin.name}: its module exports no provider {kind}", file=sys.stderr)


def _admit(plugin: EsmPlugin, found: Iterable[Any], has: permissions.Effective) -> Iterable[sdk.Tool]:
    for tool in wrong_tool.sound(found, _Definition):
        if isinstance(tool, WrongTool):
            yield tool
            continue
        wants = has.capabilities if tool.capabilities is None else tool.capabilities
        if (why := permissions.tool_fault(tool.name, wants, has)) is None:
            known = [each for each in wants if each in permissions.CAPABILITIES]
            yield EsmTool(plugin, tool, permissions.effects(known))
        else:
            yield WrongTool(tool.name, why)


class EsmTool(sdk.Tool):
    def __init__(self, plugin: EsmPlugin, tool: _Definition, effects: tuple[hostcalls.Effect, ...]) -> None:
        self._plugin = plugin
        self.name = tool.name
        self.description = tool.description
        self.input_schema = input_schema(tool.params, plugin.declared.words.get(tool.name, {}))
        self.timeout_secs = self._seconds = plugin.declared.timeout
        self.dry_run_flag = tool.name in plugin.declared.dry_runs
        tool_effects = effects_of(effects, are_shown=self.dry_run_flag)
        self.capabilities = sdk.ToolCapabilities(emits_progress=True, effects=tool_effects)

    def execute_with_runtime(self, input: dict[str, Any], runtime: sdk.ToolRuntime) -> sdk.ToolResult:
        directory = os.getcwd()
        request = {
            "do": "call",
            "call": self.name,
            "args": input,
            "context": hooks.context(runtime, directory),
        }
        try:
            answer = self._plugin.ask(directory, request, self._seconds - EARLY_SECONDS, runtime)
        except sdk.ExecutionFailed as failed:
            message = timed_out(self.name, self._seconds) if failed.code == "ETIMEDOUT" else failed.args[0]
            raise sdk.ExecutionFailed(message, failed.code) from None
        except child.EsmError as failed:  # "Throw from execute": a failed result
            return sdk.ToolResult.error(str(failed))
        result = tool_result(answer, self.name)
        if result.success:
            return sdk.ToolResult.success(result.output)
        return sdk.ToolResult.error(result.error or result.output)


class EsmPlugin:
    """One plugin in this host, and its processes by the directory of their callers."""

    def __init__(self, name: str, declared: EsmModule) -> None:
        self.name = name
        self.declared = declared
        self._subject = f'ESM plugin "{name}"'
        self.providers: tuple[str, ...] = ()  # of the module
        self._commands: Any = ()  # its cliCommands
        self._exports: Mapping[str, str] = {}  # the type of each, by name
        self._lock = threading.Lock()
        self._places: dict[ProcessPlace, DenoChild] = {}  # the last was used last
        self._scoped = esmrights.is_scoped(declared.capabilities)
        try:
            esmrights.check(declared.folder)
        except Fault as fault:
            raise self.fault(fault.code, fault.message) from None

    @functools.cached_property
    def _state(self) -> EsmState:
        """Opens the state; a new user's is created while Deno starts."""
        try:
            return EsmState(self.declared.state, self.name)
        except sqlite3.Error as error:
            raise self.fault("EIO", f"its state cannot be read or written: {error}") from None

    def ask(
        self, directory: str, request: dict[str, Any], seconds: float, runtime: sdk.ToolRuntime | None
    ) -> Any:
        until = time.monotonic() + seconds
        for _ in range(_TRIES):
            process = self._process(self._place(directory), runtime)
            try:
                return process.ask(request, until - time.monotonic(), runtime)
            except Fault as fault:
                if fault.code != "EAGAIN":
                    raise
            except sdk.ExecutionFailed as failed:
                raise sdk.ExecutionFailed(f"{self._subject} {failed.args[0]}", failed.code) from None
            except child.EsmError as failed:
                self._log(failed.stack)
                where = sayings.bug(failed.stack, self.declared.folder)
                raise child.EsmError(f"{failed}{where}", failed.stack) from None
        raise self.fault("EPROTO", "its process ends as soon as it is started")

    def descriptions(self) -> list[Any]:
        process = self._process(ANYWHERE, None)
        answer = self._answer(process, {"do": "list"}, HOOK_SECONDS)
        return msgspec.convert(answer, list[Any])

    def commands(self) -> tuple[CommandField, ...]:
        try:
            return hooks.commands_of(self.declared.commands, self._commands)
        except Fault as fault:
            raise self.fault(fault.code, fault.message) from None

    def ready(self, directory: str, runtime: sdk.ToolRuntime | None) -> None:
        """Wait until there is a process for calls from that directory."""
        self._process(self._place(directory), runtime)

    def tell(self, message: dict[str, Any], runtime: sdk.ToolRuntime | None) -> None:
        """Send a message once for this user: to the one process that does not depend on the directory."""
        self._process(ANYWHERE, runtime).send(message)

    def uninstall(self) -> list[str]:
        """Call the last hooks, once for this user; returns their failures. The next call would begin anew."""
        self._process(ANYWHERE, None)
        with self._lock:
            last = self._places.pop(ANYWHERE)
        self.leave(HOOK_SECONDS)
        failures = self._end(last, HOOK_SECONDS, "remove")
        self._state.forget("config")
        self.close()  # its file will be removed
        if self.declared.state:
            plugin_state.leave(os.path.dirname(self.declared.state))
        return failures

    def leave(self, seconds: float) -> None:
        with self._lock:
            children, self._places = [*self._places.values()], {}
        threads = [threading.Thread(target=self._end, args=(each, seconds), daemon=True) for each in children]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(seconds * len(LIFECYCLE["disable"]))

    def close(self) -> None:
        """Close its state; a later call opens it again."""
        if state := vars(self).pop("_state", None):
            state.close()

    # -- processes

    def _place(self, directory: str) -> ProcessPlace:
        return ProcessPlace(directory, own_umask()) if self._scoped else ANYWHERE

    def _process(self, place: ProcessPlace, runtime: sdk.ToolRuntime | None) -> child.DenoProcess:
        with self._lock:
            found = self._places.pop(place, None)
            if found is None or not found.is_open:
                found = DenoChild()
                environ = runtime.environ if runtime else {}
                threading.Thread(target=self._start, args=(found, place, environ), daemon=True).start()
            self._places[place] = found
            over = [self._places.pop(each) for each in [*self._places][:-MAX_PROCESSES]]
        for each in over:
            threading.Thread(target=self._end, args=(each, HOOK_SECONDS), daemon=True).start()
        return found.process(runtime)

    def _start(self, future: DenoChild, place: ProcessPlace, environ: Mapping[str, str]) -> None:
        """Runs in a thread of its own, so that a waiting call can be cancelled."""
        try:
            future.set_result(self._new_process(place, environ))
        except Fault as fault:
            future.set_exception(fault)
        except Exception as error:  # no code is above in this thread; the waiter for the process gets it
            future.set_exception(self.fault("EIO", f"its process does not start: {sentence(error)}"))

    def _new_process(self, place: ProcessPlace, environ: Mapping[str, str]) -> child.DenoProcess:
        declared = self.declared
        start = child.DenoStart(
            esmrights.command(declared, place.directory),
            esmrights.environment(declared.capabilities, environ, declared.fetched),
            place.directory,
            place.umask,
            functools.partial(esmrights.confine, declared, place.directory),
            permissions.deno_permissions(declared.capabilities),
        )
        process = child.DenoProcess(start, lambda *args: self._state.answer(*args), self._subject)
        try:
            process.start()
            self._load(process)
        except BaseException:  # such as a cancellation: it must leave no process
            process.close()
            raise
        return process

    def _load(self, process: child.DenoProcess) -> None:
        """Call the hooks of a start, and report the settings that have changed since the last one."""
        declared = self.declared
        config = {**declared.config, **self._state.settings()}
        request = {
            "do": "load",
            "load": declared.entry,
            "plugin": {"pluginId": self.name, "pluginDir": declared.folder},
            "config": config,
            "commands": "cli:commands" in declared.capabilities,
        }
        answer = self._answer(process, request, declared.loading)
        loaded = msgspec.convert(answer, _Loaded)
        self._exports, self.providers, self._commands = loaded.exports, loaded.providers, loaded.commands
        before = self._state.last_value("config")
        for name in LIFECYCLE["install" if before is None else "enable"]:
            self._hook(process, name)
        if config != before:
            self._state.tell("config", config)
            if declared.state:
                plugin_state.begin(os.path.dirname(declared.state))
            self._report_changes(process, before or config, config)

    def _report_changes(
        self, process: child.DenoProcess, old: dict[str, Any], config: dict[str, Any]
    ) -> None:
        """Report each changed setting to the module."""
        listens = CONFIG_CHANGE in self.declared.events and LISTENER in self.declared.capabilities
        for key in [each for each in {**old, **config} if old.get(each) != config.get(each)]:
            value = config.get(key)
            for name in LIFECYCLE["config"]:
                self._hook(process, name, key, value)
            if listens:  # the event of a setting is made here, where the user's own settings are known
                process.send({"event": {"type": CONFIG_CHANGE, "key": key, "value": value}})

    def reset(self, declared: EsmModule) -> None:
        """Go on with other settings, in the running processes."""
        own = self._state.settings()
        old, config = self.declared.config | own, declared.config | own
        self.declared = msgspec.structs.replace(self.declared, config=declared.config)
        self._state.tell("config", config)
        with self._lock:
            running = [*self._places.values()]
        for future in running:
            process = future.process(None)
            self._answer(process, {"do": "configure", "config": config}, HOOK_SECONDS)
            self._report_changes(process, old, config)

    def _hook(self, process: child.DenoProcess, name: str, *args: Any) -> None:
        if self._exports.get(name) == "function":
            try:
                self._answer(process, {"do": "hook", "hook": name, "args": args}, HOOK_SECONDS)
            except Fault as fault:
                raise Fault(fault.code, f"{fault.message} (in {name})") from None

    def _end(self, future: DenoChild, seconds: float, why: str = "disable") -> list[str]:
        """End the process, whatever its hooks do. Returns the failures of the hooks."""
        failures: list[str] = []
        with suppress(Fault):
            process = future.process(None)
            for name in LIFECYCLE[why]:
                try:
                    process.ask({"do": "hook", "hook": name, "args": ()}, seconds)
                except (Fault, child.EsmError, sdk.ExecutionFailed) as error:
                    message = error.args[0] if isinstance(error, sdk.ExecutionFailed) else error
                    failures.append(f"{name}: {message}")
                    print(f"{self._subject}: {failures[-1]}", file=sys.stderr)
            process.close()
        return failures

    def _answer(self, process: child.DenoProcess, request: dict[str, Any], seconds: float) -> Any:
        """Returns the answer to a request for which only the plugin can be at fault."""
        try:
            return process.ask(request, seconds)
        except child.EsmError as failed:
            self._log(failed.stack)
            folder = self.declared.folder
            message = (
                sayings.syntax_error(str(failed), folder) or f"{failed}{sayings.place(failed.stack, folder)}"
            )
            raise self.fault("EPROTO", message) from None
        except sdk.ExecutionFailed as failed:
            is_late = failed.code == "ETIMEDOUT"
            told = f"did not end within {seconds:g} s" if is_late else failed.args[0]
            raise self.fault(failed.code, f"{request['do']} {told}") from None

    def _log(self, stack: str) -> None:
        if own := sayings.steps(stack, self.declared.folder):
            print(f"{self._subject}: {' '.join(own)}\n{PAST}", end="", file=sys.stderr)

    def fault(self, code: str, message: str) -> Fault:
        return Fault(code, f"{self._subject}: {message}")


def reset(plugin: hostcalls.Plugin) -> None:
    """Have the loaded plugin go on with the settings in `plugin`."""
    for each in _plugins:
        if each.name == plugin.name:
            each.reset(targets.declared(plugin, EsmModule))


def drop_all() -> None:
    """Call onDeactivate and onUnload of running plugins, before the process ends."""
    while _plugins:
        last = _plugins.pop()
        last.leave(HOOK_SECONDS)  # less at the end of the daemon, which kills its hosts
        last.close()
