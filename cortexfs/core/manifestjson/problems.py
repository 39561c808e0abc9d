"""The problems of a manifest.json: the one table of categories, and a problem as a sentence.

Rules: an error refuses the manifest, a warning does not. Every problem says where (a JSON path), what,
and how to mend it.
This file must never know a rule.
"""

from __future__ import annotations

import msgspec

# A manifest with one of these is refused.
ERRORS = {
    "invalid_json": "the file is not one JSON object of at most 1 MiB",
    "too_many_problems": "there are more problems than anybody reads",
    "missing_field": "a required key is not there",
    "wrong_type": "a value has another JSON type than its key wants",
    "invalid_value": "a value is not one of those that its key takes",
    "invalid_name": "a name is not kebab-case, or cannot stand in a path or on a command line",
    "duplicate_name": "a name that must be unique is there twice",
    "invalid_version": "the version is not MAJOR.MINOR.PATCH",
    "invalid_description": "the description is empty or not one line",
    "invalid_kind": "the kind is none of esm, mcp, wasm",
    "invalid_runtime": "the runtime is none of deno, wasm",
    "kind_runtime_mismatch": "this kind does not run in this runtime",
    "invalid_entry_point": "the entry point is no file of the package and no URL that this kind can have",
    "invalid_path": "a path leaves the package",
    "unknown_capability": "a capability is none of the known ones",
    "duplicate_capability": "a capability is declared twice",
    "missing_capability": "something is contributed without the capability for it",
    "events_without_capability": "events are listed without events:listener",
    "unknown_event": "an event is none of the known ones",
    "invalid_dependency": "a dependency's name or range cannot be read, or is the plugin itself",
    "invalid_hash": "the hash is not sha256: and 64 hexadecimal digits",
    "invalid_signature": "the signature is not base64",
}
# A manifest with one of these loads.
WARNINGS = {
    "unknown_key": "a key is not known here and is ignored",
    "missing_default": "a field of the settings has no defaultValue",
    "wrong_default": "a default does not fit the type of its setting and is ignored",
    "settings_without_capability": "there are settings without config:schema",
    "reserved_capability": "a capability is reserved and grants nothing yet",
    "not_spdx": "the license is no SPDX identifier",
    "not_a_url": "a homepage or repository is no URL",
}


class Problem(msgspec.Struct, frozen=True):
    category: str
    path: str  # capabilities[2], ui.settings[0].fields; empty: the whole file
    what: str
    mend: str

    @property
    def is_error(self) -> bool:
        return self.category in ERRORS

    def told(self, file: str) -> str:
        """One sentence: which file, which field, what is wrong, what to do."""
        where = f"{file}: {self.path}" if self.path else file
        return f"{where}: {self.what}; {self.mend}"
