"""Draws the measured points as an SVG: a column for each model and protocol, a row for each figure."""
ROWS = (("server CPU, us per request", "cpu_us"), ("requests per second", "per_second"), ("p50, us", "p50_us"))
COLORS = {"sluice": "#1f77b4", "original": "#d98c3f", "bare": "#7a7a7a"}
WIDTH, HEIGHT, LEFT, TOP = 260, 170, 60, 60


def draw(points, bare, driver):
    """points are run.py's; bare is a function (model, batch) -> CPU of ONNX Runtime alone, us per item."""
    columns = sorted({(p["model"], p["protocol"]) for p in points})
    concurrencies = sorted({p["concurrency"] for p in points})
    width, height = LEFT + WIDTH * len(columns), TOP + HEIGHT * len(ROWS) + 30
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif" font-size="11">',
           '<rect width="100%" height="100%" fill="white"/>',
           f'<text x="{LEFT}" y="18" font-size="14">measured with {driver}; by concurrency; less is better for CPU and p50</text>']
    for i, name in enumerate(COLORS):
        label = {"original": "tritonserver 2.51, Python backend", "bare": "ONNX Runtime alone, per item"}.get(name, name)
        out.append(f'<rect x="{LEFT + 220 * i}" y="26" width="10" height="10" fill="{COLORS[name]}"/>'
                   f'<text x="{LEFT + 220 * i + 14}" y="35">{label}</text>')
    for c, (model, protocol) in enumerate(columns):
        out.append(f'<text x="{LEFT + c * WIDTH + WIDTH // 2 - 20}" y="{TOP - 6}" text-anchor="middle">{model}, {protocol}</text>')
        for r, (title, key) in enumerate(ROWS):
            here = [p for p in points if (p["model"], p["protocol"]) == (model, protocol)]
            out += panel(here, concurrencies, key, bare, LEFT + c * WIDTH, TOP + r * HEIGHT, title if c == 0 else "")
    return "\n".join(out + ["</svg>"]) + "\n"


def panel(points, concurrencies, key, bare, x, y, title):
    """The bars of one model, protocol and figure."""
    inner = HEIGHT - 40
    top = max([p[key] for p in points], default=1) or 1
    out = [f'<line x1="{x}" y1="{y + inner}" x2="{x + WIDTH - 40}" y2="{y + inner}" stroke="black"/>']
    if title:
        out.append(f'<text transform="translate({x - 40},{y + inner}) rotate(-90)">{title}</text>')
    for i, concurrency in enumerate(concurrencies):
        at = x + 8 + i * (WIDTH - 40) // len(concurrencies)
        out.append(f'<text x="{at + 25}" y="{y + inner + 14}" text-anchor="middle">{concurrency}</text>')
        for p in points:
            if p["concurrency"] != concurrency:
                continue
            left = at + (0 if p["system"] == "sluice" else 26)
            h = inner * p[key] / top
            out.append(f'<rect x="{left}" y="{y + inner - h:.1f}" width="22" height="{h:.1f}" fill="{COLORS[p["system"]]}"/>'
                       f'<text x="{left + 11}" y="{y + inner - h - 3:.1f}" text-anchor="middle" font-size="9">{p[key]:.0f}</text>')
            if key == "cpu_us":
                h = inner * min(1, bare(p["model"], p["batch"]) / top)
                out.append(f'<rect x="{left}" y="{y + inner - h:.1f}" width="22" height="{h:.1f}" fill="{COLORS["bare"]}" opacity="0.6"/>')
    return out
