"""What the mount offers: asks each plugin's host to describe itself and makes a Registry of it.

Rules: plugin code runs in a host, never here, and under root as nobody. What a plugin says is a
stranger's word: it is bounded and checked before it becomes an object. A plugin that cannot be
described is a sentence in `broken`, and everything else works.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable

import msgspec
import trio

from cortexfs import strangers
from cortexfs.core import calls, names, wire
from cortexfs.core.errors import Fault
from cortexfs.core.registry import Object, Registry
from cortexfs.hosts import Pool, announce
from cortexfs.relay import receive, send
from cortexfs.version import VERSION

BUILTIN = calls.Plugin("builtin", VERSION, "python", "cortexfs.tools:plugin")
DESCRIBE_SECONDS = 15.0
MAX_TOOLS = 10_000
MAX_DESCRIPTION = 16 << 10
NOBODY = 65534

_descriptors = msgspec.json.Decoder(list[calls.Descriptor])
_faults = msgspec.msgpack.Decoder(tuple[str, str])


class Catalog:
    """The registry as the enabled plugins make it, and what is wrong with the others."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._known: dict[calls.Plugin, tuple[float, list[calls.Descriptor]]] = {}
        self.broken: dict[str, str] = {}

    async def registry(self, plugins: Iterable[calls.Plugin]) -> Registry:
        """Built-in tools first, then the plugins in the order of enabling."""
        objects: dict[tuple[str, str], Object] = {}
        self.broken = {}
        for plugin in (BUILTIN, *plugins):
            try:
                for object_ in await self._objects(plugin):
                    self._add(objects, object_)
            except Fault as fault:
                self.broken[plugin.name] = fault.message
        return Registry(objects)

    def _add(self, objects: dict[tuple[str, str], Object], object_: Object) -> None:
        key = (object_.class_, object_.name)
        holder = objects.get(key)
        if holder is not None and holder.plugin != object_.plugin:
            assert object_.plugin is not None
            self.broken[object_.plugin.name] = f"its tool {object_.name} is already one of {holder.origin}"
            return
        objects[key] = object_

    async def _objects(self, plugin: calls.Plugin) -> list[Object]:
        if plugin not in self._known:
            descriptors = await self._describe(plugin)
            self._known[plugin] = (time.time(), descriptors)
        registered, descriptors = self._known[plugin]
        origin = "builtin" if plugin == BUILTIN else f"plugin:{plugin.name}@{plugin.version}"
        return [_object(plugin, origin, registered, descriptor) for descriptor in descriptors]

    async def _describe(self, plugin: calls.Plugin) -> list[calls.Descriptor]:
        host = await self._pool.acquire(plugin, describer(), [])
        try:
            with strangers.closing(host.call(None)) as call, trio.move_on_after(DESCRIBE_SECONDS):
                await send(call, announce(calls.Describe()))
                splitter = wire.Splitter(wire.MAX_STRINGS)
                while data := await receive(call):
                    for kind, payload in splitter.feed(data):
                        if kind == wire.FAULT:
                            raise Fault(*_faults.decode(payload))
                        if kind == wire.DESCRIPTORS:
                            return _checked(payload)
        except (OSError, msgspec.MsgspecError) as error:
            raise Fault("EPROTO", f"its description cannot be read: {error}") from None
        finally:
            self._pool.release(host)
        raise Fault("EPROTO", f"it did not describe its tools; its process {host.describe_end()}")


def describer() -> calls.Identity:
    """As whom plugins describe themselves: nobody under root (abi.md 4), else the daemon's user."""
    if os.geteuid() == 0:
        return calls.Identity(NOBODY, NOBODY, ())
    return calls.Identity(os.getuid(), os.getgid(), tuple(sorted(os.getgroups())))


def _checked(payload: bytes) -> list[calls.Descriptor]:
    descriptors = _descriptors.decode(payload)
    if len(descriptors) > MAX_TOOLS:
        raise Fault("EINVAL", f"it has {len(descriptors)} tools, over the limit of {MAX_TOOLS}")
    for descriptor in descriptors:
        names.check_object("tool", descriptor.name)
        if len(descriptor.description) > MAX_DESCRIPTION:
            raise Fault(
                "EINVAL", f"the description of {descriptor.name} is over {MAX_DESCRIPTION} characters"
            )
    return descriptors


def _object(plugin: calls.Plugin, origin: str, registered: float, descriptor: calls.Descriptor) -> Object:
    return Object(
        class_="tool",
        name=descriptor.name,
        description=descriptor.description,
        schema=msgspec.json.encode(descriptor.input_schema),
        capabilities=descriptor.capabilities,
        timeout=descriptor.timeout_secs,
        plugin=plugin,
        origin=origin,
        status="ready",
        registered=registered,
    )
