"""core/manifestjson/wasm_layout.py: abi.md 9.53, a module that uses memory where the host writes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import wasmtime

from cortexfs.core.manifestjson import wasm_layout
from cortexfs.core.manifestjson.wasm_layout import doubt, fault
from cortexfs.state import directories
from tests.shell import plugin_commands, wat
from tests.shell.forks import public_directory
from tests.shell.plugin_commands import Said
from tests.shell.wat import broken

places, said = plugin_commands.places, plugin_commands.said
MEND = "link it with -z stack-size=65536 --global-base=1048576"


@pytest.fixture
def place() -> Iterator[Path]:
    with public_directory() as made:
        yield made


def module(*parts: str, pages: int = 17) -> bytes:
    return bytes(wasmtime.wat2wasm(f'(module (memory (export "memory") {pages}) {" ".join(parts)})'))


def data(at: int, size: int = 1) -> str:
    return f'(data (i32.const {at}) "{"x" * size}")'


def number(value: int, name: str = "", export: str = "") -> str:
    shown = f'(export "{export}")' if export else ""
    return f"(global ${name or 'g'} {shown} (mut i32) (i32.const {value}))"


FAULTS = {
    "data in it": (module(data(0x10000, 70_000)), "its data lies at 0x10000 to 0x2116f, "),
    "data at its end": (module(data(0xFFFFF)), "its data lies at 0xfffff to 0xfffff, "),
    "the second data": (module(data(0x100000), data(0x20000)), "its data lies at 0x20000 to "),
    "zeroed data": (module(data(0x10000), number(0x90000, "e", "__data_end")), "its data lies at 0x10000"),
    "zeroed data alone": (module(number(0x90000, "e", "__data_end")), "its data lies at 0x8ffff"),
    "a stack": (module(number(0x80000, "__stack_pointer")), "its stack lies below 0x80000, "),
    "an exported stack": (module(number(0x80000, "s", "__stack_pointer")), "its stack lies below 0x80000, "),
}


@pytest.mark.parametrize("what", FAULTS)
def test_what_is_known_to_lie_there(what: str) -> None:
    found, why = FAULTS[what]
    assert fault(found).startswith(why)
    assert fault(found).endswith(f"where the host writes (0x20000 to 0xfffff); {MEND}")


SOUND = {
    "below": module(data(0x1000, 0x1000), number(0x10000, "__stack_pointer"), pages=2),
    "below and above": module(data(0x1FFFF), data(0x100000)),
    "as Rust links it": module(
        data(0x100000, 50), number(0x100000, "__stack_pointer"), number(0x100040, "d", "__data_end")
    ),
    "Rust without data": module(
        number(0x100000, "__stack_pointer"), number(0x100000, "d", "__data_end"), number(0x100000, "h")
    ),
    "an import": bytes(wasmtime.wat2wasm(f"(module {wat.IMPORTS} {wat.IMPORTED} {data(0x100000)})")),
    "by hand": module(data(0), "(global $calls (mut i32) (i32.const 0))", pages=256),
    "other values": module(
        "(global f32 (f32.const 1)) (global f64 (f64.const 1)) (global (mut i64) (i64.const -1))",
        "(global funcref (ref.null func)) (global $v v128 (v128.const i32x4 1 2 3 4))",
        '(global i32 (i32.const -1)) (table 1 funcref) (data "passive")',
        data(0x100000),
    ),
    "no module": b"garbage",
    "nothing": b"",
    "torn": module(data(0x20000))[:-1],
}


@pytest.mark.parametrize("what", SOUND)
def test_what_is_not(what: str) -> None:
    assert (fault(SOUND[what]), doubt(SOUND[what])) == ("", "")


def test_a_number_that_does_not_end_takes_no_time() -> None:
    # The compiler does not read the names of a module: a number of all 16 MiB took hours.
    names = b"\x04name\x07\x80\x01" + b"\xff" * 127 + b"\0"
    sound = module(data(0x100000)) + b"\0\x88\x01" + names
    wasmtime.Module(wasmtime.Engine(), sound)
    assert (fault(sound), doubt(sound)) == ("", "")
    with pytest.raises(ValueError, match="over 64 bits"):
        wasm_layout._Bytes(b"\xff" * 10 + b"\0").number()


DOUBTS = {
    "zeroed data in a small memory": module(data(0x10000), number(0x10000), pages=11),
    "by a named stack": module(data(0x10000), number(0x10000, "__stack_pointer"), pages=11),
    "zeroed data in a large memory": module(data(0x10000), number(0x10000), pages=40),
    "a stack without a name": module(data(0x100000), number(0x80000), pages=40),
    "of an imported memory": bytes(
        wasmtime.wat2wasm(f'(module (import "env" "memory" (memory 256)) {number(0x30000)})')
    ),
}


@pytest.mark.parametrize("what", DOUBTS)
def test_what_is_likely(what: str) -> None:
    assert fault(DOUBTS[what]) == ""
    assert doubt(DOUBTS[what]).startswith("its data or its stack may lie where the host writes")
    assert MEND in doubt(DOUBTS[what])


async def test_it_is_refused_when_it_is_loaded(tmp_path: Path, place: Path) -> None:
    source = wat.text({}, more=data(0x20000))
    assert "its data lies at 0x20000 to 0x20000, where" in await broken(
        tmp_path, wat.plugin(place / "m.wasm", source)
    )


def test_test_says_it_before(places: directories.Places, said: Said, tmp_path: Path) -> None:
    folder = tmp_path / "echo"
    folder.mkdir()
    manifest = {
        "name": "echo",
        "version": "1.0.0",
        "description": "An echo",
        "kind": "wasm",
        "runtime": "wasm",
        "entryPoint": "./echo.wasm",
        "capabilities": ["tools"],
    }
    (folder / "manifest.json").write_text(json.dumps(manifest))
    (folder / "echo.wasm").write_bytes(FAULTS["data in it"][0])
    status, out, _ = said("test", str(folder))
    assert (status, "fail: memory (its data lies at 0x10000 to 0x2116f" in out) == (1, True)
    assert said("install", str(folder))[0] == 2
    (folder / "echo.wasm").write_bytes(DOUBTS["zeroed data in a small memory"])
    assert "- its data or its stack may lie where the host writes" in said("review", str(folder))[1]


def test_the_heap_is_that_of_the_abi() -> None:
    # abi.md 9.33
    assert (wasm_layout.HEAP.start, wasm_layout.HEAP.stop) == (0x20000, 0x100000)
