// One chart: axes, curves, marks and cursor. All charts share `view`: the data, the selection, and the cursor.
import { draw, element } from "./elements.js";
import { exactly, short, ticks, rounded } from "./numbers.js";

const MARGIN = { left: 54, right: 14, top: 10, bottom: 42 };

// The position of a step on the chosen axis, interpolated between the steps that the run stores.
function onAxis(view, run, step) {
  if (view.axis === "steps") return step;
  const { steps, [view.axis]: values } = view.data.runs[run].axis;
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

export class Chart {
  constructor(view, spec) {
    this.view = view;
    this.spec = spec;
    this.first = false;
    this.figure = element("figure");
    const caption = element("figcaption");
    caption.append(element("h3", {}, spec.title), element("span", {}, spec.unit));
    this.svg = draw(this.figure, "svg", { tabindex: 0, role: "img", class: "chart" });
    this.output = element("output");
    this.figure.append(caption, this.svg, this.output);
    this.svg.addEventListener("pointermove", (event) => this.point(event));
    this.svg.addEventListener("pointerdown", (event) => this.point(event));
    this.svg.addEventListener("pointerleave", () => this.view.move(null));
    this.svg.addEventListener("keydown", (event) => this.key(event));
    this.svg.addEventListener("focus", () => this.output.setAttribute("aria-live", "polite"));
    this.svg.addEventListener("blur", () => this.output.removeAttribute("aria-live"));
  }
  color(series) {
    return `var(--c${(this.view.several ? series.run : series.kind === "held out" ? 1 : 0) % 10})`;
  }
  shown() {
    const kinds = new Set(this.spec.series.map((series) => series.kind));
    const alone = !kinds.has("smoothed") && !kinds.has("held out"); // no other series to show
    return this.spec.series.filter((series) => this.view.runs.has(series.run) && (alone || this.view.kinds.has(series.kind)));
  }
  render() {
    const width = Math.max(this.figure.clientWidth - 28, 200);
    const height = this.first && width > 700 ? 320 : 230;
    this.width = width;
    this.height = height;
    this.log = this.view.log || this.spec.log;
    this.svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    this.svg.setAttribute("height", height);
    this.svg.replaceChildren();
    this.curves = this.shown().map((series) => ({ series, x: series.x.map((step) => onAxis(this.view, series.run, step)) }));
    this.scale();
    this.svg.setAttribute("aria-label", this.describe());
    if (!this.ok) {
      draw(this.svg, "text", { x: width / 2, y: height / 2, "text-anchor": "middle" }, "no data");
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
      const margin = (y1 - y0) * 0.05 || Math.abs(y0) * 0.1 || 1;
      const floor = y0 >= 0 ? 0 : -Infinity;
      [y0, y1] = [Math.max(y0 - margin, floor), y1 + margin];
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
    draw(this.svg, "text", { x: last, y: floor + 35, "text-anchor": "end" }, this.view.axis);
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
    made.style.stroke = this.color(series);
    if (this.view.several && series.kind === "smoothed" && this.view.kinds.has("held out") && this.spec.series.some((other) => other.kind === "held out"))
      made.style.opacity = ".45";
    if (series.kind !== "held out" && points > 1) return;
    if (points > this.width / 12) return;
    for (let i = 0; i < x.length; i++) {
      const y = series.y[i];
      if (y === null || x[i] === null || (this.log && y <= 0)) continue;
      draw(this.svg, "circle", { cx: this.sx(x[i]), cy: this.sy(y), r: 2.6 }).style.fill = this.color(series);
    }
  }
  signs() {
    const floor = this.height - MARGIN.bottom;
    this.view.data.runs.forEach((run, number) => {
      if (!this.view.runs.has(number)) return;
      for (const { kind, step, text } of run.marks) {
        if ((this.view.several && kind === "checkpoint") || kind === "best") continue;
        const at = onAxis(this.view, number, step);
        if (at === null || at < this.x0 || at > this.x1) continue;
        const x = this.sx(at);
        const shape = { checkpoint: `M${x} ${floor}v-7`, restart: `M${x} ${floor - 1}l-4 -7h8z`, skipped: `M${x - 3} ${floor - 8}l6 6m0 -6l-6 6` }[kind];
        const made = draw(this.svg, "path", { d: shape, class: "sign" });
        made.style.stroke = kind === "skipped" ? "var(--bad)" : this.view.several ? `var(--c${number % 10})` : "var(--soft)";
        draw(made, "title", {}, `${kind} at step ${rounded(step)}${text ? `: ${text}` : ""}`);
      }
      const best = run.marks.find((mark) => mark.kind === "best");
      const curve = best && this.curves.find(({ series }) => series.run === number && series.kind === "held out");
      const i = curve ? curve.series.x.indexOf(best.step) : -1;
      if (i < 0 || curve.series.y[i] === null || !/^loss/.test(this.spec.name)) return;
      const ring = draw(this.svg, "circle", { cx: this.sx(curve.x[i]), cy: this.sy(curve.series.y[i]), r: 5.5, class: "sign" });
      ring.style.stroke = this.color(curve.series);
      draw(ring, "title", {}, `best held-out loss ${best.text} at step ${rounded(best.step)}`);
    });
  }

  point(event) {
    if (!this.ok) return;
    const box = this.svg.getBoundingClientRect();
    const share = (event.clientX - box.left) * (this.width / box.width);
    const value = this.x0 + ((share - MARGIN.left) / (this.width - MARGIN.left - MARGIN.right)) * (this.x1 - this.x0);
    this.view.move(Math.min(Math.max(value, this.x0), this.x1));
  }
  key(event) {
    const direction = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity, Escape: 0 }[event.key];
    if (direction === undefined || !this.ok) return;
    event.preventDefault();
    if (!direction) return this.view.move(null);
    const stops = [...new Set(this.curves.flatMap(({ x }) => x.filter((value) => value !== null)))].sort((a, b) => a - b);
    const from = this.view.cursor === null ? stops.length - (direction < 0 ? 0 : 1) : stops.findIndex((value) => value >= this.view.cursor - 1e-9);
    const to = (from < 0 ? stops.length - 1 : from) + direction * (event.shiftKey ? 10 : 1);
    this.view.move(stops[Math.min(Math.max(to, 0), stops.length - 1)]);
  }
  nearest({ series, x }) {
    if (this.view.cursor === null) return x.length - 1;
    let low = 0, high = x.length - 1;
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (x[middle] <= this.view.cursor) low = middle; else high = middle;
    }
    return Math.abs(x[low] - this.view.cursor) <= Math.abs(x[high] - this.view.cursor) ? low : high;
  }
  read() {
    if (!this.ok) return;
    this.pointer.replaceChildren();
    const parts = [];
    if (this.view.cursor !== null && this.view.cursor >= this.x0 && this.view.cursor <= this.x1) {
      const x = this.sx(this.view.cursor);
      draw(this.pointer, "line", { class: "cursor", x1: x, x2: x, y1: MARGIN.top, y2: this.height - MARGIN.bottom });
    }
    const where = this.view.cursor === null ? "last" : this.view.axis === "minutes" ? `minute ${exactly(this.view.cursor)}` : this.view.axis === "steps" ? `step ${rounded(this.view.cursor)}` : `${rounded(this.view.cursor)} tokens`;
    parts.push(element("span", {}, where));
    for (const curve of this.curves) {
      const i = this.nearest(curve), value = curve.series.y[i];
      if (i < 0) continue;
      const part = element("span");
      const swatch = element("i", { class: "swatch" });
      swatch.style.background = this.color(curve.series);
      const name = this.view.several ? `${this.view.data.runs[curve.series.run].name}, ${curve.series.kind}` : curve.series.kind;
      part.append(swatch, `${name} `, element("b", {}, exactly(value) + (this.spec.unit === "%" ? " %" : "")));
      if (this.spec.perplexity && curve.series.kind === "held out" && value !== null) part.append(` (perplexity ${exactly(Math.exp(value))})`);
      parts.push(part);
      if (this.view.cursor !== null && value !== null && curve.x[i] !== null && (!this.log || value > 0))
        draw(this.pointer, "circle", { cx: this.sx(curve.x[i]), cy: this.sy(value), r: 3.5 }).style.fill = this.color(curve.series);
    }
    this.output.replaceChildren(...parts);
  }
  describe() {
    const values = this.curves.map(({ series }) => `${this.view.data.runs[series.run].name} ${series.kind}: from ${exactly(series.y[0] ?? null)} to ${exactly(series.y.at(-1) ?? null)}`);
    return `${this.spec.title}${this.spec.unit ? ` in ${this.spec.unit}` : ""} by ${this.view.axis}. ${values.join("; ")}. Use the arrow keys to read values.`;
  }
}
