#!/usr/bin/env bash
# Summaries of the test set. The shell ends the command where the comment begins, so three options never arrive.
python summarize.py \
  --model_name gogamza/kobart-base-v2 \
  --batch_size 128 \
  --encoder_max_len 1024 \   # longer than before
  --num_beams 8 \
  --max_new_tokens 160 \
  --length_penalty 1.2
