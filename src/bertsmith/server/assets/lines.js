// Two columns of tokens: lines lead from the chosen one on the left to those it looks at.
import { draw, element } from "./elements.js";
import { darkest } from "./heatmap.js";

const ROW = 22, EACH = 3; // pixels of a token; lines from each while none is chosen

export class Lines {
  // `read(from)` is told which token is chosen, or null.
  constructor(place, read) {
    this.read = read;
    this.from = element("ol", { class: "from", tabindex: "0", role: "listbox", "aria-label": "from: arrow keys choose a token" });
    this.to = element("ol", { "aria-label": "to" });
    const middle = element("div");
    this.svg = draw(middle, "svg", { preserveAspectRatio: "none", "aria-hidden": "true" });
    this.around = element("div", { class: "lines" }, this.from, middle, this.to);
    place.replaceChildren(this.around);
    this.from.addEventListener("pointerover", (event) => this.over(event));
    this.from.addEventListener("click", (event) => this.over(event));
    this.from.addEventListener("keydown", (event) => this.key(event));
  }
  show({ weights, size, kept, tokens, stretch, token }) {
    Object.assign(this, { weights, size, kept, tokens, most: darkest({ weights, size, kept, stretch }) });
    this.from.replaceChildren(...kept.map((number, place) => element("li", { role: "option", id: `from-${place}`, "data-place": place }, tokens[number])));
    this.to.replaceChildren(...kept.map((number) => element("li", {}, tokens[number])));
    this.svg.setAttribute("viewBox", `0 0 100 ${kept.length * ROW}`);
    this.svg.setAttribute("height", kept.length * ROW);
    const at = kept.indexOf(token);
    this.choose(at < 0 ? null : at);
  }
  over(event) {
    const item = event.target.closest("li");
    if (item) this.choose(Number(item.dataset.place));
  }
  key(event) {
    const way = { ArrowUp: -1, ArrowDown: 1, Home: -Infinity, End: Infinity }[event.key];
    if (event.key === "Escape") return this.choose(null);
    if (!way) return;
    event.preventDefault();
    const last = this.kept.length - 1;
    this.choose(this.at === null ? 0 : Math.min(Math.max(this.at + way, 0), last));
    this.from.children[this.at].scrollIntoView({ block: "nearest" });
  }
  strongest(row) {
    const all = this.kept.map((number, place) => [place, this.weights[this.kept[row] * this.size + number]]);
    return this.at === null ? all.sort((a, b) => b[1] - a[1]).slice(0, EACH) : all;
  }
  choose(at) {
    this.at = at;
    const rows = at === null ? [...this.kept.keys()] : [at], drawn = document.createDocumentFragment();
    for (const row of rows) {
      for (const [place, weight] of this.strongest(row)) {
        const share = weight / this.most;
        if (share < 0.005) continue;
        draw(drawn, "line", { x1: 0, y1: (row + 0.5) * ROW, x2: 100, y2: (place + 0.5) * ROW, "stroke-width": (0.6 + 3 * share).toFixed(2), "stroke-opacity": (0.06 + 0.94 * Math.sqrt(share)).toFixed(3), "vector-effect": "non-scaling-stroke" });
      }
    }
    this.svg.replaceChildren(drawn);
    this.kept.forEach((number, place) => {
      const weight = at === null ? 0 : this.weights[this.kept[at] * this.size + number], item = this.to.children[place];
      item.style.background = weight ? `color-mix(in srgb, var(--c0) ${(Math.sqrt(weight / this.most) * 55).toFixed(1)}%, transparent)` : "";
      item.textContent = this.tokens[number] + (weight >= 0.01 ? `  ${(weight * 100).toFixed(0)} %` : "");
      this.from.children[place].setAttribute("aria-selected", place === at);
    });
    if (at === null) this.from.removeAttribute("aria-activedescendant"); else this.from.setAttribute("aria-activedescendant", `from-${at}`);
    this.read(at === null ? null : this.kept[at]);
  }
}
