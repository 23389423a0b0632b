"""Whether a text that cannot be read is a training config nevertheless, so that its fault is worth saying."""

import re

from kb.core.catalog import Catalog

ENOUGH = 3  # known keys; fewer stand by chance in other files too
_KEY = re.compile(r"""^[ \t]*(?:-[ \t]+)?["']?([A-Za-z]\w*_\w*)["']?[ \t]*:""", re.M)


def looks_like_config(text: str, catalog: Catalog) -> bool:
    """Whether lines of the text begin with keys of settings, told without parsing it.

    Only keys of several words count, ``learning_rate`` and not ``name``: those of one word are everybody's.
    """
    written = {match[1] for match in _KEY.finditer(text[: 1 << 20])}
    known = {name.rpartition(".")[2] for name, fact in catalog.facts.items() if fact.setting}
    for dialect in catalog.dialects.values():
        known.update(key.rpartition(".")[2] for key in dialect.keys)
    return len(written & known) >= ENOUGH
