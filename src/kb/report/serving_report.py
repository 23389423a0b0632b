"""What ``kb estimate --engine`` says of a server, as text and as JSON."""

from collections.abc import Mapping, Sequence
from typing import Any

from kb.core.record import NamedTuple
from kb.core.units import GIB
from kb.memory.serving.answer import OWN_SHARE, Change, Load, Served
from kb.memory.serving.budget import GRAPHS_BY_PHASE_FROM, OPTION_NAMES, Budget
from kb.report.json_parts import Object, fields, head, release_text, to_json
from kb.report.terminal import INDENT, Style, in_blocks, joined, table, wrap
from kb.report.values import printable
from kb.report.words import Words

# Our names of options that changes are of, where the engine's own name is found otherwise than in OPTION_NAMES.
_FLAGS = {
    "kv_cache_dtype": {"llama.cpp": "cache_type_k"},
    "tensor_parallel": {"vllm": "tensor_parallel_size", "sglang": "tp_size", "tgi": "num_shard", "llama.cpp": "gpus"},
    "quantization": {"tgi": "quantize", "llama.cpp": "file"},
}


class Answer(NamedTuple):
    """A server's estimate with what goes with it. ``counted``: a number of requests was asked for."""

    engine: Mapping[str, Any]
    served: Served
    gpu: str | None
    changes: Sequence[Change]
    smallest: str | None
    load: Load | None
    counted: bool
    notes: Sequence[tuple[str, Mapping[str, Any]]]


def serving_text(answer: Answer, words: Words, style: Style) -> str:
    """The report, with a line break at its end."""
    served = answer.served
    blocks = [
        _heading(answer, words, style),
        _budget(served, words, style),
        _holds(answer, words, style),
        _load(answer, words, style),
        _changes(answer, words, style),
        [line for key, values in answer.notes for line in wrap(words(key, **values), style.width)],
    ]
    return in_blocks(blocks)


def _heading(answer: Answer, words: Words, style: Style) -> list[str]:
    setup, options = answer.served.setup, answer.served.options
    names = OPTION_NAMES[setup.engine]
    gpus = setup.tensor_parallel * setup.pipeline_parallel
    gpu = f"{answer.gpu or ''} {setup.gpu_bytes / GIB:.1f} GiB × {gpus}".strip()
    engine = f"{answer.engine['title'][words.language]} {release_text(setup.release)}"
    title = [printable(answer.served.model.name), engine, gpu]
    about = [setup.dtype + (f" ({setup.quantization})" if setup.quantization else ""), f"KV {setup.kv_cache_dtype}"]
    for field, value in (
        ("utilization", f"{options.utilization:g}"),
        ("max_model_len", "?" if _is_open(answer.served) else f"{options.max_model_len}"),
        ("max_num_seqs", f"{options.max_num_seqs}"),
        ("max_num_batched_tokens", f"{options.batched_tokens}"),
    ):
        if field in names and not (field == "utilization" and setup.engine == "sglang" and setup.utilization is None):
            later = names[field] == "cuda_graph_max_bs" and setup.release >= GRAPHS_BY_PHASE_FROM
            shown = f"{names[field]}{'_decode' if later else ''} {value}"
            about.append(words("serving.by_default", option=shown) if names[field] in options.defaults else shown)
    return [
        *style.lines(joined(title, style.dot), "heading"),
        *style.lines(joined(about, style.dot), "dim", INDENT),
    ]


def _budget(served: Served, words: Words, style: Style) -> list[str]:
    budget = served.budget
    if budget is None:
        return wrap(
            words("serving.no_share" if served.not_predicted == OWN_SHARE else "serving.no_weights"), style.width
        )
    own = served.setup.engine == "sglang" and served.setup.utilization is None  # without what not every model reserves
    rows = [[words("serving.share"), words(f"serving_status.{'modelled' if own else 'exact'}"), _gib(budget.share)]]
    outside: list[list[str]] = []
    for term in budget.terms:
        if not term.bytes:
            continue
        row = [words.named("serving_term", term.name), words.named("serving_status", term.status)]
        band = _gib(term.low) if term.low == term.high else f"{_gib(term.low)}{style.dash}{_gib(term.high)}"
        (rows if term.inside else outside).append([*row, f"−{_gib(term.bytes)}" if term.inside else band])
    kept = _gib(budget.kv).replace("-", "−")
    if budget.kv_high >= 0 and budget.kv_low != budget.kv_high:
        kept += f" ({_gib(budget.kv_low).replace('-', '−')}{style.dash}{_gib(budget.kv_high)})"
    rows.append([words("serving.kv_cache"), words.named("serving_status", budget.status), kept])
    lines = [style.paint(words("serving.one_rank"), "heading"), *table(rows, left=(0, 1))]
    if outside:
        lines += [words("serving.outside"), *table(outside, left=(0, 1))]
    if budget.overrun:
        lines += wrap(words("serving.overrun", size=_gib(budget.overrun)), style.width)
    return lines


def _holds(answer: Answer, words: Words, style: Style) -> list[str]:
    served = answer.served
    token = _token_of(served)
    lines = [] if token is None else wrap(words("serving.token", bytes=round(token)), style.width)
    if served.not_predicted == OWN_SHARE:
        return lines
    if served.not_predicted:
        what = words.named("serving_unknown", served.not_predicted.replace(" ", "_"))
        return [*lines, *wrap(words("serving.not_predicted", what=what), style.width)]
    assert served.budget is not None
    if _is_open(served) and not served.longest:
        return lines + _unsure(served, words, style)
    if _is_open(served):
        return lines + wrap(words("serving.open_length", longest=served.longest), style.width)
    assert served.concurrency is not None
    values = {"tokens": served.kv_tokens, "length": served.options.max_model_len}
    if served.request_bytes is not None:
        lines += wrap(words("serving.request", size=_gib(served.request_bytes), **values), style.width)
    over = served.budget.overrun > 0 and served.concurrency >= 1
    if served.starts or (served.starts is None and served.concurrency >= 1):
        times = f"{served.concurrency:.2f}"
        lines += wrap(words("serving.holds", times=times, **values), style.width)
    if served.starts:
        pass
    elif served.starts is None or (not over and (served.budget.kv <= 0 or served.setup.engine in _HOLDS_LESS)):
        lines += _unsure(served, words, style)
    elif over:
        lines += style.lines(words("serving.over_gpu"), "error")
    else:
        lines += style.lines(words("serving.too_short", **values), "error")
    if served.longest and not over and _is_longest(served):
        lines += wrap(words("serving.longest", longest=served.longest), style.width)
    if not served.starts and served.utilization_needed is not None:
        option = OPTION_NAMES[served.setup.engine]["utilization"]
        key = (
            "serving.share_needed" if served.utilization_needed > served.options.utilization else "serving.share_enough"
        )
        lines += wrap(words(key, option=option, share=f"{served.utilization_needed:g}"), style.width)
    key = "serving.smallest" if answer.smallest else "serving.no_gpu_fits"
    gpus = served.setup.tensor_parallel * served.setup.pipeline_parallel
    return lines + wrap(words(key, gpu=f"{answer.smallest} × {gpus}", gpus=gpus), style.width)


_HOLDS_LESS = {"llama.cpp": "serving.not_whole", "transformers": "serving.out_of_memory"}  # these refuse no start


def _unsure(served: Served, words: Words, style: Style) -> list[str]:
    """That nothing is left for a request, or may not be: within the range of what was predicted and measured."""
    if served.starts is None:
        less = served.setup.engine in _HOLDS_LESS
        return style.lines(words("serving.may_not_fit" if less else "serving.may_not_start"), "warning")
    return style.lines(words(_HOLDS_LESS.get(served.setup.engine, "serving.nothing_left")), "error")


def _is_longest(served: Served) -> bool:
    """Whether the longest request that fits is one that the server takes, of a model whose positions nobody says."""
    known = served.model.longest is not None or served.setup.engine in _HOLDS_LESS
    return known or (served.longest or 0) <= served.options.max_model_len


def _is_open(served: Served) -> bool:
    """Whether nothing says how long a request may be: neither an option nor the model's positions."""
    return served.setup.max_model_len is None and served.model.longest is None


def _load(answer: Answer, words: Words, style: Style) -> list[str]:
    asked = answer.load
    if asked is None or asked.fits is None:
        return []
    values: dict[str, Any] = {"requests": asked.requests, "length": asked.length, "fits": asked.fits}
    if not answer.counted:
        return wrap(words("serving.mean", **values), style.width)
    names = OPTION_NAMES[answer.served.setup.engine]
    length, number = names.get("max_model_len"), names.get("max_num_seqs")
    number = "max_running_requests" if number == "cuda_graph_max_bs" else number
    if asked.holds:
        lines = wrap(words("serving.load_holds", **values), style.width)
    else:
        lines = wrap(words("serving.load_waits", size=_gib(asked.missing), **values), style.width)
    if asked.fits and length and number and answer.served.setup.engine != "transformers":
        most = min(asked.requests, asked.fits)
        cells = asked.length * most if answer.served.setup.engine == "llama.cpp" else asked.length
        given = f"--{length.replace('_', '-')} {cells} --{number.replace('_', '-')} {most}"
        lines += style.lines(words("serving.set", options=given), "fix")
    return lines


def _changes(answer: Answer, words: Words, style: Style) -> list[str]:
    if not answer.changes or answer.served.concurrency is None:
        return []
    names = ("column_option", "column_tokens", "column_requests", "column_longest")
    head = [words(f"serving.{name}") for name in names]
    rows = [head, [words("serving.as_it_is"), *_figures(answer.served)]]
    helping = [change for change in answer.changes if _figures(change.served) != _figures(answer.served)]
    for change in helping:
        name = option_name(answer.served.setup.engine, change.option)
        value = change.value
        shown = "" if value is True else f"{value:,}" if isinstance(value, int) else str(value)
        rows.append([f"{name} {shown}", *_figures(change.served)])
    return [style.paint(words("serving.changes"), "heading"), *table(rows)] if helping else []


def option_name(engine: str, option: str) -> str:
    """What an engine calls one of our options."""
    return OPTION_NAMES[engine].get(option) or _FLAGS.get(option, {}).get(engine, option)


def _figures(served: Served) -> list[str]:
    if served.concurrency is None:
        return ["?", "?", "?"]
    longest = f"{served.longest:,}" if _is_longest(served) else "?"
    return [f"{served.kv_tokens:,}", f"{served.concurrency:.2f}", longest]


def _gib(size: float) -> str:
    return f"{size / GIB:.2f}"


def serving_json(answer: Answer, words: Words, version: str, rules_version: str) -> str:
    """The estimate under ``serving``: ``rules/schema/output/estimate-serving.json`` says it in full."""
    served = answer.served
    setup = served.setup._asdict()
    setup["release"] = release_text(served.setup.release)
    setup |= {"eager": served.setup.eager, "uses": sorted(served.setup.uses - {"eager"})}
    setup["measured"] = served.setup.measured._asdict()
    whole: Object = head(version, rules_version)
    whole["model"] = {"name": served.model.name, "positions": served.model.longest}
    whole["setup"] = setup
    whole["serving"] = _figures_json(served) | {
        "ranks": [
            {
                "rank": rank.number,
                "stage": rank.stage,
                **_rank_json(served.budget, rank.kv_bytes_per_token, rank.kv_tokens),
            }
            for rank in served.ranks
        ],
        "options": served.options._asdict() | ({"max_model_len": None} if _is_open(served) else {}),
        "smallest_gpu": answer.smallest,
        "requests": answer.load._asdict() if answer.load is not None else None,
        "changes": [
            {
                "option": option_name(served.setup.engine, change.option),
                "value": change.value,
                **{
                    name: _figures_json(change.served)[name]
                    for name in ("kv_tokens", "concurrency", "max_model_len", "starts")
                },
            }
            for change in answer.changes
        ],
        "notes": [words(key, **values) for key, values in answer.notes],
    }
    return to_json(whole)


def _token_of(served: Served) -> float | None:
    """Bytes of one token on the rank that needs most; None where that is not known."""
    return max((rank.kv_bytes_per_token for rank in served.ranks if rank.kv_bytes_per_token is not None), default=None)


def _figures_json(served: Served) -> Object:
    token = _token_of(served)
    status = served.budget.status if served.budget and served.longest is not None else "unknown"
    figures = _rank_json(served.budget, token, served.kv_tokens if served.kv_tokens is not None else 0)
    figures |= {
        "kv_tokens": served.kv_tokens,
        "concurrency": None if served.concurrency is None else round(served.concurrency, 4),
        "kv_blocks": None if served.kv_tokens is None else served.kv_tokens // served.options.block,
        "kv_request_bytes": served.request_bytes,
        "max_model_len": served.longest,
        "starts": served.starts,
        "utilization_needed": served.utilization_needed,
        "not_predicted": served.not_predicted or None,
    }
    figures["status"] |= {"kv_tokens": status, "max_model_len": status}
    figures["status"]["concurrency"] = "unknown" if served.concurrency is None else status
    return figures


def _rank_json(budget: Budget | None, token: float | None, tokens: int | None) -> Object:
    weights = budget.terms[0] if budget is not None else None
    status = budget.status if budget is not None else "unknown"
    return {
        "weights_bytes": weights.bytes if weights else None,
        "kv_bytes_per_token": round(token) if token is not None and token == round(token) else token,
        "kv_budget_bytes": budget.kv if budget else None,
        "kv_budget_low_bytes": budget.kv_low if budget else None,
        "kv_budget_high_bytes": budget.kv_high if budget else None,
        "kv_tokens": tokens if budget else None,
        "terms": [
            fields(term, "name", "bytes", "low", "high", "status", "inside")
            for term in (budget.terms if budget else ())
        ],
        "status": {
            "weights_bytes": weights.status if weights else "unknown",
            "kv_bytes_per_token": "unknown" if token is None else "exact",
            "kv_budget_bytes": status,
            "kv_tokens": "unknown" if tokens is None else status,
        },
    }
