"""What of a run passes through host memory: the model's files, checkpoints, what is offloaded, predictions."""

from kb.core.model import Architecture
from kb.core.setup import TrainingSetup
from kb.memory.host import Loads
from kb.memory.parallel import as_run, share_of
from kb.memory.states import FP32, states_of


def loads_of(setup: TrainingSetup, architecture: Architecture, checkpoint_bytes: int | None = None) -> Loads:
    """Bytes that pass through host memory; the model's files are one GPU's parameters as loaded, where nothing says
    more.

    Args:
        checkpoint_bytes: the model's files.
    """
    run = as_run(setup)
    states = states_of(run, architecture)
    share = share_of(run, states, architecture)
    return Loads(
        checkpoint=checkpoint_bytes if checkpoint_bytes is not None else share.parameters,
        saved=states.saved if run.do_train else 0,
        offloaded=share.on_host,
        gathered=host_predictions(run, architecture) if run.do_eval else 0,
    )


def host_predictions(setup: TrainingSetup, architecture: Architecture) -> int:
    """Bytes of predictions in host memory at the end of evaluation: fp32 logits of all samples, and what an
    encoder-decoder's encoder gave. 0 where the number of samples is unknown.

    Source: ``Trainer.evaluation_loop`` and ``nested_numpify`` (transformers/trainer.py, trainer_pt_utils.py).
    """
    if not setup.eval_samples or setup.prediction_loss_only or setup.predict_with_generate:
        return 0
    return FP32 * setup.eval_samples * _predicted(architecture, setup.max_source_length, setup.max_target_length)


def _predicted(arch: Architecture, source: int, target: int) -> int:
    """Elements that evaluation keeps for one sample."""
    if arch.family in ("t5", "bart"):
        return target * arch.vocab_size + source * arch.d_model
    if arch.family == "decoder" or arch.head == "masked":
        return source * arch.vocab_size
    return arch.labels if arch.head == "sequence" else source * arch.labels
