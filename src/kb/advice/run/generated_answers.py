"""GRPO and RLOO: answers are generated, here, by vLLM in the same process, or by a server.

Read in TRL 0.15 to 1.16 (``trainer/grpo_trainer.py``, ``rloo_trainer.py``, ``grpo_config.py``).
"""

from collections.abc import Mapping

from kb.advice.run.no_prediction import TRL_READ
from kb.advice.run.settings_reader import SettingsReader
from kb.core.facts import VersionOf
from kb.core.setup import Assumption, Colocated, Method, PostKind, PostTraining

# Releases of TRL.
UNCUT = (0, 25)  # from here GRPO cuts no prompt
# GRPO: answers of all accumulation steps are generated at once since the first; a reference model stands beside the
# policy where nothing says `beta` until the second, which was 0.04; answers are longer from the third (grpo_config.py).
TOGETHER, UNREFERRED, LONGER = (0, 17), (0, 19), (1, 10)
EARLIER_BETA = 0.04
# From here vllm_max_model_length is the longest request, before it prompt and answer; and vLLM's copy is packed.
OWN_LENGTH, OWN_LENGTH_RLOO = (0, 26), (0, 27)
NEWEST = TRL_READ[2]


def generating(
    read: SettingsReader, post: PostTraining, method: Method, constants: Mapping[str, float], versions: VersionOf
) -> tuple[PostTraining, int | None] | None:
    """The run with what generates its answers, and the length of its rows: prompt and answer."""

    def before(bound: tuple[int, ...]) -> bool:
        release = versions("trl", bound)
        return release is not None and release < bound

    def length(name: str, constant: str, reason: str) -> int:
        return int(read.or_assume(name, read.number(name), int(constants[constant]), reason))

    usual = "trl_earlier_completion_length" if before(LONGER) else "trl_completion_length"
    answer = length("trl.max_completion_length", usual, "library_default")
    cut = before(UNCUT)
    prompt = length("trl.max_prompt_length", "trl_prompt_length", "library_default" if cut else "usual_length")
    weight = read.value("trl.beta")
    if weight is None and post.kind == "grpo" and before(UNREFERRED):
        weight = read.or_assume("trl.beta", None, EARLIER_BETA, "library_default")
    refers = bool(weight) if weight is not None else post.kind == "rloo"
    if refers:
        post = post._replace(reference="model" if method == "full" else "adapter_off")
    post = post._replace(completion=answer)
    steps = read.number("trl.steps_per_generation") or read.number_or_default("training.gradient_accumulation_steps")
    rows = read.number_or_default("training.per_device_train_batch_size") * (1 if before(TOGETHER) else steps)
    if not read.value("trl.use_vllm"):
        rows = read.number("trl.generation_batch_size") or rows
        return post._replace(generated_rows=rows), prompt + answer
    if read.value("model.loader") == "unsloth":  # its vLLM and its training share one copy of the weights
        read.beyond.append(f"Unsloth + vLLM ({read.key('trl.use_vllm')})")
        return None
    mode = read.value("trl.vllm_mode")
    if mode is None:
        mode = "server" if before((1,)) else "colocate"
        read.assumed.append(Assumption(name="trl.vllm_mode", value=mode, reason="library_default"))
    if mode == "colocate":
        share = read.value("trl.vllm_gpu_memory_utilization")
        share = read.or_assume("trl.vllm_gpu_memory_utilization", share, constants["trl_vllm_share"], "library_default")
        colocated = _colocated(read, post.kind, float(share), rows, prompt + answer, versions)
        post = post._replace(colocated=colocated)
    return post, prompt + answer


def _colocated(
    read: SettingsReader, kind: PostKind, share: float, rows: int, length: int, versions: VersionOf
) -> Colocated:
    """vLLM as TRL starts it (``LLM(…)`` in grpo_trainer.py, rloo_trainer.py, from 0.28 generation/vllm_generation.py).

    Of an unknown release the newest is taken, as for the loss.
    """
    ranks = read.number("trl.vllm_tensor_parallel_size") or 1
    own_length = OWN_LENGTH if kind == "grpo" else OWN_LENGTH_RLOO
    release = versions("trl", OWN_LENGTH, OWN_LENGTH_RLOO) or NEWEST
    return Colocated(
        share=share,
        sleeps=bool(read.value("trl.vllm_enable_sleep_mode")),
        ranks=ranks,
        length=read.number("trl.vllm_max_model_length") if release >= own_length else length,
        requests=rows * ranks,
        packed=bool(read.value("quantization.load_in_4bit")) and release >= OWN_LENGTH,
    )
