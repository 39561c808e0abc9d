"""Each permission of abi.md 9.25 in a real Deno: it grants its access, and nothing else."""

from __future__ import annotations

import subprocess
from pathlib import Path

import msgspec
import pytest

from cortexfs.core.manifestjson.capabilities import CAPABILITIES
from cortexfs.host.esm import permissions
from tests.shell import esmodules
from tests.shell.calling import serving
from tests.shell.wat import Asked

# abi.md 9.25: the capability, and "Deno Worker permission"
TABLE = """
    fs:read read
    fs:list read
    fs:write write
    fs:edit write
    fs:delete write
    fs:search —
    shell:run run
    network:fetch net
    net:outbound net
    net:inbound net
    db:read —
    db:write —
"""
ROWS = [tuple(line.split()) for line in TABLE.strip().splitlines()]
# Deno's own report of each permission, and the outcome of using it.
BODY = """
const asks = {
  read: {name: "read", path: "."}, write: {name: "write", path: "."},
  run: {name: "run", command: "/bin/true"},
  net: {name: "net", host: "93.184.216.34"}, env: {name: "env"}, sys: {name: "sys"}, ffi: {name: "ffi"},
};
const tries = {
  read: () => Deno.readTextFileSync("mine") && [...Deno.readDirSync(".")],
  write: () => {
    Deno.writeTextFileSync("new", "a");
    Deno.writeTextFileSync("new", "b", {append: true});
    Deno.removeSync("new");
  },
  run: () => new Deno.Command("/bin/true").outputSync(),
  net: () => Deno.listen({hostname: "93.184.216.34", port: 80}),
  env: () => Deno.env.get("PATH"), sys: () => Deno.hostname(), ffi: () => Deno.dlopen("libc.so.6", {}),
};
const said = {};
for (const name in asks) {
  const state = Deno.permissions.querySync(asks[name]).state;
  try { tries[name](); said[name] = [state, true]; }
  catch (error) { said[name] = [state, error.name !== "NotCapable"]; }
}
return JSON.stringify(said);
"""


def test_the_table_is_that_of_the_code() -> None:
    assert {name: permission for name, permission in ROWS} == {
        name: one.deno or "—" for name, one in CAPABILITIES.items() if one.permission
    }


@pytest.mark.parametrize(("capability", "permission"), ROWS)
async def test_a_permission_grants_what_the_table_says(
    capability: str, permission: str, tmp_path: Path, place: Path, work: Path
) -> None:
    # "Read files from the filesystem", "List directory contents", "Write files", "Edit existing files",
    # "Delete files", "Execute shell commands", "Make outbound HTTP/HTTPS requests",
    # "General outbound network access", "Accept inbound connections"; "env, sys, ffi, import: never"
    (work / "mine").write_text("mine")
    text = esmodules.source({"look": BODY})
    plugin = esmodules.plugin(place / "p", text, capabilities=("tools", capability))
    async with serving(tmp_path) as world:
        said = msgspec.json.decode(await Asked(world, plugin).said("look"))
    granted = {name for name, (state, _) in said.items() if state == "granted"}
    done = {name for name, (_, does) in said.items() if does}
    assert granted == done == {permission} - {"—"}


def test_what_it_translates_is_kept_nowhere_and_deno_does_not_try(tmp_path: Path) -> None:
    # By itself it would try, for 150 ms with each file. permissions.py: "Deno has no directory on disk"
    (tmp_path / "mod.ts").write_text("const some: number = 1; console.log(some)")
    words = [permissions.found(), "run", "--no-config", "--no-lock", "--log-level=debug", "mod.ts"]
    ran = subprocess.run(
        words, cwd=tmp_path, env=permissions.environment((), {}), capture_output=True, text=True, check=True
    )
    assert ran.stdout == "1\n"
    assert "Skipped emit cache save" in ran.stderr
    assert "Error saving" not in ran.stderr
