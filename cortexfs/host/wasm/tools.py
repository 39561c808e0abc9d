"""WebAssembly plugins: tools that are functions of a module, by ABI version 1 of manifest.json.

Main path: `tools` starts a `_Worker`, which compiles the module and asks for its tools. `WasmTool` waits for
its turn, and then uses the instance in its own thread. It is shielded meanwhile, as a cancellation between
two steps of the library's Python would break the library. The worker's thread is the clock: it ends a call by
a tick of the engine's epoch.

Rules: one thread at a time uses the library's objects (`_holding`). One instance holds the plugin's state,
and calls take turns. After a trap, a deadline or a broken contract the next call gets a new one. The module
is named by its hash, so only the checked one runs.
This file must never know how a call arrives, nor what a manifest looks like.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from cortexfs import sdk
from cortexfs.core import hostcalls
from cortexfs.core.arguments import dryrun
from cortexfs.core.errors import Fault, timed_out
from cortexfs.core.jsontext import why_unread
from cortexfs.core.manifest import targets
from cortexfs.core.manifest.targets import WasmModule
from cortexfs.core.manifestjson import capabilities as permissions
from cortexfs.core.manifestjson.fields import ToolParam, input_schema
from cortexfs.host.call import plugin_state, wrong_tool
from cortexfs.host.call.effects import effects_of
from cortexfs.host.call.runtime import EARLY_SECONDS, STEP, apart, shielded
from cortexfs.host.call.wrong_tool import WrongTool
from cortexfs.linux import syscalls

if TYPE_CHECKING:  # importing it takes 30 ms, in hosts of other kinds for nothing
    from cortexfs.host.wasm.imports import WasmTurn
    from cortexfs.host.wasm.instance import Instance

DESTROY_SECONDS = 0.3  # a host is ended soon after it was asked to leave
_LOOK_SECONDS = 0.2  # after so long the clock sees a call; shorter than any timeout


class _Tool(msgspec.Struct, frozen=True):
    name: str
    description: str
    params: tuple[ToolParam, ...] = ()


class _Capabilities(msgspec.Struct, frozen=True):
    tools: tuple[Any, ...]
    abi_version: int = 1


_capabilities = msgspec.json.Decoder(_Capabilities)
_encode = msgspec.json.Encoder().encode
_workers: list[_Worker] = []


def tools(plugin: hostcalls.Plugin) -> Iterable[sdk.Tool]:
    """Start the plugin and ask for its tools."""
    declared = targets.declared(plugin, WasmModule)
    if own := plugin_state.place(plugin):
        declared = msgspec.structs.replace(declared, state=f"{own}/state.sqlite", cache=str(own))
    worker = _Worker(plugin.name, declared)
    try:
        worker.start()
        # In a thread of its own, where no cancellation strikes amid the library's Python.
        ask = partial(worker.ask, worker.capabilities, declared.loading, sdk.MemoryRuntime())
        capabilities = apart(ask)
        _workers.append(worker)
    except BaseException:  # such as a cancellation: it must leave no waiting thread
        worker.leave()
        raise
    if "tools" not in declared.capabilities:
        return []
    if not capabilities.tools and permissions.bringing(declared.capabilities) == ["tools"]:
        mend = "plugin_get_capabilities must name a tool"
        raise Fault("EINVAL", f"it has the capability tools, but no tool; {mend}")
    return [
        tool if isinstance(tool, WrongTool) else WasmTool(worker, tool, declared)
        for tool in wrong_tool.sound(capabilities.tools, _Tool)
    ]


class WasmTool(sdk.Tool):
    def __init__(self, worker: _Worker, tool: _Tool, declared: WasmModule) -> None:
        self._worker = worker
        self.name = tool.name
        self.description = tool.description
        self.input_schema = input_schema(tool.params, declared.words.get(tool.name, {}))
        self.timeout_secs = self._seconds = declared.timeout
        self.dry_run_flag = tool.name in declared.dry_runs
        effects = permissions.effects(declared.capabilities)
        tool_effects = effects_of(effects, are_shown=self.dry_run_flag)
        self.capabilities = sdk.ToolCapabilities(effects=tool_effects)

    def execute_with_runtime(self, input: dict[str, Any], runtime: sdk.ToolRuntime) -> sdk.ToolResult:
        # The ABI has no other place for it, and a tool with an argument of that name has no dry run.
        fields = input | {dryrun.PROPERTY: True} if runtime.invocation.dry_run else input
        name, arguments = self.name.encode(), _encode(fields)
        seconds = self._seconds - EARLY_SECONDS
        try:
            status, data = self._worker.ask(
                lambda instance: instance.execute(name, arguments), seconds, runtime
            )
        except sdk.ExecutionFailed as failed:
            message = timed_out(self.name, self._seconds) if failed.code == "ETIMEDOUT" else failed.args[0]
            raise sdk.ExecutionFailed(message, failed.code) from None
        if status:
            told = data.decode(errors="replace") or f"WASM tool execution failed with status {status}"
            return sdk.ToolResult.error(told)
        try:
            return sdk.ToolResult.success(data.decode())
        except UnicodeDecodeError:
            raise sdk.ExecutionFailed(f"{self.name} answered text that is not UTF-8", "EPROTO") from None


class _Job(NamedTuple):
    """A call's work on the instance."""

    work: Callable[[Instance], Any]
    turn: WasmTurn
    until: float
    seconds: float  # that the call has, for the sentence about its end


class _Worker(threading.Thread):
    """The plugin's instance, and the thread that opens it and then is the clock of its calls.

    Its attributes are shared by the clock and the calls, so they are beside the two locks that guard them.
    """

    def __init__(self, plugin: str, declared: WasmModule) -> None:
        super().__init__(daemon=True)
        try:
            from cortexfs.host.wasm import code as wasmcode
            from cortexfs.host.wasm import imports
            from cortexfs.host.wasm import instance as wasminstance
        except ImportError:
            message = "this is a WebAssembly plugin, and there is no wasmtime: pip install 'cortexfs[wasm]'"
            raise Fault("EHOSTDOWN", f"{plugin}: {message}") from None
        self._subject = f'WASM plugin "{plugin}"'
        self._declared = declared
        self._name = plugin
        self._code, self._hosts, self._instances = wasmcode, imports, wasminstance
        self._holding = threading.Lock()  # guards the instance, and all other objects of the library
        self._holding.acquire()  # until the module is open
        self._turning = threading.Lock()  # guards the following
        self._current: _Job | None = None
        self._called = threading.Event()  # wakes the clock
        self._is_left = False
        self._broken: BaseException | None = None  # why the module cannot be opened
        self._instance: Instance | None = None

    # -- in threads of calls

    def ask(self, work: Callable[[Instance], Any], seconds: float, runtime: sdk.ToolRuntime) -> Any:
        """Returns the result of `work` on the instance, when it is this call's turn."""
        job = _Job(work, self._hosts.WasmTurn(), time.monotonic() + seconds, seconds)
        runtime.on_cancel(partial(self.end, job, "ECANCELED"))
        with shielded(runtime):
            self._await_turn(job)
            try:
                return self._run_turn(job)
            except BaseException as failed:  # the caller gets the failure, of whatever class
                raise self._failure(job, failed) from None
            finally:
                self._holding.release()

    def _await_turn(self, job: _Job) -> None:
        while not self._holding.acquire(timeout=min(STEP, _left(job))):
            if not _left(job):
                job.turn.end("ETIMEDOUT")
            if job.turn.ended:
                raise self._failure(job, self._hosts.CallAbandoned())

    def end(self, job: _Job, code: str) -> None:
        """End a job that was cancelled or is late."""
        job.turn.end(code)
        with self._turning:
            if self._current is job:
                self._engine.increment_epoch()

    def leave(self) -> None:
        self._is_left = True
        self._called.set()

    def destroy(self) -> None:
        if self._instance is not None:
            with suppress(Fault, sdk.ExecutionFailed):
                self.ask(lambda instance: instance.destroy(), DESTROY_SECONDS, sdk.MemoryRuntime())

    # -- in its own thread

    def run(self) -> None:
        try:
            syscalls.unshare(syscalls.CLONE_FS)  # directory and umask are not those of the call that began it
            os.chdir("/")
            os.umask(0o077)
            declared = self._declared
            self._engine = self._code.engine()
            data = self._code.read(declared.path, declared.sha256)
            self._module = self._code.compiled(self._engine, data, declared.cache)
            self._state = self._hosts.WasmState(declared.state, self._name)
            self._host = self._hosts.HostFunctions(self._name, declared, self._state)
        except BaseException as error:  # no code above would report it; each call gets it
            self._broken = error
        self._holding.release()
        self._watch()
        if self._broken is None:
            with self._holding:
                self._drop()
                self._state.close()

    def _watch(self) -> None:
        """Be the clock. While calls follow each other, it looks at them from time to time, and no call has to
        wake it. It sleeps when there was none."""
        while not self._is_left:
            if (job := self._current) is None:
                self._called.wait()
                self._called.clear()
            is_timed = job is not None and not job.turn.ended
            time.sleep(min(_LOOK_SECONDS, _left(job)) if job and is_timed else _LOOK_SECONDS)
            if job and is_timed and not _left(job):
                self.end(job, "ETIMEDOUT")

    # -- a call's turn

    def _run_turn(self, job: _Job) -> Any:
        if self._broken is not None:
            raise self._broken
        with self._turning:
            self._current = job
        self._called.set()
        try:
            if job.turn.ended:
                raise self._hosts.CallAbandoned
            return self._run_job(job)
        finally:
            with self._turning:
                self._current = None
            self._state.keep()

    def _run_job(self, job: _Job) -> Any:
        self._host.turn = job.turn
        try:
            self._instance = self._instance or self._fresh()
            return job.work(self._instance)
        except Fault as fault:
            if fault.code == "ENOMEM" and self._instance is not None:  # the plugin has used up the heap
                self._drop()
                self._instance = self._fresh()
                return job.work(self._instance)
            raise
        except BaseException:  # it struck amid the guest's code: its memory is not to be trusted
            self._drop()
            raise

    def _fresh(self) -> Instance:
        host = self._host
        return self._instances.Instance(self._module, self._engine, host.functions, host.admit)

    def _drop(self) -> None:
        if self._instance is not None:
            self._instance.close()
            self._instance = None

    def _failure(self, job: _Job, error: BaseException) -> BaseException:
        """Returns the failure as an exception that says whose fault it is."""
        if job.turn.ended:
            late = f"did not end within {job.seconds:g} s"
            reason = {"ETIMEDOUT": late, "ECANCELED": "cancelled"}[job.turn.ended]
            return sdk.ExecutionFailed(f"{self._subject} {reason}", job.turn.ended)
        if isinstance(error, Fault):
            return Fault(error.code, f"{self._subject}: {error.message}")
        if isinstance(error, sqlite3.Error):
            return Fault("EIO", f"{self._subject}: its state cannot be read or written: {error}")
        text = str(error) if isinstance(error, self._instances.ContractViolation) else _trap(error)
        return sdk.ExecutionFailed(f"WASM trap: {text}", "EPROTO")

    # -- the work

    def capabilities(self, instance: Instance) -> _Capabilities:
        status, data = instance.capabilities()
        if status:
            raise Fault("EPROTO", f"plugin_get_capabilities failed with status {status}")
        try:
            capabilities = _capabilities.decode(data.decode())
        except (ValueError, RecursionError) as error:
            raise Fault("EPROTO", f"plugin_get_capabilities gave invalid JSON: {why_unread(error)}") from None
        if capabilities.abi_version != self._instances.ABI:
            raise Fault("EPROTO", f"its capabilities are of ABI version {capabilities.abi_version}, not 1")
        return capabilities


def _left(job: _Job) -> float:
    """Returns the seconds that a job still has."""
    return max(0.0, job.until - time.monotonic())


def _trap(error: BaseException) -> str:
    """Returns the sentence of a trap, without the addresses below it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1].partition("wasm trap: ")[2] or lines[-1] if lines else type(error).__name__


def drop_all() -> None:
    """Call plugin_destroy once for each instance, before the process ends."""
    while _workers:
        _workers.pop().destroy()
