"""Any bytes are decoded or refused; UTF-8 comes back to the byte, and misread text to the letter."""

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from effort import examples
from kb.config.files import ConfigError
from kb.config.text.encoding import decode, encode
from kb.config.text.mojibake import find_mojibake

KOREAN = st.text(st.sampled_from("가나다라마바사아자차카타파하 배치크기학습률 abc: 12\n#"), min_size=1)


@settings(max_examples=examples(52, 130), deadline=None)
@given(st.binary(max_size=60) | st.text(max_size=30).map(str.encode))
def test_any_bytes_are_decoded_or_refused(raw: bytes) -> None:
    try:
        decoded = decode(raw)
    except ConfigError:
        return
    if decoded.text is None:
        assert decoded.events
    else:
        assert encode(decoded.text, decoded.encoding) == raw


@settings(max_examples=examples(40, 100), deadline=None)
@given(KOREAN)
def test_what_latin_1_made_of_korean_is_restored(text: str) -> None:
    assume(any(c > "\x7f" for c in text))
    event = find_mojibake(text.encode().decode("latin-1"))
    assert event is not None
    assert event.edits[0].value == text


@settings(max_examples=examples(40, 100), deadline=None)
@given(st.text(max_size=40))
def test_a_repair_is_always_exact(text: str) -> None:
    event = find_mojibake(text)
    if event is not None and event.edits:
        restored = event.edits[0].value
        assert {"windows-1252", "windows-1254", "latin-1"} >= {event.values["page"]}
        assert len(restored.encode()) == len(text)
