// Two columns of tokens: lines lead from the selected token on the left to the tokens it attends to.
import { draw, element } from "./elements.js";
import { maxWeight } from "./attention_map.js";

const ROW = 22, PER_TOKEN = 3; // pixels per token; lines per token while none is selected

export class AttentionLines {
  // `onSelect(from)` gets the selected token, or null.
  constructor(container, onSelect) {
    this.onSelect = onSelect;
    this.from = element("ol", { class: "from", tabindex: "0", role: "listbox", "aria-label": "query tokens: arrow keys select one" });
    this.to = element("ol", { "aria-label": "key tokens" });
    const middle = element("div");
    this.svg = draw(middle, "svg", { preserveAspectRatio: "none", "aria-hidden": "true" });
    this.around = element("div", { class: "lines" }, this.from, middle, this.to);
    container.replaceChildren(this.around);
    this.from.addEventListener("pointerover", (event) => this.over(event));
    this.from.addEventListener("click", (event) => this.over(event));
    this.from.addEventListener("keydown", (event) => this.key(event));
  }
  show({ weights, size, visible, tokens, rescale, token }) {
    Object.assign(this, { weights, size, visible, tokens, max: maxWeight({ weights, size, visible, rescale }) });
    this.from.replaceChildren(...visible.map((number, index) => element("li", { role: "option", id: `from-${index}`, "data-index": index }, tokens[number])));
    this.to.replaceChildren(...visible.map((number) => element("li", {}, tokens[number])));
    this.svg.setAttribute("viewBox", `0 0 100 ${visible.length * ROW}`);
    this.svg.setAttribute("height", visible.length * ROW);
    const at = visible.indexOf(token);
    this.select(at < 0 ? null : at);
  }
  over(event) {
    const item = event.target.closest("li");
    if (item) this.select(Number(item.dataset.index));
  }
  key(event) {
    const step = { ArrowUp: -1, ArrowDown: 1, Home: -Infinity, End: Infinity }[event.key];
    if (event.key === "Escape") return this.select(null);
    if (!step) return;
    event.preventDefault();
    const last = this.visible.length - 1;
    this.select(this.at === null ? 0 : Math.min(Math.max(this.at + step, 0), last));
    this.from.children[this.at].scrollIntoView({ block: "nearest" });
  }
  strongest(row) {
    const all = this.visible.map((number, index) => [index, this.weights[this.visible[row] * this.size + number]]);
    return this.at === null ? all.sort((a, b) => b[1] - a[1]).slice(0, PER_TOKEN) : all;
  }
  select(at) {
    this.at = at;
    const rows = at === null ? [...this.visible.keys()] : [at], drawn = document.createDocumentFragment();
    for (const row of rows) {
      for (const [index, weight] of this.strongest(row)) {
        const value = weight / this.max;
        if (value < 0.005) continue;
        draw(drawn, "line", { x1: 0, y1: (row + 0.5) * ROW, x2: 100, y2: (index + 0.5) * ROW, "stroke-width": (0.6 + 3 * value).toFixed(2), "stroke-opacity": (0.06 + 0.94 * Math.sqrt(value)).toFixed(3), "vector-effect": "non-scaling-stroke" });
      }
    }
    this.svg.replaceChildren(drawn);
    this.visible.forEach((number, index) => {
      const weight = at === null ? 0 : this.weights[this.visible[at] * this.size + number], item = this.to.children[index];
      item.style.background = weight ? `color-mix(in srgb, var(--c0) ${(Math.sqrt(weight / this.max) * 55).toFixed(1)}%, transparent)` : "";
      item.textContent = this.tokens[number] + (weight >= 0.01 ? `  ${(weight * 100).toFixed(0)} %` : "");
      this.from.children[index].setAttribute("aria-selected", index === at);
    });
    if (at === null) this.from.removeAttribute("aria-activedescendant"); else this.from.setAttribute("aria-activedescendant", `from-${at}`);
    this.onSelect(at === null ? null : this.visible[at]);
  }
}
