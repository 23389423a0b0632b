"""The small tensors of a decoder's decoding loop (``_sample`` of transformers/generation/utils.py), in its order; and
which of its tokens are followed: between the second and the last ones only the cache grows.
"""

from typing import Any

from kb.memory.engine.tensor import BOOL, I64, Tensor, new

FIRST, LAST, FEWEST = 2, 2, 20  # tokens that are decoded before and after the middle, and the shortest middle
# Of beams, which copy their cache before each token, what a step asks for decides how the free blocks are cut: between
# the first steps and the last of a long answer one is followed after so many tokens, and no more than so many in all.
LONG, STRIDE, STOPS = 64, 16, 16


def middle(decoded: int, tokens: int) -> int:
    """How many tokens only grow the cache, after ``decoded`` of them."""
    left = tokens - decoded - LAST
    return left if decoded == FIRST and left >= FEWEST else 0


def between(decoded: int, tokens: int) -> int:
    """Of beam search, how many tokens only grow the cache, after ``decoded`` of them."""
    whole = tokens - FIRST - LAST
    if whole < LONG:
        return middle(decoded, tokens)
    left = tokens - decoded - LAST
    return min(max(STRIDE, -(-whole // STOPS)) - 1, left) if decoded >= FIRST and left > 0 else 0


def numbered(rows: int, length: int) -> Tensor:
    """``_prepare_position_ids_for_generation``: what is no padding is counted, less one, and padding is 0."""
    counted = new((rows, length), I64)
    less = new((rows, length), I64)
    del counted
    padded = new((rows, length), BOOL)
    found = new((rows, length), I64)
    del less, padded
    return found


def all_longer(model: Any, given: tuple[Any, Any, Any], rows: int, length: int) -> tuple[Any, Any, Any]:
    """Positions, mask and kinds of tokens for the next token; the old ones live until all are there
    (``_update_model_kwargs_for_generation``)."""
    position, mask, kinds = given
    longer = model.kinds_longer(rows, length) if kinds is not None else None
    position, mask = position and _longer(position.shape[:-1], length), mask and masked_longer(rows, length)
    return position, mask, model.named_longer(longer, rows, length)


def _longer(rows: tuple[int, ...], length: int) -> Tensor:
    """Positions with the next one behind them; of a model that sees, some for each token."""
    first = new((1,), I64)
    last = new((*rows, 1), I64)
    del first
    more = new((*rows, 1), I64)
    del last
    found = new((*rows, length), I64)
    del more
    return found


def masked_longer(rows: int, length: int) -> Tensor:
    """The mask with ones for the next token."""
    ones = new((rows, 1), I64)
    found = new((rows, length), I64)
    del ones
    return found


def or_padding(rows: int) -> Tensor:
    """The next tokens; of answers that are done, padding."""
    kept = new((rows,), I64)
    done = new((rows,), I64)
    padding = new((rows,), I64)
    del done
    found = new((rows,), I64)
    del padding, kept
    return found


def still_unfinished(rows: int) -> Tensor:
    """Which answers go on: not those that are long enough or have ended."""
    none, long = new((rows,), BOOL), new((rows,), BOOL)
    done = new((rows,), BOOL)
    del none, long
    ends = new((rows,), BOOL)
    ended = new((rows,), BOOL)
    del ends
    either = new((rows,), BOOL)
    del done, ended
    rest = new((rows,), BOOL)
    del either
    found = new((rows,), I64)
    del rest
    return found


def stop_check() -> None:
    """Does any answer go on? (``StopCheck``)"""
    most = new((), I64)
    over = new((), BOOL)
    del most, over
