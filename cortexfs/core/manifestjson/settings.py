"""A plugin's settings: their types and defaults, and whether a value fits.

Two places of a manifest speak of them: ui.settings types keys for people, config.settings gives keys default
values. A key is one setting: its type comes from ui.settings (none: any JSON value fits), its default from
config.settings or else from the field's defaultValue. What somebody has set counts before any default.
This file must never know where values are kept, nor how a secret is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from cortexfs.core import jsontext
from cortexfs.core.errors import Fault
from cortexfs.core.jsontext import nearest
from cortexfs.core.manifestjson.fields import JsonManifest, SettingField
from cortexfs.core.manifestjson.problems import Problem, below

# type of a setting: how a person gives it, how it is kept
TYPES = {
    "text": ("a string", "string"),
    "number": ("a number", "number"),
    "boolean": ("true or false", "boolean"),
    "select": ("one of its options", "string"),
    "secret": ("a string, which is shown to nobody", "string"),
}
MASK = "********"
_TOLD = 200  # characters of the options that a sentence lists, and options that are compared
_WORDS = {
    "true": True,
    "yes": True,
    "on": True,
    "1": True,
    "false": False,
    "no": False,
    "off": False,
    "0": False,
}


class Setting(msgspec.Struct, frozen=True):
    key: str
    type: str | None = None  # of TYPES; None: any JSON value
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
        """The value for people and logs: of a secret only that there is one."""
        return MASK if self.is_secret and value not in (None, "") else value


def settings_of(one: JsonManifest) -> dict[str, Setting]:
    """Every setting by its key, as the manifest lists them; a default that does not fit is none."""
    found = {
        field.key: _setting(field, section.section) for section in one.ui.settings for field in section.fields
    }
    for key, default in one.config.settings.items():
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


def values(settings: Mapping[str, Setting], given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the plugin's settings: every default, and over them the values that somebody has set."""
    defaults = {key: setting.default for key, setting in settings.items() if setting.default is not None}
    return defaults | dict(given)


def check(settings: Mapping[str, Setting], key: str, value: Any) -> Any:
    """`value` if it fits its key; EINVAL with the sentence. A plugin may set keys of its own besides."""
    if broken := fault_of(settings.get(key, Setting(key)), value):
        raise Fault("EINVAL", f"{jsontext.path_text([key])}: {broken}")
    return value


def read(settings: Mapping[str, Setting], key: str, text: str) -> Any:
    """Returns a typed value as the setting's type has it; raises EINVAL for a key or value that there is
    not."""
    if key not in settings:
        raise Fault("EINVAL", f"{jsontext.shown(key)} is no setting of this plugin{nearest(key, settings)}")
    return check(settings, key, _typed(settings[key].type, text))


def _typed(type_: str | None, text: str) -> Any:
    """The typed word as JSON where it is some; else as it stands, for `check` to judge."""
    if type_ == "boolean":
        return _WORDS.get(text.lower(), text)
    if type_ in ("text", "select", "secret"):
        return text
    try:
        return jsontext.decode(text)
    except Fault:
        return text


def fault_of(setting: Setting, value: Any) -> str | None:
    """Why the value does not fit, as a sentence without its subject; None: it fits."""
    if setting.type is None:
        return None
    wanted, json_type = TYPES[setting.type]
    if jsontext.type_name(value) != json_type:
        got = "that" if setting.is_secret else jsontext.shown(value)
        return f"expected {wanted}, got {got}"
    if setting.type == "select" and value not in setting.choices:
        known = jsontext.clipped(", ".join(setting.choices), _TOLD)
        return f"{jsontext.shown(value)} is none of {known}{nearest(value, setting.choices[:_TOLD])}"
    return None


def problems(one: JsonManifest) -> Iterator[Problem]:
    """Returns the faults of a manifest's settings."""
    seen: dict[str, Setting] = {}
    for at, section in enumerate(one.ui.settings):
        for index, field in enumerate(section.fields):
            path = f"ui.settings[{at}].fields[{index}]"
            yield from _field_problems(field, path, field.key in seen)
            seen[field.key] = _setting(field, section.section)
    for key, value in one.config.settings.items():
        if broken := fault_of(seen.get(key, Setting(key)), value):
            mend = "it is ignored: write a default of the setting's type"
            yield Problem("wrong_default", below("config.settings", key), broken, mend)


def _field_problems(field: SettingField, path: str, known: bool) -> Iterator[Problem]:
    if known:
        what = f"{jsontext.shown(field.key)} is there twice"
        yield Problem("duplicate_name", f"{path}.key", what, "rename or remove one of them")
    if not field.key:
        yield Problem("invalid_name", f"{path}.key", "is empty", "name the setting")
    if field.type == "select" and not field.options:
        mend = 'add options: [{"label": ..., "value": ...}], or choose another type'
        yield Problem("missing_field", f"{path}.options", "is missing", mend)
    elif field.default_value is msgspec.UNSET:
        mend = "add the value that it has until somebody sets it"
        yield Problem("missing_default", f"{path}.defaultValue", "is missing", mend)
    elif field.default_value is not None and (broken := fault_of(_setting(field, ""), field.default_value)):
        mend = "it is ignored: write a default of the setting's type"
        yield Problem("wrong_default", f"{path}.defaultValue", broken, mend)
