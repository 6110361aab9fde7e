// Attention weights as colours: small maps, and a large one with token labels that pointer and arrow keys read out.
import { element } from "./elements.js";

const STEPS = 256, MIN_CELL = 11, MAX_CELL = 46, MAX_LABEL = 108, MAX_PIXELS = 4096;

function rgb(name) {
  const text = getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  return [1, 3, 5].map((at) => parseInt(text.slice(at, at + 2), 16));
}

// A palette from the background over blue to the text colour, for the light or the dark theme.
export function makePalette() {
  const stops = [rgb("--card"), rgb("--c0"), rgb("--ink")], palette = new Uint8ClampedArray(STEPS * 3);
  for (let step = 0; step < STEPS; step++) {
    const value = (step / (STEPS - 1)) * 1.6, first = value < 1 ? 0 : 1, part = value - first;
    for (let i = 0; i < 3; i++) palette[3 * step + i] = stops[first][i] + (stops[first + 1][i] - stops[first][i]) * part;
  }
  return palette;
}

// The weight of the darkest colour: 1, so that maps can be compared, or the maximum of the map if `rescale`.
export function maxWeight({ weights, size, visible, columns = visible, rescale }) {
  if (!rescale) return 1;
  let max = 0;
  for (const from of visible) for (const to of columns) if (weights[from * size + to] > max) max = weights[from * size + to];
  return max || 1;
}

// One pixel per pair of visible tokens; colours follow the square root, so that small weights are visible. `size` is the
// number of columns of the weights, and `columns` the visible ones, if they differ from the rows.
export function paint(canvas, { weights, size, visible, columns = visible, palette, rescale }) {
  const max = maxWeight({ weights, size, visible, columns, rescale });
  canvas.width = columns.length || 1;
  canvas.height = visible.length || 1;
  const picture = new ImageData(canvas.width, canvas.height), pixels = picture.data;
  let at = 0;
  for (const from of visible) {
    for (const to of columns) {
      const colour = 3 * Math.round(Math.sqrt(weights[from * size + to] / max) * (STEPS - 1));
      pixels[at] = palette[colour];
      pixels[at + 1] = palette[colour + 1];
      pixels[at + 2] = palette[colour + 2];
      pixels[at + 3] = 255;
      at += 4;
    }
  }
  canvas.getContext("2d").putImageData(picture, 0, 0);
}

function sharp(canvas, width, height) {
  const scale = Math.min(devicePixelRatio || 1, MAX_PIXELS / Math.max(width, height));
  Object.assign(canvas, { width: Math.round(width * scale), height: Math.round(height * scale) });
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  const pen = canvas.getContext("2d");
  pen.scale(scale, scale);
  return pen;
}

function shortened(pen, text, width) {
  if (pen.measureText(text).width <= width) return text;
  const letters = Array.from(text);
  while (letters.length && pen.measureText(`${letters.join("")}…`).width > width) letters.pop();
  return `${letters.join("")}…`;
}

export class AttentionMap {
  // `onSelect({ from, to })` gets the token indices of the selected cell, or null.
  constructor(container, onSelect) {
    this.onSelect = onSelect;
    this.top = element("canvas", { class: "top" });
    this.side = element("canvas", { class: "side" });
    this.field = element("canvas");
    this.cross = element("div", { class: "cross" });
    this.corner = element("div", { class: "corner" }, element("span", {}, "to →"), element("span", {}, "from ↓"));
    this.scale = element("canvas", { "aria-hidden": "true" });
    this.max = element("span");
    this.around = element("div", { class: "field-of-weights" }, this.field, this.cross);
    this.map = element("div", { class: "map", tabindex: "0", role: "img" }, this.corner, this.top, this.side, this.around);
    container.replaceChildren(this.map, element("div", { class: "scale" }, "0", this.scale, this.max));
    this.around.addEventListener("pointermove", (event) => this.point(event));
    this.around.addEventListener("pointerdown", (event) => this.point(event));
    this.map.addEventListener("keydown", (event) => this.key(event));
  }
  // `columns` and `columnTokens`: if they differ from the rows, whose numbers and tokens are `visible` and `tokens`.
  show({ weights, size, visible, columns = visible, tokens, columnTokens = tokens, palette, rescale, title }) {
    Object.assign(this, { weights, size, visible, columns, tokens, columnTokens });
    const family = getComputedStyle(document.body).fontFamily;
    const measure = this.side.getContext("2d");
    measure.font = `12px ${family}`;
    const names = [...visible.map((number) => tokens[number]), ...columns.map((number) => columnTokens[number])];
    this.edge = Math.ceil(Math.min(Math.max(...names.map((name) => measure.measureText(name).width), 24) + 10, MAX_LABEL));
    const room = (this.map.parentElement.clientWidth || 600) - this.edge;
    this.cell = Math.min(Math.max(Math.floor(room / columns.length), MIN_CELL), MAX_CELL);
    const wide = this.cell * columns.length, high = this.cell * visible.length;
    this.labels(family, wide, high);
    const small = element("canvas");
    paint(small, { weights, size, visible, columns, palette, rescale });
    const pen = sharp(this.field, wide, high);
    pen.imageSmoothingEnabled = false;
    pen.drawImage(small, 0, 0, wide, high);
    Object.assign(this.corner.style, { width: `${this.edge}px`, height: `${this.edge}px` });
    this.legend(palette, maxWeight({ weights, size, visible, columns, rescale }));
    const pairs = columns === visible ? `between ${visible.length} tokens` : `of ${visible.length} tokens to ${columns.length} tokens`;
    this.map.setAttribute("aria-label", `${title}: attention ${pairs}. Arrow keys read out weights.`);
    this.at = null;
    this.move(null);
  }
  labels(family, wide, high) {
    const font = `${Math.min(this.cell - 1, 12)}px ${family}`, ink = getComputedStyle(document.body).color;
    const side = sharp(this.side, this.edge, high), top = sharp(this.top, wide, this.edge);
    Object.assign(side, { font, fillStyle: ink, textAlign: "right", textBaseline: "middle" });
    Object.assign(top, { font, fillStyle: ink, textAlign: "left", textBaseline: "middle" });
    top.translate(0, this.edge);
    top.rotate(-Math.PI / 2);
    const middle = (index) => (index + 0.5) * this.cell, short = (text) => shortened(side, text, this.edge - 8);
    this.visible.forEach((number, index) => side.fillText(short(this.tokens[number]), this.edge - 5, middle(index)));
    this.columns.forEach((number, index) => top.fillText(short(this.columnTokens[number]), 5, middle(index)));
  }
  legend(palette, max) {
    this.scale.width = STEPS;
    this.scale.height = 1;
    const picture = new ImageData(STEPS, 1);
    for (let index = 0; index < STEPS; index++) {
      const colour = 3 * Math.round(Math.sqrt(index / (STEPS - 1)) * (STEPS - 1));
      picture.data.set([palette[colour], palette[colour + 1], palette[colour + 2], 255], 4 * index);
    }
    this.scale.getContext("2d").putImageData(picture, 0, 0);
    this.max.textContent = `${(max * 100).toFixed(max < 1 ? 1 : 0)} %`;
  }
  point(event) {
    const box = this.field.getBoundingClientRect();
    const inside = (value, count) => Math.min(Math.max(Math.floor(value / this.cell), 0), count - 1);
    this.move([inside(event.clientY - box.top, this.visible.length), inside(event.clientX - box.left, this.columns.length)]);
  }
  key(event) {
    const direction = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
    if (event.key === "Escape") return this.move(null);
    if (!direction) return;
    event.preventDefault();
    const step = (value, by, count) => Math.min(Math.max(value + by * (event.shiftKey ? 10 : 1), 0), count - 1);
    this.move(this.at ? [step(this.at[0], direction[0], this.visible.length), step(this.at[1], direction[1], this.columns.length)] : [0, 0]);
    const [row, column] = this.at, { map, cell, edge } = this;
    map.scrollTop = Math.min(Math.max(map.scrollTop, (row + 2) * cell + edge - map.clientHeight), (row - 1) * cell);
    map.scrollLeft = Math.min(Math.max(map.scrollLeft, (column + 2) * cell + edge - map.clientWidth), (column - 1) * cell);
  }
  move(at) {
    this.at = at;
    this.cross.hidden = !at;
    if (!at) return this.onSelect(null);
    const { cell } = this;
    Object.assign(this.cross.style, { left: `${at[1] * cell - 1}px`, top: `${at[0] * cell - 1}px`, width: `${cell + 2}px`, height: `${cell + 2}px` });
    this.onSelect({ from: this.visible[at[0]], to: this.columns[at[1]] });
  }
}
