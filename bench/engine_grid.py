"""Makes the traces that the memory engine is tested against: tests/data/engine_traces.json.

    python bench/engine_grid.py                  # what is missing; stop and start again as you like
    python bench/engine_grid.py --models nllb --rows 8

Rows are drawn by a model's name, as bench/grid.py draws them; every tenth is held out: never look at it while the
engine is changed. Needs torch, transformers, peft and bitsandbytes, and no GPU.
"""

import argparse
import random
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import grid

PATH = grid.ROOT / "tests" / "data" / "engine_traces.json"
ROWS = 20
HELD_OUT = 10  # one row in so many
_LLAMA = {"hidden_size": 2048, "intermediate_size": 5632, "num_attention_heads": 32, "num_hidden_layers": 4}
_BART = {"encoder_layers": 4, "decoder_layers": 4, "scale_embedding": True, "pad_token_id": 1, "eos_token_id": 2,
         "decoder_start_token_id": 2}  # fmt: skip
_BERT = {"hidden_size": 768, "intermediate_size": 3072, "num_attention_heads": 12, "num_hidden_layers": 4,
         "vocab_size": 30522, "max_position_embeddings": 512}  # fmt: skip
# Dimensions of published models in config.json's names, of fewer layers: a layer more is the same once more.
MODELS: Mapping[str, dict[str, Any]] = {
    "stablelm-2": {**_LLAMA, "model_type": "stablelm", "num_key_value_heads": 32, "vocab_size": 100352,
                   "use_qkv_bias": True, "partial_rotary_factor": 0.25, "max_position_embeddings": 4096},
    "stablelm-parallel": {**_LLAMA, "model_type": "stablelm", "num_key_value_heads": 8, "vocab_size": 50304,
                          "use_parallel_residual": True, "max_position_embeddings": 4096, "hidden_dropout": 0.1},
    "starcoder2": {"model_type": "starcoder2", "hidden_size": 3072, "intermediate_size": 12288,
                   "num_attention_heads": 24, "num_key_value_heads": 2, "num_hidden_layers": 3, "vocab_size": 49152,
                   "residual_dropout": 0.1, "embedding_dropout": 0.1, "attention_dropout": 0.1,
                   "max_position_embeddings": 16384},
    "cohere": {"model_type": "cohere", "hidden_size": 2048, "intermediate_size": 5632, "num_attention_heads": 16,
               "num_key_value_heads": 8, "num_hidden_layers": 3, "vocab_size": 64000, "pad_token_id": 0,
               "bos_token_id": 5, "eos_token_id": 6},
    "opus-mt": {**_BART, "model_type": "marian", "d_model": 512, "encoder_ffn_dim": 2048, "decoder_ffn_dim": 2048,
                "encoder_attention_heads": 8, "decoder_attention_heads": 8, "vocab_size": 65001,
                "max_position_embeddings": 512, "activation_function": "swish"},
    "nllb": {**_BART, "model_type": "m2m_100", "d_model": 1024, "encoder_ffn_dim": 4096, "decoder_ffn_dim": 4096,
             "encoder_attention_heads": 16, "decoder_attention_heads": 16, "vocab_size": 256206,
             "max_position_embeddings": 1024, "activation_function": "relu", "attention_dropout": 0.1},
    "t5": {"model_type": "t5", "d_model": 512, "d_ff": 2048, "num_heads": 8, "d_kv": 64, "num_layers": 4,
           "vocab_size": 32128},
    "mt5": {"model_type": "mt5", "d_model": 512, "d_ff": 1024, "num_heads": 6, "d_kv": 64, "num_layers": 4,
            "vocab_size": 250112, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
    "bart": {**_BART, "model_type": "bart", "d_model": 768, "encoder_ffn_dim": 3072, "decoder_ffn_dim": 3072,
             "encoder_attention_heads": 12, "decoder_attention_heads": 12, "vocab_size": 50265,
             "max_position_embeddings": 1024, "attention_dropout": 0.1},
    "llama": {**_LLAMA, "model_type": "llama", "num_key_value_heads": 8, "vocab_size": 32000, "rms_norm_eps": 1e-5},
    "gpt_neox": {"model_type": "gpt_neox", "hidden_size": 768, "intermediate_size": 3072, "num_attention_heads": 12,
                 "num_hidden_layers": 4, "vocab_size": 50304, "max_position_embeddings": 2048},
    "falcon-7b": {"model_type": "falcon", "hidden_size": 4544, "num_hidden_layers": 2, "num_attention_heads": 71,
                  "vocab_size": 65024},
    "falcon-40b": {"model_type": "falcon", "hidden_size": 8192, "num_hidden_layers": 2, "num_attention_heads": 128,
                   "num_kv_heads": 8, "new_decoder_architecture": True, "vocab_size": 65024},
    "falcon-rw": {"model_type": "falcon", "hidden_size": 2048, "num_hidden_layers": 3, "num_attention_heads": 32,
                  "multi_query": False, "parallel_attn": False, "alibi": True, "bias": True, "vocab_size": 50304},
    "bloom": {"model_type": "bloom", "hidden_size": 1024, "n_layer": 3, "n_head": 16, "vocab_size": 250880,
              "pad_token_id": 3},
    "gpt-j": {"model_type": "gptj", "n_embd": 4096, "n_layer": 2, "n_head": 16, "rotary_dim": 64, "vocab_size": 50400},
    "gpt-neo": {"model_type": "gpt_neo", "hidden_size": 2048, "num_layers": 4, "num_heads": 16, "vocab_size": 50257,
                "attention_types": [[["global", "local"], 2]], "attention_dropout": 0.1},
    "glm": {"model_type": "glm", "hidden_size": 4096, "intermediate_size": 13696, "num_hidden_layers": 2,
            "num_attention_heads": 32, "num_key_value_heads": 2, "head_dim": 128, "vocab_size": 151552},
    "glm4": {"model_type": "glm4", "hidden_size": 4096, "intermediate_size": 13696, "num_hidden_layers": 2,
             "num_attention_heads": 32, "num_key_value_heads": 2, "head_dim": 128, "vocab_size": 151552},
    "bert": {**_BERT, "model_type": "bert", "architectures": ["BertForSequenceClassification"], "num_labels": 3},
    "bert-masked": {**_BERT, "model_type": "bert", "architectures": ["BertForMaskedLM"]},
    "roberta": {**_BERT, "model_type": "roberta", "architectures": ["RobertaForTokenClassification"],
                "vocab_size": 50265, "max_position_embeddings": 514, "type_vocab_size": 1, "num_labels": 9},
    "electra": {**_BERT, "model_type": "electra", "architectures": ["ElectraForSequenceClassification"],
                "embedding_size": 128, "hidden_size": 256, "intermediate_size": 1024, "num_attention_heads": 4},
    "distilbert": {"model_type": "distilbert", "architectures": ["DistilBertForQuestionAnswering"], "dim": 768,
                   "hidden_dim": 3072, "n_heads": 12, "n_layers": 4, "vocab_size": 30522},
    "albert": {**_BERT, "model_type": "albert", "architectures": ["AlbertForSequenceClassification"],
               "embedding_size": 128, "vocab_size": 30000, "hidden_act": "gelu_new"},
}  # fmt: skip
SEQ2SEQ = ("marian", "m2m_100", "t5", "mt5", "bart")
ENCODERS = ("bert", "roberta", "electra", "distilbert", "albert")
_QUERY_VALUE = ("query", "value")
TARGETS = {
    **dict.fromkeys(ENCODERS, _QUERY_VALUE),
    "distilbert": ("q_lin", "v_lin"),
    "t5": ("q", "v"),
    "mt5": ("q", "v"),
    **dict.fromkeys(("gpt_neox", "falcon", "bloom"), ("query_key_value",)),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--models", nargs="+", choices=MODELS, help="only these")
    parser.add_argument("--rows", type=int, default=ROWS, help=f"of each model ({ROWS})")
    options = parser.parse_args()
    document = grid._read(PATH)
    known = {grid._key(row["model"], row["setup"]) for row in document["rows"]}
    pool = grid._pool()
    for name in options.models or MODELS:
        document["models"][name] = MODELS[name]
        for number, setup in enumerate(drawn(name, options.rows)):
            if grid._key(name, setup) in known:
                continue
            start = time.monotonic()
            try:
                phases = pool.submit(grid.trace, MODELS[name], setup).result()
            except Exception as error:
                print(f"{name} {number}: {type(error).__name__}: {str(error)[:160]}; {setup}", flush=True)
                continue
            part = "held out" if number % HELD_OUT == HELD_OUT - 1 else "derived"
            document["rows"].append({"model": name, "part": part, "setup": setup, "phases": phases})
            grid._write(PATH, document)
            print(f"{name} {number}: {time.monotonic() - start:.1f} s", flush=True)
    pool.shutdown()
    return 0


def drawn(name: str, rows: int) -> Iterator[dict[str, Any]]:
    """The setups of one model: bench/grid.py's, with the targets named and inference of its own now and then."""
    config = MODELS[name]
    kind = str(config["model_type"])
    draw = random.Random(f"engine {name}")
    family = "bart" if kind in SEQ2SEQ else "decoder"
    for setup in grid.setups_of(name, family, rows, config):
        if setup.get("method", "full") != "full":
            setup["lora_target_modules"] = list(TARGETS.get(kind, ("q_proj", "v_proj")))
        if not setup.get("padded", True) and kind == "m2m_100":
            del setup["padded"]  # its layers are dropped at random, which a simulation of no padding takes for all
        if kind == "albert":
            setup.pop("gradient_checkpointing", None)  # transformers refuses it
        if draw.random() < 0.2 and kind not in ENCODERS:
            beams = draw.choice((1, 4)) if family == "bart" else 1
            setup |= {"do_predict": True, "inference_batch_size": draw.choice((1, 4)), "inference_num_beams": beams,
                      "inference_max_length": draw.choice((16, 40))}  # fmt: skip
        yield setup


if __name__ == "__main__":
    sys.exit(main())
