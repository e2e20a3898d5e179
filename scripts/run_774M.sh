#!/bin/sh
# GPT-2 774M (large) on 31.5 billion tokens of FineWeb: 60,000 steps of 524,288.
#
#   sh scripts/run_774M.sh                    on all GPUs of this machine; again, to go on
#   GPUS=1 sh scripts/run_774M.sh             run_lib.sh tells of all variables, other machines among them
#
# Costs    85 hours of an H100: 11 on eight (estimate of scripts/scale_plan.py).
# Reaches  a validation loss of about 2.8 (our estimate from a scaling law, doc/scale.md; nobody has published this run).
#          OpenAI's GPT-2 774M has 3.001 on the same data (llm.c, dev/vislog.ipynb).
# Needs    64 GB of disk for the data, 37 GB for checkpoints; 70 GB of GPU memory (less: BATCH=16).
cd "$(dirname "$0")/.." || exit 1
. scripts/run_lib.sh

data fineweb100B 320
train 774M 524288 1024 32 --model gpt2-large --steps 60000 --lr 2.5e-4 --warmup 700 --final-lr-fraction 0 \
    --weight-decay 0.1 --val-every 250 --val-steps 640 --sample-every 10000 --checkpoint-every 1000
