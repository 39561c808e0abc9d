"""The declaration of `ctx agent`: make, list and remove agents.

Rules: only the module of the verb in use is imported.
"""

from __future__ import annotations

from cortexfs.agents import defaults
from cortexfs.cli.parser import JSON, MOUNTED, Command, arg, flag

_TOOLS = "a tool, several with commas between, or a pattern (default: those of the preset)"
_ALLOW = "as --tools, for tools that it may run in its shell but that its model is not shown"
_PRESET = "its tools and prompt: to read files, to work on them, or to talk (default: read)"
_APPROVAL = "ask: ask a person before every call"
VERBS = {
    "new": Command(
        "agent.agent.new",
        (
            *MOUNTED,
            arg("name", "NEW", "its name"),
            flag("--home", "make it in your home (always so, except for the daemon's owner)"),
            arg("--preset", None, _PRESET, choices=(*defaults.PRESETS,), default="read"),
            arg("--model", "MODEL", "provider/model, or an alias (default: main)", default=defaults.MODEL),
            arg("--tools", "TOOL", _TOOLS, action="append"),
            arg("--allow", "TOOL", _ALLOW, action="append", default=[]),
            arg("--skill", "SKILL", "PLUGIN/SKILL, which it may read", action="append", default=[]),
            arg("--system", "FILE", "its system prompt; - is standard input"),
            arg("--description", "TEXT", "a sentence for listings", default=""),
            flag("--anyway", "make it even if its model, a tool or a skill is missing"),
            arg("--approval", None, _APPROVAL, choices=("auto", "ask"), default="auto"),
            JSON,
        ),
        (
            "ctx agent new coder --preset code --model openai/gpt-4o",
            "ctx agent new coder --preset code --allow 'github.*'",
            "ctx agent new clerk --tools 'fs.*,text.word_count'",
            "ctx agent new critic --system critic.md --description 'Finds what is wrong.'",
            "echo 'You answer in French.' | ctx agent new francophone --tools '' --system -",
            "ctx agent new mine --home",
        ),
        "make an agent",
    ),
    "rm": Command(
        "agent.agent.remove",
        (*MOUNTED, arg("names", "AGENT", "its name", nargs="+"), flag("--yes", "do not ask")),
        ("ctx agent rm coder", "ctx agent rm a b --yes"),
        "remove agents; their sessions stay",
    ),
    "list": Command(
        "agent.listing.listing",
        (*MOUNTED, JSON),
        ("ctx agent list", "ctx agent list --json | jq -r '.[].name'"),
        "list agents, their models and how many tools they have",
    ),
}


COMMANDS = {"agent": Command(verbs=VERBS)}
