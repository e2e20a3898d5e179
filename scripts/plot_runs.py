#!/usr/bin/env python3
# /// script
# requires-python = ">=3.9"
# dependencies = ["matplotlib>=3.5"]
# ///
"""Draws one or several runs: loss (raw, smoothed, validation), learning rate and gradient norm.

    python3 scripts/plot_runs.py log                         -> log/loss.png
    python3 scripts/plot_runs.py log/a log/b                 -> ./compare.png, several runs in one picture
    uv run scripts/plot_runs.py log                          fetches matplotlib by itself

A run is a folder with a run.jsonl (one object a line: step, loss, val_loss, lr, grad_norm, ...), or such a file. Lines
that are torn (a run that was killed, or one still being written) are left out and counted; null means "not finite" or
"not measured". After a resume a step may stand twice: the later line counts.
"""

import argparse
import json
import math
import os
import sys

KEYS = ("loss", "val_loss", "lr", "grad_norm")
# Told apart by people who see colours differently, too (Okabe and Ito 2008).
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")


def fail(message):
    sys.exit(f"error: {message}")


def number(value):
    """A finite float, or None for what is none (null, text, true, infinities)."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if math.isfinite(value) else None


def read_run(path):
    """{key: (steps, values)} of one run, sorted by step, and the number of lines that could not be read."""
    file_path = os.path.join(path, "run.jsonl") if os.path.isdir(path) else path
    if not os.path.exists(path):
        fail(f"there is no run '{path}'\n  try: the folder a run was given with --out")
    rows, torn = {}, 0
    try:
        with open(file_path, encoding="utf-8", errors="replace") as file:
            for line in file:
                if not line.strip():
                    continue
                try:
                    row = json.loads(line)
                    step = number(row["step"])
                except (ValueError, KeyError, TypeError):
                    torn += 1
                    continue
                if step is None:
                    torn += 1
                    continue
                # A step's numbers may come in several lines (loss, then validation): later ones add and replace.
                rows.setdefault(step, {}).update({k: v for k in KEYS if (v := number(row.get(k))) is not None})
    except OSError as error:
        fail(f"cannot read '{file_path}': {error.strerror}\n  try: the folder a run was given with --out")
    series = {}
    for key in KEYS:
        points = [(step, rows[step][key]) for step in sorted(rows) if key in rows[step]]
        series[key] = tuple(map(list, zip(*points))) if points else ([], [])
    if not any(steps for steps, _ in series.values()):
        fail(f"'{file_path}' holds no step with a number in it ({torn} unreadable lines)")
    return series, torn


def smoothed(values, window):
    """Mean with weights that fall with the distance, to both sides: follows a falling curve without lagging behind."""
    decay = 1.0 - 1.0 / max(window, 1.0)

    def sums(sequence):  # of everything up to each place: weighted values, weights
        total, weight, out = 0.0, 0.0, []
        for value in sequence:
            total, weight = decay * total + value, decay * weight + 1.0
            out.append((total, weight))
        return out

    both = zip(sums(values), reversed(sums(reversed(values))), values)
    return [(left[0] + right[0] - value) / (left[1] + right[1] - 1.0) for left, right, value in both]


def run_labels(paths):
    """The shortest tail of each path that tells the runs apart."""
    parts = [os.path.normpath(os.path.abspath(path)).split(os.sep) for path in paths]
    for length in range(1, max(map(len, parts)) + 1):
        labels = [os.sep.join(part[-length:]) for part in parts]
        if len(set(labels)) == len(labels):
            return labels
    return [f"{label} ({i + 1})" for i, label in enumerate(labels)]


def limit_losses(axis, runs, smooth):
    """Leaves room for what was learnt: a spike may leave the picture, the curves may not."""
    inside = [value for series in runs for value in smooth(series["loss"][1]) + series["val_loss"][1]]
    raw = sorted(value for series in runs for value in series["loss"][1])
    if not inside:
        return
    low = min(inside + raw[:1])
    high = max(inside + raw[: math.ceil(0.995 * len(raw))])
    room = 0.05 * (high - low) or 0.1
    axis.set_ylim(low - room if low > room else 0.95 * low, high + room)


def draw(runs, labels, out, window, log_scale):
    import matplotlib

    matplotlib.use("Agg")  # no display needed
    import matplotlib.pyplot as plt
    import matplotlib.ticker

    plt.rcParams.update({"font.size": 11, "axes.grid": True, "grid.alpha": 0.3, "axes.spines.top": False,
                         "axes.spines.right": False, "svg.hashsalt": "train_gpt"})
    figure = plt.figure(figsize=(10, 7.5), layout="constrained")
    grid = figure.add_gridspec(2, 2, height_ratios=[2.2, 1])
    loss_axis = figure.add_subplot(grid[0, :])
    lr_axis = figure.add_subplot(grid[1, 0], sharex=loss_axis)
    norm_axis = figure.add_subplot(grid[1, 1], sharex=loss_axis)
    several = len(runs) > 1

    def smooth(values):
        return smoothed(values, window or len(values) / 100)

    for i, (series, label) in enumerate(zip(runs, labels)):
        colour = COLOURS[i % len(COLOURS)]
        dash = "-" if i < len(COLOURS) else "--"
        prefix = f"{label}: " if several else ""
        dot = "o" if len(series["loss"][0]) < 3 else None  # a line of one point cannot be seen
        steps, losses = series["loss"]
        if steps:
            loss_axis.plot(steps, losses, color=colour, alpha=0.25, linewidth=0.8,
                           label=None if several else "training loss")
            loss_axis.plot(steps, smooth(losses), dash, marker=dot, color=colour, linewidth=1.8,
                           label=f"{prefix}training, smoothed ({smooth(losses)[-1]:.3f})")
        steps, losses = series["val_loss"]
        if steps:
            loss_axis.plot(steps, losses, dash, marker="o", markersize=5, linewidth=1.2,
                           color=colour if several else COLOURS[1], markeredgecolor="white", markeredgewidth=0.8,
                           label=f"{prefix}validation ({losses[-1]:.3f})")
        steps, rates = series["lr"]
        lr_axis.plot(steps, rates, dash, marker=dot, color=colour, linewidth=1.5)
        steps, norms = series["grad_norm"]
        norm_axis.plot(steps, norms, color=colour, alpha=0.25, linewidth=0.8)
        norm_axis.plot(steps, smooth(norms), dash, marker=dot, color=colour, linewidth=1.5)

    limit_losses(loss_axis, runs, smooth)
    if log_scale:
        loss_axis.set_yscale("log")
        for which in (loss_axis.yaxis.set_major_formatter, loss_axis.yaxis.set_minor_formatter):
            which(matplotlib.ticker.FuncFormatter(lambda value, _: f"{value:g}"))
    loss_axis.set(title="Loss" if several else f"Loss: {labels[0]}", xlabel="step", ylabel="cross entropy per token")
    if loss_axis.get_legend_handles_labels()[0]:
        loss_axis.legend(loc="upper right", framealpha=0.9)
    lr_axis.set(title="Learning rate", xlabel="step")
    lr_axis.ticklabel_format(axis="y", style="sci", scilimits=(0, 0))
    norm_axis.set(title="Gradient norm, before clipping", xlabel="step")
    norms = [value for series in runs for value in series["grad_norm"][1] if value > 0]
    if norms and max(norms) > 20 * sorted(norms)[len(norms) // 2]:
        norm_axis.set_yscale("log")
    loss_axis.set_xlim(left=0)
    # A folder that is missing or a name without a format is said in one line.
    try:
        figure.savefig(out, dpi=130, metadata={"Date": None} if out.lower().endswith(".svg") else None)
    except (OSError, ValueError) as error:
        fail(f"cannot write '{out}': {error}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0], epilog="Reads RUN/run.jsonl of each run.")
    parser.add_argument("runs", nargs="+", metavar="RUN", help="output folder of a run, or its run.jsonl")
    parser.add_argument("--out", metavar="FILE", help="picture to write, .png, .svg or .pdf (default: loss.png in "
                        "the run's folder; of several runs ./compare.png)")
    parser.add_argument("--labels", nargs="+", metavar="TEXT", help="one name a run for the legend")
    parser.add_argument("--smooth", type=float, default=0, metavar="STEPS", help="smoothing window; 0: a 100th")
    parser.add_argument("--log", action="store_true", help="logarithmic loss axis")
    args = parser.parse_args()
    if args.labels and len(args.labels) != len(args.runs):
        fail(f"{len(args.labels)} labels for {len(args.runs)} runs")
    if not (math.isfinite(args.smooth) and args.smooth >= 0):
        fail(f"--smooth {args.smooth} is not a number of steps")

    runs = []
    for path in args.runs:
        series, torn = read_run(path)
        runs.append(series)
        if torn:
            print(f"{path}: {torn} line{'s' if torn > 1 else ''} left out (torn or without a step)", file=sys.stderr)
    first = args.runs[0]
    alone = os.path.join(first if os.path.isdir(first) else os.path.dirname(first), "loss.png")
    out = args.out or (alone if len(args.runs) == 1 else "compare.png")
    try:
        draw(runs, args.labels or run_labels(args.runs), out, args.smooth, args.log)
    except ImportError as error:
        fail(f"matplotlib is not installed ({error})\n"
             f"  try: uv run scripts/plot_runs.py {first}, or: pip install matplotlib")
    print(out)


if __name__ == "__main__":
    main()
