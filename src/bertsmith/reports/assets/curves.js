// The charts of one or several runs with their controls. New data keeps the current choices.
import { Chart } from "./chart.js";
import { element } from "./elements.js";

const KINDS = ["each step", "smoothed", "held out"];
const SIGNS = {
  checkpoint: "| checkpoint",
  restart: "▽ resumed from a checkpoint",
  skipped: "✕ skipped update",
  best: "○ best held-out loss",
};
const flip = (set, item) => (set.has(item) ? set.delete(item) : set.add(item));
const tone = (number) => `var(--c${number % 10})`;

export class Curves {
  constructor({ controls, charts, signs }) {
    this.elements = { controls, charts, signs };
    this.charts = [];
    this.view = { data: { runs: [], charts: [] }, several: false, axis: "steps", log: false, kinds: new Set(KINDS), runs: new Set(), cursor: null };
    this.view.move = (value) => { // a position on the x axis, shared by all charts
      this.view.cursor = value;
      for (const chart of this.charts) chart.read();
    };
    let waiting = 0;
    addEventListener("resize", () => { cancelAnimationFrame(waiting); waiting = requestAnimationFrame(() => this.render()); });
  }
  show(data) {
    const { view } = this, names = (runs) => JSON.stringify(runs.map((run) => [run.name, run.axis.steps.length > 0]));
    const others = names(view.data.runs) !== names(data.runs) || !this.charts.length;
    view.data = data;
    if (others) {
      view.several = data.runs.length > 1;
      view.kinds = new Set(view.several ? KINDS.slice(1) : KINDS);
      view.runs = new Set(data.runs.keys());
      view.cursor = null;
      this.switches();
    }
    this.signs();
    const known = new Map(others ? [] : this.charts.map((chart) => [chart.spec.name, chart]));
    this.charts = data.charts.map((spec) => known.get(spec.name) ?? new Chart(view, spec));
    data.charts.forEach((spec, number) => Object.assign(this.charts[number], { spec, first: !number }));
    const figures = this.charts.map((chart) => chart.figure), now = [...this.elements.charts.children];
    if (figures.length !== now.length || figures.some((figure, number) => figure !== now[number])) this.elements.charts.replaceChildren(...figures);
    this.render();
  }
  render() {
    for (const chart of this.charts) chart.render();
  }
  signs() {
    const { data, several } = this.view;
    const kinds = new Set(data.runs.flatMap((run) => run.marks.map((mark) => mark.kind)));
    const shown = Object.keys(SIGNS).filter((kind) => kinds.has(kind) && !(several && kind === "checkpoint"));
    this.elements.signs.textContent = shown.map((kind) => SIGNS[kind]).join("   ·   ");
  }
  switches() {
    const { view } = this, { data, several } = view;
    const axes = data.runs.some((run) => run.axis.steps.length) ? ["steps", "tokens", "minutes"] : ["steps"];
    if (!axes.includes(view.axis)) view.axis = "steps";
    this.elements.controls.replaceChildren(
      group("x axis", ...axes.map((axis) => this.toggle(axis, () => view.axis === axis, () => { view.axis = axis; view.cursor = null; }))),
      group("y axis", this.toggle("log", () => view.log, () => { view.log = !view.log; })),
      group("show", ...KINDS.map((kind) =>
        this.toggle(kind, () => view.kinds.has(kind), () => flip(view.kinds, kind), several ? "" : tone(kind === "held out" ? 1 : 0)))),
    );
    if (several) this.elements.controls.append(group("runs", ...data.runs.map((run, number) =>
      this.toggle(run.name, () => view.runs.has(number), () => flip(view.runs, number), tone(number)))));
  }
  toggle(label, pressed, act, color) {
    const button = element("button", { type: "button", "aria-pressed": pressed() });
    if (color) button.append(swatch(color));
    button.append(label);
    button.addEventListener("click", () => {
      act();
      for (const other of this.elements.controls.querySelectorAll("button")) other.setAttribute("aria-pressed", other.isPressed());
      this.render();
    });
    button.isPressed = pressed;
    return button;
  }
}

// Beside the name of each of several runs, the colour of its curves.
export function colour(heads) {
  if (heads.length > 1) heads.forEach((head, number) => head.prepend(swatch(tone(number))));
}
function swatch(color) {
  const made = element("i", { class: "swatch" });
  made.style.background = color;
  return made;
}
function group(name, ...buttons) {
  return element("fieldset", {}, element("legend", {}, name), ...buttons);
}
