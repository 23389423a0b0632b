"""rules/ and i18n/ on disk, read into frozen objects; schemas, the compiled bundle and the version lock."""

from kb.knowledge.catalog import (
    load_catalog,
    load_guide,
    load_table_examples,
    load_table_rows,
    load_words,
    load_words_alone,
)
from kb.knowledge.problems import KnowledgeError, Problem
