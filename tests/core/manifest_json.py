"""A valid manifest.json, which tests spoil in one place at a time."""

from __future__ import annotations

from typing import Any

import msgspec

from cortexfs.core import manifestjson
from cortexfs.core.manifestjson.fields import JsonManifest

SOUND: dict[str, Any] = {
    "name": "my-plugin",
    "version": "1.0.0",
    "description": "Short description",
    "kind": "esm",
    "entryPoint": "./mod.ts",
    "runtime": "deno",
    "capabilities": ["tools", "network:fetch"],
}
EVERYTHING: dict[str, Any] = SOUND | {
    "capabilities": [
        *SOUND["capabilities"],
        "cli:commands",
        "ui:panel",
        "ui:widget",
        "config:schema",
        "config:provider",
        "events:listener",
    ],
    "author": "acme",
    "homepage": "https://example.com",
    "license": "MIT",
    "repository": "https://github.com/acme/my-plugin",
    "hash": "sha256:" + "0a" * 32,
    "signature": "c2lnbmVk",
    "dependencies": {"other-plugin": "^1.0.0"},
    "peerDependencies": {"auth-plugin": ">=2.0.0", "cortex": ">=0.51.0"},
    "events": ["session:start", "llm:post-call"],
    "tools": [
        {
            "name": "count",
            "description": "Counts",
            "params": [
                {"name": "text", "type": "string", "description": "A text", "required": True},
                {"name": "unit", "type": "string", "description": "Of what", "enum": ["words", "lines"]},
            ],
        }
    ],
    "cliCommands": [
        {
            "name": "count-words",
            "description": "Counts",
            "args": [{"name": "file", "type": "string", "description": "A file", "required": True}],
            "options": [{"name": "all", "type": "boolean", "description": "Every file", "flag": "-a"}],
        }
    ],
    "ui": {
        "panels": [{"id": "main", "title": "Counts", "icon": "hash", "htmlPath": "panel/index.html"}],
        "widgets": [{"id": "total", "title": "Total", "type": "chart", "config": {"any": [1]}}],
        "settings": [
            {
                "section": "General",
                "fields": [
                    {"key": "unit", "label": "Unit", "type": "select", "defaultValue": "words",
                     "options": [{"label": "Words", "value": "words"}, {"label": "Lines", "value": "lines"}]},
                    {"key": "limit", "label": "Limit", "type": "number", "defaultValue": 10},
                    {"key": "strict", "label": "Strict", "type": "boolean", "defaultValue": False},
                    {"key": "title", "label": "Title", "type": "text", "defaultValue": "",
                     "description": "Help"},
                    {"key": "token", "label": "Token", "type": "secret", "defaultValue": None},
                ],
            }
        ],
    },
    "config": {
        "providers": [{"kind": "acme", "label": "Acme", "defaultModel": "acme-1"}],
        "settings": {"limit": 20, "retries": 3},
    },
}  # fmt: skip


def read(**changes: Any) -> manifestjson.ManifestReading:
    """Reads the valid manifest with these keys changed; the value ... removes a key."""
    return read_value({key: value for key, value in (SOUND | changes).items() if value is not ...})


def read_value(value: object) -> manifestjson.ManifestReading:
    return manifestjson.read(msgspec.json.encode(value))


def spoilt(way: tuple[str | int, ...], member: str | int, *value: Any) -> manifestjson.ManifestReading:
    """Reads EVERYTHING with one member changed or removed."""
    whole = msgspec.json.decode(msgspec.json.encode(EVERYTHING))  # a copy; copy.deepcopy is ten times slower
    node: Any = whole
    for step in way:
        node = node[step]
    if value:
        node[member] = value[0]
    else:
        del node[member]
    return read_value(whole)


def found(**changes: Any) -> list[tuple[str, str]]:
    """Returns the category and path of each problem."""
    result = read(**changes)
    return [(problem.category, problem.path) for problem in (*result.errors, *result.warnings)]


def manifest(**changes: Any) -> JsonManifest:
    result = read(**changes)
    assert result.manifest is not None, result.errors
    return result.manifest
