"""Tiny models of images and text, as their config.json describes them."""

from typing import Any

_SEES = {"hidden_size": 128, "intermediate_size": 320, "num_attention_heads": 4, "num_key_value_heads": 2,
         "num_hidden_layers": 2, "vocab_size": 1000, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
         "max_position_embeddings": 1024, "rope_scaling": {"type": "mrope", "mrope_section": [4, 6, 6]},
         "image_token_id": 5, "video_token_id": 6, "vision_start_token_id": 7, "vision_end_token_id": 8}  # fmt: skip
_TOWER = {"depth": 2, "num_heads": 4, "in_channels": 3, "patch_size": 14, "temporal_patch_size": 2,
          "spatial_merge_size": 2}  # fmt: skip
SEEING: dict[str, dict[str, Any]] = {
    "qwen2_vl": {**_SEES, "model_type": "qwen2_vl", "architectures": ["Qwen2VLForConditionalGeneration"],
                 "vision_config": {**_TOWER, "embed_dim": 96, "mlp_ratio": 4, "hidden_size": 128}},
    "qwen2_5_vl": {**_SEES, "model_type": "qwen2_5_vl", "architectures": ["Qwen2_5_VLForConditionalGeneration"],
                   "vision_config": {**_TOWER, "hidden_size": 96, "intermediate_size": 212, "out_hidden_size": 128,
                                     "window_size": 112, "fullatt_block_indexes": [1]}},
}  # fmt: skip
_WORDS3 = {name: value for name, value in _SEES.items() if not name.endswith("token_id")}
SEEING["qwen3_vl"] = {
    "model_type": "qwen3_vl", "image_token_id": 5, "video_token_id": 6, "vision_start_token_id": 7,
    "vision_end_token_id": 8,
    "text_config": {**_WORDS3, "model_type": "qwen3_vl_text", "head_dim": 32,
                    "rope_scaling": {"rope_type": "default", "mrope_section": [6, 5, 5], "mrope_interleaved": True}},
    "vision_config": {**_TOWER, "hidden_size": 96, "intermediate_size": 212, "out_hidden_size": 128, "patch_size": 16,
                      "num_position_embeddings": 64, "deepstack_visual_indexes": [0]},
}  # fmt: skip
_CLIP = {"model_type": "clip_vision_model", "hidden_size": 96, "intermediate_size": 160, "num_hidden_layers": 3,
         "num_attention_heads": 4, "num_channels": 3, "image_size": 56, "patch_size": 14}  # fmt: skip
_WORDS = {"hidden_size": 128, "intermediate_size": 288, "num_hidden_layers": 2, "num_attention_heads": 4,
          "num_key_value_heads": 2, "vocab_size": 1000}  # fmt: skip
SEEING |= {
    "llava": {"model_type": "llava", "image_token_index": 5, "vision_config": _CLIP,
              "text_config": {**_WORDS, "model_type": "llama"}},
    "llava of several layers": {"model_type": "llava", "image_token_index": 5, "vision_feature_layer": [0, -2],
                                "vision_feature_select_strategy": "full", "multimodal_projector_bias": False,
                                "vision_config": {**_CLIP, "hidden_act": "gelu"},
                                "text_config": {**_WORDS, "model_type": "qwen2", "tie_word_embeddings": True}},
    "llava of SigLIP": {"model_type": "llava", "image_token_index": 5, "vision_feature_layer": -1,
                        "vision_feature_select_strategy": "full",
                        "vision_config": {**_CLIP, "model_type": "siglip_vision_model", "vision_use_head": False},
                        "text_config": {**_WORDS, "model_type": "qwen2"}},
    "llava_next": {"model_type": "llava_next", "image_token_index": 5, "vision_config": _CLIP,
                   "image_grid_pinpoints": [[56, 112], [112, 56], [112, 112], [168, 56], [56, 168]],
                   "text_config": {**_WORDS, "model_type": "mistral", "sliding_window": None}},
}  # fmt: skip
_SIGLIP = {**_CLIP, "model_type": "siglip_vision_model", "vision_use_head": False}
_PALIGEMMA = {"model_type": "paligemma", "image_token_index": 5, "projection_dim": 128, "vision_config": _SIGLIP}
PALIGEMMA: dict[str, dict[str, Any]] = {
    "gemma": {**_PALIGEMMA, "text_config": {**_WORDS, "model_type": "gemma", "head_dim": 32}},
    "gemma 2": {**_PALIGEMMA, "text_config": {**_WORDS, "model_type": "gemma2", "head_dim": 32, "sliding_window": 64}},
}
PALIGEMMA["gemma 3"] = {"model_type": "gemma3", "image_token_index": 5, "mm_tokens_per_image": 4,
                        "vision_config": _SIGLIP,
                        "text_config": {**_WORDS, "model_type": "gemma3_text", "head_dim": 32, "sliding_window": 64,
                                        "sliding_window_pattern": 2}}  # fmt: skip
_IDEFICS3 = {"model_type": "idefics3", "image_token_id": 5, "vision_config": {**_CLIP, "model_type": "idefics3_vision"},
             "text_config": {**_WORDS, "model_type": "llama"}}  # fmt: skip
CUT = {"idefics3": _IDEFICS3,
       "smolvlm": {**_IDEFICS3, "model_type": "smolvlm", "vision_config": {**_CLIP, "model_type": "smolvlm_vision"},
                   "tie_word_embeddings": True}}  # fmt: skip
# ``generate`` makes tensors of as many special tokens as published configs name
_ENDS = {"bos_token_id": 1, "eos_token_id": 2}
ANSWERING = {
    name: {**config, "text_config": {**config["text_config"], **_ENDS}}
    if "text_config" in config
    else {field: value for field, value in config.items() if field != "pad_token_id"}
    for name, config in {
        **SEEING,
        **CUT,
        "paligemma": PALIGEMMA["gemma"],
        "paligemma 2": PALIGEMMA["gemma 2"],
        "gemma 3": PALIGEMMA["gemma 3"],
    }.items()
}
