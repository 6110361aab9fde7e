// The translation task of the playground: translations with their scores, and the attention to the source as a map.
import { AttentionMap, makePalette } from "./attention_map.js";
import { element } from "./elements.js";
import { byId, percent } from "./page.js";
import { bar } from "./text_marks.js";

const REASONS = { length: "cut off at the maximum length", end: "" };

// The weights [target][source] of one layer and head, counted from 1; 0 averages over all of them.
function selectHeads(layers, layer, head) {
  const maps = (layer ? [layers[layer - 1]] : layers).flatMap((heads) => (head ? [heads[head - 1]] : heads));
  const [rows, size] = [maps[0].length, maps[0][0].length], weights = new Float32Array(rows * size);
  for (const map of maps) map.forEach((row, from) => row.forEach((weight, to) => { weights[from * size + to] += weight / maps.length; }));
  return { weights, rows, size };
}

function selection(label, count, chosen, onChange) {
  const options = ["mean", ...Array.from({ length: count }, (_, number) => String(number + 1))];
  const select = element("select", { id: `attention-${label}` }, ...options.map((name, value) => element("option", { value }, name)));
  select.value = chosen;
  select.addEventListener("change", () => onChange(Number(select.value)));
  return element("span", { class: "row" }, element("label", { for: select.id, class: "faint" }, label), select);
}

// The attention of one translation, with its layer and head in `view`; `onChange` is called when they change.
class Alignment {
  constructor(view, onChange) {
    Object.assign(this, { view, onChange });
    this.controls = element("div", { class: "row controls" });
    this.field = element("div");
    this.weight = element("output", { "aria-live": "polite" });
    const title = element("h3", { id: "alignment" }, "Attention to the source");
    this.container = element("section", { "aria-labelledby": "alignment" }, element("div", { class: "row" }, title, this.controls), this.field, this.weight);
  }
  show(result) {
    this.result = result;
    const layers = result.attention.length, heads = result.attention[0].length;
    this.view.layer = Math.min(this.view.layer, layers);
    this.view.head = Math.min(this.view.head, heads);
    const choose = (name) => (value) => {
      this.view[name] = value;
      this.onChange();
      this.draw();
    };
    this.controls.replaceChildren(selection("layer", layers, this.view.layer, choose("layer")), selection("head", heads, this.view.head, choose("head")));
    this.draw();
  }
  draw() {
    const { layer, head } = this.view, { source_tokens, target_tokens, attention } = this.result;
    const { weights, rows, size } = selectHeads(attention, layer, head), all = (count) => [...Array(count).keys()];
    const part = (name, value) => (value ? `${name} ${value}` : `mean over ${name}s`);
    const map = new AttentionMap(this.field, (pair) => this.read(pair, weights, size));
    map.show({ weights, size, visible: all(rows), columns: all(size), tokens: target_tokens, columnTokens: source_tokens, palette: makePalette(), rescale: true, title: `${part("layer", layer)}, ${part("head", head)}` });
  }
  read(pair, weights, size) {
    if (!pair) return this.weight.replaceChildren("Rows are the translation, columns the source. Point at a cell, or use the arrow keys.");
    const bold = (text) => element("b", {}, text);
    this.weight.replaceChildren(bold(this.result.target_tokens[pair.from]), " attends to ", bold(this.result.source_tokens[pair.to]), ": ", bold(percent(weights[pair.from * size + pair.to])));
  }
}

let redraw = () => {}; // of the alignment that is shown
let width = innerWidth;
addEventListener("resize", () => {
  if (innerWidth === width) return; // phone toolbars appear and disappear
  width = innerWidth;
  redraw();
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => redraw());

function renderTranslations({ body, result, put }) {
  const results = body.n_best > 1 ? result : [result], saved = (name) => Number(byId(`field-${name}`).value) || 0;
  const view = { layer: saved("layer"), head: saved("head") };
  const alignment = new Alignment(view, () => put({ layer: view.layer || "", head: view.head || "" }));
  const best = element("p", { class: "big" }), list = element("div", { class: "candidates", role: "group", "aria-label": "translations" });
  const show = (one) => {
    best.textContent = one.text || "(empty)";
    results.forEach((other, number) => list.children[number].setAttribute("aria-pressed", other === one));
    redraw = () => alignment.container.isConnected && alignment.show(one);
    redraw();
  };
  for (const one of results) {
    const label = one.text || "(empty)", score = `score ${one.score.toFixed(3)}`;
    const facts = [`log probability ${one.logprob.toFixed(2)}`, REASONS[one.finish_reason]].filter(Boolean).join(" · ");
    const button = element("button", { type: "button", "aria-pressed": "false", "aria-label": `${label} ${score}` }, bar({ label, value: Math.exp(one.score), text: score, note: facts, best: one === results[0] }));
    button.addEventListener("click", () => show(one));
    list.append(button);
  }
  show(results[0]);
  requestAnimationFrame(() => redraw()); // the map takes the width of its container
  const note = results[0].truncated ? [element("p", { class: "note" }, "The text was longer than the model's maximum length and was truncated.")] : [];
  return element("div", {}, best, list, ...note, alignment.container);
}

export const TRANSLATION = {
  name: "translate", path: "translate", title: "Translate", button: "Translate", render: renderTranslations,
  needs: "a model trained on parallel text",
  command: "bertsmith pretrain transformer/quick --data SHARDS -o runs/mine",
  placeholder: "Translates the text, and shows which of its tokens each token of the translation attends to.",
  fields: [{ name: "text", label: "text", kind: "text", rows: 4 }, { name: "best", label: "translations", kind: "number", initial: 3, min: 1, max: 16 },
    { name: "beam", label: "beam size", kind: "number", initial: 4, min: 1, max: 64, hint: "Hypotheses kept at each step; at least as many as translations." },
    { name: "penalty", label: "length penalty", kind: "number", initial: 0.6, min: 0, max: 10, step: 0.1, hint: "0 favours short translations." },
    ...["layer", "head"].map((name) => ({ name, kind: "hidden", optional: true }))],
  examples: [{ title: "English", text: "Two dogs are playing in the snow." }, { title: "Deutsch", text: "Zwei Hunde spielen im Schnee." }, { title: "한국어", text: "개 두 마리가 눈밭에서 놀고 있다." }],
  body: ({ text, best, beam, penalty }) => {
    const n_best = Number(best) || 1;
    return { inputs: text, n_best, beam_size: Math.max(Number(beam) || 4, n_best), length_penalty: Number(penalty), attention: "heads", truncate: true };
  },
};
