#!/usr/bin/env python3
# /// script
# requires-python = ">=3.9"
# dependencies = []
# ///
"""Writes the report of scripts/compare_precisions.sh: FOLDER/compare.html and FOLDER/compare.md.

    python3 scripts/compare_report.py compare
    python3 scripts/compare_report.py compare --doc doc/precision     also the measured parts of the pages there

Reads FOLDER/runs/NAME/ (run.jsonl, numerics.jsonl, policy.txt, broken). NAME is a mode; fp32.seed2 ... are fp32 with
other seeds, fp32.order is fp32 with its sums in another order. Needs nothing but Python: pictures are SVG in the page.
"""

import html
import json
import math
import os
import re
import sys

# Families share a hue, their members differ in dash (after Okabe and Ito 2008: told apart by people who see colours
# differently, too).
STYLES = {
    "fp32": ("#000000", ""), "tf32": ("#8c8c8c", ""), "bf16": ("#0072B2", ""), "fp16": ("#E69F00", ""),
    "fp8-delayed": ("#D55E00", ""), "fp8-current": ("#009E73", ""), "fp8-row": ("#009E73", "6 3"),
    "fp8-block": ("#7a5195", ""), "mxfp8": ("#7a5195", "6 3"), "nvfp4": ("#c51b4f", ""),
    "bf16-kahan": ("#56B4E9", ""), "bf16-stochastic": ("#56B4E9", "6 3"), "bf16-nearest": ("#CC79A7", ""),
    "bf16-mbf16": ("#0072B2", "6 3"), "bf16-mbf16sr": ("#0072B2", "2 3"), "fp32.order": ("#8c8c8c", "2 3"),
}
ORDER = list(STYLES)


def fail(message):
    sys.exit(f"error: {message}")


# ----------------------------------------------------------------------------------------------------------------
# Reading


def number(value):
    """A finite float, or None."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if math.isfinite(value) else None


def read_lines(path):
    """The JSON objects of a .jsonl file that have a step; torn lines are left out."""
    rows = []
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            for line in file:
                try:
                    row = json.loads(line)
                except ValueError:
                    continue
                if isinstance(row, dict) and number(row.get("step")) is not None:
                    rows.append(row)
    except OSError:
        pass
    return rows


def read_text(path):
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


class Run:
    def __init__(self, folder, name):
        path = os.path.join(folder, "runs", name)
        self.name = name
        rows = {}
        for row in read_lines(os.path.join(path, "run.jsonl")):
            rows.setdefault(int(row["step"]), {}).update(row)
        self.rows = rows
        self.loss = {s: v for s in sorted(rows) if (v := number(rows[s].get("loss"))) is not None}
        self.val = {s: v for s in sorted(rows) if (v := number(rows[s].get("val_loss"))) is not None}
        self.scale = {s: v for s in sorted(rows) if (v := number(rows[s].get("loss_scale"))) is not None}
        self.skips = [s for s in sorted(rows) if rows[s].get("skipped")]
        lines = read_lines(os.path.join(path, "numerics.jsonl"))
        self.numerics = [row for row in lines if "kind" in row]
        self.warnings = [(int(row["step"]), str(row["warning"])) for row in lines if "warning" in row]
        self.broken = read_text(os.path.join(path, "broken")).strip()
        self.finished = os.path.exists(os.path.join(path, "done")) and not self.broken
        self.policy = read_text(os.path.join(path, "policy.txt"))
        found = re.search(r"bytes per parameter:.*= ([0-9.]+)", self.policy)
        self.bytes = float(found.group(1)) if found else None

    def tokens_per_s(self):
        """Tokens of a step over the time of one when the machine was least busy with other work: its fastest tenth."""
        steps = [s for s in sorted(self.rows) if number(self.rows[s].get("time_s")) is not None]
        times, tokens = [], []
        for a, b in zip(steps, steps[1:]):
            elapsed = self.rows[b]["time_s"] - self.rows[a]["time_s"]
            if elapsed > 0 and number(self.rows[b].get("tokens")) is not None:
                times.append(elapsed / (b - a))
                tokens.append((self.rows[b]["tokens"] - (number(self.rows[a].get("tokens")) or 0)) / (b - a))
        return sorted(tokens)[len(tokens) // 2] / sorted(times)[len(times) // 10] if times else None


def read_runs(folder):
    base = os.path.join(folder, "runs")
    if not os.path.isdir(base):
        fail(f"there are no runs in '{folder}'\n  try: sh scripts/compare_precisions.sh --out {folder}")
    names = sorted(os.listdir(base), key=lambda n: (ORDER.index(n) if n in ORDER else len(ORDER), n))
    runs = {name: run for name in names if (run := Run(folder, name)).loss}
    if "fp32" not in runs:
        fail(f"'{base}' has no run 'fp32' with a step in it: nothing to compare with")
    return runs


# ----------------------------------------------------------------------------------------------------------------
# Arithmetic


def smoothed(values, window):
    """Mean over a window around each place, shorter at the ends but always centred."""
    out, half = [], max(int(window) // 2, 0)
    prefix = [0.0]
    for value in values:
        prefix.append(prefix[-1] + value)
    for i in range(len(values)):
        reach = min(half, i, len(values) - 1 - i)
        out.append((prefix[i + reach + 1] - prefix[i - reach]) / (2 * reach + 1))
    return out


def deviation(values):
    mean = sum(values) / len(values)
    return math.sqrt(sum((v - mean) ** 2 for v in values) / (len(values) - 1)) if len(values) > 1 else 0.0


def tail(steps, last):
    """The steps of the last tenth of the run, two at least."""
    count = max(2, round(last / 10))
    return [s for s in steps if s > last - count]


def difference(run, reference):
    """[(step, run - reference)] where both have a loss."""
    return [(s, run.loss[s] - reference.loss[s]) for s in run.loss if s in reference.loss]


def wander(pairs, last):
    """How far a difference wanders by itself: the deviation of its means over the five tenths of the second half. Single
    steps are no measure, for neighbouring ones share their weights."""
    parts = {}
    for step, value in pairs:
        if step > last / 2:
            parts.setdefault(min(int((step - last / 2 - 1e-9) / (last / 10)), 4), []).append(value)
    return deviation([sum(values) / len(values) for values in parts.values()]) if len(parts) > 1 else None


def noise_band(seeds, window):
    """[(step, deviation)] of the smoothed fp32 losses over seeds, itself smoothed; empty with one seed."""
    if len(seeds) < 2:
        return []
    steps = sorted(set.intersection(*(set(run.loss) for run in seeds)))
    curves = [smoothed([run.loss[s] for s in steps], window) for run in seeds]
    spread = [deviation(values) ** 2 for values in zip(*curves)]
    return list(zip(steps, (math.sqrt(v) for v in smoothed(spread, 2 * window))))


def summary(runs):
    """One row a mode: what the table shows."""
    fp32 = runs["fp32"]
    last = max(fp32.loss)
    seeds = [run for name, run in runs.items() if name == "fp32" or name.startswith("fp32.seed")]
    window = max(3, last // 10)
    band = noise_band(seeds, window)
    seed_noise = deviation([sum(r.loss[s] for s in tail(r.loss, last)) / len(tail(r.loss, last)) for r in seeds
                            if tail(r.loss, last)]) if len(seeds) > 1 else None
    rows = []
    fp32_speed = fp32.tokens_per_s()
    for name, run in runs.items():
        if name.startswith("fp32.seed"):
            continue
        row = {"name": name, "run": run, "bytes": run.bytes, "skips": len(run.skips)}
        ends = [s for s in tail(run.loss, last) if s in run.loss]
        all_pairs = difference(run, fp32)
        pairs = [d for s, d in all_pairs if s > last - max(2, round(last / 10))]
        row["loss"] = sum(run.loss[s] for s in ends) / len(ends) if ends else None
        row["gap"] = sum(pairs) / len(pairs) if pairs else None
        row["error"] = wander(all_pairs, last)
        row["val"] = run.val[max(run.val)] if run.val and max(run.val) == last else None
        row["val_gap"] = row["val"] - fp32.val[last] if row["val"] is not None and last in fp32.val else None
        row["speed"] = run.tokens_per_s()
        row["speed_ratio"] = row["speed"] / fp32_speed if row["speed"] and fp32_speed else None
        row["underflow"] = worst(run, "underflow_frac")
        row["saturated"] = worst(run, "saturated_frac")
        row["lost"] = lost_at_end(run)
        rows.append(row)
    order_gap = next((abs(r["gap"]) for r in rows if r["name"] == "fp32.order" and r["gap"] is not None), 0.0)
    for row in rows:
        row["verdict"] = verdict(row, seed_noise, order_gap)
    return rows, band, seed_noise, window, last


def verdict(row, seed_noise, order_gap):
    if row["run"].broken:
        return "broke off"
    if row["gap"] is None:
        return "unfinished"
    if row["name"] == "fp32":
        return "the reference"
    gap, error = abs(row["gap"]), row["error"] or 0.0
    if gap <= max(2 * error, order_gap, 1e-3):
        return "no different"
    side = "worse" if row["gap"] > 0 else "better"
    if seed_noise is None:
        return side
    return f"{side}, by less than another seed" if gap <= 2 * seed_noise else f"{side}, by more than another seed"


def worst(run, key):
    """(share, where) of the largest value of `key` over tensors and reports; None where nothing was measured."""
    found = [(row[key], f"{row['kind']} {row['tensor']} {row.get('layer', '')} step {row['step']}".replace("  ", " "))
             for row in run.numerics if number(row.get(key)) is not None]
    return max(found) if found else None


def lost_at_end(run):
    """Lost updates of the last report, over all weights."""
    rows = [row for row in run.numerics if number(row.get("lost_frac")) is not None]
    if not rows:
        return None
    last = max(row["step"] for row in rows)
    rows = [row for row in rows if row["step"] == last]
    weight = sum(row.get("updates", 0) for row in rows)
    return sum(row["lost_frac"] * row.get("updates", 0) for row in rows) / weight if weight else None


# ----------------------------------------------------------------------------------------------------------------
# SVG

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 1040, 400, 64, 170, 14, 40


def escape(text):
    return html.escape(str(text), quote=True)


def ticks(low, high, count=6):
    """Round numbers between low and high."""
    if not high > low:
        return [low]
    raw = (high - low) / count
    magnitude = 10 ** math.floor(math.log10(raw))
    step = next(m * magnitude for m in (1, 2, 5, 10) if m * magnitude >= raw)
    first = math.ceil(low / step - 1e-9)
    return [round(i * step, 12) for i in range(first, math.floor(high / step + 1e-9) + 1)]


def style(name):
    return STYLES.get(name, ("#444444", "4 2"))


def class_name(name):
    return "m-" + re.sub(r"[^a-z0-9]", "-", name)


def chart(series, y_label, band=(), marks=(), y_limits=None, log2=False, dots=False):
    """series: {name: [(x, y)]}; band: [(x, half width)] shaded around 0, once and twice; marks: [(x, y, name, text)]."""
    points = [p for values in series.values() for p in values]
    if not points:
        return "<p>Nothing to draw.</p>"

    def value(y):
        return math.log2(y) if log2 else y

    x_low, x_high = min(p[0] for p in points), max(p[0] for p in points)
    ys = [value(p[1]) for p in points if not log2 or p[1] > 0]
    low, high = y_limits or (min(ys), max(ys))
    room = 0.04 * (high - low) or 0.5
    low, high = low - room, high + room

    def sx(x):
        return LEFT + (x - x_low) / ((x_high - x_low) or 1) * (WIDTH - LEFT - RIGHT)

    def sy_raw(v):
        return TOP + (high - v) / (high - low) * (HEIGHT - TOP - BOTTOM)

    def sy(y):
        return sy_raw(min(max(value(y), low), high))  # what lies beyond runs along the edge

    out = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(y_label)} over steps">']
    rounds = [v for v in ticks(low, high) if not log2 or v == int(v)]
    for v in rounds if len(rounds) > 1 else ticks(low, high):
        label = f"2<tspan dy='-4' font-size='9'>{v:g}</tspan>" if log2 else f"{v:g}"
        out.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{sy_raw(v):.1f}" y2="{sy_raw(v):.1f}"/>'
                   f'<text x="{LEFT - 8}" y="{sy_raw(v) + 4:.1f}" text-anchor="end">{label}</text>')
    for v in ticks(x_low, x_high, 8):
        out.append(f'<text x="{sx(v):.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{v:g}</text>')
    out.append(f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 4}" text-anchor="middle">step</text>')
    out.append(f'<text x="14" y="{(TOP + HEIGHT - BOTTOM) / 2}" text-anchor="middle" '
               f'transform="rotate(-90 14 {(TOP + HEIGHT - BOTTOM) / 2})">{escape(y_label)}</text>')
    for times in (2, 1):
        if band:
            upper = [f"{sx(x):.1f},{sy(times * w):.1f}" for x, w in band]
            lower = [f"{sx(x):.1f},{sy(-times * w):.1f}" for x, w in reversed(band)]
            out.append(f'<polygon class="band" points="{" ".join(upper + lower)}"/>')
    if low < 0 < high and not log2:
        out.append(f'<line class="zero" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{sy(0):.1f}" y2="{sy(0):.1f}"/>')
    for i, (name, values) in enumerate(series.items()):
        colour, dash = style(name)
        path = " ".join(f"{sx(x):.1f},{sy(y):.1f}" for x, y in values if not log2 or y > 0)
        y = TOP + 8 + 18 * i
        circles = "".join(f'<circle cx="{sx(x):.1f}" cy="{sy(v):.1f}" r="3.5" fill="{colour}"><title>{escape(name)}, '
                          f'step {x}: {v:.4f}</title></circle>' for x, v in values) if dots else ""
        out.append(f'<g class="series {class_name(name)}"><polyline points="{path}" stroke="{colour}" '
                   f'stroke-dasharray="{dash}"/>{circles}</g>'
                   f'<g class="key" data-series="{class_name(name)}"><line x1="{WIDTH - RIGHT + 12}" '
                   f'x2="{WIDTH - RIGHT + 36}" y1="{y}" y2="{y}" stroke="{colour}" stroke-dasharray="{dash}"/>'
                   f'<text x="{WIDTH - RIGHT + 42}" y="{y + 4}">{escape(name)}</text></g>')
    for x, y, name, text in marks:
        out.append(f'<g class="series {class_name(name)}"><path d="M{sx(x) - 4:.1f} {sy(y) - 4:.1f}l8 8m0 -8l-8 8" '
                   f'stroke="{style(name)[0]}"><title>{escape(text)}</title></path></g>')
    return "".join(out) + "</svg>"


def shade(share, logarithmic):
    """White for 0 to dark for 1; logarithmic: from one in a million on."""
    if share <= 0:
        return "#f4f4f1"
    t = min(max(1 + math.log10(share) / 6, 0.06), 1) if logarithmic else min(share, 1)
    stops = [(244, 238, 222), (247, 190, 110), (224, 104, 55), (150, 30, 60), (62, 8, 60)]
    place = t * (len(stops) - 1)
    i = min(int(place), len(stops) - 2)
    mix = [a + (b - a) * (place - i) for a, b in zip(stops[i], stops[i + 1])]
    return "#%02x%02x%02x" % tuple(round(v) for v in mix)


def heat_map(cells, title, logarithmic):
    """cells: {(row, step): (share, text)}; rows in order of appearance."""
    rows, steps = list(dict.fromkeys(r for r, _ in cells)), sorted({s for _, s in cells})
    left, cell_h, width = 110, 12, 500
    cell_w = (width - left - 6) / len(steps)
    height = 22 + cell_h * len(rows) + 16
    out = [f'<svg class="heat" viewBox="0 0 {width} {height}" role="img" aria-label="{escape(title)}">'
           f'<text x="{left}" y="13" class="heading">{escape(title)}</text>']
    for (row, step), (share, text) in cells.items():
        x, y = left + cell_w * steps.index(step), 20 + cell_h * rows.index(row)
        out.append(f'<rect x="{x:.1f}" y="{y}" width="{cell_w + 0.3:.1f}" height="{cell_h - 1}" '
                   f'fill="{shade(share, logarithmic)}"><title>{escape(text)}</title></rect>')
    for i, row in enumerate(rows):
        out.append(f'<text x="{left - 6}" y="{20 + cell_h * i + 9}" text-anchor="end" font-size="10">{escape(row)}</text>')
    out.append(f'<text x="{left}" y="{height - 3}" font-size="10">step {steps[0]}</text>'
               f'<text x="{width - 6}" y="{height - 3}" font-size="10" text-anchor="end">{steps[-1]}</text>')
    return "".join(out) + "</svg>"


ROLE_OF = {"x": "operand x", "w": "operand w", "dy": "operand dY"}


def underflow_cells(run):
    """Rows: role and layer; a cell holds the worst tensor of that role and layer."""
    cells = {}
    rows = sorted((r for r in run.numerics if number(r.get("underflow_frac")) is not None and r["kind"] != "weight"),
                  key=lambda r: (r["kind"], r.get("role", ""), r.get("layer", -1)))
    for row in rows:
        role = ROLE_OF.get(row.get("role"), {"act": "activation", "grad": "gradient"}.get(row["kind"], row["kind"]))
        key = (f"{role} {row['layer']}" if "layer" in row else role, int(row["step"]))
        share = row["underflow_frac"]
        if key not in cells or share > cells[key][0]:
            cells[key] = (share, f"{row['tensor']}, step {row['step']}: {share:.3g} became zero")
    return cells


def lost_cells(run):
    """Rows: parameter tensors, over their layers."""
    sums = {}
    for row in run.numerics:
        if number(row.get("lost_frac")) is None:
            continue
        lost, updates = sums.get((row["tensor"], int(row["step"])), (0.0, 0))
        sums[row["tensor"], int(row["step"])] = (lost + row["lost_frac"] * row.get("updates", 0),
                                                 updates + row.get("updates", 0))
    return {key: (lost / updates, f"{key[0]}, step {key[1]}: {lost / updates:.3f} of the updates lost")
            for key, (lost, updates) in sums.items() if updates}


def bars(rows, key, unit, fmt):
    """Horizontal bars, one a mode."""
    rows = [r for r in rows if r[key] and r["name"] != "fp32.order"]
    if not rows:
        return "<p>Nothing was measured.</p>"
    top = max(r[key] for r in rows)
    height = 20 * len(rows) + 6
    out = [f'<svg class="heat" viewBox="0 0 500 {height}" role="img" aria-label="{escape(unit)}">']
    for i, row in enumerate(rows):
        width = 270 * row[key] / top
        out.append(f'<text x="118" y="{20 * i + 16}" text-anchor="end">{escape(row["name"])}</text>'
                   f'<rect x="124" y="{20 * i + 5}" width="{width:.1f}" height="14" fill="{style(row["name"])[0]}"/>'
                   f'<text x="{130 + width:.1f}" y="{20 * i + 16}">{fmt(row)}</text>')
    return "".join(out) + "</svg>"


# ----------------------------------------------------------------------------------------------------------------
# The report

PAGE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>Precisions compared</title><style>
body{font:15px/1.5 system-ui,sans-serif;color:#222;background:#fff;max-width:1080px;margin:2em auto;padding:0 1em}
h1{font-size:1.6em}h2{font-size:1.2em;margin-top:2.2em}
table{border-collapse:collapse;font-size:13px;width:100%%}
th,td{padding:4px 8px;text-align:right;border-bottom:1px solid #e4e4e0;font-variant-numeric:tabular-nums}
td:first-child{white-space:nowrap}th{font-weight:600;vertical-align:bottom}th:first-child,td:first-child,td:last-child,th:last-child{text-align:left}
svg{width:100%%;height:auto;font:12px system-ui,sans-serif;fill:#222}
svg .grid{stroke:#e8e8e4}svg .zero{stroke:#999}svg .band{fill:#000;opacity:.07}
svg polyline{fill:none;stroke-width:1.7}svg .key line{stroke-width:2.5}svg .key{cursor:pointer}
svg path{fill:none;stroke-width:1.6}svg .heading{font-weight:600}
.off{opacity:.08}.key.off{opacity:.35}.grid2{display:grid;grid-template-columns:1fr 1fr;gap:1.2em 1.5em}
.note{color:#555;font-size:13.5px}.scale span{display:inline-block;width:26px;height:12px;margin-right:2px}
</style></head><body>
%s
<script>
document.querySelectorAll('.key').forEach(function (key) {
  key.addEventListener('click', function () {
    var name = key.dataset.series;
    document.querySelectorAll('.series.' + name + ', .key[data-series="' + name + '"]').forEach(function (e) {
      e.classList.toggle('off'); });
  });
});
</script></body></html>
"""


def text_or(value, fmt, none="–"):
    return none if value is None else format(value, fmt)


COLUMNS = ("mode", "loss at the end", "less fp32", "±", "validation", "less fp32", "tokens/s", "of fp32",
           "bytes per parameter", "skipped", "worst underflow", "worst saturation", "lost updates", "against fp32")


def table_cells(row):
    return (row["name"], text_or(row["loss"], ".4f"), text_or(row["gap"], "+.4f"), text_or(row["error"], ".4f"),
            text_or(row["val"], ".4f"), text_or(row["val_gap"], "+.4f"), text_or(row["speed"], ",.0f"),
            text_or(row["speed_ratio"], ".2f"), text_or(row["bytes"], "g"), str(row["skips"]),
            text_or(row["underflow"] and row["underflow"][0], ".2g"),
            text_or(row["saturated"] and row["saturated"][0], ".2g"), text_or(row["lost"], ".2f"), row["verdict"])


NOTES = """“loss at the end” is the mean training loss of the last tenth of the steps; “less fp32” is its mean difference to
the fp32 run on the same tokens from the same weights, “±” how far that difference wanders between tenths of the second
half. “no different”: within two of these, within what adding in another order did to fp32 (fp32.order), or below 0.001.
“another seed”: twice the deviation of fp32 over seeds. “bytes per parameter” is what a GPU needs for weights, gradients and optimizer.
“worst underflow”: the largest share of non-zeros that became zero, over tensors and reports. “lost updates”: the share of
the last report's updates that are below half a spacing of the 16-bit weight: harmless under an fp32 master, under
Kahan's compensation and in stochastic rounding, and what holds bf16-nearest back."""


def describe(runs, folder, last):
    """What was trained, in a sentence."""
    try:
        options = json.loads(read_text(os.path.join(folder, "runs", "fp32", "options.json")))
    except ValueError:
        options = {}
    fp32 = runs["fp32"]
    tokens = number(fp32.rows[last].get("tokens"))
    shape = ", ".join(f"{options[k]} {k}" for k in ("layers", "channels", "heads") if k in options)
    rate = f"peak learning rate {options['lr']:g}, " if number(options.get("lr")) is not None else ""
    return (f"{last} steps{f' on {tokens:,.0f} tokens' if tokens else ''}; {shape or 'the model of runs/fp32/options.json'}; "
            f"{rate}AdamW. All from one seed, on the same tokens in the same order.")


def write_markdown(folder, runs, rows, seed_noise, last):
    lines = ["# Precisions compared", "", describe(runs, folder, last), "",
             "| " + " | ".join(COLUMNS) + " |", "|" + "---|" * len(COLUMNS)]
    lines += ["| " + " | ".join(table_cells(row)) + " |" for row in rows]
    lines += ["", NOTES.replace("\n", " ")]
    if seed_noise is not None:
        lines += ["", f"Deviation of fp32's loss at the end over seeds: {seed_noise:.4f}."]
    points = sorted({max(1, round(last * i / 8)) for i in range(1, 9)})
    window = max(3, last // 20)
    lines += ["", "## Curves", "", f"Training loss, mean of the {window} steps before:", ""] + curve_rows(rows, points, window)
    events = [f"* {r['name']}: {r['run'].broken or f'step {step}: {text}'}" for r in rows
              for step, text in (r["run"].warnings[:3] or ([(0, "")] if r["run"].broken else []))]
    if events:
        lines += ["", "## Warnings", ""] + events
    with open(os.path.join(folder, "compare.md"), "w", encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n")


def curve_rows(rows, points, window):
    """Markdown rows of training losses, each the mean of `window` steps up to a point."""
    lines = ["| mode | " + " | ".join(f"step {p}" for p in points) + " |", "|---|" + "---|" * len(points)]
    for row in rows:
        loss, cells = row["run"].loss, []
        for p in points:
            near = [loss[s] for s in loss if p - window < s <= p]
            cells.append(f"{sum(near) / len(near):.4f}" if near else "–")
        lines.append(f"| {row['name']} | " + " | ".join(cells) + " |")
    return lines


MEASURED = re.compile(r"(<!-- measured[^>]*-->\n).*?(<!-- end -->)", re.DOTALL)


def write_doc(doc, runs, rows, folder, seed_noise, last):
    """Fills what stands between '<!-- measured -->' and '<!-- end -->' in doc/MODE.md and doc/README.md."""
    points = sorted({max(1, round(last * i / 6)) for i in range(1, 7)})
    window = max(3, last // 20)
    for name in sorted(os.listdir(doc)):
        page = read_text(os.path.join(doc, name))
        mode = name[:-3]
        if not name.endswith(".md") or not MEASURED.search(page):
            continue
        if mode == "README":
            shown = rows
            lines = [describe(runs, folder, last), "", "| " + " | ".join(COLUMNS) + " |", "|" + "---|" * len(COLUMNS)]
            lines += ["| " + " | ".join(table_cells(row)) + " |" for row in shown] + ["", NOTES.replace("\n", " ")]
            if seed_noise is not None:
                lines += ["", f"Deviation of fp32's loss at the end over seeds: {seed_noise:.4f}."]
        else:
            shown = [row for row in rows if row["name"] in ("fp32", mode) or row["name"].startswith(mode + "-")
                     or (mode == "fp32" and row["name"] == "fp32.order")]
            if not any(row["name"] == mode for row in shown):
                continue
            lines = [f"Training loss, mean of the {window} steps before ({describe(runs, folder, last).split(';')[0]}):", ""]
            lines += curve_rows(shown, points, window) + [""]
            for row in shown[1:] if mode != "fp32" else shown:
                parts = [f"loss at the end {text_or(row['loss'], '.4f')}",
                         f"less fp32 {text_or(row['gap'], '+.4f')} ± {text_or(row['error'], '.4f')}",
                         f"validation {text_or(row['val'], '.4f')} ({text_or(row['val_gap'], '+.4f')})", row["verdict"]]
                for key, words in (("underflow", "worst underflow"), ("saturated", "worst saturation")):
                    if row[key]:
                        parts.append(f"{words} {row[key][0]:.2g} ({row[key][1]})" if row[key][0] else f"{words} 0")
                parts.append(f"lost updates {text_or(row['lost'], '.2f')}")
                lines.append(f"* {row['name']}: " + "; ".join(parts))
        filled = MEASURED.sub(lambda m: m.group(1) + "\n".join(lines) + "\n" + m.group(2), page)
        with open(os.path.join(doc, name), "w", encoding="utf-8") as file:
            file.write(filled)
        print(os.path.join(doc, name))


def scale_section(runs):
    """Loss scale with its skips, and the range of operand scales of each mode that has them."""
    parts = []
    scaled = {n: list(r.scale.items()) for n, r in runs.items() if r.scale}
    if scaled:
        marks = [(s, runs[n].scale.get(s, 1.0), n, f"{n}: step {s} skipped") for n in scaled for s in runs[n].skips]
        parts += ["<p>The loss scale; a cross marks a skipped step.</p>", chart(scaled, "loss scale", marks=marks, log2=True)]
    for role, words in (("x", "inputs"), ("w", "weights"), ("dy", "output gradients")):
        series = {}
        for name, run in runs.items():
            by_step = {}
            for row in run.numerics:
                if row.get("role") == role and (number(row.get("scale_min")) or 0) > 0:
                    low = by_step.get(int(row["step"]), row["scale_min"])
                    by_step[int(row["step"])] = min(low, row["scale_min"])
            if by_step:
                series[name] = sorted(by_step.items())
        if series:
            parts += [f"<p>The smallest scale that any linear layer's {words} were multiplied by before the cast.</p>",
                      chart(series, f"smallest scale of {words}", log2=True)]
    skips = [f"{n}: {len(r.skips)} skipped (steps {', '.join(map(str, r.skips[:12]))}"
             f"{' …' if len(r.skips) > 12 else ''})" for n, r in runs.items() if r.skips]
    parts.append(f"<p>{escape('; '.join(skips)) if skips else 'No step was skipped in any mode.'}</p>")
    return parts


def heat_section(runs):
    legend = "".join(f'<span style="background:{shade(v, True)}"></span>' for v in (0, 1e-5, 1e-4, 1e-3, 1e-2, 0.1, 1))
    parts = ["<h2>Underflow</h2><p class='note'>Share of non-zeros that became zero in a cast or store: per role and "
             f"layer the worst tensor. <span class='scale'>{legend}</span> 0, 10⁻⁵ … 1.</p><div class='grid2'>"]
    shown = 0
    for name, run in runs.items():
        cells = underflow_cells(run)
        if cells and any(share > 0 for share, _ in cells.values()):
            parts.append(heat_map(cells, name, True))
            shown += 1
    parts.append("</div>" + ("" if shown else "<p>Nothing measured, or nothing underflowed.</p>"))
    legend = "".join(f'<span style="background:{shade(v, False)}"></span>' for v in (0, 0.2, 0.4, 0.6, 0.8, 1))
    parts.append("<h2>Lost updates</h2><p class='note'>Share of updates that round away in the 16-bit weight. "
                 f"<span class='scale'>{legend}</span> 0 … 1.</p><div class='grid2'>")
    shown = 0
    for name, run in runs.items():
        cells = lost_cells(run)
        if cells and name != "fp32.order" and not name.startswith("fp32.seed"):
            parts.append(heat_map(cells, name, False))
            shown += 1
    parts.append("</div>" + ("" if shown else "<p>Nothing measured.</p>"))
    return parts


def write_html(folder, runs, rows, band, seed_noise, window, last):
    fp32 = runs["fp32"]
    shown = {r["name"]: r["run"] for r in rows}
    curves = {}
    for name, run in shown.items():
        steps = list(run.loss)
        curves[name] = list(zip(steps, smoothed(list(run.loss.values()), max(3, last // 40))))
    ends = [v for name, values in curves.items() for _, v in values]
    gaps = {}
    for name, run in shown.items():
        pairs = difference(run, fp32)
        if name != "fp32" and pairs:
            gaps[name] = list(zip([s for s, _ in pairs], smoothed([d for _, d in pairs], window)))
    # A mode that breaks must not flatten the others: the picture ends at 1.3 times the widest ordinary difference.
    reach = sorted(abs(d) for values in gaps.values() for _, d in values) or [1.0]
    limit = max([1.3 * reach[int(0.97 * (len(reach) - 1))], 1e-4] + [1.2 * w for _, w in band])
    parts = ["<h1>Precisions compared</h1>", f"<p>{escape(describe(runs, folder, last))}</p>", "<table><tr>"]
    parts += [f"<th>{escape(c)}</th>" for c in COLUMNS] + ["</tr>"]
    for row in rows:
        cells = list(table_cells(row))
        titles = {10: row["underflow"] and row["underflow"][1], 11: row["saturated"] and row["saturated"][1]}
        parts.append("<tr>" + "".join(f'<td title="{escape(titles.get(i) or "")}">{escape(c)}</td>'
                                      for i, c in enumerate(cells)) + "</tr>")
    parts += ["</table>", f"<p class='note'>{escape(NOTES)}</p>"]
    parts += ["<h2>Training loss</h2><p class='note'>Running mean. Click a name to hide its curves.</p>",
              chart(curves, "loss", y_limits=(min(ends), max(ends)))]
    parts += ["<h2>Difference to fp32</h2><p class='note'>Same tokens, running mean over "
              f"{window} steps. Grey: one and two deviations of fp32 over {1 + sum(n.startswith('fp32.seed') for n in runs)}"
              " seeds.</p>", chart(gaps, "loss less fp32's", band=band, y_limits=(-limit, limit))]
    validations = {n: list(r.val.items()) for n, r in shown.items() if len(r.val) > 1}
    later = {n: [(s, v) for s, v in values if s > 0] for n, values in validations.items()}
    parts += ["<h2>Validation loss</h2>", chart(later, "validation loss", dots=True)]
    parts += ["<h2>Scales and skipped steps</h2>"] + scale_section(shown) + heat_section(shown)
    parts += ["<h2>Speed and memory</h2><div class='grid2'><div><p>Tokens a second on this machine's CPU, where narrow "
              "formats are emulated: their speed here says nothing of a GPU.</p>",
              bars(rows, "speed", "tokens per second", lambda r: f"{r['speed']:,.0f}"),
              "</div><div><p>Bytes per parameter as a GPU stores them: weights, gradients, optimizer.</p>",
              bars(rows, "bytes", "bytes per parameter", lambda r: f"{r['bytes']:g}"), "</div></div>"]
    warnings = [f"<li>{escape(n)}, step {s}: {escape(t)}</li>" for n, r in shown.items() for s, t in r.warnings[:5]]
    warnings += [f"<li>{escape(r.broken)}</li>" for r in runs.values() if r.broken]
    if warnings:
        parts += ["<h2>Warnings</h2><ul>"] + warnings + ["</ul>"]
    with open(os.path.join(folder, "compare.html"), "w", encoding="utf-8") as file:
        file.write(PAGE % "\n".join(parts))


def main():
    args = sys.argv[1:]
    if len(args) not in (1, 3) or args[0].startswith("-") or args[1:2] not in ([], ["--doc"]):
        fail("usage: compare_report.py FOLDER [--doc FOLDER]; FOLDER is the --out of compare_precisions.sh")
    folder = args[0]
    runs = read_runs(folder)
    rows, band, seed_noise, window, last = summary(runs)
    unfinished = [name for name, run in runs.items() if not run.finished and not run.broken]
    if unfinished:
        print(f"not finished, reported as far as they are: {', '.join(unfinished)}", file=sys.stderr)
    write_markdown(folder, runs, rows, seed_noise, last)
    write_html(folder, runs, rows, band, seed_noise, window, last)
    print(os.path.join(folder, "compare.html"))
    print(os.path.join(folder, "compare.md"))
    if len(args) == 3:
        write_doc(args[2], runs, rows, folder, seed_noise, last)


if __name__ == "__main__":
    main()
