"""JSON that is read and written without the standard library's module says what that says."""

import json
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kb.core.json_text import read, scan, written

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=12,
)


@given(VALUES)
def test_what_is_written_is_read_again_and_is_the_librarys(value: object) -> None:
    assert written(value) == json.dumps(value)
    assert read(f" \n{json.dumps(value)}\t") == value


@pytest.mark.parametrize("text", ["", " ", "{", "[1,]", "1 2", "nul", '"a', "{'a': 1}"])
def test_what_is_no_json_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError):
        read(text)


def test_where_no_value_begins_is_a_value_error() -> None:
    with pytest.raises(ValueError):
        scan("\n{}", 0)


def test_a_python_without_the_c_code_reads_and_writes_the_same() -> None:
    code = (
        "import sys; sys.modules['_json'] = None\n"
        "from kb.core.json_text import read, scan, written\n"
        "assert read(' {\"a\": [1, 2.5, null]} ') == {'a': [1, 2.5, None]}\n"
        "assert written({'a': (1, 'é')}) == '{\"a\": [1, \"\\\\u00e9\"]}'\n"
        "assert scan('[1] 2', 0) == ([1], 3)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
