"""Markdown as lines for a terminal, also while it is still being written.

    answer.add(text)         a piece arrives
    answer.settled(width)    the part that can no longer change, to be printed once
    answer.end(width)        all of the rest
    answer.live(width, rows) the end of the rest, to be drawn again and again

Rules: no control character of the text reaches the terminal, not even one that is written as an entity: text
is escaped after Markdown is parsed. HTML is shown as text, a line break stays a line break, and a link shows
its address. Work is bounded: a block that does not end is printed in parts.
This file must never know where the text comes from or how it is drawn.
"""

from __future__ import annotations

import io
from typing import ClassVar, NamedTuple

from markdown_it import MarkdownIt
from markdown_it.token import Token
from rich.console import Console, ConsoleOptions, RenderResult
from rich.markdown import CodeBlock, Heading, Markdown, MarkdownElement, TableElement
from rich.segment import Segment
from rich.syntax import Syntax
from rich.table import Table
from rich.theme import Theme

from cortexfs.core.safe_text import prose

MAX_BLOCK = 8 << 10  # characters of a block that are parsed at each drawing
MAX_STEP = MAX_BLOCK + MAX_BLOCK // 2  # characters that are settled in one step: about 50 ms of work
MAX_FENCE = 256  # characters; a longer opening line of a code block is not repeated
CODE = "ansi_dark"  # the terminal's own colours on its own background

_THEME = Theme({"markdown.code": "cyan", "markdown.block_quote": "dim"})  # readable on any background
_parser = MarkdownIt("commonmark", {"html": False}).enable("strikethrough").enable("table")


class Style(NamedTuple):
    """The abilities of the terminal."""

    colour: bool = True
    encoding: str = "utf-8"


class MarkdownStream:
    """One answer, from its first piece to its end."""

    def __init__(self, style: Style) -> None:
        self._style = style
        self._text = ""
        self._has_news = False  # text has come since the last search for complete blocks
        self._gap = ""  # what separates the next block from what was printed
        self._drawn: tuple[str, int, str] = ("", 0, "")  # a text, a width, and the lines rendered from them

    @property
    def behind(self) -> bool:
        """Returns True if there is more text than one step can settle."""
        return len(self._text) > MAX_STEP

    def add(self, text: str) -> None:
        self._text += text
        self._has_news = True

    def drop(self) -> None:
        """Forget the text that one step cannot settle, as the rest is not wanted any more."""
        self._text = self._text[:MAX_STEP]

    def settled(self, width: int) -> str:
        """Returns the complete blocks as lines. Does the work of one step."""
        if not self._has_news:
            return ""
        self._has_news = self.behind
        done, rest, is_whole = split(self._text[:MAX_STEP])
        self._text = rest + self._text[MAX_STEP:]
        return self._lines(done, width, is_whole)

    def end(self, width: int) -> str:
        """Returns the rest of a finished answer. The next answer begins anew."""
        text = ""
        while self.behind:
            text += self.settled(width)
        rest, self._text = self._text, ""
        text += self._lines(rest, width, True)
        self._gap = ""
        return text

    def live(self, width: int, rows: int) -> str:
        """Returns the last `rows` lines that are not settled; empty while more than one step is left."""
        if self.behind:
            return ""
        text = self._text[-MAX_BLOCK:]
        if self._drawn[:2] != (text, width):
            self._drawn = (text, width, rendered(text, width, self._style))
        return "".join((self._gap + self._drawn[2]).splitlines(keepends=True)[-rows:])

    def _lines(self, text: str, width: int, is_whole: bool) -> str:
        if lines := rendered(text, width, self._style):
            lines, self._gap = self._gap + lines, "\n" * is_whole
        return lines


def split(text: str) -> tuple[str, str, bool]:
    """Returns the complete part, the part that may still change, and True if the first ends with a whole
    block.

    The last line is still being written: `3` may become `3. third`, and belong to the list above.
    """
    tokens: list[Token] = []  # the blocks and their first lines; the text inside them is not parsed
    _parser.block.parse(_lined(text[: text.rfind("\n") + 1]), _parser, {}, tokens)
    blocks = [token for token in tokens if token.level == 0 and token.nesting >= 0]
    last = blocks[-1] if blocks else None
    lines = _lined(text).splitlines(keepends=True)
    done = sum(map(len, lines[: last.map[0]])) if last and last.map else 0
    rest = text[done:]
    if len(rest) <= MAX_BLOCK:
        return text[:done], rest, True
    cut = max(rest.rfind("\n", 0, MAX_BLOCK), rest.rfind(" ", 0, MAX_BLOCK)) + 1 or MAX_BLOCK
    # The rest of a code block begins with the same opening line, so that it is code too.
    line = rest.partition("\n")[0]
    opening = f"{line}\n" if last and last.type == "fence" and len(line) < MAX_FENCE else ""
    return text[: done + cut], opening + rest[cut:], False


def _lined(text: str) -> str:
    """Returns `text` with newlines only where Python and Markdown both see one, character for character."""
    return text.translate(_OTHER_BREAKS)


# Further line ends of str.splitlines, which Markdown does not know: both must count the same lines.
_OTHER_BREAKS = {ord(char): " " for char in "\v\f\x1c\x1d\x1e\x85\u2028\u2029"}


def rendered(text: str, width: int, style: Style) -> str:
    """Returns `text` as lines of at most `width` columns. They have styling sequences and no others."""
    text = _lined(text.replace("\r\n", "\n"))
    if not text.strip():
        return ""
    console = Console(
        file=io.TextIOWrapper(io.BytesIO(), style.encoding),  # rich asks it for its encoding
        width=max(width, 10),
        force_terminal=True,
        color_system="standard" if style.colour else None,
        highlight=False,
        markup=False,
        emoji=False,
        legacy_windows=False,
        theme=_THEME,
    )
    groups: list[list[Token]] = [[]]  # the tokens of each top-level block
    for token in _parser.parse(text):
        for child in token.children or []:
            if child.type == "softbreak":  # a line break stays a line break
                child.type = "hardbreak"
        groups[-1].append(token)
        if token.level == 0 and token.nesting <= 0:
            groups.append([])
    return "\n".join(lines for group in groups[:-1] if (lines := _block(console, group)))


def _block(console: Console, tokens: list[Token]) -> str:
    """Returns a block's lines, without the blank lines around it, which differ by kind of block."""
    markdown = _Markdown("", code_theme=CODE, hyperlinks=False)
    markdown.parsed = tokens
    lines = [_line(console, line) for line in console.render_lines(markdown, pad=False)]
    numbers = [number for number, line in enumerate(lines) if line.strip()]
    return "".join(lines[numbers[0] : numbers[-1] + 1]) if numbers else ""


class _Code(CodeBlock):
    """A code block exactly as it is written, so that it can be copied from the screen."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Syntax(str(self.text).rstrip(), self.lexer_name, theme=self.theme, word_wrap=True)


class _Title(Heading):
    """A heading at the left edge, where reading begins."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        self.text.justify = "left"
        yield self.text


class _Table(TableElement):
    """A table whose narrow columns break long words, and lose no part of them."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for part in super().__rich_console__(console, options):
            if isinstance(part, Table):
                for column in part.columns:
                    column.overflow = "fold"
            yield part


class _Markdown(Markdown):
    elements: ClassVar[dict[str, type[MarkdownElement]]] = {
        **Markdown.elements,
        "fence": _Code,
        "code_block": _Code,
        "heading_open": _Title,
        "table_open": _Table,
    }


def _line(console: Console, segments: list[Segment]) -> str:
    """Returns a line without the spaces that would fill it up: they wrap when the window gets narrower."""
    system = console._color_system
    parts = [segment for segment in segments if not segment.control]
    while parts and not parts[-1].text.strip():
        parts.pop()
    if parts:
        parts[-1] = Segment(parts[-1].text.rstrip(" "), parts[-1].style)
    line = ""
    for segment in parts:
        text, style = prose(segment.text), segment.style
        line += style.render(text, color_system=system) if style and system else text
    return line + "\n"
