"""The parts of transformers' key-value caches that generation needs to name, and to grow."""

from typing import Any


def mark_cache(tracer: Any, cache: Any) -> None:
    """Tell the tracer what the cache holds: the roles are the ledger's terms."""
    for role, part in _parts(cache):
        for layer in part.layers:
            for tensor in (getattr(layer, "keys", None), getattr(layer, "values", None)):
                if tensor is not None:
                    tracer.mark(tensor, role)


def grow_cache(cache: Any, tokens: int, *, reorder: bool) -> None:
    """Let the self-attention cache take ``tokens`` more, one at a time, by its own methods.

    Layers of a fixed size do not grow. With ``reorder``, each token is preceded by beam search's reordering, which
    copies the cross-attention's keys and values as well.
    """
    import torch

    if cache is None or cache.is_compileable:
        return
    own = dict(_parts(cache))["kv_cache_self"]
    layers = [(number, layer) for number, layer in enumerate(own.layers) if getattr(layer, "keys", None) is not None]
    if not layers:
        return
    rows = torch.zeros(layers[0][1].keys.shape[0], dtype=torch.long, device=layers[0][1].keys.device)
    for _ in range(tokens):
        if reorder:
            cache.reorder_cache(rows)
        for number, layer in layers:
            own.update(layer.keys[..., -1:, :].clone(), layer.values[..., -1:, :].clone(), number)


def _parts(cache: Any) -> list[tuple[str, Any]]:
    if cache is None:
        return []
    if hasattr(cache, "self_attention_cache"):
        return [("kv_cache_self", cache.self_attention_cache), ("kv_cache_cross", cache.cross_attention_cache)]
    return [("kv_cache_self", cache)]
