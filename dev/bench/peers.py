#!/usr/bin/env python3
"""Times PyTorch's own GPT-2 training step on the CPU, eager and compiled, for bench_step's shapes (see peers.sh).

    peers.py THREADS      one line a shape and mode: name, mode, milliseconds of the median step

The model is GPT-2 as a PyTorch user would write it today: nn.Linear, scaled_dot_product_attention where there is one, tied
head, AdamW (fused where there is one), clipping. fp32. No code is shared with the trainer.
"""

import statistics
import sys
import time

import torch
import torch.nn as nn
import torch.nn.functional as F


class Block(nn.Module):
    def __init__(self, C, NH):
        super().__init__()
        self.NH = NH
        self.ln1, self.ln2 = nn.LayerNorm(C), nn.LayerNorm(C)
        self.qkv, self.proj = nn.Linear(C, 3 * C), nn.Linear(C, C)
        self.fc, self.fcproj = nn.Linear(C, 4 * C), nn.Linear(4 * C, C)

    def attention(self, x):
        B, T, C = x.shape
        q, k, v = (t.view(B, T, self.NH, C // self.NH).transpose(1, 2) for t in self.qkv(x).split(C, dim=2))
        if hasattr(F, "scaled_dot_product_attention"):
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            scores = q @ k.transpose(-2, -1) * (C // self.NH) ** -0.5
            mask = torch.ones(T, T, dtype=torch.bool).tril()
            y = scores.masked_fill(~mask, float("-inf")).softmax(-1) @ v
        return self.proj(y.transpose(1, 2).reshape(B, T, C))

    def forward(self, x):
        x = x + self.attention(self.ln1(x))
        return x + self.fcproj(F.gelu(self.fc(self.ln2(x)), approximate="tanh"))


class GPT(nn.Module):
    def __init__(self, L, NH, C, V, max_T):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(V, C), nn.Embedding(max_T, C)
        self.blocks = nn.ModuleList(Block(C, NH) for _ in range(L))
        self.lnf = nn.LayerNorm(C)
        nn.init.normal_(self.wte.weight, std=0.02)

    def forward(self, tokens, targets):
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        logits = F.linear(self.lnf(x), self.wte.weight)
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), targets.view(-1))


def median_step_ms(model, B, T, V, steps):
    parameters = list(model.parameters())
    optimizer = torch.optim.AdamW(parameters, lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1)
    times = []
    for step in range(steps + 2):  # the first two warm up and compile
        data = torch.randint(0, V, (B, T + 1))
        start = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        model(data[:, :-1], data[:, 1:].contiguous()).backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        times.append(time.perf_counter() - start)
    return 1e3 * statistics.median(times[2:])


def main():
    torch.set_num_threads(int(sys.argv[1]))
    torch.manual_seed(0)
    for name, shape, B, T, steps in (("small", (4, 4, 128, 257, 64), 12, 64, 40), ("d12", (12, 12, 768, 50257, 1024), 4, 64, 5)):
        model = GPT(*shape)
        print(f"{name} pytorch-{torch.__version__}-eager {median_step_ms(model, B, T, shape[3], steps):.1f}", flush=True)
        if hasattr(torch, "compile"):
            model = torch.compile(GPT(*shape))
            print(f"{name} pytorch-{torch.__version__}-compiled {median_step_ms(model, B, T, shape[3], steps):.1f}", flush=True)


main()
