"""What of a run passes through host memory, where the memory engine alone knows the model's type."""

from kb.core.model import Architecture
from kb.core.setup import TrainingSetup
from kb.memory.counts import count
from kb.memory.engine.options import packs
from kb.memory.host import Loads
from kb.memory.linear import adapter_parameters, default_targets
from kb.memory.zero import ranks_of_a_node


def engine_loads(setup: TrainingSetup, architecture: Architecture) -> Loads:
    """What passes through host memory: the weights as loaded and what a checkpoint of the model holds."""
    width = 4 if setup.weights == "fp32" else 2
    counts = count(architecture)
    parameters = counts.total * width
    if packs(setup):
        eight = setup.load_in_8bit and not setup.load_in_4bit
        parameters = counts.quantizable // (1 if eight else 2) + (counts.total - counts.quantizable) * 2
    saved, trained = parameters, counts.total
    if setup.method != "full":
        targets = setup.lora_target_modules or default_targets(architecture)
        trained = adapter_parameters(architecture, targets, setup.lora_r) if targets else 0
        saved = 4 * trained
    gathered = _predictions(setup, architecture) if setup.do_eval else 0
    offloaded = 0
    if setup.fsdp and setup.offload_param:
        offloaded = _offloaded(setup, parameters, trained)
    elif setup.zero_stage and setup.offload_optimizer:  # masters, their gradients and moments; 16 bits to copy back
        offloaded = (4 * 4 + 2) * trained * ranks_of_a_node(setup) // setup.data_parallel_size
    return Loads(parameters, saved if setup.do_train else 0, offloaded, gathered)


def _offloaded(setup: TrainingSetup, parameters: int, trained: int) -> int:
    """Bytes of one node's host memory under FSDP's ``CPUOffloadPolicy``: shards, their gradients and AdamW's moments.

    What trains is fp32 under mixed precision, and adapters are so without it too.
    """
    wide = 4 if setup.autocast or setup.weights == "fp32" or setup.method != "full" else 2
    frozen = parameters if setup.method != "full" else 0
    moments = 2 if setup.do_train and setup.optim.startswith("adamw") else 0
    gradients = 1 if setup.do_train else 0
    return (frozen + trained * wide * (1 + gradients + moments)) * ranks_of_a_node(setup) // setup.world_size


def _predictions(setup: TrainingSetup, architecture: Architecture) -> int:
    """Bytes of the logits that evaluation gathers, and of an encoder-decoder its encoder's output."""
    if setup.predict_with_generate or setup.prediction_loss_only:
        return 0
    width = 4 if setup.autocast or setup.weights == "fp32" else 2
    both = architecture.family == "bart"
    length = setup.max_target_length if both else setup.max_source_length
    row = length * architecture.vocab_size + (setup.max_source_length * architecture.d_model if both else 0)
    return (setup.eval_samples or 0) * row * width
