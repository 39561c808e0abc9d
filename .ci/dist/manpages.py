"""Make the man pages from the reference pages and the parsers of the commands: manpages.py TO

    ctx(1) and ctx-COMMAND(1)    docs/commands.md, what each parser says, and for two chat.md and ask.md
    ctx(7)                       docs/ctx.md
    cortexfs-config(5)           docs/config.md
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

from cortexfs.cli import parser
from cortexfs.version import VERSION

DOCS = Path(__file__).parents[2] / "docs"
DATE = time.strftime("%Y-%m-%d", time.gmtime(int(os.environ.get("SOURCE_DATE_EPOCH", time.time()))))
ESCAPES = str.maketrans(
    {"\\": "\\e", "-": "\\-", "^": "\\(ha", "~": "\\(ti", "`": "\\(ga", "'": "\\(aq"}
)
NOT_TOLD = argparse._SubParsersAction | argparse._HelpAction
COMMON = ("ctx(1), ctx(7), cortexfs-config(5)",)


def page(name: str, section: int, summary: str, body: Iterable[str]) -> str:
    head = [f'.TH "{name.upper()}" "{section}" "{DATE}" "CortexFS {VERSION}" "CortexFS"', ".nh", ".ad l"]
    return "\n".join([*head, ".SH NAME", f"{escaped(name)} \\- {escaped(summary)}", *body]) + "\n"


def escaped(text: str) -> str:
    return text.translate(ESCAPES)


def breakable(text: str) -> str:
    """Text whose long words may be broken, without a hyphen."""
    words = text.split(" ")
    return " ".join(re.sub(r"(?<=[/|,_.])", r"\\:", word) if len(word) > 40 else word for word in words)


def line(text: str) -> str:
    """A line of text that is no request of roff's."""
    return f"\\&{text}" if text.startswith((".", "'")) else text


def inline(token: Token) -> str:
    """The words of a paragraph or a cell."""
    found, targets = [], []
    for each in token.children or ():
        if each.type == "text":
            found.append(escaped(each.content))
        elif each.type == "code_inline":
            found.append(f"\\fB{breakable(escaped(each.content))}\\fR")
        elif each.type in ("softbreak", "hardbreak"):
            found.append("\n")
        elif each.type in ("strong_open", "em_open"):
            found.append("\\fB" if each.type == "strong_open" else "\\fI")
        elif each.type in ("strong_close", "em_close"):
            found.append("\\fR")
        elif each.type == "link_open":
            targets.append(str(each.attrs.get("href", "")))
        elif each.type == "link_close" and "://" in (target := targets.pop()):
            found.append(f" <{escaped(target)}>")
    return "\n".join(line(part.strip()) for part in "".join(found).split("\n"))


def roff(markdown: str, *, above: int = 1) -> Iterator[str]:
    """Yields the lines of Markdown; headings of the level below `above` begin sections."""
    tokens = MarkdownIt().enable("table").parse(markdown)
    depth, place, cells = 0, 0, list[str]()
    while place < len(tokens):
        token = tokens[place]
        if token.type == "heading_open":
            text = inline(tokens[place + 1])
            section = int(token.tag[1]) == above + 1
            yield f'.SH "{text.upper() if section else text}"' if section else f'.SS "{text}"'
            place += 2
        elif token.type == "paragraph_open":
            if depth and tokens[place - 1].type == "list_item_open":
                yield f'.IP "\\(bu" 2\n{inline(tokens[place + 1])}'
            else:
                yield f"{'.IP' if depth else '.PP'}\n{inline(tokens[place + 1])}"
            place += 2
        elif token.type in ("fence", "code_block"):
            yield ".PP\n.in +4n\n.EX"
            yield from (line(escaped(each)) for each in token.content.rstrip("\n").split("\n"))
            yield ".EE\n.in"
        elif token.type in ("bullet_list_open", "ordered_list_open"):
            depth += 1
        elif token.type in ("bullet_list_close", "ordered_list_close"):
            depth -= 1
        elif token.type == "tr_open":
            cells = []
        elif token.type in ("td_open", "th_open"):
            cells.append(inline(tokens[place + 1]))
        elif token.type == "tr_close" and tokens[place - 1].type == "td_close":
            yield ".TP"
            yield cells[0] or "\\&"
            yield "\n.br\n".join(cell for cell in cells[1:] if cell) or "\\&"
        place += 1


def options(made: argparse.ArgumentParser, prog: str) -> Iterator[str]:
    """Yields the synopsis and options of a command, and of its verbs."""
    verbs = [each for each in made._actions if isinstance(each, argparse._SubParsersAction)]
    made.prog = prog
    usage = re.sub(r"\s+", " ", made.format_usage().removeprefix("usage: ").strip())
    yield f".TP\n\\fB{escaped(usage)}\\fR\n{escaped(made.description or '')}"
    for action in made._actions:
        if action.help is argparse.SUPPRESS or isinstance(action, NOT_TOLD):
            continue
        spelt = ", ".join(action.option_strings)
        taken = "" if action.nargs == 0 else str(action.metavar or ("" if spelt else action.dest))
        words = (spelt and f"\\fB{escaped(spelt)}\\fR", taken and f"\\fI{escaped(taken)}\\fR")
        name = " ".join(filter(None, words))
        yield f".RS\n.TP\n{name}\n{line(escaped((action.help or '') % {'default': action.default}))}\n.RE"
    for each in verbs:
        for verb, below in each.choices.items():
            yield from options(below, f"{prog} {verb}")


def examples(made: argparse.ArgumentParser) -> Iterator[str]:
    lines = (made.epilog or "").split("\n")[1:]
    if lines:
        yield from (".SH EXAMPLES", ".EX", *(line(escaped(each.strip())) for each in lines), ".EE")


def sections(text: str) -> dict[str, str]:
    """The parts of a page by their headings of the third level."""
    parts = re.split(r"^### (\S+).*\n", text.partition("## The commands")[2], flags=re.MULTILINE)
    return {name: body.partition("\n## ")[0] for name, body in zip(parts[1::2], parts[2::2], strict=True)}


def more(name: str) -> str:
    """Returns the text about a command that is on another page than commands.md."""
    if name == "chat":
        return (DOCS / "chat.md").read_text().partition(" DIR]\n")[2]
    if name == "log":
        return (DOCS / "ask.md").read_text().partition("[--since TIME]\n")[2].partition("\n## ")[0]
    return ""


def pages() -> Iterator[tuple[str, str]]:
    commands = (DOCS / "commands.md").read_text()
    told = sections(commands)
    for name, (_, summary) in parser.COMMANDS.items():
        made = parser.of_command(name)
        made.formatter_class = lambda prog, **_: argparse.HelpFormatter(prog, width=10_000)
        body = [".SH SYNOPSIS AND OPTIONS", *options(made, f"ctx {name}")]
        if name in told:
            body += [".SH DESCRIPTION", *roff(told[name], above=3), *roff(more(name))]
        yield f"man1/ctx-{name}.1", page(f"ctx-{name}", 1, summary, [*body, *examples(made), *see(COMMON)])
    body = [".SH SYNOPSIS", "\\fBctx\\fR [\\fB\\-\\-root\\fR \\fIDIR\\fR] \\fICOMMAND\\fR ...", ".SH DESCRIPTION"]
    body += roff(commands.partition("\n")[2].partition("## The commands")[0])
    body.append(".SH COMMANDS")
    for name, (_, summary) in parser.COMMANDS.items():
        body += [f".TP\n\\fBctx\\-{name}\\fR(1)\n{escaped(summary)}"]
    body += see(("ctx(7)", "cortexfs-config(5)"))
    yield "man1/ctx.1", page("ctx", 1, "models, agents and tools as files that you can run", body)
    yield "man1/cortex.1", ".so man1/ctx.1\n"
    for target, source, name, section, summary in (
        ("man7/ctx.7", "ctx.md", "ctx", 7, "the tree of CortexFS, and how its files are run"),
        ("man5/cortexfs-config.5", "config.md", "cortexfs-config", 5, "the settings of CortexFS"),
    ):
        text = (DOCS / source).read_text().partition("\n")[2]
        yield target, page(name, section, summary, [".SH DESCRIPTION", *roff(text), *see(("ctx(1)",))])


def see(names: Sequence[str]) -> list[str]:
    return [".SH SEE ALSO", escaped(", ".join(names))]


if __name__ == "__main__":
    for name, text in pages():
        path = Path(sys.argv[1], name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
