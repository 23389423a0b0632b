"""What a run of TRL, Axolotl or LLaMA-Factory does beyond plain training, as far as the memory engine follows it."""

import math
from collections.abc import Mapping

from kb.advice.run.no_prediction import RANKING, TRL_READ, unfollowed
from kb.advice.run.settings_reader import SettingsReader, loaded_by_unsloth
from kb.core.document import Unit
from kb.core.expression import Unknown, is_unknown
from kb.core.facts import VersionOf
from kb.core.model import Model
from kb.core.release import LATEST
from kb.core.setup import (
    NEWEST_LIGER,
    Assumption,
    Head,
    Liger,
    LigerKernels,
    Method,
    PostKind,
    PostTraining,
    TrainingSetup,
)

# By what the config calls it. Others (PPO, BCO, online DPO …) have no memory model.
KINDS: Mapping[str, PostKind] = {
    "dpo": "dpo", "ipo": "dpo", "kto": "kto", "orpo": "orpo", "cpo": "cpo", "simpo": "cpo", "grpo": "grpo",
    "rloo": "rloo", "reward": "reward",
}  # fmt: skip
GRADCACHE = 32
GENERATING = ("grpo", "rloo")
WITHOUT_REFERENCE = ("orpo", "cpo", "reward")
# Releases of TRL (trl-wheels): the fused head; a contiguous copy of logits; the first that was read.
FIRST, MASKED, FUSED = TRL_READ
VIEWED, COPIED = (1, 8), (0, 29)
CHUNKED = (1, 7)  # SFT's own default: `chunked_nll` (trainer/sft_config.py)
OF_AXOLOTL = (1, 8)  # what Axolotl 0.18 pins
# Liger's losses: `use_liger_loss` until 0.27, `use_liger_kernel` from 0.26; none from 1.13, with a fused head of TRL's.
WITH_LIGER = ("dpo", "kto", "grpo")
BY_KERNEL, LAST_BY_LOSS, NOT_BY_LOSS, UNLIGERED = (0, 26), (0, 27), (0, 28), (1, 13)
LIGER_ADAPTED, LIGER_REWRITTEN = (1, 8), (0, 29)  # adapters are taken again; DPO's loss as it is since
# liger-kernel: GRPO by tiles; no gradient of a frozen output layer (preference losses; GRPO's).
TILED, SPARED, SPARED_GRPO = (0, 8), (0, 8, 3), (0, 8, 4)
# What plain training takes changed there: types of models, how the output layer's gradient is added up, norms of heads.
LIGER_CHANGED = ((0, 7), (0, 8, 1), (0, 8, 3), (0, 8, 5))
SKIPS_LOGITS = (5, 15)  # transformers whose Trainer asks for no logits where an evaluation wants the loss alone


def post_training_of(
    read: SettingsReader, unit: Unit, trainer: str, method: Method, constants: Mapping[str, float], versions: VersionOf
) -> tuple[PostTraining, int | None] | None:
    """The run beyond training, and the length of its rows where this decides it; None where none is followed.

    Args:
        trainer: what the config says of the trainer (``dpo``, ``grpo`` …).
        constants: lengths and shares that TRL takes where nothing says them.
        versions: the releases of libraries; without one of TRL the newest is assumed, and listed.
    """
    kind = KINDS.get(trainer)
    if kind is None or unit.dialect not in ("trl", "axolotl", "llamafactory"):
        return None
    if unit.dialect == "llamafactory":
        return _of_llamafactory(read, kind, method)
    if unit.dialect == "axolotl" and kind in (*GENERATING, "reward"):
        return None  # its own options of vLLM, a second model whose place is not known; rewards of any type of model
    release = _release(read, unit, versions)
    head = _head(kind, release)
    if head is None:
        return None
    ahead = bool(read.value("trl.precompute_ref_log_probs"))
    post = PostTraining(kind, head=head)
    if _loss_of_liger(read, kind, release):
        refused = _refused_with_liger(kind, method, release, ahead=ahead)
        if refused is not None:
            read.beyond.append(f"Liger + {refused} (TRL {'.'.join(map(str, release))})")
            return None
        post = post._replace(liger=_liger(read, kind, method, release, versions))
    if kind in GENERATING:
        from kb.advice.run.generated_answers import generating  # most runs generate none

        return generating(read, post, method, constants, versions)
    if kind not in WITHOUT_REFERENCE and not ahead:
        post = post._replace(reference="model" if method == "full" else "adapter_off")
    if read.value("trl.max_length") or unit.dialect != "trl":
        return with_prompts(post, read, read.number("trl.max_length")), None
    length = int(read.or_assume("data.max_source_length", None, int(constants["trl_max_length"]), "library_default"))
    return with_prompts(post, read, length), length


def with_prompts(post: PostTraining, read: SettingsReader, length: int | None) -> PostTraining:
    """With the answer's share of rows of ``length`` tokens, where the project says how long its prompts are: TRL's
    fused head scores no others (``hidden_states[mask]`` of ``add_fused_lm_head``, trl/trainer/utils.py of 1.16)."""
    if post.head != "fused" or post.kind not in ("sft", "dpo", "kto"):
        return post
    prompt = read.number("trl.max_prompt_length", least=0)
    if prompt is None or length is None:
        if post.kind != "sft":  # which may as well be of texts that have no prompt
            read.assumed.append(Assumption(name="trl.max_prompt_length", value=0, reason="all_answer"))
        return post
    return post._replace(scored=max(length - prompt, 1))


def embedding_of(read: SettingsReader) -> PostTraining | None:
    """Embedding training with in-batch negatives, where the loss says so, or the project says how many texts a sample
    has. Of those two is the least: an anchor and its answer.

    What is not said is as in sentence-transformers: the average of all tokens, and no module that normalizes; GradCache
    by 32 samples (losses/cached_multiple_negatives_ranking.py of 6.2.0).
    """
    loss, columns = read.as_written("embedding.loss"), read.number("embedding.columns", least=2)
    if columns is None and (loss not in RANKING or "embedding.columns" in read.unresolved):
        return None
    own = GRADCACHE if loss == "cached_ranking" else 0
    cached = 0 if loss == "ranking" else read.number("embedding.mini_batch_size") or own
    return PostTraining(
        "embedding",
        columns=int(read.or_assume("embedding.columns", columns, 2, "pairs_of_texts")),
        cached=cached,
        pooling="cls" if read.value("embedding.pooling") == "cls" else "mean",
        normalizes=bool(read.value("embedding.normalizes")),
    )


def with_fused_head(
    setup: TrainingSetup, read: SettingsReader, unit: Unit, model: Model | None, versions: VersionOf
) -> TrainingSetup:
    """SFT of TRL from 1.15, which never makes whole logits: followed by the engine where it follows the run.

    Without a release that is known, and with evaluation, the run stays plain training. With Liger too this release
    takes its own head (sft_trainer.py:1127 of 1.16.0).
    """
    plain = setup.do_train and not (setup.do_eval or setup.do_predict)
    if model is None or not plain or setup.unsloth or (unit.dialect, read.value("script.trainer")) != ("trl", "sft"):
        return setup
    release = versions("trl", FUSED)
    if release is None or release < FUSED:
        return setup
    post = with_prompts(PostTraining("sft"), read, setup.max_source_length)
    fused = setup._replace(post=post, fused_loss=False, liger_kernels=None)
    if unfollowed(fused, model.architecture):
        return setup
    fused_loss_of(read, post)
    read.decide("liger_kernel.release", None)
    return fused


def _release(read: SettingsReader, unit: Unit, versions: VersionOf) -> tuple[int, ...]:
    """The release of TRL; of one that is not known the newest is taken that has the run's options, and listed."""
    bounds = (FUSED, UNLIGERED, MASKED, VIEWED, COPIED, NOT_BY_LOSS, BY_KERNEL, FIRST)
    release = versions("trl", *bounds) or versions("trl", FUSED, MASKED, VIEWED, COPIED, FIRST)
    if release is None:
        release = OF_AXOLOTL if unit.dialect == "axolotl" else versions("trl", FUSED) or FUSED
        if read.value("trl.use_liger_loss"):
            release = LAST_BY_LOSS
        shown = ".".join(str(part) for part in release if part != LATEST)
        read.assumed.append(Assumption(name="trl.release", value=shown, reason="release_of_trainer"))
    return release


def _head(kind: PostKind, release: tuple[int, ...]) -> Head | None:
    """How the release of TRL makes log-probabilities; None of one that nobody has read."""
    if release < FIRST or (MASKED <= release < FUSED and kind != "reward"):
        return None
    if kind in WITHOUT_REFERENCE:
        return "rows"
    if release >= FUSED:
        return "fused"
    return "copied" if kind == "dpo" and COPIED <= release < VIEWED else "rows"


def _loss_of_liger(read: SettingsReader, kind: PostKind, release: tuple[int, ...]) -> bool:
    """Whether the loss is Liger's; elsewhere its kernels are at most in the layers."""
    if kind not in WITH_LIGER:
        return False
    by_loss = bool(read.value("trl.use_liger_loss")) and release < NOT_BY_LOSS
    return by_loss or (bool(read.value("training.use_liger_kernel")) and BY_KERNEL <= release < UNLIGERED)


def _refused_with_liger(kind: PostKind, method: Method, release: tuple[int, ...], *, ahead: bool) -> str | None:
    """What the trainer of a release raises for beside Liger's loss."""
    unpaired = kind == "kto" and release < LIGER_ADAPTED
    rewritten = kind == "dpo" and release >= LIGER_REWRITTEN
    if method != "full" and (unpaired or (rewritten and release < LIGER_ADAPTED)):
        return "LoRA"
    if ahead and (unpaired or rewritten):
        return "precompute_ref_log_probs"
    return None


def _liger(
    read: SettingsReader, kind: PostKind, method: Method, release: tuple[int, ...], versions: VersionOf
) -> Liger:
    installed = release_of_liger(read, versions, TILED, SPARED, SPARED_GRPO)
    old = kind == "dpo" and release < LIGER_REWRITTEN
    return Liger(
        tiles=installed >= TILED,
        frozen_gradient=installed < (SPARED_GRPO if kind == "grpo" else SPARED),
        states_kept=old,
        autocast=old and method == "qlora" and bool(read.or_default("training.bf16")),
    )


def release_of_liger(read: SettingsReader, versions: VersionOf, *bounds: tuple[int, ...]) -> tuple[int, ...]:
    """liger-kernel's; of one that is not known the newest that was read, and listed."""
    installed = versions("liger-kernel", *bounds)
    if installed is None:
        installed = NEWEST_LIGER
        shown = ".".join(map(str, installed))
        read.assumed.append(Assumption(name="liger_kernel.release", value=shown, reason="release_of_liger"))
    return installed


def liger_kernels_of(read: SettingsReader, versions: VersionOf, *, fused: bool) -> LigerKernels | None:
    """Liger's kernels in plain training; None where another library computes the loss, or nobody says which."""
    if not fused or not read.value("training.use_liger_kernel"):
        return None
    release_of_liger(read, versions, *LIGER_CHANGED)
    return liger_kernels_by(versions)


def liger_kernels_by(versions: VersionOf) -> LigerKernels:
    """Liger's kernels under the releases at hand; of one that is not known the newest counts."""
    installed, transformers = versions("liger-kernel", *LIGER_CHANGED), versions("transformers", SKIPS_LOGITS)
    skips = transformers is None or transformers >= SKIPS_LOGITS
    return LigerKernels(NEWEST_LIGER if installed is None else installed, skips=skips)


def assume_usual_adapters(read: SettingsReader, unit: Unit, *, adapted: bool) -> None:
    """List that Axolotl's kernels for LoRA, which keep less of a layer (``kernels/lora.py``), count as PEFT's code.

    Since 0.10 they are on where no key speaks of them and the run is plain training of LoRA over 16 or 4 bits
    (``check_auto_enable_lora_kernels`` of ``utils/schemas/config.py``).
    """
    said = {name: setting.value for name, setting in unit.keys.items() if setting.value not in (None, False)}
    named = any(name.startswith("lora_") and name.endswith("_kernel") for name in said)
    silent = not any(name.startswith("lora_") and name.endswith("_kernel") for name in unit.keys)
    off = said.keys() & {"rl", "trust_remote_code", "load_in_8bit"}
    if adapted and unit.dialect == "axolotl" and (named or (silent and not off)):
        read.assumed.append(Assumption(name="lora.fused_kernels", value=True, reason="adapters_as_usual"))


def fused_losses_of(
    read: SettingsReader, unit: Unit, post: PostTraining | None, versions: VersionOf
) -> tuple[bool, bool]:
    """Whether a plain loss is computed in pieces where the run trains, and where it evaluates."""
    in_chunks = _is_in_chunks(read, unit, versions)
    return fused_loss_of(read, post) or in_chunks, in_chunks or bool(read.or_default("model.fused_evaluation"))


def _is_in_chunks(read: SettingsReader, unit: Unit, versions: VersionOf) -> bool:
    """Whether TRL's SFT makes its loss of chunks of tokens (``chunked_nll``): from 1.7 on where no other is named. Of a
    release that nobody says whole logits count, as those before make them, and are listed."""
    of_trl = (unit.dialect, read.value("script.trainer")) == ("trl", "sft") and not loaded_by_unsloth(unit)
    if not of_trl or read.value("training.use_liger_kernel"):
        return False
    named, release = read.as_written("trl.loss_type"), versions("trl", CHUNKED)
    if is_unknown(named) or (named is None and release is None):
        read.assumed.append(Assumption(name="trl.loss_type", value="nll", reason="whole_logits"))
    return named == "chunked_nll" or (named is None and release is not None and release >= CHUNKED)


def fused_loss_of(read: SettingsReader, post: PostTraining | None) -> bool:
    """Whether a plain loss is computed in pieces. Of a run whose loss is followed by itself it is only listed what
    Liger's kernels in the layers are counted as.
    """
    kernel = bool(read.value("training.use_liger_kernel"))
    if read.value("training.torch_compile"):
        read.assumed.append(Assumption(name="training.torch_compile", value=True, reason="compiled_as_eager"))
    if read.or_default("model.logits_of_answers") and read.value("script.trainer") != "pretraining":
        read.assumed.append(Assumption(name="model.logits_of_answers", value=True, reason="every_token_an_answer"))
    if post is None:
        return kernel or bool(read.or_default("model.fused_loss"))
    if kernel:
        read.assumed.append(Assumption(name="training.use_liger_kernel", value=True, reason="liger_layers"))
    return False


def _of_llamafactory(read: SettingsReader, kind: PostKind, method: Method) -> tuple[PostTraining, int | None] | None:
    """Its own trainers: whole logits in fp32, and a second model where no adapter can be switched off."""
    if kind not in ("dpo", "kto"):
        return None
    if read.value("llamafactory.pref_loss") in ("orpo", "simpo") or read.value("llamafactory.ref_model") is not None:
        return None
    return PostTraining(kind, head="wide", reference="model" if method == "full" else "adapter_off"), None


BATCH, OWN_CLASSES = "training.per_device_train_batch_size", (2025, 2)  # Unsloth's first release with its own of TRL's
_BY_UNSLOTH = ((BATCH, 4), ("training.gradient_accumulation_steps", 2), ("launch.num_processes", 1))  # with defaults


def in_whole_groups(unit: Unit, versions: VersionOf) -> Unit:
    """The unit with its batch unknown where Unsloth changes it as the run starts: to the answers of one prompt, where
    those of a step are no whole number of prompts (unsloth/models/rl.py).
    """
    written, ahead = unit.settings, ("trl.steps_per_generation", "trl.generation_batch_size")
    release = versions("unsloth", OWN_CLASSES)
    older = release is not None and release < OWN_CLASSES
    if unit.dialect != "trl" or older or any(name in written for name in ahead):
        return unit
    rows = ((name, written[name].value if name in written else default) for name, default in _BY_UNSLOTH)
    factors = [value for _, value in rows]
    group = written["trl.num_generations"].value if "trl.num_generations" in written else 8
    if not all(type(each) is int and each > 0 for each in (*factors, group)) or math.prod(factors) % group == 0:
        return unit
    place = written.get(BATCH, written["script.trainer"])
    opened = place._replace(value=Unknown(frozenset((BATCH,))), path=(BATCH.rpartition(".")[2],))
    return unit._replace(settings={**written, BATCH: opened})
