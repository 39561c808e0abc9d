"""A function of a WebAssembly module, called as wasmtime's C interface has it.

wasmtime-py's own call makes and compares types for each number that it passes: of the six of a tool's call it
takes ten times as long as of none. Here the places of the numbers are made once for each function.

Rules: functions take and return 32-bit numbers, of which at most one comes back. What the library does with
traps and with errors of host functions, it does here too.
This file alone uses names of the library that are not public, and must never know what a function is for.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import wasmtime
from wasmtime._bindings import wasmtime_func_call, wasmtime_val_t
from wasmtime._func import enter_wasm

_I32 = ctypes.c_ubyte(0)  # of wasmtime_valkind_t


def function(store: wasmtime.Store, called: wasmtime.Func, takes: int, returns: int) -> Callable[..., int]:
    """0 is what a function returns that returns nothing. Not to be called by two at once."""
    given, got = (wasmtime_val_t * takes)(), (wasmtime_val_t * (returns or 1))()
    for value in given:
        value.kind = _I32
    places = [value.of for value in given]
    answer = got[0].of
    address = ctypes.byref(called._func)

    def call(*numbers: int) -> int:
        for place, number in zip(places, numbers, strict=True):
            place.i32 = number
        with enter_wasm(store) as trap:
            error = wasmtime_func_call(store._context(), address, given, takes, got, returns, trap)
            if error:
                raise wasmtime.WasmtimeError._from_ptr(error)
        return answer.i32

    return call
