#!/bin/sh
# GPT-2 124M on 10.3 billion tokens of FineWeb: 19,560 steps of 524,288.
#
#   sh scripts/run_124M.sh                    on all GPUs of this machine; again, to go on
#   GPUS=1 sh scripts/run_124M.sh             run_lib.sh tells of all variables, other machines among them
#
# Costs    5 hours of an H100: 40 minutes on eight (estimate of scripts/scale_plan.py; llm.c took 45 on eight).
# Reaches  a validation loss of about 3.27. Published: llm.c 3.2722 with these settings (modded-nanogpt,
#          records/2024-10-13_llmc); OpenAI's GPT-2 124M has 3.425 on the same data (llm.c, dev/vislog.ipynb).
# Needs    21 GB of disk for the data, 6 GB for checkpoints; 23 GB of GPU memory (less: BATCH=16).
cd "$(dirname "$0")/.." || exit 1
. scripts/run_lib.sh

data fineweb 103
train 124M 524288 1024 64 --model gpt2 --steps 19560 --lr 6e-4 --warmup 700 --final-lr-fraction 0 --weight-decay 0.1 \
    --val-every 250 --val-steps 640 --sample-every 5000 --checkpoint-every 1000
