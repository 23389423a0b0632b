"""Which entry of the ledger a block counts for: by what it was marked as, else by who made it and when.

The names are those of the closed forms (i18n, ``term.``), so that both levels can be laid side by side.
"""

from collections.abc import Mapping, Sequence

from kb.torch_runs.simulation.events import Event
from kb.torch_runs.simulation.timeline import Block

REMAINDERS = "allocator_remainders"
BY_ROLE = {"weights": "parameters"}  # every other role is a term's own name
ENCODER_PARTS = ("encoder", "shared", "embed_tokens_encoder")
HEADS = ("lm_head", "embed_out", "score", "classifier", "cls", "qa_outputs", "predictions", "generator_lm_head")
WRAPPERS = ("base_model", "model", "module")  # what PEFT and transformers put around the stacks
LOSS_OPS = ("nll_loss", "log_softmax", "cross_entropy")


class Stacks:
    """Where a model's modules belong. ``sole`` is the stack of a model that has one: ``encoder`` or ``decoder``."""

    def __init__(self, sole: str | None, vocabulary: int) -> None:
        self.sole = sole
        self.vocabulary = vocabulary

    def of(self, module: str) -> str:
        """``encoder``, ``decoder`` or ``head``; empty outside of all of them."""
        parts = [part for part in module.split(".") if part and part not in WRAPPERS]
        if not parts:
            return ""
        if parts[0] in HEADS:
            return "head"
        if self.sole:
            return self.sole
        return "encoder" if parts[0] in ENCODER_PARTS else "decoder"


def term_of(event: Event, role: str | None, stacks: Stacks) -> str:
    """The ledger's term for the block of one allocation."""
    if role == "workspace" and event.op != "cublas_workspace":
        return "temporaries"  # a kernel's own, gone when it ends
    if role is not None:
        return BY_ROLE.get(role, role)
    phase, _, part = event.phase.partition(":")
    if part == "inputs":
        return "inputs"
    if phase in ("load", "save") or part == "optimizer":
        return "temporaries"
    if any(op in event.op for op in LOSS_OPS):
        return "loss" if phase == "train" else "logits"
    if part == "backward":
        return "temporaries"
    stack = stacks.of(event.module)
    if phase == "train":
        return f"activations_{stack or 'head'}"
    if stack == "encoder":
        return "activations_encoder"
    wide = event.requested >= 2 * stacks.vocabulary > 0  # at least a row of half-precision scores
    return "logits" if stack == "head" or (not stack and wide) else "temporaries"


def ledger_of(blocks: Sequence[Block], terms: Mapping[int, str]) -> dict[str, int]:
    """Bytes by term, largest first; what rounding and unsplit blocks add to the tensors is a term of its own."""
    sums: dict[str, int] = {}
    for number, event in blocks:
        size = event.requested or event.size
        sums[terms[number]] = sums.get(terms[number], 0) + size
        sums[REMAINDERS] = sums.get(REMAINDERS, 0) + event.size - size
    return {name: size for name, size in sorted(sums.items(), key=lambda item: -item[1]) if size}


def moment_of(event: Event, reported: str) -> str:
    """Where the peak of the phase ``reported`` lies, which ``event`` made: a key of i18n under ``moment.``."""
    phase, _, part = event.phase.partition(":")
    if phase != reported:  # it was there when the phase began
        part = ""
        phase = reported
    loss = any(op in event.op for op in LOSS_OPS)
    if part == "backward":
        return "loss_backward" if loss else "backward"
    if part == "optimizer":
        return "optimizer_step"
    if phase == "evaluate" and not event.module and "cat" in event.op:
        return "gathering"
    if phase in ("train", "evaluate"):
        return "loss" if loss else "forward"
    return {"load": "loading", "save": "saving", "generate": "decoding"}[phase]
