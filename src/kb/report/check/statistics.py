"""How often each rule fired: ``--statistics``."""

from collections import Counter
from collections.abc import Mapping

from kb.core.finding import SEVERITIES
from kb.core.result import CheckResult
from kb.core.rule import Rule
from kb.report.style import Style
from kb.report.width import columns, cut
from kb.report.words import Words


def statistics_report(result: CheckResult, words: Words, style: Style, rules: Mapping[str, Rule]) -> str:
    """A line for each rule that fired, worst and most frequent first; ``+`` marks rules with a fix. Then the sums."""
    found = [finding for unit in result.units for finding in unit.counted()]
    counts = Counter((finding.severity, finding.rule) for finding in found)
    fixable = {finding.rule for finding in found if finding.ready("safe") or finding.ready("unsafe")}
    ordered = sorted(counts.items(), key=lambda item: (SEVERITIES.index(item[0][0]), -item[1], item[0][1]))
    wide_name = max((len(rule) for _, rule in counts), default=0)
    wide_severity = max((columns(words.named("severity", severity)) for severity in SEVERITIES), default=0)
    lines = []
    for (severity, rule), count in ordered:
        word = words.named("severity", severity)
        painted = style.paint(word, severity) + " " * (wide_severity - columns(word))
        lead = f"{count:>6}  {painted}  {'+' if rule in fixable else ' '} {rule:<{wide_name}}  "
        title = words.described(rules[rule].title) if rule in rules else ""
        room = style.width - (6 + 2 + wide_severity + 2 + 2 + wide_name + 2)
        lines.append((lead + cut(title, max(room, 12), style.ellipsis)).rstrip())
    summary = result.summary()
    sums = [words.count(f"count.{name}", summary[name]) for name in (*SEVERITIES, "suppressed") if summary[name]]
    lines.append(style.paint(", ".join(sums) or words("count.clean"), "heading"))
    return "\n".join(lines) + "\n"
