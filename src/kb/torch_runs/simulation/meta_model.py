"""A ``config.json`` as the transformers model it describes, on the meta device: shapes, no weights, no memory.

Import only in the simulator's process.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kb.torch_runs.simulation.faults import BadModelError, RemoteCodeError

if TYPE_CHECKING:
    import torch
else:
    from kb.torch_runs.simulation.torch_modules import torch

REASON_CHARACTERS = 300
ATTENTION = {"eager": "eager", "sdpa": None, "flash": "flash_attention_2"}  # None: sdpa where the model has it
# Classes whose head is its own tensor in a checkpoint that says so; transformers 5 ties it in a model from the config.
T5_TYPES = ("t5", "mt5", "umt5", "longt5", "switch_transformers")
UNTIED_BY_DEFAULT = ("mt5",)


def meta_model(
    config: Mapping[str, Any], attention: str, dtype: "torch.dtype", code_folder: str | None = None
) -> "torch.nn.Module":
    """The model, in ``dtype``, with its head tied as in its checkpoint.

    The class is the first of ``architectures`` that transformers has and that computes a loss; else a seq2seq model, a
    classifier of sequences for an encoder, or a causal language model.

    Raises:
        RemoteCodeError: the config names code of its own and no ``code_folder``.
        BadModelError: transformers does not know the type, or builds no model from the fields.
    """
    from torch.utils._python_dispatch import _disable_current_modes
    from transformers.initialization import no_init_weights

    before = torch.get_default_dtype()
    try:
        with _disable_current_modes():  # type: ignore[no-untyped-call]
            read = _config(config, code_folder)
            read._attn_implementation = ATTENTION[attention]
            if read.is_encoder_decoder and getattr(read, "decoder_start_token_id", None) is None:
                read.decoder_start_token_id = getattr(read, "pad_token_id", None) or 0  # any: no token is looked up
            kind = _class(read, config, code_folder)
            torch.set_default_dtype(dtype)
            with torch.device("meta"), no_init_weights():
                model: torch.nn.Module = kind.from_config(read) if hasattr(kind, "from_config") else kind(read)
            model.tie_weights()  # type: ignore[operator]
            if not _tied(config):
                _untie(model)
    except (BadModelError, RemoteCodeError):
        raise
    except Exception as error:  # each architecture fails in its own way, and all of them mean the config
        raise BadModelError(reason=f"{type(error).__name__}: {error}"[:REASON_CHARACTERS]) from error
    finally:
        torch.set_default_dtype(before)
    return model


def _config(config: Mapping[str, Any], code_folder: str | None) -> Any:
    from transformers import AutoConfig

    fields = {name: value for name, value in config.items() if name not in ("quantization_config", "model_type")}
    model_type = config.get("model_type")
    if model_type is None:
        raise BadModelError(reason="config.json: model_type is missing")
    if model_type in _known_types():
        return AutoConfig.for_model(str(model_type), **fields)
    if "auto_map" not in config:
        raise BadModelError(reason=f"transformers has no model of type {model_type}")
    if code_folder is None:
        raise RemoteCodeError(model_type=model_type)
    return AutoConfig.from_pretrained(code_folder, trust_remote_code=True)


def _known_types() -> Any:
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    return CONFIG_MAPPING


def _class(read: Any, config: Mapping[str, Any], code_folder: str | None) -> Any:
    import transformers

    for name in config.get("architectures") or ():
        kind = getattr(transformers, str(name), None)
        if isinstance(kind, type) and "For" in str(name) and not str(name).endswith("ForPreTraining"):
            return kind
    if code_folder is not None and "auto_map" in config:
        names = (*config["auto_map"], "AutoModelForCausalLM")
        return _with_code(getattr(transformers, next(name for name in names if name.startswith("AutoModelFor"))))
    if getattr(read, "is_encoder_decoder", False):
        return transformers.AutoModelForSeq2SeqLM
    if _is_encoder(str(config["model_type"])):
        return transformers.AutoModelForSequenceClassification
    return transformers.AutoModelForCausalLM


def _with_code(auto: Any) -> Any:
    class Trusting:
        @staticmethod
        def from_config(read: Any) -> Any:
            return auto.from_config(read, trust_remote_code=True)

    return Trusting()


def _is_encoder(model_type: str) -> bool:
    """Whether the type has a masked language model: BERT and its kin also have a causal one that nobody means."""
    from transformers.models.auto import modeling_auto

    return model_type in modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES


def _tied(config: Mapping[str, Any]) -> bool:
    model_type = config.get("model_type")
    if model_type not in T5_TYPES:
        return True  # as the class decides, from the config
    return bool(config.get("tie_word_embeddings", model_type not in UNTIED_BY_DEFAULT))


def _untie(model: "torch.nn.Module") -> None:
    head = model.get_output_embeddings()  # type: ignore[operator]
    if head is not None:
        head.weight = torch.nn.Parameter(torch.empty_like(head.weight.detach()))
