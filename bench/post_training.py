"""What TRL's own losses take under the simulation (level 1), beside the memory engine's figure for the same step.

    python bench/post_training.py --trl trl-1.16.0-py3-none-any.whl dpo '{"model_type": "llama", …}' bf16=true

The wheel of TRL is read, not installed (``pip download trl==1.16.0 --no-deps``); what it imports must be there, or lie
in a folder of ``--beside`` (``datasets``). Two steps of the trainer's own ``_compute_loss`` run on fake tensors:
forward of policy and reference, loss, backward, clipping, optimizer. Every token after the first is the answer's.
With ``post.liger='{tiles: true}'`` the loss is Liger's, of a folder named by ``--beside``, as eager code: what of it
torch.compile makes (all of DPO and KTO, nothing large of GRPO from liger-kernel 0.8) takes less on a GPU.
"""

import argparse
import contextlib
import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import yaml
from engine_diff import Act, compare_acts, followed

from kb.core.setup import Liger, PostTraining, TrainingSetup

Peaks = dict[str, tuple[int, int]]


def simulated(
    kind: str, config: Mapping[str, Any], setup: TrainingSetup, capability: tuple[int, int]
) -> tuple[list[Act], Peaks]:
    """The allocator's acts, and its peaks by phase, of the trainer's own code on fake tensors."""
    from engine_diff import acts_of

    from kb.torch_runs.simulation.loading import build_model
    from kb.torch_runs.simulation.session import open_session
    from kb.torch_runs.simulation.timeline import peaks_of
    from kb.torch_runs.simulation.training import as_accelerate

    session = open_session(capability=capability, bits_and_bytes=setup.method != "full")
    with session as tracer, _host_answers(setup.post.completion if setup.post else 0):
        _in_place(tracer)
        tracer.padded = setup.padded
        tracer.phase = "load"
        model: Any = build_model(config, setup, tracer)
        reference: Any = None
        assert setup.post is not None
        if setup.post.reference == "model":
            reference = build_model(config, setup._replace(method="full", gradient_checkpointing=False), tracer)
            reference.eval()
        trainer = _trainer(kind, model, reference, setup)
        if setup.autocast:
            for each in (model, reference):
                if each is not None:
                    as_accelerate(each, "float16" if setup.fp16 else "bfloat16")
        _train(trainer, model, setup, tracer, kind)
        tracer.phase = "ended"
        ended = next((n for n, event in enumerate(tracer.events) if event.phase == "ended"), len(tracer.events))
        events = list(tracer.events[:ended])
    found = peaks_of(events)
    peaks = {name: (each.allocated_bytes, each.reserved_bytes) for name, each in found.items()}
    return acts_of(events), {name: peaks[name] for name in ("load", "train", "generate") if name in peaks}


def _train(trainer: Any, model: Any, setup: TrainingSetup, tracer: Any, kind: str) -> None:
    import torch

    from kb.torch_runs.simulation.training import GRADIENT_NORM, optimizer_of

    model.train()
    optimizer = optimizer_of(model, setup)
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    for _ in range(2):
        if kind in ("grpo", "rloo"):
            _answer(trainer, model, setup, tracer)
        for _ in range(setup.gradient_accumulation_steps):
            tracer.phase = "train:inputs"
            batch = _batch(kind, setup, trainer)
            tracer.phase = "train:forward"
            loss = trainer.compute_loss(model, batch)
            if setup.gradient_accumulation_steps > 1:
                loss = loss / setup.gradient_accumulation_steps
            tracer.phase = "train:backward"
            loss.backward()
            del loss  # training_step returns a detached number
        tracer.phase = "train:optimizer"
        if optimizer is not None:
            torch.nn.utils.clip_grad_norm_(parameters, GRADIENT_NORM)
            optimizer.step()
        for parameter in parameters:
            parameter.grad = None


def _answer(trainer: Any, model: Any, setup: TrainingSetup, tracer: Any) -> None:
    """What the trainer does with a batch of prompts before its steps: answers by the model, and the reference's word.

    Source: ``_generate_single_turn`` and ``_generate_and_score_completions`` (trl/trainer/grpo_trainer.py), whose
    ``generation_config`` samples from all tokens.
    """
    import torch
    from trl.models.utils import unwrap_model_for_generation

    from kb.torch_runs.simulation.inference import Decoding, generate

    assert setup.post is not None
    length, answer, rows = setup.max_source_length, setup.post.completion, setup.post.generated_rows
    if rows:
        tracer.phase = "generate"
        inner = model.get_base_model() if hasattr(model, "get_base_model") else model
        inner.generation_config.update(top_k=0, top_p=1.0, temperature=1.0)
        prompts = {name: torch.ones((rows, length - answer), dtype=torch.long, device="cuda")
                   for name in ("input_ids", "attention_mask")}  # fmt: skip
        with unwrap_model_for_generation(model, trainer.accelerator) as unwrapped:
            generate(unwrapped, prompts, Decoding(answer, sampling=True), tracer)
        del prompts
    if setup.post.reference != "none":
        tracer.phase = "train:forward"
        whole = [torch.ones((setup.per_device_train_batch_size, length), dtype=torch.long, device="cuda")
                 for _ in range(2)]  # fmt: skip
        off = model.disable_adapter() if trainer.ref_model is None else contextlib.nullcontext()
        with torch.no_grad(), off:
            trainer._get_per_token_logps_and_entropies(trainer.ref_model or model, *whole, answer)


def _batch(kind: str, setup: TrainingSetup, trainer: Any) -> dict[str, Any]:
    import torch

    assert setup.post is not None
    length, rows = setup.max_source_length, setup.per_device_train_batch_size

    def whole(count: int, tokens: int) -> Any:
        return torch.ones((count, tokens), dtype=torch.long, device="cuda")

    if kind in ("orpo", "cpo"):
        names = ("chosen_input_ids", "chosen_attention_mask", "chosen_labels", "rejected_input_ids",
                 "rejected_attention_mask", "rejected_labels", "prompt_input_ids", "prompt_attention_mask")  # fmt: skip
        return {name: whole(rows, length) for name in names}
    if kind in ("grpo", "rloo"):
        answer = setup.post.completion
        found = {"prompt_ids": whole(rows, length - answer), "prompt_mask": whole(rows, length - answer),
                 "completion_ids": whole(rows, answer), "completion_mask": whole(rows, answer),
                 "advantages": torch.ones(rows, device="cuda"),
                 "num_items_in_batch": torch.ones((), device="cuda")}  # fmt: skip
        if kind == "rloo":
            found["old_logps"] = torch.ones(rows, device="cuda")
        if trainer.beta:
            found["ref_per_token_logps"] = torch.ones((rows, answer), device="cuda")
        return found
    count = 2 * rows if kind in ("dpo", "reward") else rows
    found = {"input_ids": whole(count, length), "attention_mask": whole(count, length)}
    if kind == "sft":
        return {**found, "labels": whole(count, length)}
    if kind == "reward":
        return found
    found["completion_mask"] = whole(count, length)
    if kind == "kto":
        found |= {f"KL_{name}": whole(rows, length) for name in ("input_ids", "attention_mask", "completion_mask")}
        found["label"] = torch.ones(rows, dtype=torch.bool, device="cuda")
    return found


# What the losses of one release or another read of their trainer: numbers that change no byte, and what is off.
READ: dict[str, Any] = {
    "beta": 0.1, "f_divergence_type": "reverse_kl", "loss_types": ["sigmoid"], "loss_weights": [1.0],
    "label_smoothing": 0.0, "_total_train_tokens": 0, "_tp_size": 1, "desirable_weight": 1.0,
    "undesirable_weight": 1.0, "label_pad_token_id": -100, "pad_token_id": 0, "padding_value": 0, "cpo_alpha": 1.0,
    "simpo_gamma": 0.5, "alpha": 0.0, "num_generations": 8, "temperature": 1.0, "top_entropy_quantile": 1.0,
    "epsilon_low": 0.2, "epsilon_high": 0.2, "num_iterations": 1, "importance_sampling_level": "token",
    "scale_rewards": "group", "entropy_coef": 0.0, "_step": 0, "calculate_KL": True, "use_fused_lm_head": True,
} | dict.fromkeys(
    ("ld_alpha", "max_length", "compute_loss_func", "label_smoother", "tools", "off_policy_mask_threshold",
     "environment_factories", "_signature_columns", "reward_weights")
) | dict.fromkeys(
    ("use_weighting", "precompute_ref_logps", "precompute_ref_log_probs", "aux_loss_enabled", "use_liger_kernel",
     "use_liger_loss", "is_encoder_decoder", "_peft_has_been_casted_to_bf16", "padding_free", "_is_vlm",
     "model_accepts_loss_kwargs", "use_vllm", "vllm_importance_sampling_correction", "mask_truncated_completions",
     "is_fsdp_enabled", "_entropy_bonus_enabled"), False
)  # fmt: skip


def _trainer(kind: str, model: Any, reference: Any, setup: TrainingSetup) -> Any:
    """The trainer with what its loss reads; nothing of its set-up runs but the fused head."""
    from collections import defaultdict
    from importlib import import_module

    places = ("trl.trainer", "trl.experimental.{}")
    name = f"{kind}_trainer"
    module: Any = None
    for place in places:
        with contextlib.suppress(ModuleNotFoundError):
            module = module or import_module(f"{place.format(kind)}.{name}")
    cls = getattr(module, f"{kind.upper() if kind != 'reward' else 'Reward'}Trainer")
    trainer = object.__new__(cls)
    accelerator = SimpleNamespace(
        device="cuda", gather_for_metrics=lambda each: each, gather=lambda each: each, num_processes=1,
        parallelism_config=None, is_main_process=False, reduce=lambda each, **_: each, sync_gradients=True,
        unwrap_model=lambda each, **_: each, autocast=contextlib.nullcontext,
        state=SimpleNamespace(deepspeed_plugin=None, fsdp_plugin=None),
    )  # fmt: skip
    args = SimpleNamespace(gradient_checkpointing_kwargs={"use_reentrant": False}, device="cuda", delta=None,
                           center_rewards_coefficient=None, use_bias_correction_kl=False,
                           loss_type={"sft": "nll"}.get(kind, "grpo"), report_to=[], steps_per_generation=1,
                           average_tokens_across_devices=False, max_length=None)  # fmt: skip
    given = READ | {"model": model, "ref_model": reference, "accelerator": accelerator, "args": args}
    given |= {
        "current_gradient_accumulation_steps": setup.gradient_accumulation_steps,
        "loss_type": {"kto": "kto", "grpo": "grpo"}.get(kind, "sigmoid"),
        "model_kwarg_keys": ("logits_to_keep",), "state": SimpleNamespace(global_step=0),
    } | {name: defaultdict(lambda: defaultdict(list)) for name in ("_metrics", "_stored_metrics")}  # fmt: skip
    for name, value in given.items():
        with contextlib.suppress(AttributeError):
            setattr(trainer, name, value)
    if setup.post is not None and setup.post.liger is not None:
        _with_liger(kind, trainer)
    else:
        _fuse(kind, model, reference)
    return trainer


def _with_liger(kind: str, trainer: Any) -> None:
    """The trainer's loss of Liger, under the names that it has had, uncompiled."""
    from importlib import import_module

    import torch

    made = torch.tensor  # backward compares its gradient with a tensor of 1.0, in a thread without fake tensors
    stand_ins: dict[str, Any] = {
        "compile": lambda call, **_: call,
        "tensor": lambda value, **given: (
            1.0 if isinstance(value, float) and "device" in given else made(value, **given)
        ),
    }
    for attribute, stand_in in stand_ins.items():
        setattr(torch, attribute, stand_in)
    name = f"LigerFusedLinear{kind.upper()}Loss"
    loss_type: Any = getattr(import_module("liger_kernel.chunked_loss"), name)
    given = {"beta": trainer.beta} if kind != "grpo" else {"beta": 0.0, "use_ref_model": False, "loss_type": "grpo"}
    loss = loss_type(**given, compiled=False)
    for attribute in ("liger_loss", "liger_loss_fn", "liger_grpo_loss", "dpo_loss_fn", "kto_loss_fn"):
        setattr(trainer, attribute, loss)
    if kind == "grpo":
        from trl.models.utils import _ForwardRedirection

        setattr(trainer, "_forward_redirection", _ForwardRedirection())  # noqa: B010
        trainer.beta = 0.0
    for attribute in ("use_liger_kernel", "use_liger_loss"):
        for holder in (trainer, trainer.args):
            setattr(holder, attribute, True)


OUTPUTS = {
    "sft": ("log_probs", "entropy", "is_top1"),
    "dpo": ("log_probs", "entropy", "mean_logits", "is_top1"),
    "kto": ("log_probs", "entropy", "mean_logits"),
    "grpo": ("log_probs", "entropy"),
    "rloo": ("log_probs", "entropy"),
}


def _fuse(kind: str, model: Any, reference: Any) -> None:
    from trl.trainer import utils

    if not hasattr(utils, "add_fused_lm_head") or kind not in OUTPUTS:
        return
    import trl.kernels.chunked_logprob as kernels

    class Nothing:  # a Triton kernel: it allocates nothing
        def __getitem__(self, _: Any) -> Any:
            return lambda *args, **given: None

    for module in (kernels, utils):
        setattr(module, "_use_triton", lambda device: True)  # noqa: B010
    division = SimpleNamespace(cdiv=lambda a, b: -(-a // b))
    for name, value in (("_forward_kernel", Nothing()), ("_backward_kernel", Nothing()), ("triton", division)):
        setattr(kernels, name, value)
    utils.add_fused_lm_head(
        model.get_base_model() if hasattr(model, "get_base_model") else model, outputs=OUTPUTS[kind]
    )
    if reference is not None:
        utils.add_fused_lm_head(reference)


def _in_place(tracer: Any) -> None:
    """``gather`` and indexing add their gradients into zeros; only of fake tensors the sum is a new tensor.

    Source: ``gather_backward`` and ``index_backward`` (torch/csrc/autograd/FunctionsManual.cpp).
    """
    import torch

    aten = torch.ops.aten
    tracer.replaced[aten.scatter_add.default] = lambda _, *args, **given: aten.scatter_add_.default(*args, **given)
    tracer.replaced[aten.index_put.default] = lambda _, *args, **given: aten.index_put_.default(*args, **given)


@contextlib.contextmanager
def _host_answers(answer: int) -> Iterator[None]:
    """What the host asks of a fake tensor is answered: numbers by 1, a choice of tokens by all, or ``answer`` a row."""
    import torch

    kind: Any = torch.Tensor
    before = {name: getattr(kind, name) for name in ("item", "__bool__", "__getitem__", "__setitem__", "tolist")}

    def choose(self: Any, at: Any) -> Any:
        if isinstance(at, torch.Tensor) and at.dtype == torch.bool and at.is_cuda:
            count = at.shape[0] * answer if answer and at.dim() == 2 else at.numel()
            found = torch.zeros((count, at.dim()), dtype=torch.long, device="cuda")
            return before["__getitem__"](self, tuple(found.unbind(1)))
        return before["__getitem__"](self, at)

    def place(self: Any, at: Any, value: Any) -> Any:
        if isinstance(at, torch.Tensor) and at.dtype == torch.bool and at.is_cuda:
            return self.masked_fill_(at, value)
        return before["__setitem__"](self, at, value)

    def answered(name: str, otherwise: Any) -> Any:
        def ask(self: Any) -> Any:
            try:
                return before[name](self)
            except Exception:  # a fake tensor holds no number
                return otherwise

        return ask

    stand_ins = {"item": answered("item", 1.0), "__bool__": answered("__bool__", True), "__getitem__": choose}
    for name, stand_in in (stand_ins | {"__setitem__": place}).items():
        setattr(kind, name, stand_in)
    nonzero = torch.nonzero
    torch.nonzero = lambda each, **_: torch.zeros((each.numel(), 1), dtype=torch.long, device="cuda")
    try:
        yield
    finally:
        torch.nonzero = nonzero
        for name, original in before.items():
            setattr(kind, name, original)


def rows_asked(document: str | None, rows: Iterable[str]) -> list[str]:
    """The rows that a bench of TRL's losses is asked for, none for all; TRL can be imported then."""
    parser = argparse.ArgumentParser(description=(document or "").partition("\n")[0])
    parser.add_argument("--trl", required=True, help="an unpacked wheel of TRL")
    parser.add_argument("--beside", action="append", default=[], help="a folder of packages that TRL imports")
    parser.add_argument("names", nargs="*", choices=(*rows, []))
    given = parser.parse_intermixed_args()
    sys.path.insert(0, given.trl)
    sys.path += given.beside
    names: list[str] = given.names
    return names


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--trl", required=True, help="a wheel or an unpacked folder of TRL")
    parser.add_argument("--beside", action="append", default=[], help="a folder of packages that TRL imports")
    parser.add_argument("kind", choices=("sft", "dpo", "kto", "orpo", "cpo", "reward", "grpo", "rloo"))
    parser.add_argument("config", help="a config.json's content")
    parser.add_argument("settings", nargs="*", help="name=value, of TrainingSetup; post.NAME=value of PostTraining")
    parser.add_argument("--capability", default="8.6")
    parser.add_argument("--context", type=int, default=0, help="acts to show around the first that differs")
    parser.add_argument("--least", type=int, default=1 << 16, help="bytes of the smallest act that is compared")
    options = parser.parse_intermixed_args()
    sys.path.insert(0, options.trl)
    sys.path += options.beside
    config = json.loads(options.config)
    given = {name: yaml.safe_load(value) for name, _, value in (each.partition("=") for each in options.settings)}
    post = {name.removeprefix("post."): given.pop(name) for name in list(given) if name.startswith("post.")}
    setup = TrainingSetup(**given)
    if "liger" in post:
        post["liger"] = Liger(**post["liger"])
    setup = setup._replace(post=PostTraining(kind=options.kind, **post))
    major, minor = map(int, options.capability.split("."))
    acts, wanted = simulated(options.kind, config, setup, (major, minor))
    own, found = followed(config, setup, (major, minor))
    for name, (allocated, reserved) in wanted.items():
        mine = found.get(name, (0, 0))
        off = [f"{100 * (one / other - 1):+.2f} %" for one, other in zip(mine, (allocated, reserved), strict=True)]
        print(f"{name:6} allocated {allocated:>15,} {mine[0]:>15,} {off[0]}", end="   ")
        print(f"reserved {reserved:>15,} {mine[1]:>15,} {off[1]}")
    if options.context:
        compare_acts([act for act in acts if act[1] >= options.least], [act for act in own if act[1] >= options.least],
                     options.context)  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main())
