"use strict";
// Draws the charts of a training report from the data embedded in the page. Asks for nothing; stores nothing.
const data = JSON.parse(document.getElementById("data").textContent);
const SVG = document.getElementById("seed").namespaceURI;
const MARGIN = { left: 54, right: 14, top: 10, bottom: 42 };
const several = data.runs.length > 1;
const view = {
  axis: "steps",
  log: false,
  kinds: new Set(several ? ["smoothed", "held out"] : ["each step", "smoothed", "held out"]),
  runs: new Set(data.runs.keys()),
  cursor: null, // a place on the x axis, shared by all charts
};
const charts = [];

function element(name, attributes = {}, text) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}
function draw(parent, name, attributes, text) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  parent.append(made);
  return made;
}
const color = (series) => `var(--c${(several ? series.run : series.kind === "held out" ? 1 : 0) % 10})`;

// --- numbers ---------------------------------------------------------------------------------------------------------

function short(value) {
  if (value === 0) return "0";
  const size = Math.abs(value);
  for (const [unit, sign] of [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]])
    if (size >= unit && (sign !== "k" || size >= 1e4)) return `${+(value / unit).toPrecision(4)}${sign}`;
  return size < 1e-3 ? value.toExponential().replace(/(\.\d{2})\d+/, "$1") : `${+value.toPrecision(4)}`;
}
const whole = (value) => Math.round(value).toLocaleString("en");
function exactly(value) {
  if (value === null) return "not finite";
  return Math.abs(value) >= 1e4 ? whole(value) : Math.abs(value) < 1e-3 && value ? value.toExponential(2) : `${+value.toPrecision(5)}`;
}
function ticks(low, high, most, log) {
  if (log) {
    const first = Math.ceil(Math.log10(low) - 1e-9), last = Math.floor(Math.log10(high) + 1e-9);
    if (last - first >= 1) {
      const stride = Math.max(1, Math.ceil((last - first + 1) / most));
      return Array.from({ length: Math.floor((last - first) / stride) + 1 }, (_, i) => 10 ** (first + i * stride));
    }
  }
  const raw = (high - low) / Math.max(most, 1), power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((times) => power * times).find((size) => size >= raw * (1 - 1e-9));
  const found = [];
  for (let place = Math.ceil(low / step - 1e-9); place * step <= high + step * 1e-9; place++) found.push(+(place * step).toPrecision(12));
  return found;
}

// Where a step stands on the chosen axis: the run says it for some steps, the rest lie on lines between them.
function place(run, step) {
  if (view.axis === "steps") return step;
  const { steps, [view.axis]: values } = data.runs[run].axis;
  if (!steps.length) return null;
  let low = 0, high = steps.length - 1;
  if (step >= steps[high]) return values[high];
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (steps[middle] <= step) low = middle; else high = middle;
  }
  const share = (step - steps[low]) / (steps[high] - steps[low] || 1);
  return values[low] + Math.max(share, 0) * (values[high] - values[low]);
}

// --- one chart -------------------------------------------------------------------------------------------------------

class Chart {
  constructor(spec) {
    this.spec = spec;
    this.figure = element("figure");
    const caption = element("figcaption");
    caption.append(element("h3", {}, spec.title), element("span", {}, spec.unit));
    this.svg = draw(this.figure, "svg", { tabindex: 0, role: "img", class: "chart" });
    this.output = element("output");
    this.figure.append(caption, this.svg, this.output);
    this.svg.addEventListener("pointermove", (event) => this.point(event));
    this.svg.addEventListener("pointerdown", (event) => this.point(event));
    this.svg.addEventListener("pointerleave", () => move(null));
    this.svg.addEventListener("keydown", (event) => this.key(event));
    this.svg.addEventListener("focus", () => this.output.setAttribute("aria-live", "polite"));
    this.svg.addEventListener("blur", () => this.output.removeAttribute("aria-live"));
  }
  shown() {
    const kinds = new Set(this.spec.series.map((series) => series.kind));
    const alone = !kinds.has("smoothed") && !kinds.has("held out"); // nothing else to look at
    return this.spec.series.filter((series) => view.runs.has(series.run) && (alone || view.kinds.has(series.kind)));
  }
  render() {
    const width = Math.max(this.figure.clientWidth - 28, 200), first = charts[0] === this;
    const height = first && width > 700 ? 320 : 230;
    this.width = width;
    this.height = height;
    this.log = view.log || this.spec.log;
    this.svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    this.svg.setAttribute("height", height);
    this.svg.replaceChildren();
    this.curves = this.shown().map((series) => ({ series, x: series.x.map((step) => place(series.run, step)) }));
    this.scale();
    this.svg.setAttribute("aria-label", this.describe());
    if (!this.ok) {
      draw(this.svg, "text", { x: width / 2, y: height / 2, "text-anchor": "middle" }, "nothing to show here");
      this.output.replaceChildren();
      return;
    }
    this.axes();
    for (const curve of this.curves) this.curve(curve);
    this.bases();
    this.signs();
    this.pointer = draw(this.svg, "g", {});
    this.read();
  }
  scale() {
    let [x0, x1, y0, y1] = [Infinity, -Infinity, Infinity, -Infinity];
    const take = (value) => {
      if (value !== null && (!this.log || value > 0)) [y0, y1] = [Math.min(y0, value), Math.max(y1, value)];
    };
    for (const { series, x } of this.curves) {
      for (const value of x) if (value !== null) [x0, x1] = [Math.min(x0, value), Math.max(x1, value)];
      series.y.forEach(take);
    }
    this.ok = y0 <= y1 && x0 <= x1;
    if (!this.ok) return;
    for (const line of this.spec.lines) take(line.value);
    if (this.log) {
      [y0, y1] = y1 / y0 < 1.2 ? [y0 / 1.2, y1 * 1.2] : [y0 / (y1 / y0) ** 0.04, y1 * (y1 / y0) ** 0.04];
    } else {
      const room = (y1 - y0) * 0.05 || Math.abs(y0) * 0.1 || 1;
      const floor = y0 >= 0 ? 0 : -Infinity;
      [y0, y1] = [Math.max(y0 - room, floor), y1 + room];
    }
    if (x0 === x1) [x0, x1] = [x0 - (x0 || 1) * 0.5, x1 + (x1 || 1) * 0.5];
    else if (x0 > 0 && x0 < (x1 - x0) * 0.1) x0 = 0;
    Object.assign(this, { x0, x1, y0, y1 });
    const { left, right, top, bottom } = MARGIN;
    this.sx = (value) => left + ((value - x0) / (x1 - x0)) * (this.width - left - right);
    const up = (share) => top + (1 - share) * (this.height - top - bottom);
    this.sy = this.log
      ? (value) => up(Math.log(value / y0) / Math.log(y1 / y0))
      : (value) => up((value - y0) / (y1 - y0));
  }
  axes() {
    const { width, height } = this, floor = height - MARGIN.bottom;
    for (const value of ticks(this.y0, this.y1, 5, this.log)) {
      const y = this.sy(value);
      draw(this.svg, "line", { class: "grid", x1: MARGIN.left, x2: width - MARGIN.right, y1: y, y2: y });
      draw(this.svg, "text", { x: MARGIN.left - 8, y: y + 4, "text-anchor": "end" }, short(value));
    }
    draw(this.svg, "line", { class: "axis", x1: MARGIN.left, x2: width - MARGIN.right, y1: floor, y2: floor });
    const last = width - MARGIN.right;
    for (const value of ticks(this.x0, this.x1, width / 100, false)) {
      const x = this.sx(value);
      draw(this.svg, "line", { class: "axis", x1: x, x2: x, y1: floor, y2: floor + 4 });
      draw(this.svg, "text", { x, y: floor + 19, "text-anchor": "middle" }, short(value));
    }
    draw(this.svg, "text", { x: last, y: floor + 35, "text-anchor": "end" }, view.axis);
  }
  bases() {
    const used = [];
    for (const line of this.spec.lines) {
      if (this.log && line.value <= 0) continue;
      const y = this.sy(line.value);
      draw(this.svg, "line", { class: "base", x1: MARGIN.left, x2: this.width - MARGIN.right, y1: y, y2: y });
      if (used.some((other) => Math.abs(other - y) < 13)) continue;
      used.push(y);
      const up = y - 5 < MARGIN.top + 8 ? 14 : -5;
      draw(this.svg, "text", { x: this.width - MARGIN.right, y: y + up, "text-anchor": "end" }, line.label);
    }
  }
  curve({ series, x }) {
    let path = "", pen = "M", points = 0;
    for (let i = 0; i < x.length; i++) {
      const y = series.y[i];
      if (y === null || x[i] === null || (this.log && y <= 0)) { pen = "M"; continue; }
      path += `${pen}${this.sx(x[i]).toFixed(1)} ${this.sy(y).toFixed(1)}`;
      pen = "L";
      points++;
    }
    if (!points) return;
    const raw = series.kind === "each step" && this.spec.series.some((other) => other.kind === "smoothed");
    const made = draw(this.svg, "path", { d: path, class: raw ? "curve raw" : "curve" });
    made.style.stroke = color(series);
    if (several && series.kind === "smoothed" && view.kinds.has("held out") && this.spec.series.some((other) => other.kind === "held out"))
      made.style.opacity = ".45";
    if (series.kind !== "held out" && points > 1) return;
    if (points > this.width / 12) return;
    for (let i = 0; i < x.length; i++) {
      const y = series.y[i];
      if (y === null || x[i] === null || (this.log && y <= 0)) continue;
      draw(this.svg, "circle", { cx: this.sx(x[i]), cy: this.sy(y), r: 2.6 }).style.fill = color(series);
    }
  }
  signs() {
    const floor = this.height - MARGIN.bottom;
    data.runs.forEach((run, number) => {
      if (!view.runs.has(number)) return;
      for (const { kind, step, text } of run.marks) {
        if ((several && kind === "checkpoint") || kind === "best") continue;
        const at = place(number, step);
        if (at === null || at < this.x0 || at > this.x1) continue;
        const x = this.sx(at);
        const shape = { checkpoint: `M${x} ${floor}v-7`, restart: `M${x} ${floor - 1}l-4 -7h8z`, skipped: `M${x - 3} ${floor - 8}l6 6m0 -6l-6 6` }[kind];
        const made = draw(this.svg, "path", { d: shape, class: "sign" });
        made.style.stroke = kind === "skipped" ? "var(--bad)" : several ? `var(--c${number % 10})` : "var(--soft)";
        draw(made, "title", {}, `${kind} at step ${whole(step)}${text ? `: ${text}` : ""}`);
      }
      const best = run.marks.find((mark) => mark.kind === "best");
      const curve = best && this.curves.find(({ series }) => series.run === number && series.kind === "held out");
      const i = curve ? curve.series.x.indexOf(best.step) : -1;
      if (i < 0 || curve.series.y[i] === null || !/^loss/.test(this.spec.name)) return;
      const ring = draw(this.svg, "circle", { cx: this.sx(curve.x[i]), cy: this.sy(curve.series.y[i]), r: 5.5, class: "sign" });
      ring.style.stroke = color(curve.series);
      draw(ring, "title", {}, `best held-out loss ${best.text} at step ${whole(best.step)}`);
    });
  }

  // --- the cursor

  point(event) {
    if (!this.ok) return;
    const box = this.svg.getBoundingClientRect();
    const share = (event.clientX - box.left) * (this.width / box.width);
    const value = this.x0 + ((share - MARGIN.left) / (this.width - MARGIN.left - MARGIN.right)) * (this.x1 - this.x0);
    move(Math.min(Math.max(value, this.x0), this.x1));
  }
  key(event) {
    const way = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity, Escape: 0 }[event.key];
    if (way === undefined || !this.ok) return;
    event.preventDefault();
    if (!way) return move(null);
    const stops = [...new Set(this.curves.flatMap(({ x }) => x.filter((value) => value !== null)))].sort((a, b) => a - b);
    const from = view.cursor === null ? stops.length - (way < 0 ? 0 : 1) : stops.findIndex((value) => value >= view.cursor - 1e-9);
    const to = (from < 0 ? stops.length - 1 : from) + way * (event.shiftKey ? 10 : 1);
    move(stops[Math.min(Math.max(to, 0), stops.length - 1)]);
  }
  nearest({ series, x }) {
    if (view.cursor === null) return x.length - 1;
    let low = 0, high = x.length - 1;
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (x[middle] <= view.cursor) low = middle; else high = middle;
    }
    return Math.abs(x[low] - view.cursor) <= Math.abs(x[high] - view.cursor) ? low : high;
  }
  read() {
    if (!this.ok) return;
    this.pointer.replaceChildren();
    const parts = [];
    if (view.cursor !== null && view.cursor >= this.x0 && view.cursor <= this.x1) {
      const x = this.sx(view.cursor);
      draw(this.pointer, "line", { class: "cursor", x1: x, x2: x, y1: MARGIN.top, y2: this.height - MARGIN.bottom });
    }
    const where = view.cursor === null ? "at the end" : view.axis === "minutes" ? `minute ${exactly(view.cursor)}` : view.axis === "steps" ? `step ${whole(view.cursor)}` : `${whole(view.cursor)} tokens`;
    parts.push(element("span", {}, where));
    for (const curve of this.curves) {
      const i = this.nearest(curve), value = curve.series.y[i];
      if (i < 0) continue;
      const part = element("span");
      const swatch = element("i", { class: "swatch" });
      swatch.style.background = color(curve.series);
      const name = several ? `${data.runs[curve.series.run].name}, ${curve.series.kind}` : curve.series.kind;
      part.append(swatch, `${name} `, element("b", {}, exactly(value) + (this.spec.unit === "%" ? " %" : "")));
      if (this.spec.perplexity && curve.series.kind === "held out" && value !== null) part.append(` (perplexity ${exactly(Math.exp(value))})`);
      parts.push(part);
      if (view.cursor !== null && value !== null && curve.x[i] !== null && (!this.log || value > 0))
        draw(this.pointer, "circle", { cx: this.sx(curve.x[i]), cy: this.sy(value), r: 3.5 }).style.fill = color(curve.series);
    }
    this.output.replaceChildren(...parts);
  }
  describe() {
    const found = this.curves.map(({ series }) => `${data.runs[series.run].name} ${series.kind}: from ${exactly(series.y[0] ?? null)} to ${exactly(series.y.at(-1) ?? null)}`);
    return `${this.spec.title}${this.spec.unit ? ` in ${this.spec.unit}` : ""} by ${view.axis}. ${found.join("; ")}. Arrow keys read values.`;
  }
}

function move(value) {
  view.cursor = value;
  for (const chart of charts) chart.read();
}
function render() {
  for (const chart of charts) chart.render();
}

// --- controls --------------------------------------------------------------------------------------------------------

function toggle(label, pressed, act, swatch) {
  const button = element("button", { type: "button", "aria-pressed": pressed() });
  if (swatch) button.append(element("i", { class: "swatch" }));
  if (swatch) button.firstChild.style.background = swatch;
  button.append(label);
  button.addEventListener("click", () => {
    act();
    for (const other of document.querySelectorAll("#controls button")) other.setAttribute("aria-pressed", other.isPressed());
    render();
  });
  button.isPressed = pressed;
  return button;
}
function group(name, ...buttons) {
  const made = element("fieldset");
  made.append(element("legend", {}, name), ...buttons);
  return made;
}
const flip = (set, item) => (set.has(item) ? set.delete(item) : set.add(item));
const axes = data.runs.some((run) => run.axis.steps.length) ? ["steps", "tokens", "minutes"] : ["steps"];
const controls = document.getElementById("controls");
controls.append(
  group("x axis", ...axes.map((axis) => toggle(axis, () => view.axis === axis, () => { view.axis = axis; view.cursor = null; }))),
  group("y axis", toggle("log", () => view.log, () => { view.log = !view.log; })),
  group("show", ...["each step", "smoothed", "held out"].map((kind) =>
    toggle(kind, () => view.kinds.has(kind), () => flip(view.kinds, kind), several ? "" : `var(--c${kind === "held out" ? 1 : 0})`))),
);
if (several) controls.append(group("runs", ...data.runs.map((run, number) =>
  toggle(run.name, () => view.runs.has(number), () => flip(view.runs, number), `var(--c${number % 10})`))));
document.querySelectorAll(".run h2").forEach((head, number) => {
  if (!several) return;
  const swatch = element("i", { class: "swatch" });
  swatch.style.background = `var(--c${number % 10})`;
  head.prepend(swatch);
});
const kinds = new Set(data.runs.flatMap((run) => run.marks.map((mark) => mark.kind)));
const signs = { checkpoint: "| checkpoint", restart: "▽ gone on from a checkpoint", skipped: "✕ step without an update", best: "○ best held-out loss" };
document.getElementById("signs").textContent = Object.keys(signs).filter((kind) => kinds.has(kind) && !(several && kind === "checkpoint")).map((kind) => signs[kind]).join("   ·   ");
for (const spec of data.charts) charts.push(new Chart(spec));
document.getElementById("charts").append(...charts.map((chart) => chart.figure));
render();
let waiting = 0;
addEventListener("resize", () => { cancelAnimationFrame(waiting); waiting = requestAnimationFrame(render); });
