"""The plugins of `ctx plugin new`: one of each kind, and each passes `ctx plugin test --run` unchanged.

Rules: a template is a table of texts by path. In the texts, @NAME@ stands for the plugin's name, and @WORD@
for that name as an identifier. @HOST@ is the version of this host, and @INCLUDE@ the folder of its C header.
Files below bin/ are programs.
This file must never know where a plugin is written.
"""

from __future__ import annotations

from collections.abc import Mapping

from cortexfs.core.manifest.governance import HOST_VERSION
from cortexfs.plugins.package.package import File

_TOP = """\
name = "@NAME@"
version = "0.1.0"
description = "Counts words"
author = ""
cortex_version = "@HOST@"
"""
_PROVIDES = """
[capabilities]
provides = ["tools"]
"""
_PROCESS = """
[[native.tools]]
name = "@NAME@"
description = "Counts the words of a text. Use it for exact numbers; do not use it for files."
command = "bin/@NAME@"
timeout_secs = 10

[native.tools.input_schema]
type = "object"
required = ["text"]
additionalProperties = false

[native.tools.input_schema.properties.text]
type = "string"
description = "What is counted"
examples = ["to be or not to be"]
"""
_PROGRAM = """\
#!/usr/bin/env python3
\"\"\"One call: the request is a line of JSON on standard input, the answer one on standard output.\"\"\"

import json
import sys

request = json.load(sys.stdin)
words = request["input"]["text"].split()
json.dump({"output": f"{len(words)} words", "is_error": False}, sys.stdout)
"""
_LIBRARY = """
[sandbox]
level = "trusted_in_process"

[native]
library = "lib/lib@WORD@.so"
isolation = "trusted_in_process"
abi_version = 1
"""
_MAKEFILE = """\
INCLUDE = @INCLUDE@

lib/lib@WORD@.so: src/@WORD@.c
	mkdir -p lib
	$(CC) -shared -fPIC -O2 -Wall -I "$(INCLUDE)" -o $@ $<
"""
_SOURCE = """\
/* A tool that counts words. cortexfs_plugin.h says what is whose. */
#include <cortexfs_plugin.h>
#include <ctype.h>
#include <stdio.h>
#include <string.h>

static int state; /* what the functions get; several threads at once */

static CortexBuffer info(void *self)
{
    (void)self;
    return cortex_text(
        "{\\"name\\":\\"@NAME@\\",\\"version\\":\\"0.1.0\\",\\"description\\":\\"Counts words\\"}");
}

static size_t count(void *self)
{
    (void)self;
    return 1;
}

static CortexBuffer descriptor(void *self, size_t index)
{
    (void)self, (void)index;
    return cortex_text(
        "{\\"name\\":\\"@NAME@\\",\\"description\\":\\"Counts the words of a text.\\","
        "\\"input_schema\\":{\\"type\\":\\"object\\",\\"required\\":[\\"text\\"],\\"properties\\":"
        "{\\"text\\":{\\"type\\":\\"string\\",\\"examples\\":[\\"to be or not to be\\"]}}},"
        "\\"timeout_secs\\":10,\\"capabilities\\":"
        "{\\"emits_progress\\":false,\\"emits_observer_text\\":false,\\"background_safe\\":true}}");
}

/* The input is JSON that fits the schema, so {"text":"..."}; a real tool would use a JSON library. */
static CortexBuffer execute(void *self, CortexBuffer name, CortexBuffer input, CortexBuffer invocation)
{
    char answer[32];
    size_t words = 0, at = sizeof "{\\"text\\":\\"" - 1;
    int inside = 0;
    (void)self, (void)name, (void)invocation;
    for (; at + 2 < input.len; at++) {
        int blank = isspace(input.ptr[at]);
        words += !blank && !inside;
        inside = !blank;
    }
    snprintf(answer, sizeof answer, "%zu words", words);
    return cortex_result(answer, 0);
}

static void drop(void *self)
{
    (void)self;
}

CORTEX_PLUGIN(&state, info, count, descriptor, execute, drop)
"""
_PYTHON = """
[python]
entry = "@WORD@_plugin:plugin"
"""
_MODULE = """\
\"\"\"The tools of @NAME@. docs/sdk.md says what a tool can be.\"\"\"

from cortexfs.sdk import tool


@tool(name="@NAME@")
def count_words(text: str) -> str:
    \"\"\"Counts the words of a text. Use it for exact numbers; do not use it for files.\"\"\"
    return f"{len(text.split())} words"


plugin = [count_words]
"""
_CARGO = """\
[package]
name = "cortex-plugin-@NAME@"
version = "0.1.0"
edition = "2024"
publish = false

[lib]
crate-type = ["cdylib"]

[dependencies]
cortex-sdk = "1.6.4"
serde_json = "1"
"""
_CRATE = """\
//! A tool that counts words.

use cortex_sdk::prelude::*;

#[derive(Default)]
struct Plugin;

impl MultiToolPlugin for Plugin {
    fn plugin_info(&self) -> PluginInfo {
        PluginInfo {
            name: "@NAME@".into(),
            version: env!("CARGO_PKG_VERSION").into(),
            description: "Counts words".into(),
        }
    }

    fn create_tools(&self) -> Vec<Box<dyn Tool>> {
        vec![Box::new(CountWords)]
    }
}

struct CountWords;

impl Tool for CountWords {
    fn name(&self) -> &'static str {
        "@NAME@"
    }

    fn description(&self) -> &'static str {
        "Counts the words of a text. Use it for exact numbers; do not use it for files."
    }

    fn input_schema(&self) -> serde_json::Value {
        serde_json::json!({
            "type": "object",
            "required": ["text"],
            "properties": {"text": {"type": "string", "examples": ["to be or not to be"]}}
        })
    }

    fn execute(&self, input: serde_json::Value) -> Result<ToolResult, ToolError> {
        let Some(text) = input["text"].as_str() else {
            return Err(ToolError::InvalidInput("text: is required".into()));
        };
        Ok(ToolResult::success(format!("{} words", text.split_whitespace().count())))
    }
}

cortex_sdk::export_plugin!(Plugin);
"""
_README = """\
# @NAME@

Counts words.

    @BUILD@ctx plugin test . --run
    ctx plugin install .
"""

TEMPLATES: Mapping[str, Mapping[str, str]] = {
    "process": {
        "manifest.toml": _TOP + _PROVIDES + _PROCESS,
        "bin/@NAME@": _PROGRAM,
        "README.md": _README.replace("@BUILD@", ""),
    },
    "native": {
        "manifest.toml": _TOP + 'trust = "trusted_native"\n' + _PROVIDES + _LIBRARY,
        "Makefile": _MAKEFILE,
        "src/@WORD@.c": _SOURCE,
        "README.md": _README.replace("@BUILD@", "make\n    "),
    },
    "rust": {
        "manifest.toml": _TOP
        + 'trust = "trusted_native"\n'
        + _PROVIDES
        + _LIBRARY.replace("lib@WORD@", "libcortex_plugin_@WORD@"),
        "Cargo.toml": _CARGO,
        "src/lib.rs": _CRATE,
        "README.md": _README.replace("@BUILD@", "cargo build --release\n    "),
    },
    "python": {
        "manifest.toml": _TOP + _PROVIDES + _PYTHON,
        "lib/@WORD@_plugin.py": _MODULE,
        "README.md": _README.replace("@BUILD@", ""),
    },
}


def files(template: str, name: str, include: str) -> dict[str, File]:
    """Returns the files of a new plugin. `include` is the folder of the C header."""
    word = "".join(letter if letter.isalnum() else "_" for letter in name)
    words = {"@NAME@": name, "@WORD@": word, "@HOST@": HOST_VERSION, "@INCLUDE@": include}

    def filled(text: str) -> str:
        for mark, value in words.items():
            text = text.replace(mark, value)
        return text

    return {
        filled(path): File(filled(text).encode(), path.startswith("bin/"))
        for path, text in TEMPLATES[template].items()
    }
