"""Deterministic workloads. Under PyTorch's own allocator and under Weir they must produce the same numbers.

`python3 scenarios.py` writes a JSON line for each, `--only NAME` for one. test_same.py compares the results."""
import argparse
import gc
import json
import os
import random
import sys

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
import torch  # noqa: E402

MIB = 1 << 20


def settings(text):
    torch._C._accelerator_setAllocatorSettings(text)


def mixed(seed, steps, most_bits, streams=1, empties=True):
    random.seed(seed)
    pool = [torch.cuda.current_stream()] + [torch.cuda.Stream() for _ in range(streams - 1)]
    live = []
    for i in range(steps):
        if live and random.random() < 0.48:
            live.pop(random.randrange(len(live)))
        else:
            with torch.cuda.stream(random.choice(pool)):
                size = random.randrange(1, 1 << random.randrange(6, most_bits))
                live.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
        if empties and i % 500 == 499:
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
    return live


def small_blocks():
    return mixed(1, 3000, 18)


def large_blocks():
    return mixed(2, 2000, 27)


def many_streams():
    return mixed(3, 2000, 24, streams=4)


def other_streams_use_it():
    random.seed(4)
    side, live = torch.cuda.Stream(), []
    for i in range(300):
        x = torch.empty(random.randrange(1, 4 * MIB), dtype=torch.uint8, device="cuda")
        if i % 3 == 0:
            x.record_stream(side)
        if i % 5:
            live.append(x)
        if i % 20 == 19:
            torch.cuda.synchronize()
            del live[::2]
    torch.cuda.synchronize()
    return live


def rounded_up():
    settings("roundup_power2_divisions:[64:8,256:4,1024:2,>:1]")
    live = mixed(5, 600, 26)
    settings("roundup_power2_divisions:8")
    return live + mixed(6, 600, 24)


def not_split():
    settings("max_split_size_mb:40,max_non_split_rounding_mb:30")
    return mixed(7, 600, 28)


def collected():
    settings("garbage_collection_threshold:0.4")
    torch.cuda.set_per_process_memory_fraction(0.01)
    return mixed(8, 800, 26)


def runs_short():
    torch.cuda.set_per_process_memory_fraction(0.008)
    random.seed(9)
    live, failed = [], 0
    for _ in range(400):
        try:
            live.append(torch.empty(random.randrange(1, 64 * MIB), dtype=torch.uint8, device="cuda"))
        except torch.OutOfMemoryError:
            failed += 1
            random.shuffle(live)
            del live[len(live) // 2:]
    return live + [torch.full((failed,), 0, dtype=torch.uint8, device="cuda")]


def graphs():
    x, pool, kept = torch.ones(1 << 20, device="cuda"), torch.cuda.graph_pool_handle(), []
    for k in range(3):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool):
            y = x
            for _ in range(4):
                y = y * 2 + x[: 1 << (10 + k)].sum()
        graph.replay()
        kept.append((graph, y))
    return [x, kept]


def pools():
    a, b = torch.cuda.MemPool(), torch.cuda.MemPool(no_split=True)
    kept = [a, b]
    with torch.cuda.use_mem_pool(a):
        kept.append([torch.empty(n * 700_000, dtype=torch.uint8, device="cuda") for n in range(1, 12)])
        del kept[-1][::3]
    with torch.cuda.use_mem_pool(b):
        kept.append([torch.empty(n * 900_000, dtype=torch.uint8, device="cuda") for n in range(1, 8)])
    return kept


def train(steps=6):
    torch.manual_seed(0)
    torch.use_deterministic_algorithms(True)
    torch.backends.cuda.matmul.allow_tf32 = False
    layer = torch.nn.TransformerEncoderLayer(128, 4, 512, dropout=0.1, batch_first=True)
    layers = torch.nn.Embedding(1000, 128), torch.nn.TransformerEncoder(layer, 2), torch.nn.Linear(128, 1000)
    model = torch.nn.Sequential(*layers).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    side, losses = torch.cuda.Stream(), []
    for step in range(steps):
        length = 16 + 23 * step % 64
        tokens = torch.randint(0, 1000, (8, length)).pin_memory()
        with torch.cuda.stream(side):
            moved = tokens.to("cuda", non_blocking=True)
        torch.cuda.current_stream().wait_stream(side)
        moved.record_stream(torch.cuda.current_stream())
        loss = torch.nn.functional.cross_entropy(model(moved).flatten(0, 1), moved.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.item().hex())
        torch.cuda.synchronize()
    torch.use_deterministic_algorithms(False)
    return losses, model, optimizer


def training():
    return train()


SCENARIOS = [small_blocks, large_blocks, many_streams, other_streams_use_it, rounded_up, not_split, collected,
             runs_short, graphs, pools, training]


def segments():
    """Returns the segments of a snapshot without addresses and ids, which differ between processes."""
    streams, found = {}, []
    for s in torch.cuda.memory_snapshot():
        found.append([s["total_size"], s["allocated_size"], s["active_size"], s["requested_size"], s["segment_type"],
                      s["is_expandable"],
                      bool(s["stream"]), [bool(part) for part in s["segment_pool_id"]],
                      [[b["size"], b["state"], b["requested_size"] if b["state"] != "inactive" else 0]
                       for b in s["blocks"]]])
    del streams
    return sorted(found, key=json.dumps)


def history(entries):
    return [[e["action"], e["size"], e.get("device_free") is not None, bool(e["stream"]), e["compile_context"],
             "frames" in e] for e in entries]


def order(entries):
    """Returns for each new segment how many existing ones are below it. The driver's choice varies between runs."""
    places, there = [], set()
    for e in entries:
        if e["action"] == "segment_alloc":
            places.append(sum(address < e["addr"] for address in there))
            there.add(e["addr"])
        elif e["action"] == "segment_free":
            there.discard(e["addr"])
    return places


def run(scenario, record):
    gc.collect()
    torch.cuda.synchronize()
    torch._C._cuda_clearCublasWorkspaces()
    settings("expandable_segments:" + str(os.environ.get("SCENARIO_EXPANDABLE") == "1"))
    torch.cuda.set_per_process_memory_fraction(1.0)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    torch.cuda.reset_accumulated_memory_stats()
    if record:
        torch.cuda.memory._record_memory_history("all", context=None, max_entries=100000)
    kept = scenario()
    torch.cuda.synchronize()
    result = {"scenario": scenario.__name__, "stats": torch.cuda.memory_stats(), "segments": segments(),
              "summary": torch.cuda.memory_summary()}
    if record:
        entries = torch.cuda.memory._snapshot()["device_traces"][0]
        result["history"], result["order"] = history(entries), order(entries)
        torch.cuda.memory._record_memory_history(None)
    if scenario is training:
        result["losses"] = kept[0]
    del kept
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    result["after"] = torch.cuda.memory_stats()
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only")
    parser.add_argument("--record", action="store_true")
    arguments = parser.parse_args()
    torch.cuda.init()
    for scenario in SCENARIOS:
        if arguments.only in (None, scenario.__name__):
            print(json.dumps(run(scenario, arguments.record)), flush=True)
    sys.stdout.flush()


if __name__ == "__main__":
    main()
