"""A plugin's settings: their types and defaults, and the check of a value.

A manifest has settings in two places: ui.settings gives types of keys, config.settings gives default values.
A key is one setting. Its type is that of ui.settings; without one, any JSON value fits. Its default is in
config.settings, or else the defaultValue in ui.settings. A user's value counts before any default.
This file must never know where values or secrets are kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from cortexfs.core import jsontext
from cortexfs.core.arguments.words import BOOLEANS
from cortexfs.core.errors import Fault
from cortexfs.core.jsontext import nearest
from cortexfs.core.manifestjson.fields import JsonManifest, SettingField
from cortexfs.core.manifestjson.problems import Problem, below

# By type of a setting: the value in words for people, and its JSON type.
TYPES = {
    "text": ("a string", "string"),
    "number": ("a number", "number"),
    "boolean": ("true or false", "boolean"),
    "select": ("one of its options", "string"),
    "secret": ("a string, which is never shown", "string"),
}
MASK = "********"
_MAX_LISTED = 200  # characters of the options that a sentence lists, and options that are compared
_WORDS = BOOLEANS | {"on": True, "off": False}


class Setting(msgspec.Struct, frozen=True):
    key: str
    type: str | None = None  # a key of TYPES; None: any JSON value
    default: Any = None
    choices: tuple[str, ...] = ()
    label: str = ""
    about: str = ""
    section: str = ""
    is_required: bool = False

    @property
    def is_secret(self) -> bool:
        return self.type == "secret"

    def shown(self, value: Any) -> Any:
        """Returns the value for people and logs: MASK in place of a secret."""
        return MASK if self.is_secret and value not in (None, "") else value


def settings_of(manifest: JsonManifest) -> dict[str, Setting]:
    """Returns all settings by key, in the manifest's order. A default that does not fit is left out."""
    found = {
        field.key: _setting(field, section.section)
        for section in manifest.ui.settings
        for field in section.fields
    }
    for key, default in manifest.config.settings.items():
        setting = found.get(key, Setting(key))
        if fault_of(setting, default) is None:
            found[key] = msgspec.structs.replace(setting, default=default)
    return found


def _setting(field: SettingField, section: str) -> Setting:
    choices = tuple(choice.value for choice in field.options)
    about = field.description or ""
    setting = Setting(field.key, field.type, None, choices, field.label, about, section, field.required)
    default = None if field.default_value is msgspec.UNSET else field.default_value
    if default is None or fault_of(setting, default):
        return setting
    return msgspec.structs.replace(setting, default=default)


def values(settings: Mapping[str, Setting], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the plugin's settings: all defaults, replaced by the values that a user has set."""
    defaults = {key: setting.default for key, setting in settings.items() if setting.default is not None}
    return defaults | dict(changes)


def check(settings: Mapping[str, Setting], key: str, value: Any) -> Any:
    """Returns `value` if it fits its key. Raises EINVAL if not. A plugin may also set keys of its own."""
    if fault := fault_of(settings.get(key, Setting(key)), value):
        raise Fault("EINVAL", f"{jsontext.path_text([key])}: {fault}")
    return value


def read(settings: Mapping[str, Setting], key: str, text: str) -> Any:
    """Returns the value of a typed word by the setting's type. Raises EINVAL for a wrong key or value."""
    if key not in settings:
        raise Fault("EINVAL", f"{jsontext.shown(key)} is no setting of this plugin{nearest(key, settings)}")
    return check(settings, key, _typed(settings[key].type, text))


def _typed(type_: str | None, text: str) -> Any:
    """Returns the value of a typed word, or the word itself, which `check` may then refuse."""
    if type_ == "boolean":
        return _WORDS.get(text.lower(), text)
    if type_ in ("text", "select", "secret"):
        return text
    try:
        return jsontext.decode(text)
    except Fault:
        return text


def fault_of(setting: Setting, value: Any) -> str | None:
    """Returns why the value does not fit, as a sentence without its subject, or None if it fits."""
    if setting.type is None:
        return None
    expected, json_type = TYPES[setting.type]
    if jsontext.type_name(value) != json_type:
        actual = "another type" if setting.is_secret else jsontext.shown(value)
        return f"expected {expected}, got {actual}"
    if setting.type == "select" and value not in setting.choices:
        known = jsontext.clipped(", ".join(setting.choices), _MAX_LISTED)
        return f"{jsontext.shown(value)} is not one of {known}{nearest(value, setting.choices[:_MAX_LISTED])}"
    return None


def problems(manifest: JsonManifest) -> Iterator[Problem]:
    """Yields the problems of a manifest's settings."""
    seen: dict[str, Setting] = {}
    for at, section in enumerate(manifest.ui.settings):
        for index, field in enumerate(section.fields):
            path = f"ui.settings[{at}].fields[{index}]"
            yield from _field_problems(field, path, field.key in seen)
            seen[field.key] = _setting(field, section.section)
    for key, value in manifest.config.settings.items():
        if fault := fault_of(seen.get(key, Setting(key)), value):
            mend = "it is ignored: write a default of the setting's type"
            yield Problem("wrong_default", below("config.settings", key), fault, mend)


def _field_problems(field: SettingField, path: str, known: bool) -> Iterator[Problem]:
    if known:
        fault = f"{jsontext.shown(field.key)} is used twice"
        yield Problem("duplicate_name", f"{path}.key", fault, "rename or remove one of them")
    if not field.key:
        yield Problem("invalid_name", f"{path}.key", "is empty", "name the setting")
    if field.type == "select" and not field.options:
        mend = 'add options: [{"label": ..., "value": ...}], or choose another type'
        yield Problem("missing_field", f"{path}.options", "is missing", mend)
    elif field.default_value is msgspec.UNSET:
        mend = "add its default"
        yield Problem("missing_default", f"{path}.defaultValue", "is missing", mend)
    elif field.default_value is not None and (reason := fault_of(_setting(field, ""), field.default_value)):
        mend = "it is ignored: write a default of the setting's type"
        yield Problem("wrong_default", f"{path}.defaultValue", reason, mend)
