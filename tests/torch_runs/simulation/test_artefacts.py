"""What the simulator undoes: nothing stays patched, and gradients are added in place exactly where they really are."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from effort import few
from kb.core.setup import TrainingSetup
from simulation_needs import require_simulator
from torch_later import imported_where_run

if TYPE_CHECKING:
    from kb.torch_runs.simulation import session, tracer
    from kb.torch_runs.simulation.attention import Attention
    from kb.torch_runs.simulation.known import route_evenly
    from kb.torch_runs.simulation.loading import build_model, meta_model
    from kb.torch_runs.simulation.session import open_session
    from kb.torch_runs.simulation.torch_modules import torch
    from kb.torch_runs.simulation.training import train
imported = imported_where_run(globals(), require_simulator)

AMPERE = (8, 6)
T5 = {
    "model_type": "t5",
    "architectures": ["T5ForConditionalGeneration"],
    "vocab_size": 1000,
    "d_model": 64,
    "d_kv": 16,
    "d_ff": 128,
    "num_layers": 2,
    "num_decoder_layers": 2,
    "num_heads": 4,
    "decoder_start_token_id": 0,
}
LLAMA = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 1000,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}


def owners() -> dict[tuple[str, str], Any]:
    with open_session(AMPERE) as opened:
        patches = session.patches(opened, Attention(AMPERE))
    values = {}
    for patch in patches:
        owner = session._owner(patch.owner)
        if owner is not None and hasattr(owner, patch.name):
            values[patch.owner, patch.name] = getattr(owner, patch.name)
    return values


def test_every_patch_names_its_artefact_and_finds_its_owner() -> None:
    with open_session(AMPERE) as opened:
        for patch in session.patches(opened, Attention(AMPERE)):
            assert patch.artefact.endswith(".")
            assert hasattr(session._owner(patch.owner), patch.name), patch


def test_nothing_stays_patched_not_even_after_an_error() -> None:
    before = owners()
    hooks = dict(torch.nn.modules.module._global_forward_pre_hooks)
    kernel = torch._C._dispatch_has_kernel_for_dispatch_key("aten::silu_backward", "CUDA")
    with pytest.raises(RuntimeError, match="in the middle"), open_session(AMPERE):
        assert (
            torch.nn.functional.scaled_dot_product_attention
            is not before["torch.nn.functional", "scaled_dot_product_attention"]
        )
        raise RuntimeError("in the middle")
    assert owners() == before
    assert dict(torch.nn.modules.module._global_forward_pre_hooks) == hooks
    assert torch._C._dispatch_has_kernel_for_dispatch_key("aten::silu_backward", "CUDA") == kernel


@pytest.mark.exhaustive
@pytest.mark.parametrize("checkpointed", few([True, False]), ids=["checkpointed", "kept"])
@pytest.mark.parametrize("config", few([T5, LLAMA]), ids=["t5", "llama"])
def test_gradients_are_added_in_place_where_real_tensors_are(
    config: dict[str, Any], checkpointed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = 24 if config is T5 else 48
    really = _additions_in_place(config, target, checkpointed)
    simulated: Counter[tuple[int, ...]] = Counter()
    pass_on = tracer.Tracer.pass_on

    def counted(self: tracer.Tracer, key: int, heir: Any) -> None:
        simulated[tuple(heir.shape)] += 1
        pass_on(self, key, heir)

    monkeypatch.setattr(tracer.Tracer, "pass_on", counted)
    setup = TrainingSetup(
        attn_implementation="eager",
        per_device_train_batch_size=2,
        max_source_length=48,
        max_target_length=target,
        gradient_checkpointing=checkpointed,
    )
    with open_session(AMPERE) as opened:
        train(build_model(config, setup, opened), setup, opened, steps=1)
    assert simulated == really


def _additions_in_place(config: dict[str, Any], target: int, checkpointed: bool) -> Counter[tuple[int, ...]]:
    """Shapes of what autograd adds in place on real CPU tensors, by PyTorch's profiler."""
    model: Any = meta_model(config, TrainingSetup(attn_implementation="eager")).to_empty(device="cpu").train()
    model.tie_weights()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.02)
    if checkpointed:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        model.config.use_cache = False
    tokens = torch.zeros(2, 48, dtype=torch.long)
    labels = torch.zeros(2, target, dtype=torch.long)
    loss = model(input_ids=tokens, attention_mask=torch.ones_like(tokens), labels=labels).loss
    with torch.profiler.profile(record_shapes=True) as profile:
        loss.backward()
    added: Counter[tuple[int, ...]] = Counter()
    for event in profile.events():
        shapes = [tuple(shape) for shape in event.input_shapes or () if shape]
        # The mask of a recomputed forward is built in place too, of whole numbers: (length, length).
        if event.name == "aten::add_" and len(shapes) > 1 and shapes[0] == shapes[1] and len(shapes[0]) != 1:
            added[shapes[0]] += 1
    return added - Counter({(48, 48): 1}) if checkpointed and config is T5 else added


@pytest.mark.parametrize(("tokens", "rows"), [(12, [6, 6, 6, 6]), (1, [1, 1, 0, 0])])
def test_experts_that_are_modules_get_equal_shares_of_the_tokens(tokens: int, rows: list[int]) -> None:
    """As a mixture's layer asks for them before transformers 5: which tokens are one expert's, by a mask."""

    class Mixture(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.experts = torch.nn.ModuleList(torch.nn.Identity() for _ in range(4))

        def forward(self, chosen: Any) -> list[int]:
            mask = torch.nn.functional.one_hot(chosen, num_classes=4).permute(2, 1, 0)
            return [torch.where(mask[at])[1].shape[0] for at in range(4)]

    with open_session((8, 6)) as tracer:
        mixture = Mixture()
        route_evenly(mixture, tracer)
        chosen = torch.topk(torch.zeros(tokens, 4, device="cuda"), 2).indices
        assert mixture(chosen) == rows
        outside = torch.nn.functional.one_hot(chosen, num_classes=4)
        assert torch.where(outside)[0].shape[0] == outside.numel()  # elsewhere nobody knows
