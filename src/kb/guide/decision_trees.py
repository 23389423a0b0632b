"""A decision tree as nested lists that a style sheet draws as a tree: nothing is loaded, and its words can be found."""

import re
from collections.abc import Mapping
from html import escape
from typing import Any

from kb.guide.library import Library
from kb.guide.markup import badge
from kb.guide.site_words import say


def decision_tree(library: Library, name: str, tree: str) -> str:
    """The tree ``tree`` of ``rules/decisions/<name>.yaml``, each way with where it comes from.

    Raises:
        ValueError: the entry has no such tree.
    """
    entry = library.entry("decisions", name)
    found = next((one for one in entry["trees"] if one["id"] == tree), None)
    if found is None:
        raise ValueError(f"decision {name!r} has no tree {tree!r}; there are: {[one['id'] for one in entry['trees']]}")
    return f'<div class="kb-tree">{_node(library, entry, found["nodes"], found["start"])}</div>'


def _node(library: Library, entry: Mapping[str, Any], nodes: Mapping[str, Any], name: str) -> str:
    """A question and its answers, each with what follows; a question that two ways lead to stands twice."""
    language, node = library.language, nodes[name]
    ways = []
    for edge in node["edges"]:
        leaf = entry["leaves"].get(edge["to"])
        end = f"<b>{_html(_leaf(library, leaf))}</b>" if leaf else _node(library, entry, nodes, edge["to"])
        source = badge(library, edge["status"], edge)
        answer = f'<span class="kb-tree-if">{_html(edge["answer"][language])}</span>'
        ways.append(f"<li>{answer} {f'{end} {source}' if leaf else f'{source} {end}'}</li>")
    return f'<p class="kb-tree-ask">{_html(node["question"][language])}</p><ul>{"".join(ways)}</ul>'


def _leaf(library: Library, leaf: Mapping[str, Any]) -> str:
    batch = leaf.get("value") or (f"{leaf['low']}–{leaf['high']}" if "low" in leaf else "")
    return say(library.language, "decision.leaf", title=leaf["title"][library.language], batch=batch)


def _html(words: str) -> str:
    """A sentence of the rules as HTML: what stands between backticks is code."""
    return re.sub(r"`([^`]*)`", r"<code>\1</code>", escape(" ".join(words.split())))
