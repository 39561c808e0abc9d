"""`ctx agent new` and `rm`.

    ctx agent new coder --model openai/gpt-4o --tools 'fs.*,shell.exec'
    ctx agent rm coder

Rules: a record is written (agents/records.py), the running daemon is told, and the command ends when the
agent is there, or gone. All other properties of an agent are edited as the files of its `.d/`. Only the
daemon's owner makes agents in agent/; other users have theirs in their homes (own.py).
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path

from cortexfs.agents import defaults, records
from cortexfs.agents.records import AgentRecord
from cortexfs.cli import mounts, objects, output, parser, reload
from cortexfs.cli import texts as plugin_texts
from cortexfs.cli.agent import own as agent_own
from cortexfs.cli.agent import servers
from cortexfs.cli.agent.listing import row, row_at
from cortexfs.cli.agent.own import CLASS
from cortexfs.cli.bounded import ask
from cortexfs.cli.daemons import places_of
from cortexfs.cli.output import sure
from cortexfs.core import names, value_formats
from cortexfs.core.arguments import name_patterns
from cortexfs.core.errors import Fault, os_faults
from cortexfs.core.policy import rules
from cortexfs.core.tree import controls
from cortexfs.state import state_lock
from cortexfs.state.control_store import ControlStore


def new(options: argparse.Namespace) -> None:
    state = places_of(options).state
    name = names.check_object(CLASS, names.check_new(_plain(options.name)))
    root = mounts.if_answering(options.root)
    if options.home or _is_of_others(options.root) or options.name.startswith("home/"):
        return _new_own(options, name)
    if holders := records.holders(state, name):
        whose = f"uid {holders[0]} has an agent {name} already, and both would share their sessions"
        raise Fault("EEXIST", f"{whose}; choose another name, or remove home/{holders[0]}/{CLASS}/{name}")
    if name in (defaults.BASE, *records.names_of_agents(state)) or (
        root and os.path.lexists(f"{root}/{CLASS}/{name}")
    ):
        raise Fault("EEXIST", f"there is {CLASS}/{name} already; edit the files in its .d/")
    record, served = _record(options, name, root, _labels(state)), _serves(root, state)
    with state_lock.unserved(state) as alone:
        if alone:
            ControlStore(state / "tree").drop_values((CLASS, name))
        records.put(state, record)
    sentence = _tell(options.root, root, [name], exists=True) if served else _elsewhere(root)
    output.say(f"made {CLASS}/{name}; {sentence}")
    if options.json:
        agent = next(each for each in records.load(state).objects if each.name == name)
        output.emit(row(agent, "ready" if root and served else "not mounted"))


def _new_own(options: argparse.Namespace, name: str) -> None:
    """Make the agent in the home of the caller, through the mount."""
    root = mounts.answering(options.root)
    if options.description:
        raise Fault("EINVAL", f"only agents in {CLASS}/ have a description; leave out --description")
    agent_own.make(root, name, _record(options, name, root, frozenset(), own=True).controls)
    output.say(f"made {agent_own.path_of(name)}")
    if options.json:
        output.emit(row_at(root, f"{root}/{agent_own.path_of(name)}"))


def _plain(word: str) -> str:
    """Returns the name of an agent from any of its forms: coder, agent/coder, home/1000/agent/coder."""
    return word.removeprefix(f"home/{os.getuid()}/").removeprefix(f"{CLASS}/")


def _record(
    options: argparse.Namespace, name: str, root: str | None, labels: frozenset[str], own: bool = False
) -> AgentRecord:
    model = options.model.removeprefix("model/")
    value_formats.model_name(f"{model}\n")
    preset = defaults.PRESETS[options.preset]
    tools = preset.tools if options.tools is None else _tools(options.tools, root)
    shell = [*preset.shell, *_tools(options.allow, root)]
    if preset.shell:
        tools = [*dict.fromkeys((defaults.SHELL, *tools))]
    elif shell and defaults.SHELL not in tools:
        raise Fault("EINVAL", f"--allow names tools for the agent's shell; add --tools {defaults.SHELL}")
    if not options.anyway:
        _check_known(root, model, (*tools, *shell), options.skill, own)
    texts = defaults.controls(name, model, tools, labels, shell)
    label = defaults.type_of(name, labels)
    if root is not None and (line := servers.network_line(root, [*tools, *shell], label)):
        texts["policy"] += line
    texts |= {"approval": options.approval, "system.md": preset.system}
    if preset.env:
        texts["env"] = f"{defaults.CONTROLS['env']}\n{preset.env}"
    if options.skill:
        texts["skills"] = defaults.lines(options.skill)
        value_formats.skill_names(texts["skills"])
    if options.system is not None:
        texts["system.md"] = _text(options.system)
    description = " ".join(options.description.split())
    if len(description) > records.MAX_DESCRIPTION:
        raise Fault("EINVAL", f"the description is over {records.MAX_DESCRIPTION} characters")
    return AgentRecord(name, time.time(), os.getuid(), os.getgid(), description, texts)


def _tools(arguments: list[str], root: str | None) -> list[str]:
    """Returns the named tools, with each pattern replaced by the names that match it now."""
    found: dict[str, None] = {}
    known = _names(root, "tool")
    for word in filter(None, (part.strip() for words in arguments for part in words.split(","))):
        if not name_patterns.is_pattern(word):
            found[word] = None
        elif root is None:
            mend = "ctx mount, or name the tools"
            raise Fault("EHOSTDOWN", f"{word!r} cannot be expanded without a mount; {mend}")
        else:
            fitting = [tool for tool in known if servers.is_for_models(root, tool)]
            try:
                found.update(dict.fromkeys(name_patterns.fitting(word, fitting)))
            except Fault as fault:
                raise Fault(fault.code, fault.message + servers.reason(root, word)) from None
    _check_names(value_formats.tool_names, found)
    return list(found)


def _check_names(check: Callable[[str], None], words: Iterable[str]) -> None:
    """Check words of the command line as a control file's lines, without naming a line."""
    try:
        check(defaults.lines(words))
    except Fault as fault:
        raise Fault(fault.code, re.sub(r"^line \d+: ", "", fault.message)) from None


def _check_known(
    root: str | None, model: str, tools: Iterable[str], skills: Sequence[str], own: bool
) -> None:
    """Raises EINVAL for a model, tool or skill that the mount lacks. Without a mount, checks nothing."""
    if root is None:
        return
    _check_names(value_formats.skill_names, skills)
    for class_, targets, known in (
        ("model", [model], _names(root, "model", own)),
        ("tool", tools, _names(root, "tool")),
        ("skill", skills, [*plugin_texts.listed(root, plugin_texts.SKILL)] if skills else []),
    ):
        for name in targets:
            if name not in known:
                near = name_patterns.near(name, known)
                mend = "to make the agent without it, say --anyway"
                raise Fault("EINVAL", f"there is no {class_} {name}{near}; {mend}")


def _names(root: str | None, class_: str, own: bool = False) -> list[str]:
    """Returns names of models, with links, or of tools. Own models need `own`, own tools do not."""
    if root is None:
        return []
    everybodys = f"{root}/{class_}/" if class_ == "model" and not own else ""
    paths = [path for path in objects.paths_of(root, class_) if path.startswith(everybodys)]
    listed = paths if class_ == "model" else [path for path in paths if not os.path.islink(path)]
    return [objects.bare(objects.short(root, path)) for path in listed]


def _text(file: str) -> str:
    """Returns the text of a prompt's file, or of standard input."""
    with (
        os_faults(f"{file} cannot be read"),
        open(file, "rb") if file != "-" else contextlib.nullcontext(sys.stdin.buffer) as source,
    ):
        data = source.read(controls.MAX_VALUE + 1)
    control = controls.find(CLASS, "system.md")
    assert control
    return controls.judge(control, data).decode()


def _labels(state: Path) -> frozenset[str]:
    """Returns the types of all labels of agents in this state, both original and changed ones."""
    originals = records.load(state).objects
    changes = [path.read_text(errors="replace") for path in (state / "tree" / CLASS).glob("*.d/label")]
    return frozenset(
        rules.type_of(text) for text in (*(agent.extra.get("label", "") for agent in originals), *changes)
    )


def remove(options: argparse.Namespace) -> None:
    state, root = places_of(options).state, mounts.if_answering(options.root)
    own = [name for word in dict.fromkeys(options.names) if (name := _own_name(options.root, root, word))]
    system_names = [name for word in dict.fromkeys(options.names) if (name := _plain(word)) not in own]
    known = records.names_of_agents(state) if system_names else []
    for name in system_names:
        if name == defaults.BASE:
            why = "is built in and stays; edit the files in its .d/, or remove one to have its default back"
            raise Fault("EPERM", f"{CLASS}/{name} {why}")
        parser.check_known(name, known, f"there is no {CLASS}/{name}", "see: ctx agent list")
    title = ", ".join([*(f"{CLASS}/{name}" for name in system_names), *map(agent_own.path_of, own)])
    if not options.yes and not sure(f"remove {title}?"):
        raise Fault("ECANCELED", "nothing was removed")
    for name in own:
        assert root
        agent_own.remove(root, name)
    if system_names:  # remove the records, and the control values if no daemon does it
        with state_lock.unserved(state) as alone:
            for name in system_names:
                records.remove(state, name)
                if alone:
                    ControlStore(state / "tree").drop_values((CLASS, name))
    served = _serves(root, state)
    sentence = _tell(options.root, root, system_names, exists=False) if served else _elsewhere(root)
    sentence = f"; {sentence}" if system_names else ""
    output.say(f"removed {title}; sessions stay, below home/ and in shared/main{sentence}")


def _own_name(root_option: str | None, root: str | None, word: str) -> str:
    """Returns the name of the user's own agent if the word means one; else an empty text."""
    name, of_others = _plain(word), _is_of_others(root_option)
    if names.fault_of(name):
        return ""
    if root and (of_others or word.startswith("home/") or not os.path.lexists(f"{root}/{CLASS}/{name}")):
        if agent_own.has(root, name):
            return name
        if of_others and os.path.lexists(f"{root}/{CLASS}/{name}"):
            raise Fault("EACCES", f"only the daemon's owner may remove agents in {CLASS}/")
        if of_others or word.startswith("home/"):
            raise Fault("ENOENT", f"there is no {agent_own.path_of(name)}; see: ctx agent list")
    return ""


# The running mount.


def _is_of_others(root_option: str | None) -> bool:
    """Returns True if the mount is another user's, so that agents in agent/ are too."""
    mount = mounts.meant(root_option)
    return mount is not None and mount.owner != os.getuid()


def _serves(root: str | None, state: Path) -> bool:
    """Returns True if no mount answers, or if the answering mount's daemon has this state."""
    if root is None:
        return True
    pid = mounts.facts(mounts.status_text(root)).get("pid")
    with state_lock.unserved(state) as alone:
        return not alone and pid == [str(state_lock.holder(state))]


def _elsewhere(root: str | None) -> str:
    return f"the mount at {root} has another state and does not show the change; name that state with --state"


def _tell(root_option: str | None, root: str | None, targets: list[str], exists: bool) -> str:
    """Tell the daemon, and wait until its mount shows the change."""

    def outcome(facts: dict[str, list[str]]) -> str | None:
        for name in targets if exists else ():
            if why := reload.broken(CLASS, name, "cannot be used")(facts):
                return why
        # The awaited reload may be one before ours.
        if root and not all(
            reload.until(partial(_is_shown, f"{root}/{CLASS}/{name}", exists)) for name in targets
        ):
            return f"the mount at {root} does not show the change; does its daemon have another --state?"
        return None

    return reload.tell(root_option, outcome)


def _is_shown(path: str, exists: bool) -> bool:
    """Returns True if the entry is there, or gone."""
    return (ask(lambda: b"y" if os.path.lexists(path) else b"", mounts.ANSWER_SECONDS) == b"y") == exists
