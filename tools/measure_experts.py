#!/usr/bin/env python3
"""Measures one rank's expert layer, and its all-to-all, for `evenkeel calibrate --csv`.

    python3 tools/measure_experts.py --hidden 7168 --width 2048 --experts 256 --top-k 8 \
        --slots 9 --weights bf16 --out mine.csv
    torchrun --nproc-per-node 8 tools/measure_experts.py ... --exchange --out mine.csv

Needs PyTorch and nothing else. The expert layer is gate, up and down projection with SiLU, one
expert after the other, in the weight format given: a stand-in for your engine's grouped kernel. To
calibrate on that kernel itself, replace `Layer.run` by a call of it; the design, the timing and the
CSV stay. Weights are rotated through sets larger than the cache, decode is captured as a CUDA graph,
and every row carries the counts that were run. Half an hour on one node; `--quick` takes minutes.
The columns are described in docs/calibration.md.
"""

import argparse
import csv
import os
import random
import statistics
import sys
import time

import torch

COLUMNS = [
    "what", "phase", "hidden", "width", "experts", "top_k", "weights", "counts", "tokens", "graph",
    "time_us", "spread_us",
]
ROWS = [1, 16, 64, 65, 128, 129, 256, 1024, 4096]
TOKENS = [1, 8, 32, 128, 256, 1024]
REPETITIONS = 10
CACHE_BYTES = 512 << 20  # beyond any last-level cache in use
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}


class Layer:
    """Experts of one rank, in as many weight sets as it takes to miss the cache."""

    def __init__(self, args, slots, device):
        dtype = DTYPES[args.weights]
        expert_bytes = 3 * args.hidden * args.width * torch.finfo(dtype).bits // 8
        sets = max(2, min(16, CACHE_BYTES // (expert_bytes * slots) + 1))

        def weights(rows, columns):
            scale = columns ** -0.5
            return [
                (torch.randn(slots, rows, columns, device=device) * scale).to(dtype)
                for _ in range(sets)
            ]

        self.gate = weights(args.width, args.hidden)
        self.up = weights(args.width, args.hidden)
        self.down = weights(args.hidden, args.width)
        self.sets = sets
        self.dtype = dtype

    def run(self, inputs, which):
        gate, up, down = self.gate[which], self.up[which], self.down[which]
        for slot, rows in inputs:
            inner = torch.nn.functional.silu(rows @ gate[slot].T) * (rows @ up[slot].T)
            inner @ down[slot].T


def timed(work, repetitions, device):
    """Median and spread (half the distance of the quartiles) of single calls, in microseconds."""
    times = []
    for index in range(repetitions + 3):
        if device.type == "cuda":
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda.synchronize()
            start.record()
            work(index)
            end.record()
            torch.cuda.synchronize()
            times.append(start.elapsed_time(end) * 1e3)
        else:
            begin = time.perf_counter_ns()
            work(index)
            times.append((time.perf_counter_ns() - begin) / 1e3)
    times = times[3:]  # the first calls pay for what later ones find ready
    quartiles = statistics.quantiles(times, n=4)
    return statistics.median(times), (quartiles[2] - quartiles[0]) / 2


def graphed(layer, inputs):
    """The layer as one CUDA graph per weight set, as engines run decode."""
    graphs = []
    for which in range(layer.sets):
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            layer.run(inputs, which)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            layer.run(inputs, which)
        graphs.append(graph)
    return lambda index: graphs[index % layer.sets].replay()


def loads(slots, rows, quick):
    """Equal loads over 1, 2, 4 ... all slots, then five skewed ones with their counts."""
    design, activated = [], 1
    while activated < slots:
        design.append(activated)
        activated *= 4 if quick else 2
    design.append(slots)
    for activated in design:
        for count in rows:
            yield [count] * activated + [0] * (slots - activated)
    draw = random.Random(7)
    for alpha in (0.4, 0.8, 1.2, 1.6, 2.0):
        weights = [(rank + 1) ** -alpha for rank in range(slots)]
        draw.shuffle(weights)
        total = sum(weights)
        yield [round(64 * slots * weight / total) for weight in weights]


def runs(counts):
    """`64*2 0*14`: runs of equal counts."""
    words, index = [], 0
    while index < len(counts):
        end = index
        while end < len(counts) and counts[end] == counts[index]:
            end += 1
        words.append(f"{counts[index]}*{end - index}")
        index = end
    return " ".join(words)


def measure_experts(args, device, write):
    rows = [1, 64, 65, 128, 129, 512] if args.quick else ROWS
    for slots in sorted({args.slots, max(1, args.slots // 2)}):
        layer = Layer(args, slots, device)
        for counts in loads(slots, rows, args.quick):
            inputs = [
                (slot, torch.randn(count, args.hidden, device=device).to(layer.dtype))
                for slot, count in enumerate(counts)
                if count
            ]
            for phase in ("decode", "prefill"):
                graph = phase == "decode" and device.type == "cuda"
                work = (
                    graphed(layer, inputs)
                    if graph
                    else lambda index: layer.run(inputs, index % layer.sets)
                )
                median, spread = timed(work, args.repetitions, device)
                # Rows come from distinct tokens as far as a token uses each expert once.
                tokens = max(max(counts), -(-sum(counts) // args.top_k))
                write("experts", phase, runs(counts), tokens, graph, median, spread)


def measure_exchange(args, device, write):
    """All-to-all of balanced tokens over the whole group: a stand-in for DeepEP."""
    import torch.distributed as group

    group.init_process_group("nccl" if device.type == "cuda" else "gloo")
    ranks = group.get_world_size()
    nodes = max(1, ranks // int(os.environ.get("LOCAL_WORLD_SIZE", ranks)))
    for tokens in TOKENS:
        pairs = -(-tokens * args.top_k // ranks)
        for what, width in (("dispatch", args.hidden), ("combine", args.hidden)):
            out = torch.zeros(pairs * ranks, width, dtype=torch.bfloat16, device=device)
            back = torch.empty_like(out)
            work = lambda _: group.all_to_all_single(back, out)
            for phase in ("decode", "prefill"):
                median, spread = timed(work, args.repetitions, device)
                if group.get_rank() == 0:
                    write(what, phase, nodes, tokens, False, median, spread)
    group.destroy_process_group()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    for name, default in (("hidden", 2048), ("width", 1408), ("experts", 64), ("top-k", 6),
                          ("slots", 5), ("repetitions", REPETITIONS)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--weights", choices=DTYPES, default="bf16")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--exchange", action="store_true", help="under torchrun: also all-to-all")
    parser.add_argument("--quick", action="store_true", help="fewer points")
    parser.add_argument("--out", required=True)
    args = parser.parse_args()
    if min(args.hidden, args.width, args.experts, args.top_k, args.slots) < 1 or args.repetitions < 4:
        parser.error("sizes must be at least 1 and repetitions at least 4")
    rank = int(os.environ.get("RANK", 0))
    device = torch.device(args.device)
    if device.type == "cuda":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)))

    beside = f"{args.out}.partial{rank}"
    with open(beside, "w", newline="") as file:
        table = csv.writer(file)
        table.writerow(COLUMNS)

        def write(what, phase, counts, tokens, graph, median, spread):
            table.writerow([
                what, phase, args.hidden, args.width, args.experts, args.top_k, args.weights,
                counts, tokens, "yes" if graph else "no", f"{median:.3f}", f"{spread:.3f}",
            ])
            print(f"{what} {phase} {counts}: {median:.1f} us", file=sys.stderr)

        with torch.inference_mode():
            if rank == 0:
                measure_experts(args, device, write)
            if args.exchange:
                measure_exchange(args, device, write)
    if rank == 0:
        os.replace(beside, args.out)
    else:
        os.remove(beside)


if __name__ == "__main__":
    main()
