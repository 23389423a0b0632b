"""A cache that grows over a long answer, several tokens at a time, beside the same token by token."""

import pytest

from kb.memory.engine.families import attention
from kb.memory.engine.families.attention import MOST_STRIDES, Cache
from kb.memory.engine.tensor import new
from kb.memory.engine.world import Recording, held, world

CACHES = {  # layers, rows, heads, width, tokens at first, tokens of the answer
    "qwen2.5-7b": (28, 4, 4, 128, 512, 508),
    "mistral-7b": (32, 8, 8, 128, 512, 1000),
    "small, beside its own rows": (8, 1, 2, 64, 20, 900),
    "short": (12, 2, 4, 64, 30, 90),
}


def grown(name: str) -> tuple[Recording, Cache]:
    layers, rows, heads, width, first, tokens = CACHES[name]
    with held():
        recording = world.begin((8, 0))
        recording.begin("generate")
        cache = Cache()
        for at in range(layers):
            shape = rows, heads, first, width
            cache.update(at, new(shape, "bf16"), new(shape, "bf16"))
        cache.grow(tokens)
        recording.begin("")
    return recording, cache


@pytest.mark.parametrize("name", CACHES)
def test_a_long_answer_takes_what_it_takes_token_by_token(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    recording, cache = grown(name)
    monkeypatch.setattr(attention, "MOST_STRIDES", 1 << 20)
    exact, token_by_token = grown(name)
    peak, expected = recording.phases["generate"], exact.phases["generate"]
    assert peak.reserved == pytest.approx(expected.reserved, rel=0.012)
    assert peak.allocated == pytest.approx(expected.allocated, rel=0.001)
    assert cache.length() == token_by_token.length() == CACHES[name][4] + CACHES[name][5]
    assert cache.keys[0].strides == token_by_token.keys[0].strides
    if CACHES[name][5] <= MOST_STRIDES:
        assert recording.log == exact.log
    else:
        assert len(recording.log) < len(exact.log) / 3
