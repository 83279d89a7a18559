#!/usr/bin/env python3
"""Compares what `weir ranks --json` says with what make_rank planted: check_ranks.py TRUTH JSON

All that was planted must be named, with its stack and in an interval of steps that contains the step, and nothing else.
"""
import json
import sys

planted = {"outlier": {}, "leak": {}, "divergence": {}}
with open(sys.argv[1], encoding="utf-8") as file:
    for line in file:
        rank, kind, stack, step = line.split()
        planted[kind][int(rank)] = (stack, int(step))
with open(sys.argv[2], encoding="utf-8") as file:
    said = json.load(file)
wrong = []
more = {**planted["outlier"], **planted["leak"]}
for outlier in said["outliers"]:
    rank = outlier["rank"]
    if rank not in more:
        wrong.append(f"rank {rank} is called an outlier")
        continue
    stack, step = more.pop(rank)
    first = outlier["differences"][0]
    if not first["stack"].startswith(stack + " "):
        wrong.append(f"rank {rank}: {first['stack']} is named, planted is {stack}")
    least, most = first["since_step_least"], first["since_step_most"]
    if least is None or not least <= step + (rank in planted["leak"]) <= most + 1:
        wrong.append(f"rank {rank}: since step {least} to {most}, planted is {step}")
    if first["grows"] != (rank in planted["leak"]):
        wrong.append(f"rank {rank}: grows is {first['grows']}")
wrong += [f"rank {rank} is not called an outlier" for rank in more]
parting = dict(planted["divergence"])
for found in said["partings"]:
    stack, step = parting.pop(found["rank"], (None, None))
    if stack is None:
        wrong.append(f"rank {found['rank']} is said to part")
    elif not found["first_step"] <= step <= found["last_step"]:
        wrong.append(f"rank {found['rank']}: parts in {found['first_step']} to {found['last_step']}, planted is {step}")
wrong += [f"rank {rank} is not said to part" for rank in parting]
if said["missing"]:
    wrong.append(f"missing: {said['missing']}")
print(f"{sum(len(of) for of in planted.values())} planted, {len(said['classes'])} classes")
sys.exit("\n".join(wrong) if wrong else 0)
