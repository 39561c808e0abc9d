"""`ctx plugin`: make, check, install, enable and list plugins.

Rules: enabling writes plugins.json beside config.toml, never config.toml itself. Only the module of the verb
in use is imported.
"""

from __future__ import annotations

import os

from cortexfs.cli.parser import JSON, MOUNTED, Command, arg, flag


def _folder(word: str) -> str:
    """Returns the directory of the plugin that a word means: a manifest means the one that it lies in."""
    is_manifest = os.path.basename(word) in _MANIFESTS and os.path.isfile(word)
    return os.path.dirname(word) or "." if is_manifest else word


_MANIFESTS = ("manifest.toml", "manifest.json")
NAME = arg("name", "PLUGIN", "its name in: ctx plugin list")
FOLDER = arg("directory", "DIR", f"a directory with a {' or '.join(_MANIFESTS)}", type=_folder)
REPLACE = "let its tools take names that others have now"
PRIVATE = arg(
    "--private",
    "NETWORKS",
    "private networks from which its modules may be fetched, too",
    default="",
)

VERBS = {
    "list": Command(
        "plugin.list.listing",
        (*MOUNTED, JSON),
        ("ctx plugin list", "ctx plugin list --json"),
        "list installed and enabled plugins",
    ),
    "install": Command(
        "plugin.install.install.install",
        (
            *MOUNTED,
            arg("source", "SOURCE", "a directory, FILE.cpx, https://..., owner/repo[@version]", type=_folder),
            flag("--yes", "trust its publisher, and give it all files if it wants them, without being asked"),
            flag("--replace", f"{REPLACE}, and let it replace another publisher's plugin or a newer version"),
            PRIVATE,
        ),
        ("ctx plugin install ./my-notes", "ctx plugin install notes-v1.0.0-linux-amd64.cpx --yes"),
        "install a plugin from a directory, a package or an address, and enable it",
    ),
    "uninstall": Command(
        "plugin.install.install.uninstall",
        (*MOUNTED, NAME, flag("--purge", "remove its files, too")),
        ("ctx plugin uninstall notes --purge",),
        "disable a plugin, and remove its files with --purge",
    ),
    "enable": Command(
        "plugin.install.install.enable",
        (*MOUNTED, NAME, flag("--replace", REPLACE)),
        ("ctx plugin enable notes", "ctx plugin enable notes --replace"),
        "load a plugin, now and from now on",
    ),
    "disable": Command(
        "plugin.install.install.disable",
        (*MOUNTED, NAME),
        ("ctx plugin disable notes",),
        "take a plugin's objects out of the mount",
    ),
    "permissions": Command(
        "plugin.decided.permissions",
        (
            *MOUNTED,
            NAME,
            arg("--set", "CAP=grant|deny|default", "grant or deny a capability", action="append"),
            arg("--private", "NETWORKS", "private networks that it may reach, '' for none"),
            JSON,
        ),
        ("ctx plugin permissions notes", "ctx plugin permissions notes --set shell:run=deny"),
        "show or change what a plugin may do",
    ),
    "config": Command(
        "plugin.decided.settings_verb",
        (
            *MOUNTED,
            NAME,
            arg("key", "KEY", "one setting (default: all)", nargs="?"),
            arg("value", "VALUE", "its new value; - reads standard input", nargs="?"),
            flag("--unset", "go back to its default"),
            flag("--fields", "print JSON that has the type, label and choices of each, too"),
            JSON,
        ),
        (
            "ctx plugin config notes",
            "ctx plugin config notes folder ~/notes",
            "ctx plugin config notes token - < token",
        ),
        "show or change the settings of a plugin",
    ),
    "ui": Command(
        "plugin.ui.ui",
        (
            *MOUNTED,
            arg("name", "PLUGIN", "its name in: ctx plugin list (default: all that are shown)", nargs="?"),
            arg("part", "panel/ID|widget/ID", "one part, with its files", nargs="?"),
            JSON,
        ),
        ("ctx plugin ui", "ctx plugin ui notes --json", "ctx plugin ui notes panel/main"),
        "list what plugins show on the page, or the files of a panel",
    ),
    "import-mcp": Command(
        "mcp.importing.import_mcp",
        (
            *MOUNTED,
            arg("file", "FILE", 'the JSON with "mcpServers", as other clients have it'),
            flag("--replace", "replace servers of the same names"),
        ),
        ("ctx plugin import-mcp ~/.config/Claude/claude_desktop_config.json",),
        "take over the MCP servers of another client's file",
    ),
    "new": Command(
        "plugin.make.new",
        (
            arg("name", "NAME", "the plugin's name"),
            arg("directory", "DIR", "its directory (default: cortex-plugin-NAME)", nargs="?"),
            arg(
                "--template",
                None,
                "what it brings: a tool of a kind, a model or a skill",
                choices=("process", "native", "rust", "python", "esm", "model", "skill"),
                default="process",
            ),
        ),
        ("ctx plugin new notes", "ctx plugin new notes --template rust ./notes"),
        "make a plugin that works, to begin with",
    ),
    "review": Command(
        "plugin.install.review.review",
        (arg("directory", "DIR", f"{FOLDER.how['help']}, or a package", type=_folder), PRIVATE, JSON),
        ("ctx plugin review ./notes", "ctx plugin review notes-v1.0.0-linux-amd64.cpx"),
        "show what a plugin asks for, and what limits it to that",
    ),
    "test": Command(
        "plugin.install.review.test",
        (
            FOLDER,
            flag("--run", "call each tool, for real, with an example of its input"),
            flag("--yes", "call them without being asked"),
            PRIVATE,
            JSON,
        ),
        ("ctx plugin test ./notes", "ctx plugin test ./notes --run"),
        "check a plugin, open its library, and call its tools with --run",
    ),
    "keygen": Command(
        "plugin.make.keygen",
        (arg("file", "FILE", "the new file for the secret key"),),
        ("ctx plugin keygen ~/.ssh/plugins.key",),
        "make a key to sign plugins with",
    ),
    "sign": Command(
        "plugin.make.sign",
        (
            FOLDER,
            arg("--key", "FILE", "the file that ctx plugin keygen made", required=True),
            arg("--publisher", "ID", "who signs (default: the manifest says)", default=""),
        ),
        ("ctx plugin sign ./notes --key ~/.ssh/plugins.key --publisher example.dev",),
        "sign a plugin's directory",
    ),
    "pack": Command(
        "plugin.make.pack",
        (FOLDER, arg("out", "OUT", "the package (default: named after the directory)", nargs="?")),
        ("ctx plugin pack ./notes", "ctx plugin pack ./notes notes.cpx"),
        "make a package of a plugin's directory",
    ),
    "trust": Command(
        "plugin.list.trust",
        (
            *MOUNTED,
            arg("action", None, "list or remove", choices=("list", "remove"), nargs="?", default="list"),
            arg("publisher", "ID", "the publisher that is no longer trusted", nargs="?"),
            arg("fingerprint", "FINGERPRINT", "remove only this key", nargs="?", default=""),
            JSON,
        ),
        ("ctx plugin trust list", "ctx plugin trust remove example.dev"),
        "list the publishers that are trusted, or trust one no longer",
    ),
}
COMMANDS = {
    "plugin": Command(
        verbs=VERBS,
        examples=("ctx plugin install ./my-notes", "ctx plugin list", "ctx plugin new my-notes"),
    )
}
