#!/usr/bin/env python3
"""Whole jobs with common patterns of memory use: fixed shapes, random lengths, recomputation, random resolutions,
generation token by token, prefetching on a side stream, graphs. Random weights, fixed seeds, nothing but PyTorch.

    python3 jobs.py NAME[:HISTORY]... [--steps N]

Prints a JSON line for each job. HISTORY selects what is recorded: plain (no stacks), python or all. Without a NAME,
jobs are read from standard input, one per line. The environment selects the allocator and its settings
(PYTORCH_CUDA_ALLOC_CONF, WEIR_TORCH). Each job starts with an empty cache, and its first step, which creates the model,
is not counted. The first time that a process runs a job, PyTorch's libraries load a kernel and select an algorithm for
every new shape, which takes several times as long as the steps: to measure allocators, run each job more than once.
"""
import argparse
import gc
import json
import os
import random
import sys
import time

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

DEVICE = "cuda"


class Block(nn.Module):
    """One layer of a language model."""

    def __init__(self, width, heads, inner):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.up, self.gate = nn.Linear(width, inner, bias=False), nn.Linear(width, inner, bias=False)
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, x, past=None):
        b, s, w = x.shape
        parts = self.qkv(self.norm1(x)).chunk(3, -1)
        q, k, v = (t.view(b, s, self.heads, w // self.heads).transpose(1, 2) for t in parts)
        if past is not None:
            k, v = torch.cat([past[0], k], 2), torch.cat([past[1], v], 2)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=past is None)
        x = x + self.out(y.transpose(1, 2).reshape(b, s, w))
        h = self.norm2(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h)), (k, v)


class Language(nn.Module):
    def __init__(self, width=1024, layers=8, heads=16, inner=2816, words=32000, recompute=False):
        super().__init__()
        self.words, self.recompute = words, recompute
        self.embed, self.head = nn.Embedding(words, width), nn.Linear(width, words, bias=False)
        self.layers = nn.ModuleList(Block(width, heads, inner) for _ in range(layers))
        self.norm = nn.RMSNorm(width)

    def forward(self, tokens, past=None):
        x, kept = self.embed(tokens), []
        for i, layer in enumerate(self.layers):
            if self.recompute and self.training:
                x = checkpoint(lambda t, l=layer: l(t)[0], x, use_reentrant=False)
            else:
                x, kv = layer(x, None if past is None else past[i])
                kept.append(kv)
        return self.head(self.norm(x)), kept

    def loss(self, tokens):
        return F.cross_entropy(self(tokens)[0][:, :-1].flatten(0, 1).float(), tokens[:, 1:].flatten())


class Low(nn.Module):
    """A frozen layer with a small trainable one beside it."""

    def __init__(self, base, rank=16):
        super().__init__()
        self.base = base
        self.a = nn.Parameter(torch.randn(rank, base.in_features, device=DEVICE, dtype=base.weight.dtype) * 0.01)
        self.b = nn.Parameter(torch.zeros(base.out_features, rank, device=DEVICE, dtype=base.weight.dtype))

    def forward(self, x):
        return self.base(x) + F.linear(F.linear(F.dropout(x, 0.05), self.a), self.b)


class Bottleneck(nn.Module):
    def __init__(self, into, width, stride):
        super().__init__()
        out = 4 * width
        self.body = nn.Sequential(nn.Conv2d(into, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
                                  nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
                                  nn.Conv2d(width, out, 1, bias=False), nn.BatchNorm2d(out))
        self.skip = nn.Identity()
        if stride != 1 or into != out:
            self.skip = nn.Sequential(nn.Conv2d(into, out, 1, stride, bias=False), nn.BatchNorm2d(out))

    def forward(self, x):
        return F.relu(self.body(x) + self.skip(x))


def make(kind, *arguments, dtype=torch.float32, **named):
    """Creates a module on the device directly: starting on the host takes longer than the job."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device(DEVICE):
            return kind(*arguments, **named)
    finally:
        torch.set_default_dtype(before)


def images(counts=(3, 4, 6, 3)):
    """A network for images with the layers of a ResNet-50."""
    layers, into = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)], 64
    for stage, count in enumerate(counts):
        for i in range(count):
            layers.append(Bottleneck(into, 64 << stage, 2 if stage and not i else 1))
            into = 256 << stage
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(into, 1000))


def advance(loss, optimizer):
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def fixed_shapes(steps=12):
    model = make(Language, 1024, 12, 16, 4096, 50257)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for _ in range(steps):
        with torch.autocast(DEVICE, torch.bfloat16):
            loss = model.loss(torch.randint(0, 50257, (8, 1024), device=DEVICE))
        advance(loss, optimizer)
        yield loss


def random_lengths(steps=24):
    model = make(Language, dtype=torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for _ in range(steps):
        shape = random.choice([1, 2, 3, 4, 6]), random.randrange(64, 4096)
        loss = model.loss(torch.randint(0, 32000, shape, device=DEVICE))
        advance(loss, optimizer)
        yield loss


def recomputation(steps=16):
    model = make(Language, 2048, 12, 16, 5632, recompute=True, dtype=torch.bfloat16)
    model.requires_grad_(False)
    for layer in model.layers:
        layer.qkv, layer.out = Low(layer.qkv), Low(layer.out)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-4)
    for _ in range(steps):
        shape = random.choice([1, 2, 4]), random.randrange(128, 4096)
        loss = model.loss(torch.randint(0, 32000, shape, device=DEVICE))
        advance(loss, optimizer)
        yield loss


def resolutions(steps=18):
    model = make(images)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(steps):
        size = random.choice([160, 192, 224, 256, 288, 320])
        loss = model(torch.randn(random.choice([16, 32, 48, 64]), 3, size, size, device=DEVICE)).square().mean()
        advance(loss, optimizer)
        yield loss


def generation(steps=3):
    model = make(Language, 2048, 12, 16, 5632, dtype=torch.bfloat16).eval()
    for _ in range(steps):
        with torch.no_grad():
            shape = random.choice([1, 4, 8, 16]), random.randrange(32, 1024)
            tokens, past = torch.randint(0, 32000, shape, device=DEVICE), None
            for _ in range(random.randrange(40, 120)):
                logits, past = model(tokens, past)
                tokens = logits[:, -1:].argmax(-1)
        yield logits.float().mean()


def prefetching(steps=24):
    model = make(images, (2, 2, 2, 2))
    optimizer, side = torch.optim.SGD(model.parameters(), lr=0.1), torch.cuda.Stream()
    data = torch.randn(96, 3, 224, 224)  # once: new data for each step would take most of the step

    def fetch():
        batch = data[: random.randrange(16, 96)].pin_memory()
        with torch.cuda.stream(side):
            return batch.to(DEVICE, non_blocking=True).mul_(2).sub_(1)

    following = fetch()
    for _ in range(steps):
        torch.cuda.current_stream().wait_stream(side)
        x = following
        x.record_stream(torch.cuda.current_stream())
        following = fetch()
        loss = model(x).square().mean()
        advance(loss, optimizer)
        yield loss


def graphs(steps=60):
    def block():
        return nn.Sequential(nn.Linear(2048, 8192), nn.GELU(), nn.Linear(8192, 2048))

    net = [make(block, dtype=torch.bfloat16) for _ in range(6)]
    pool, made = torch.cuda.graph_pool_handle(), []
    for rows in (1, 2, 4, 8, 16, 32, 64, 128, 256, 512):
        x, side = torch.randn(rows, 2048, device=DEVICE, dtype=torch.bfloat16), torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side), torch.no_grad():
            y = x
            for layer in net:
                y = layer(y)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool), torch.no_grad():
            y = x
            for layer in net:
                y = y + layer(y)
        made.append((graph, x, y))
        yield None
    for _ in range(steps):
        graph, x, y = random.choice(made)
        x.normal_()
        graph.replay()
        yield y.float().softmax(-1).sum()


JOBS = {job.__name__: job
        for job in (fixed_shapes, random_lengths, recomputation, resolutions, generation, prefetching, graphs)}


def forget():
    """Releases all memory of a job before the next one, or another process, starts."""
    gc.collect()
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()


def run(name, history, steps):
    random.seed(0)
    torch.manual_seed(0)
    if history != "none":
        torch.cuda.memory._record_memory_history("all", context=None if history == "plain" else "alloc",
                                                 stacks="all" if history == "all" else "python", max_entries=1_000_000)
    torch.cuda.synchronize()
    times, last, begin = [], None, time.perf_counter()
    try:
        for loss in JOBS[name](steps) if steps else JOBS[name]():
            torch.cuda.synchronize()
            times.append(time.perf_counter() - begin)
            last = None if loss is None else loss.detach().item()
            begin = time.perf_counter()
    finally:
        if history != "none":
            torch.cuda.memory._record_memory_history(None)
    return {"job": name, "history": history, "steps_ms": [round(1e3 * seconds, 4) for seconds in times[1:]],
            "peak_allocated": torch.cuda.max_memory_allocated(), "peak_reserved": torch.cuda.max_memory_reserved(),
            "last": None if last is None else last.hex()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("jobs", nargs="*", metavar="NAME[:HISTORY]", help="one of " + ", ".join(JOBS))
    parser.add_argument("--steps", type=int, default=0)
    arguments = parser.parse_args()
    try:
        import weir_torch

        weir = weir_torch.is_installed()
    except ImportError:
        weir = False
    torch.cuda.init()
    for item in arguments.jobs or map(str.strip, sys.stdin):
        name, history = (item + ":none").split(":")[:2]
        if name not in JOBS or history not in ("none", "plain", "python", "all"):
            parser.error(f"unknown job or history: {name}:{history}")
        try:
            result = run(name, history, arguments.steps)
        except torch.OutOfMemoryError as error:
            result = {"job": name, "history": history, "error": str(error)}
        forget()
        print(json.dumps({"weir": weir, "conf": os.environ.get("PYTORCH_CUDA_ALLOC_CONF", ""), **result}), flush=True)


if __name__ == "__main__":
    main()
