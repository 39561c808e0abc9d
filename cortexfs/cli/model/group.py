"""The declarations of `ctx provider` and `ctx model`.

Rules: only the module of the verb in use is imported.
"""

from __future__ import annotations

from cortexfs.cli.parser import JSON, MOUNTED, Command, arg, flag
from cortexfs.models.ask.model import EFFORTS
from cortexfs.models.providers.provider import FORMATS, PRESETS

NAME = arg("name", "PROVIDER", "its name in: ctx provider list")
VERBS = {
    "list": Command(
        "model.provider.listing",
        (*MOUNTED, JSON),
        ("ctx provider list", "ctx provider list --json"),
        "list the providers",
    ),
    "add": Command(
        "model.provider.add",
        (
            *MOUNTED,
            arg("name", "VENDOR|NAME", f"one of {', '.join(PRESETS)}, or a name of your own"),
            arg(
                "--vendor",
                "VENDOR",
                "the well-known vendor, if NAME is your own",
                choices=tuple(PRESETS),
            ),
            arg("--base-url", "URL", "its address, without /chat/completions"),
            arg("--format", "FORMAT", f"its API: {', '.join(FORMATS)}"),
            arg("--model", "ID", "a model that it has", action="append", default=[]),
            flag("--tools", "its models can call tools, even if it does not say so"),
            arg("--key-env", "VARIABLE", "the daemon's variable that has the key"),
            arg("--key-command", "COMMAND", "the command that prints the key, instead"),
        ),
        (
            "ctx provider add openai && ctx provider secret set openai",
            "ctx provider add ollama",
            "ctx provider add work --base-url https://llm.example.org/v1 --format openai.chat --model m1",
        ),
        "add a provider: a well-known one by its name alone",
    ),
    "add-local": Command(
        "model.local.add_local",
        MOUNTED,
        ("ctx provider add-local",),
        "install a small model that runs on this machine",
    ),
    "add-gguf": Command(
        "model.local.add_gguf",
        (
            *MOUNTED,
            arg("file", "FILE", "a GGUF file; it is used where it is"),
            arg("--name", "P/M", "the model's name (default: from the file and its name)"),
            flag("--install", "install the engine where it is missing"),
        ),
        ("ctx provider add-gguf ~/models/qwen3-1.7b.gguf --name qwen/qwen3-1.7b --install",),
        "add a GGUF file as a model that runs on this machine",
    ),
    "abilities": Command(
        "model.abilities.run",
        (
            *MOUNTED,
            arg("model", "MODEL", "only those with this in their name", nargs="?"),
            arg(
                "--renew", "SOURCE", "build the table from litellm's list or its wheel: a file or an address"
            ),
            JSON,
        ),
        (
            "pip download --no-deps litellm && ctx provider abilities --renew litellm-*.whl",
            "ctx provider abilities gpt-4o",
        ),
        "show what models can do where their providers do not say it, or renew that table",
    ),
    "remove": Command(
        "model.provider.remove",
        (*MOUNTED, NAME),
        ("ctx provider remove groq", "ctx provider remove qwen/qwen3-1.7b"),
        "remove a provider, its key and its models, or a GGUF file that was added",
    ),
    "secret": Command(
        "model.provider.secret",
        (*MOUNTED, arg("what", "set", "keep a key, from standard input", choices=("set",)), NAME),
        ("pass show openai | ctx provider secret set openai",),
        "keep the key of a provider",
    ),
    "test": Command(
        "model.provider.test",
        (*MOUNTED, NAME, JSON),
        ("ctx provider test openai", "ctx provider test openai --json | jq .ms"),
        "check that a provider can be reached and accepts its key",
    ),
    "models": Command(
        "model.provider.models",
        (
            *MOUNTED,
            arg("name", "PROVIDER", "the provider (default: all)", nargs="?", default=""),
            flag("--refresh", "ask the provider, and keep its answer"),
            JSON,
        ),
        ("ctx provider models openrouter", "ctx provider models --refresh", "ctx provider models --json"),
        "list the models of a provider, or of all",
    ),
}
NEW = Command(
    "model.provider.new",
    (
        *MOUNTED,
        arg("name", "NEW", "the new name, as provider/model"),
        arg("--from", "MODEL", "the model to begin with", dest="origin", required=True),
        arg("--set", "KEY=VALUE", "a default parameter", action="append", default=[]),
        arg("--effort", None, "how long it thinks", choices=("auto", *EFFORTS)),
        arg("--description", None, "a sentence for listings", default=""),
    ),
    (
        "ctx model new openai/gpt-4o-coder --from openai/gpt-4o --set temperature=0.2",
        "ctx model new openai/thinker --from openai/o4 --effort high",
    ),
    "make a model with defaults of its own",
)
COMMANDS = {
    "provider": Command(verbs=VERBS),
    "model": Command(
        verbs={"new": NEW}, examples=(NEW.examples[0], "ln -s openai/gpt-4o-coder /ctx/model/coder")
    ),
}
