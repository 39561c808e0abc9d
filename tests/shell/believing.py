"""The trusted files, for tests: how our own commands make each file, and what its reader reports."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, cast

from cortexfs import config
from cortexfs.agents import records
from cortexfs.core.errors import Fault
from cortexfs.core.manifest.mcp_server import McpServer
from cortexfs.core.manifestjson.fields import JsonManifest
from cortexfs.core.policy.risk import FILE as POLICY
from cortexfs.daemon.agent_ports import PolicyFile
from cortexfs.models.local import weights
from cortexfs.models.providers.files import Providers
from cortexfs.models.providers.provider import Provider
from cortexfs.models.providers.secrets import Secrets
from cortexfs.plugins.install import decisions, install
from cortexfs.plugins.mcp_servers import Servers
from cortexfs.plugins.package import records as plugin_records
from cortexfs.plugins.trust import openpgp, secret_box
from cortexfs.plugins.trust.trust import TrustStore
from cortexfs.state import whole_files
from cortexfs.state.control_store import ControlStore
from cortexfs.state.directories import Places

WORD = "cortexfs test"


class Kind(NamedTuple):
    """A file: `make` creates it as our own commands do, `use` returns the reader's complaint, or nothing."""

    make: Callable[[Places], Path]
    use: Callable[[Places], str]


def written(path: Path, text: str = "") -> Path:
    whole_files.replace(path, [text.encode()], 0o644)
    return path


def provider(where: Places) -> Path:
    files = Providers(where.config, where.state)
    files.add("p", Provider("https://p.example", "openai.chat"))
    return files.path("p")


def server(where: Places) -> Path:
    servers = Servers(where.config, where.state)
    servers.write({"s": (McpServer(command="/bin/true"), {})}, replace=False)
    return servers.path("s")


def choices(where: Places) -> Path:
    config.choose(where.config, "notes", True)
    return where.config / config.CHOICES


def settings(where: Places) -> Path:
    decisions.DecisionStore(where.state).change("p", lambda chosen: decisions.Chosen(private=("10.0.0.0/8",)))
    return where.state / decisions.STORE


def agent(where: Places) -> Path:
    records.put(where.state, records.AgentRecord("a", 1, 0, 0))
    return where.state / "agents" / "a.json"


def own_agent(where: Places) -> Path:
    records.put(where.state, records.own("a", 5, 5, 1), home=5)
    return where.state / "agents" / "home" / "5" / "a.json"


def plugin(where: Places) -> Path:
    record = plugin_records.file(plugin_records.PluginRecord("here", {}))
    install.install(where.state / "plugins", "p", {plugin_records.FILE: record})
    return where.state / "plugins" / "p" / plugin_records.FILE


def secret(where: Places) -> Path:
    Secrets(where.state).set("p", b"key")
    return where.state / "secrets" / "p"


def seal(where: Places) -> Path:
    secret_box.seal(where.state, "p", "token", WORD)
    return where.state / secret_box.KEY_FILE


def control(where: Places) -> Path:
    ControlStore(where.state / "tree").put_value(("tool", "fs.read"), "policy", b"allow a_t tool:b execute\n")
    return where.state / "tree" / "tool" / "fs.read.d" / "policy"


def link(where: Places) -> Path:
    weights.add(where.config, "m/m", Path("/nowhere.gguf"))
    return where.config / "gguf" / "m" / "m.gguf"


def said(use: Callable[[Places], object]) -> Callable[[Places], str]:
    """Returns a function that returns the sentence that the reader returns or raises."""

    def sentence(where: Places) -> str:
        try:
            found = use(where)
        except Fault as fault:
            return fault.message
        return found if isinstance(found, str) else ""

    return sentence


class Signed(NamedTuple):
    signature: str


def keys_used(where: Places) -> None:
    openpgp.unchecked(cast(JsonManifest, Signed("s")), where.config / openpgp.KEYS)


def own_agents_used(where: Places) -> str:
    found = [one.status for one in records.load_own(where.state)]
    return "".join(one for one in found if one != "ready") or ("" if found else "Permission denied")


def weights_used(where: Places) -> str:
    (found,) = (one.object.status for one in weights.found(where.config, 512) if one.object.name == "m/m")
    return found if "is used" in found or "is not used" in found else ""


KINDS = {
    "config.toml": Kind(lambda where: written(where.config / config.FILE), said(config.load)),
    "plugins.json": Kind(choices, said(config.load)),
    "policy.toml": Kind(
        lambda where: written(where.config / POLICY, "deny = ['shell.*']\n"),
        said(lambda where: PolicyFile(where.config / POLICY).read()),
    ),
    "plugin-keys.gpg": Kind(lambda where: written(where.config / openpgp.KEYS, "keys"), said(keys_used)),
    "provider": Kind(
        provider, said(lambda where: Providers(where.config, where.state).load().broken.get("p", ""))
    ),
    "mcp": Kind(
        server, said(lambda where: Servers(where.config, where.state).load().faults.get("mcp:s", ""))
    ),
    "trust": Kind(
        lambda where: written(where.state / "plugin-trust.toml"),
        said(lambda where: TrustStore(where.state).read()),
    ),
    "plugin settings": Kind(settings, said(lambda where: decisions.DecisionStore(where.state).read())),
    "agent": Kind(agent, said(lambda where: records.load(where.state).broken.get("a", ""))),
    "own agent": Kind(own_agent, said(own_agents_used)),
    "plugin": Kind(plugin, said(lambda where: plugin_records.read(where.state / "plugins" / "p"))),
    "secret": Kind(secret, said(lambda where: Secrets(where.state).get("p") and None)),
    "seal": Kind(seal, said(lambda where: secret_box.unseal(where.state, "p", "token", "AAAA") and None)),
    "control": Kind(control, said(lambda where: ControlStore(where.state / "tree").load())),
    "weights": Kind(link, weights_used),
}
