"""Markdown as a tree that a page builds element by element, so that no text of a model becomes markup.

    tree(text)        the nodes of a whole message: texts, and [tag, attributes, child, ...]
    settled(text)     how much of a text that is still being written can no longer change

Rules: HTML stays text, and a picture becomes a link. A link leads to another site and shows its address. The
page builds no other elements. Work is bounded: a text that is too long, or nested too deeply, stays plain.
This file must never know the origin of a text.
"""

from __future__ import annotations

from typing import Any, TypeAlias
from urllib.parse import urlsplit

from markdown_it import MarkdownIt
from markdown_it.token import Token
from markdown_it.tree import SyntaxTreeNode

Node: TypeAlias = "str | list[Any]"

MAX_TEXT = 256 << 10  # characters that are parsed, in some 0.3 s; a longer text is shown as it is
LINKS = ("http", "https", "mailto")
LOWER = 1  # level: the page's own heading stands above those of a message
_parser = MarkdownIt("commonmark", {"html": False}).enable("strikethrough").enable("table")
_SAME = frozenset(
    ("paragraph", "blockquote", "bullet_list", "list_item", "em", "strong", "s", "hr", "hardbreak",
     "table", "thead", "tbody", "tr", "th", "td")
)  # fmt: skip


def tree(text: str) -> list[Node]:
    """Returns the nodes of a message."""
    if len(text) > MAX_TEXT:
        return [["pre", {}, text]]
    try:
        return _all(SyntaxTreeNode(_parser.parse(text)))
    except RecursionError:  # emphasis within emphasis, hundreds of times
        return [["pre", {}, text]]


def settled(text: str) -> int:
    """Returns the number of characters in finished blocks: the last block may still grow."""
    tokens: list[Token] = []
    _parser.block.parse(text[: text.rfind("\n") + 1], _parser, {}, tokens)
    last = [token for token in tokens if token.level == 0 and token.nesting >= 0 and token.map][-1:]
    lines = text.split("\n")
    return sum(len(line) + 1 for line in lines[: last[0].map[0]]) if last and last[0].map else 0


def _all(node: SyntaxTreeNode) -> list[Node]:
    return [item for child in node.children for item in _nodes(child)]


def _nodes(node: SyntaxTreeNode) -> list[Node]:
    kind = node.type
    if kind == "text":
        return [node.content]
    if kind == "softbreak":  # a line break in the text stays a line break
        return [["br", {}]]
    if kind == "code_inline":
        return [["code", {}, node.content]]
    if kind in ("fence", "code_block"):
        return [["pre", {"tabindex": "0"}, ["code", {}, node.content.removesuffix("\n")]]]
    if kind == "heading":
        return [[f"h{min(6, int(node.tag[1]) + LOWER)}", {}, *_all(node)]]
    if kind == "ordered_list":
        return [["ol", {"start": str(node.attrs.get("start", 1))}, *_all(node)]]
    if kind == "link":
        return _link(str(node.attrs.get("href", "")), _all(node))
    if kind == "image":
        source = str(node.attrs.get("src", ""))
        return _link(source, [f"[picture: {node.content or source}]"])
    if kind in _SAME:
        return [[node.tag, {}, *_all(node)]]
    return _all(node) if node.children else [node.content]


def _link(href: str, children: list[Node]) -> list[Node]:
    """Returns a link if it leads to another site. A link within the page would let a model act on it."""
    try:
        scheme = urlsplit(href).scheme.lower()
    except ValueError:
        scheme = ""
    return [["a", {"href": href, "title": href}, *children]] if scheme in LINKS else children
