"""A new rule's file to begin from: complete enough to validate once its sentences are written."""

import os
import re
from functools import cache
from typing import Any

from kb import __version__
from kb.core.text import UserError
from kb.knowledge.locations import Location
from kb.knowledge.problems import Problem
from kb.knowledge.source import Located, read_source

TEMPLATE = """\
# yaml-language-server: $schema=../../schema/check.json
id: {id}
version: 1
since: "{release}"
severity: warning # error | warning | info
confidence: medium # high | medium | low: how often a finding is a real fault
area: {area}
# An expression over the facts of rules/vocabulary.yaml. What is unknown makes the rule "not evaluated".
when: training.per_device_train_batch_size > 4096
title:
  ko: 결함의 이름
  en: the fault's name
message:
  ko: "학습 배치 {{training.per_device_train_batch_size}}개는 …"
  en: "A training batch of {{training.per_device_train_batch_size}} …"
why:
  ko: 왜 문제인지 한 문단으로 씁니다.
  en: One paragraph on why it matters.
# fix:
#   - when: gpu.native_bf16
#     safety: unsafe # safe: the same result, or the config could not have run
#     set: {{training.per_device_train_batch_size: {{compute: fit.train_batch}}}}
#     title: {{ko: …, en: …}}
examples:
  - expect: fires
    config: |
      training: {{per_device_train_batch_size: 8192}}
      general: {{model_name: google/mt5-base}}
  - expect: silent
    config: |
      training: {{per_device_train_batch_size: 8}}
      general: {{model_name: google/mt5-base}}
sources: [guide-memory] # ids of rules/sources.yaml
"""
# Lines of the template that an overlay's rule needs not.
_OF_KB = ("# yaml-language-server", "version:", "since:", "sources:")


@cache
def _template() -> dict[str, Any]:
    data: dict[str, Any] = read_source("", TEMPLATE.format(id="", release="", area="")).data
    return data


def untouched(located: Located) -> list[Problem]:
    """Sentences of the template that nobody has replaced in a rule's file."""
    template = _template()
    problems = []
    for part in ("title", "message", "why"):
        for language, text in located.data.get(part, {}).items():
            if text == template[part].get(language):
                problems.append(
                    located.problem(
                        (part, language),
                        f"{part}.{language}: this is still the template's text",
                        f"{part}.{language}: 틀의 문장이 그대로 있습니다",
                    )
                )
    return problems


def write_new_rule(location: Location, rule: str, area: str, into: str | None = None) -> str:
    """Write ``checks/<area>/<rule>.yaml`` and return its path.

    Args:
        into: the folder of an overlay, to write it there, without what may be left out there.

    Raises:
        UserError: the id is not one, the area does not exist, or the rule does.
    """
    checks = os.path.join(location.rules, "checks")
    areas = sorted(entry for entry in os.listdir(checks) if os.path.isdir(os.path.join(checks, entry)))
    if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)+", rule):
        raise UserError("rules.bad_id", name=rule)
    if area not in areas:
        raise UserError("rules.unknown_area", name=area, known=", ".join(areas))
    own = os.path.join(into or location.rules, "checks")
    for folder in {checks, own}:
        for other in areas:
            if os.path.exists(os.path.join(folder, other, f"{rule}.yaml")):
                raise UserError("rules.exists", name=rule, path=os.path.join(folder, other, f"{rule}.yaml"))
    text = TEMPLATE.format(id=rule, release=__version__, area=area)
    if into is not None:
        text = "".join(line for line in text.splitlines(keepends=True) if not line.startswith(_OF_KB))
    path = os.path.join(own, area, f"{rule}.yaml")
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "x", encoding="utf-8", newline="\n") as stream:
            stream.write(text)
    except OSError as error:
        raise UserError("fix.unwritable", path=error.filename or path, reason=error.strerror) from None
    return path
