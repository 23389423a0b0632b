"""A decision tree as a Mermaid flowchart, with the same as a list for who cannot see it."""

from collections.abc import Mapping
from typing import Any

from kb.guide.library import Library
from kb.guide.markup import badge, cited, prose
from kb.guide.memory_bars import folded
from kb.guide.site_words import say


def decision_tree(library: Library, name: str, tree: str) -> str:
    """The tree ``tree`` of ``rules/decisions/<name>.yaml``.

    Raises:
        ValueError: the entry has no such tree.
    """
    entry = library.entry("decisions", name)
    found = next((one for one in entry["trees"] if one["id"] == tree), None)
    if found is None:
        raise ValueError(f"decision {name!r} has no tree {tree!r}; there are: {[one['id'] for one in entry['trees']]}")
    language = library.language
    lines = ["flowchart TD"]
    said = []
    for node_id, node in found["nodes"].items():
        lines.append(f"  {_id(node_id)}{{{_label(node['question'][language])}}}")
        for edge in node["edges"]:
            lines.append(f"  {_id(node_id)} -->|{_label(edge['answer'][language])}| {_id(edge['to'])}")
            target = entry["leaves"].get(edge["to"])
            if target:
                end = f"**{_leaf(library, target)}**"
            else:
                end = f"→ {prose(found['nodes'][edge['to']]['question'][language])}"
            source = f"{badge(library, edge['status'])} {cited(library, edge)}"
            said.append(f"- {prose(node['question'][language])} {prose(edge['answer'][language])}: {end} {source}")
    used = {edge["to"] for node in found["nodes"].values() for edge in node["edges"]} & entry["leaves"].keys()
    lines += [f"  {_id(leaf)}({_label(_leaf(library, entry['leaves'][leaf]))})" for leaf in sorted(used)]
    drawing = "```mermaid\n" + "\n".join(lines) + "\n```"
    return drawing + "\n\n" + folded(say(language, "decision.as_text"), "\n".join(said))


def _leaf(library: Library, leaf: Mapping[str, Any]) -> str:
    batch = leaf.get("value") or (f"{leaf['low']}–{leaf['high']}" if "low" in leaf else "")
    return say(library.language, "decision.leaf", title=leaf["title"][library.language], batch=batch)


def _id(name: str) -> str:
    return name.replace("-", "_")


def _label(words: str) -> str:
    """Quoted, as Mermaid wants text that may hold anything."""
    return '"' + words.replace('"', "#quot;") + '"'
