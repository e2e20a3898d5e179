#!/bin/sh
# GPT-2 1558M (XL) on 33.6 billion tokens of FineWeb: 32,000 steps of 1,048,576.
#
#   sh scripts/run_1558M.sh                   on all GPUs of this machine; again, to go on
#   GPUS=1 sh scripts/run_1558M.sh            run_lib.sh tells of all variables, other machines among them
#
# Costs    173 hours of an H100: 22 on eight (estimate of scripts/scale_plan.py; llm.c took 24 on eight).
# Reaches  a validation loss of about 2.7 (our estimate from a scaling law, doc/scale.md). llm.c's run of this length was
#          on FineWeb-Edu, whose losses do not compare, and passed OpenAI's GPT-2 1558M on HellaSwag. That one has 2.831
#          on FineWeb (llm.c, dev/vislog.ipynb).
# Needs    68 GB of disk for the data, 75 GB for checkpoints; 75 GB of GPU memory (less: BATCH=8).
#
# The rate lies between GPT-3's 2e-4 for this size and the 6e-4 of llm.c's run, which had spikes.
cd "$(dirname "$0")/.." || exit 1
. scripts/run_lib.sh

data fineweb100B 340
train 1558M 1048576 1024 16 --model gpt2-xl --steps 32000 --lr 4e-4 --warmup 700 --final-lr-fraction 0.1 \
    --weight-decay 0.1 --val-every 250 --val-steps 640 --sample-every 5000 --checkpoint-every 500
