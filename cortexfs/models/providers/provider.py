"""A provider's file: how to reach the provider, and its models (docs/models.md has every key).

    base_url = "https://api.groq.com/openai/v1"
    format = "openai.chat"
    models = ["llama-3.3-70b-versatile"]

    [[model]]
    name = "groq/llama-terse"
    id = "llama-3.3-70b-versatile"
    default = {temperature = 0.2, max_tokens = 200}

Rules: an unknown field is refused, and the error names the nearest known field. A provider's key never stands
in the file: it lies in state/secrets, or the file names the place where the daemon finds it. The file is
written as TOML that a person may edit.
This file must never know where a provider's file lies, nor any secret.
"""

from __future__ import annotations

import re
from typing import Annotated, Any
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta

from cortexfs.core import jsontext, names, tomltext, value_formats
from cortexfs.core.errors import Fault
from cortexfs.models.ask.model import EFFORTS

FORMATS = ("openai.chat", "openai.responses", "anthropic.messages", "google")
MAX_SECONDS = 86_400

# The daemon's environment holds this variable, so it must not be one that changes which code is loaded.
_VARIABLE = re.compile(r"(?!LD_|PYTHON|GLIBC|PATH$)[A-Za-z_][A-Za-z0-9_]*", re.ASCII)

Seconds = Annotated[float, Meta(gt=0, le=MAX_SECONDS)]


class KeySource(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The place of a key that does not lie in state/secrets."""

    env: str | None = None
    command: tuple[str, ...] | None = None


class DeclaredModel(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A model that the file declares: a new model, or more about a listed model."""

    id: Annotated[str, Meta(min_length=1, max_length=512)]
    name: str | None = None  # default: the name that the id gets
    description: str = ""
    cap: tuple[str, ...] | None = None
    limit: Annotated[int, Meta(ge=1, le=value_formats.U32)] | None = None
    default: dict[str, Any] = {}
    effort: str = "auto"
    fallback: tuple[str, ...] = ()


class Provider(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    base_url: str
    format: str
    models: tuple[str, ...] = ()  # ids of more models than the provider lists
    listed: bool = True  # the provider is asked for its models
    order: int = 0  # of two providers with a model of one name, the lower order has it
    keyless: bool = False  # the provider takes requests without a key
    tools: bool = False  # its models take tools, even if its listing does not name abilities
    key: KeySource | None = None
    headers: dict[str, str] = {}
    connect_secs: Seconds = 10
    first_secs: Seconds = 300  # until the answer begins: a model that reasons sends nothing for long
    silence_secs: Seconds = 120
    model: tuple[DeclaredModel, ...] = ()

    @property
    def needs_key(self) -> bool:
        """True unless the provider is keyless or has an http address, as servers of the user's own have."""
        return not (self.keyless or self.base_url.startswith("http://"))


_UNSAID = Provider("", "")


class Preset(msgspec.Struct, frozen=True):
    base_url: str
    format: str = "openai.chat"
    tools: bool = False


# `tools`: the vendor's listings name no abilities, and (nearly) all of its chat models take tools.
PRESETS: dict[str, Preset] = {
    "openai": Preset("https://api.openai.com/v1", "openai.responses", tools=True),
    "anthropic": Preset("https://api.anthropic.com", "anthropic.messages", tools=True),
    "google": Preset("https://generativelanguage.googleapis.com/v1beta/openai", "google", tools=True),
    "openrouter": Preset("https://openrouter.ai/api/v1"),
    "groq": Preset("https://api.groq.com/openai/v1"),
    "deepseek": Preset("https://api.deepseek.com/v1", tools=True),
    "mistral": Preset("https://api.mistral.ai/v1"),
    "together": Preset("https://api.together.xyz/v1"),
    "fireworks": Preset("https://api.fireworks.ai/inference/v1"),
    "xai": Preset("https://api.x.ai/v1", tools=True),
    "moonshot": Preset("https://api.moonshot.ai/v1"),
    "minimax": Preset("https://api.minimax.io/v1"),
    "zhipu": Preset("https://open.bigmodel.cn/api/paas/v4"),
    "qwen": Preset("https://dashscope.aliyuncs.com/compatible-mode/v1"),
    "siliconflow": Preset("https://api.siliconflow.cn/v1"),
    "volcengine": Preset("https://ark.cn-beijing.volces.com/api/v3"),
    "cerebras": Preset("https://api.cerebras.ai/v1"),
    "ollama": Preset("http://127.0.0.1:11434/v1"),
    "lmstudio": Preset("http://127.0.0.1:1234/v1"),
    "llama.cpp": Preset("http://127.0.0.1:8080/v1"),
    "vllm": Preset("http://127.0.0.1:8000/v1"),
}


def decode(data: bytes, where: str) -> Provider:
    """Returns the provider that a file describes. Every Fault names the file and the field."""
    table = tomltext.table(data, where)
    if isinstance(table.get("key"), str) or "api_key" in table:
        raise Fault("EINVAL", f"{where}: a key does not belong here; use: ctx provider secret set NAME")
    provider = tomltext.converted(table, Provider, where)
    try:
        _check(provider)
    except Fault as fault:
        raise Fault("EINVAL", f"{where}: {fault.message}") from None
    return provider


def _check(provider: Provider) -> None:
    check_base_url(provider.base_url)
    check_format(provider.format)
    if provider.key and (provider.key.env is None) == (not provider.key.command):
        raise Fault("EINVAL", 'key: expected {env = "NAME"} or {command = ["program", "argument"]}')
    if provider.key and provider.key.env is not None and not _VARIABLE.fullmatch(provider.key.env):
        raise Fault("EINVAL", f"key.env: the variable {provider.key.env!r} cannot hold a key; choose another")
    for name, value in provider.headers.items():
        if name.lower() in ("authorization", "x-api-key", "api-key"):
            raise Fault("EINVAL", f"headers: {name} holds a key; use: ctx provider secret set NAME")
        if not (name + value).isascii() or not (name + value).isprintable() or not name:
            raise Fault("EINVAL", f"headers: {name!r} is not one line of ASCII text")
    for id_ in (*provider.models, *(declared.id for declared in provider.model)):
        if not id_.strip() or not id_.isprintable():
            raise Fault("EINVAL", f"models: {id_!r} is not a valid id of a model")
    for declared in provider.model:
        _check_declared(declared)


def _check_declared(declared: DeclaredModel) -> None:
    if declared.name is not None:
        names.check_object("model", declared.name)
    if declared.effort not in ("auto", *EFFORTS):
        raise Fault("EINVAL", f"model.effort: {declared.effort!r} is not one of auto, {', '.join(EFFORTS)}")
    value_formats.fallback("\n".join(declared.fallback))
    for key in declared.default:
        value_formats.parameters(f"{key}=x\n")


def check_format(name: str) -> str:
    if name not in FORMATS:
        raise Fault("EINVAL", f"format: {jsontext.shown(name)} is not one of {', '.join(FORMATS)}")
    return name


def check_base_url(url: str) -> str:
    """Returns the http or https address without its last slash. Raises EINVAL for credentials or a query."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError as problem:
        raise Fault("EINVAL", f"base_url: {url!r} is not a URL: {problem}") from None
    if parts.scheme not in ("http", "https") or not host or not url.isascii() or not url.isprintable():
        raise Fault("EINVAL", f"base_url: {url!r} is not of the form https://host/path")
    if parts.username or parts.password:
        raise Fault("EINVAL", "base_url: it holds a name or password; use: ctx provider secret set NAME")
    if parts.query or parts.fragment:
        raise Fault("EINVAL", f"base_url: {url!r} has more than an address and a path")
    return url.rstrip("/")


def encode(provider: Provider) -> bytes:
    """Returns the text of a provider's file. Fields with their default are left out."""
    plain = msgspec.structs.replace(provider, model=())
    fields = {field.name: getattr(plain, field.name) for field in msgspec.structs.fields(Provider)}
    changed = {key: value for key, value in fields.items() if value != getattr(_UNSAID, key)}
    text = "\n".join(tomltext.lines(msgspec.to_builtins(changed))) + "\n"
    return (text + "".join(declaration(each) for each in provider.model)).encode()


def declaration(model: DeclaredModel) -> str:
    """Returns a [[model]] table, which can be appended to each provider's file."""
    fields = msgspec.to_builtins(model).items()
    said = {key: value for key, value in fields if value and (key, value) != ("effort", "auto")}
    return "\n".join(["", "[[model]]", *tomltext.lines(said)]) + "\n"
