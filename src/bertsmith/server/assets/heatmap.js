// Weights as colours: small maps, and a large one with its tokens that a pointer or the arrow keys read.
import { element } from "./elements.js";

const STEPS = 256, LEAST = 11, MOST = 46, LABEL = 108, PIXELS = 4096;

function rgb(name) {
  const text = getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  return [1, 3, 5].map((at) => parseInt(text.slice(at, at + 2), 16));
}

// From the paper to the ink by way of blue, in this page's light or dark.
export function colours() {
  const stops = [rgb("--card"), rgb("--c0"), rgb("--ink")], found = new Uint8ClampedArray(STEPS * 3);
  for (let step = 0; step < STEPS; step++) {
    const share = (step / (STEPS - 1)) * 1.6, first = share < 1 ? 0 : 1, part = share - first;
    for (let i = 0; i < 3; i++) found[3 * step + i] = stops[first][i] + (stops[first + 1][i] - stops[first][i]) * part;
  }
  return found;
}

// The weight that has the darkest colour: 1, so that a weight has one colour everywhere and maps can be compared, or the
// greatest of a map that is stretched.
export function darkest({ weights, size, kept, stretch }) {
  if (!stretch) return 1;
  let most = 0;
  for (const from of kept) for (const to of kept) if (weights[from * size + to] > most) most = weights[from * size + to];
  return most || 1;
}

// One pixel for each pair of the tokens that are kept; colours follow the square root, so that small weights show.
export function paint(canvas, { weights, size, kept, tones, stretch }) {
  const most = darkest({ weights, size, kept, stretch });
  const count = kept.length;
  canvas.width = canvas.height = count || 1;
  const picture = new ImageData(count || 1, count || 1), pixels = picture.data;
  let at = 0;
  for (const from of kept) {
    for (const to of kept) {
      const tone = 3 * Math.round(Math.sqrt(weights[from * size + to] / most) * (STEPS - 1));
      pixels[at] = tones[tone];
      pixels[at + 1] = tones[tone + 1];
      pixels[at + 2] = tones[tone + 2];
      pixels[at + 3] = 255;
      at += 4;
    }
  }
  canvas.getContext("2d").putImageData(picture, 0, 0);
}

function sharp(canvas, width, height) {
  const scale = Math.min(devicePixelRatio || 1, PIXELS / Math.max(width, height));
  Object.assign(canvas, { width: Math.round(width * scale), height: Math.round(height * scale) });
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  const pen = canvas.getContext("2d");
  pen.scale(scale, scale);
  return pen;
}

function shortened(pen, text, room) {
  if (pen.measureText(text).width <= room) return text;
  const letters = Array.from(text);
  while (letters.length && pen.measureText(`${letters.join("")}…`).width > room) letters.pop();
  return `${letters.join("")}…`;
}

export class LargeMap {
  // `read({ from, to })` is told which pair is looked at: numbers of tokens, or null.
  constructor(place, read) {
    this.read = read;
    this.top = element("canvas", { class: "top" });
    this.side = element("canvas", { class: "side" });
    this.field = element("canvas");
    this.cross = element("div", { class: "cross" });
    this.corner = element("div", { class: "corner" }, element("span", {}, "to →"), element("span", {}, "from ↓"));
    this.scale = element("canvas", { "aria-hidden": "true" });
    this.most = element("span");
    this.around = element("div", { class: "field-of-weights" }, this.field, this.cross);
    this.map = element("div", { class: "map", tabindex: "0", role: "img" }, this.corner, this.top, this.side, this.around);
    place.replaceChildren(this.map, element("div", { class: "scale" }, "0", this.scale, this.most));
    this.around.addEventListener("pointermove", (event) => this.point(event));
    this.around.addEventListener("pointerdown", (event) => this.point(event));
    this.map.addEventListener("keydown", (event) => this.key(event));
  }
  show({ weights, size, kept, tokens, tones, stretch, title }) {
    Object.assign(this, { weights, size, kept, tokens });
    const count = kept.length, family = getComputedStyle(document.body).fontFamily;
    const measure = this.side.getContext("2d");
    measure.font = `12px ${family}`;
    const widest = Math.min(Math.max(...kept.map((number) => measure.measureText(tokens[number]).width), 24) + 10, LABEL);
    this.edge = Math.ceil(widest);
    const room = (this.map.parentElement.clientWidth || 600) - this.edge;
    this.cell = Math.min(Math.max(Math.floor(room / count), LEAST), MOST);
    const wide = this.cell * count;
    this.labels(family, wide);
    const small = element("canvas");
    paint(small, { weights, size, kept, tones, stretch });
    const pen = sharp(this.field, wide, wide);
    pen.imageSmoothingEnabled = false;
    pen.drawImage(small, 0, 0, wide, wide);
    Object.assign(this.corner.style, { width: `${this.edge}px`, height: `${this.edge}px` });
    this.legend(tones, darkest({ weights, size, kept, stretch }));
    this.map.setAttribute("aria-label", `${title}: which of ${count} tokens looks at which. Arrow keys read weights.`);
    this.at = null;
    this.move(null);
  }
  labels(family, wide) {
    const font = `${Math.min(this.cell - 1, 12)}px ${family}`, ink = getComputedStyle(document.body).color;
    const side = sharp(this.side, this.edge, wide), top = sharp(this.top, wide, this.edge);
    Object.assign(side, { font, fillStyle: ink, textAlign: "right", textBaseline: "middle" });
    Object.assign(top, { font, fillStyle: ink, textAlign: "left", textBaseline: "middle" });
    top.translate(0, this.edge);
    top.rotate(-Math.PI / 2);
    this.kept.forEach((number, place) => {
      const text = shortened(side, this.tokens[number], this.edge - 8), middle = (place + 0.5) * this.cell;
      side.fillText(text, this.edge - 5, middle);
      top.fillText(text, 5, middle);
    });
  }
  legend(tones, most) {
    this.scale.width = STEPS;
    this.scale.height = 1;
    const picture = new ImageData(STEPS, 1);
    for (let place = 0; place < STEPS; place++) {
      const tone = 3 * Math.round(Math.sqrt(place / (STEPS - 1)) * (STEPS - 1));
      picture.data.set([tones[tone], tones[tone + 1], tones[tone + 2], 255], 4 * place);
    }
    this.scale.getContext("2d").putImageData(picture, 0, 0);
    this.most.textContent = `${(most * 100).toFixed(most < 1 ? 1 : 0)} %`;
  }
  point(event) {
    const box = this.field.getBoundingClientRect(), last = this.kept.length - 1;
    const inside = (share) => Math.min(Math.max(Math.floor(share / this.cell), 0), last);
    this.move([inside(event.clientY - box.top), inside(event.clientX - box.left)]);
  }
  key(event) {
    const way = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
    if (event.key === "Escape") return this.move(null);
    if (!way) return;
    event.preventDefault();
    const last = this.kept.length - 1, step = (value, by) => Math.min(Math.max(value + by * (event.shiftKey ? 10 : 1), 0), last);
    this.move(this.at ? [step(this.at[0], way[0]), step(this.at[1], way[1])] : [0, 0]);
    const [row, column] = this.at, { map, cell, edge } = this;
    map.scrollTop = Math.min(Math.max(map.scrollTop, (row + 2) * cell + edge - map.clientHeight), (row - 1) * cell);
    map.scrollLeft = Math.min(Math.max(map.scrollLeft, (column + 2) * cell + edge - map.clientWidth), (column - 1) * cell);
  }
  move(at) {
    this.at = at;
    this.cross.hidden = !at;
    if (!at) return this.read(null);
    const { cell } = this;
    Object.assign(this.cross.style, { left: `${at[1] * cell - 1}px`, top: `${at[0] * cell - 1}px`, width: `${cell + 2}px`, height: `${cell + 2}px` });
    this.read({ from: this.kept[at[0]], to: this.kept[at[1]] });
  }
}
