#!/bin/sh
# GPT-2 350M (medium) on 31.5 billion tokens of FineWeb: 60,000 steps of 524,288.
#
#   sh scripts/run_350M.sh                    on all GPUs of this machine; again, to go on
#   GPUS=1 sh scripts/run_350M.sh             run_lib.sh tells of all variables, other machines among them
#
# Costs    41 hours of an H100: 5 on eight (estimate of scripts/scale_plan.py).
# Reaches  a validation loss of about 2.93. Published: llm.c 2.9282 with these settings (modded-nanogpt,
#          records/011825_GPT2Medium); OpenAI's GPT-2 350M has 3.083 on the same data (llm.c, dev/vislog.ipynb).
# Needs    64 GB of disk for the data, 17 GB for checkpoints; 60 GB of GPU memory (less: BATCH=16).
cd "$(dirname "$0")/.." || exit 1
. scripts/run_lib.sh

data fineweb100B 320
train 350M 524288 1024 64 --model gpt2-medium --steps 60000 --lr 3e-4 --warmup 700 --final-lr-fraction 0 \
    --weight-decay 0.1 --val-every 250 --val-steps 640 --sample-every 10000 --checkpoint-every 1000
