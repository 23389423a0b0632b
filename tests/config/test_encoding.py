"""Bytes to text: UTF-8 or the reason why not; mojibake named, counted, and mended only where that is exact."""

import pytest

from kb.config.files import ConfigError
from kb.config.text.encoding import TO_UTF8, decode, encode, name_page
from kb.config.text.mojibake import find_mojibake

NOTE = """# 🚀 배치 크기 안내
training:
  per_device_train_batch_size: 8  # 메모리가 모자라면 줄인다
  # 주의사항: 항목별로 확인할 것, 요구사항 참고
  learning_rate: 5.0e-05  # 학습률
"""
PAGES = {"windows-1252": "cp1252", "windows-1254": "cp1254", "latin-1": "latin-1"}


def misread(text: str, page: str) -> str:
    """As a browser reads UTF-8 when told that it is ``page``: bytes the page lacks become C1 control characters."""
    shown = []
    for byte in text.encode("utf-8"):
        character = bytes((byte,)).decode(PAGES[page], errors="replace")
        shown.append(chr(byte) if character == "\ufffd" else character)
    return "".join(shown)


def misread_and_dropped(text: str, page: str) -> str:
    """As a program reads it that drops what the page lacks, and soft hyphens."""
    return text.encode("utf-8").decode(PAGES[page], errors="ignore").replace("\u00ad", "")


def test_utf8_is_read_without_a_word() -> None:
    decoded = decode(NOTE.encode())
    assert (decoded.text, decoded.encoding, decoded.events) == (NOTE, "utf-8", ())


def test_an_empty_file_is_empty_text() -> None:
    assert decode(b"").text == ""


def test_a_byte_order_mark_is_an_event_and_no_part_of_the_text() -> None:
    decoded = decode(NOTE.encode("utf-8-sig"))
    assert decoded.text == NOTE
    (event,) = decoded.events
    assert (event.kind, event.span.line, event.span.column) == ("byte-order-mark", 1, 1)
    assert [edit.name for edit in event.edits] == [TO_UTF8]
    assert encode(NOTE, decoded.encoding) == NOTE.encode("utf-8-sig")


@pytest.mark.parametrize("page", ["utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be"])
def test_marked_wide_text_is_read_and_named(page: str) -> None:
    raw = ("\ufeff" + NOTE).encode(page)
    decoded = decode(raw)
    assert decoded.text == NOTE
    assert [(event.kind, event.values["page"]) for event in decoded.events] == [("not-utf8", page)]
    assert decoded.events[0].edits[0].name == TO_UTF8
    assert encode(NOTE, decoded.encoding) == raw


@pytest.mark.parametrize("page", ["utf-16-le", "utf-16-be"])
def test_wide_text_without_a_mark_is_named_but_not_read(page: str) -> None:
    decoded = decode("training:\n  fp16: true  # 학습\n".encode(page))
    assert decoded.text is None
    assert decoded.events[0].values["page"] == page


def test_korean_in_a_legacy_page_is_named_at_its_first_byte_and_not_read() -> None:
    decoded = decode("training:\n  fp16: true  # 학습 설정\n".encode("cp949"))
    assert decoded.text is None
    (event,) = decoded.events
    assert event.kind == "not-utf8"
    assert event.values == {"offset": 26, "byte": "0xC7", "page": "euc-kr"}
    assert (event.span.line, event.span.column) == (2, 17)
    assert event.edits == ()


def test_columns_count_characters_before_the_bad_byte() -> None:
    decoded = decode("a: 1\n# 배치 ".encode() + b"\xff\n")
    assert (decoded.events[0].span.line, decoded.events[0].span.column) == (2, 6)


@pytest.mark.parametrize(
    ("text", "codec", "page"),
    [
        ("# 한국어로 적은 설정 파일의 주석 뷁\n", "cp949", "cp949"),
        ("# déjà vu, très bien\n", "latin-1", "latin-1"),
        ("# “déjà vu” – très bien\n", "cp1252", "windows-1252"),
        ("# öğrenme oranı, yığın boyutu\n", "cp1254", "windows-1254"),
        ("# こんにちは、設定ファイル\n", "shift_jis", "unknown"),
        ("# Привет, настройки\n", "cp1251", "unknown"),
        ("# 你好世界，我们的配置文件\n", "gbk", "unknown"),
    ],
)
def test_a_page_is_named_only_where_the_text_speaks_for_it(text: str, codec: str, page: str) -> None:
    assert name_page(text.encode(codec)) == page


@pytest.mark.parametrize(
    "raw",
    [
        b"a: 1\x00b: 2",
        b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR",
        b"PK\x03\x04\x14\x00\x00\x00",
        b"\x1f\x8b\x08\x08\x01\x02\x03\x04\xff\xfe\x05",
        b"\xff\xfea\x00\x00\x00",
    ],
)
def test_binary_data_is_an_error(raw: bytes) -> None:
    with pytest.raises(ConfigError) as caught:
        decode(raw)
    assert caught.value.key == "config.binary"


@pytest.mark.parametrize("page", PAGES)
def test_mojibake_that_lost_nothing_is_restored_to_the_letter(page: str) -> None:
    event = find_mojibake(misread(NOTE, page))
    assert event is not None
    assert (event.values["page"], event.values["lossless"], event.values["lost"]) == (page, True, 0)
    (edit,) = event.edits
    assert (edit.op, edit.value) == ("replace", NOTE)
    assert (edit.span.start, edit.span.end) == (0, len(misread(NOTE, page)))


def test_mojibake_with_dropped_bytes_is_counted_and_left_alone() -> None:
    damaged = misread_and_dropped(NOTE, "windows-1254")
    event = find_mojibake(damaged)
    assert event is not None
    assert event.values["page"] == "windows-1254"
    assert event.values["lossless"] is False
    assert event.edits == ()
    # Every byte that the page lacks, and the soft hyphens, are missing.
    undefined = sum(NOTE.encode().count(bytes((byte,))) for byte in (0x81, 0x8D, 0x8E, 0x8F, 0x90, 0x9D, 0x9E, 0xAD))
    assert event.values["lost"] == undefined > 0
    assert 0 < event.values["broken"] <= undefined


def test_a_broken_line_is_shown_once_as_far_as_it_reads() -> None:
    damaged = misread_and_dropped("# 요구사항\n", "windows-1254")  # 항 ends in AD, the soft hyphen
    event = find_mojibake(damaged)
    assert event is not None
    assert event.values["broken"] == 1
    ((line, span),) = event.related
    assert line == "# 요구사\ufffd"
    assert damaged[span.start : span.end] == damaged.rstrip("\n")[-2:]
    assert event.values["first"] == f"{span.line}:{span.column}"
    twice = find_mojibake(damaged.rstrip("\n") + damaged + damaged)
    assert twice is not None
    assert twice.values["broken"] == 3
    assert [place.line for _, place in twice.related] == [1, 2]


@pytest.mark.parametrize(
    "text",
    [
        "plain ASCII",
        NOTE,
        "# Größe über alles: é à ü ñ\n# für die Straße\n",
        "# öğrenme oranı çok yüksek, İstanbul, ŞEKER\n",
        "# Ç… É» «œuvre»\n",
        "# 参数 学習率 скорость\n",
        "# 20 °C ± 1 – “quoted”\n",
    ],
)
def test_sound_text_is_no_mojibake(text: str) -> None:
    assert find_mojibake(text) is None


def test_mojibake_amid_sound_hangul_is_left_alone() -> None:
    assert find_mojibake(NOTE + misread("# 학습\n", "windows-1252")) is None


def test_a_file_with_mojibake_is_read_and_told() -> None:
    decoded = decode(misread(NOTE, "windows-1252").encode())
    assert decoded.text == misread(NOTE, "windows-1252")
    assert [event.kind for event in decoded.events] == ["mojibake"]


def test_a_repair_that_would_end_in_control_characters_is_no_repair() -> None:
    event = find_mojibake("ì\u0095\u0088ë\u0085\u0095 Â\u0085")
    assert event is not None
    assert event.edits == ()
