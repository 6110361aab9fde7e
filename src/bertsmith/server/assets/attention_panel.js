// Attention weights: a grid of all layers and heads, with one of them enlarged. Layers are requested one at a time.
import { RequestError, request, latest } from "./api.js";
import { copyButtons } from "./code.js";
import { element } from "./elements.js";
import { Form } from "./forms.js";
import { MODELS, modelsFor, loadModels, modelField, percent, byId, showError } from "./page.js";
import { AttentionMap, makePalette, paint } from "./attention_map.js";
import { AttentionLines } from "./attention_lines.js";
import * as urlState from "./url_state.js";

const MAX_TOKENS = 256; // that fit on a screen
const errorBox = element("div");
const view = { layer: 1, head: 1, shape: "map", specials: true, rescale: false, token: null };
let data = null, lastRequest = null, palette = null, large = null, cells = [];

const form = new Form(byId("form"), {
  fields: [{ name: "text", label: "text", kind: "text", rows: 2 }, { name: "second", label: "second text (optional)", kind: "text", rows: 2 }],
  button: "Show",
  onSubmit: () => run(),
  examples: [{ title: "English", text: "The smith hammers the iron because it is hot." }, { title: "a pair", text: "The smith lit the fire.", second: "Soon the iron glowed." }, { title: "한국어", text: "대장장이가 뜨거운 쇠를 두드린다." }],
});
byId("form").classList.add("inline-form");
byId("form").append(errorBox);
copyButtons(byId("code"), () => lastRequest);

function saveState(step = false) {
  const { layer, head, shape, specials, rescale, token } = view;
  urlState.write({ ...form.values(), model: MODELS.selected, layer, head, view: shape === "map" ? "" : shape, specials: specials ? "" : "no", rescale: rescale ? "yes" : "", token: token ?? "" }, { step });
}

// Weights grow with the square of the number of tokens: too many are rejected before the request.
async function checkLength(text, second, model, signal) {
  const { result } = await request("tokenize", { inputs: second ? [text, second] : text, add_special_tokens: false, ...modelField() }, { signal });
  const count = Math.min(result.flat().length + (second ? 3 : 2), model.max_length);
  if (count > MAX_TOKENS) throw new RequestError(`This text has ${count} tokens; the maximum is ${MAX_TOKENS}: shorten it.`);
}

const plural = (count, word) => `${count} ${word}${count === 1 ? "" : "s"}`;
const flat = (heads, size) => {
  const values = new Float32Array(heads.length * size * size);
  let at = 0;
  for (const rows of heads) for (const row of rows) { values.set(row, at); at += size; }
  return values;
};
const nextFrame = () => new Promise((done) => requestAnimationFrame(done));

const run = latest(async (signal) => {
  showError(errorBox, null);
  form.setBusy(true);
  const { text, second } = form.values(), model = modelsFor("attention")[0];
  const base = { inputs: text, ...(second ? { second } : {}), ...modelField() };
  try {
    if (!model) throw new RequestError("None of these models returns attention weights.");
    await checkLength(text, second, model, signal);
    for (let layer = 1; layer <= model.layers; layer++) {
      const body = { ...base, layer };
      const { result } = await request("attention", body, { signal });
      const size = result.tokens.length;
      if (layer === 1) start(model, result);
      data.layers.push(flat(result.attention[0], size));
      row(layer);
      if (layer === Math.min(view.layer, model.layers)) {
        lastRequest = ["attention", { ...body, head: view.head }];
        show();
      }
      byId("note").textContent = `layer ${layer} of ${model.layers}${result.truncated ? " · the text was truncated to the maximum length" : ""}`;
      await nextFrame();
    }
    byId("note").textContent = `${plural(data.tokens.length, "token")}, ${plural(model.layers, "layer")} of ${plural(data.heads, "head")}${data.truncated ? " · the text was truncated to the maximum length" : ""}`;
    saveState();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    byId("attention").hidden = true;
    byId("note").textContent = "";
    showError(errorBox, error);
  } finally {
    form.setBusy(false);
  }
});

function start(model, result) {
  data = { tokens: result.tokens, special: result.sequence_ids.map((number) => number < 0), heads: result.attention[0].length, layers: [], truncated: result.truncated };
  view.layer = Math.min(view.layer, model.layers);
  view.head = Math.min(view.head, data.heads);
  if (view.token !== null && view.token >= data.tokens.length) view.token = null;
  palette = makePalette();
  cells = [];
  byId("attention").hidden = false;
  const head = element("div", { role: "row" }, element("span", { role: "columnheader" }, ""), ...Array.from({ length: data.heads }, (_, number) => element("span", { role: "columnheader" }, String(number + 1))));
  byId("grid").replaceChildren(head);
  byId("grid").setAttribute("aria-label", `${model.layers} layers, ${data.heads} heads in each`);
  byId("grid").style.gridTemplateColumns = `auto repeat(${data.heads}, minmax(0, 96px))`;
}

const visible = () => [...data.tokens.keys()].filter((number) => view.specials || !data.special[number]);
const weightsOf = (layer, head) => {
  const square = data.tokens.length ** 2;
  return data.layers[layer - 1].subarray((head - 1) * square, head * square);
};
const mapData = (layer, head) => ({ weights: weightsOf(layer, head), size: data.tokens.length, visible: visible(), tokens: data.tokens, palette, rescale: view.rescale });

function row(layer) {
  const buttons = Array.from({ length: data.heads }, (_, number) => {
    const canvas = element("canvas", { class: data.tokens.length < 64 ? "few" : "many" }), head = number + 1;
    const button = element("button", { type: "button", role: "gridcell", tabindex: "-1", "aria-selected": "false", "aria-label": `layer ${layer}, head ${head}`, "data-layer": layer, "data-head": head }, canvas);
    paint(canvas, mapData(layer, head));
    return button;
  });
  cells.push(buttons);
  byId("grid").append(element("div", { role: "row" }, element("span", { role: "rowheader" }, String(layer)), ...buttons));
  select();
}

function select() {
  for (const button of cells.flat()) {
    const current = Number(button.dataset.layer) === view.layer && Number(button.dataset.head) === view.head;
    button.setAttribute("aria-selected", current);
    button.tabIndex = current ? 0 : -1;
  }
}

function read({ from, to } = {}) {
  if (from === undefined || from === null) return byId("weight").replaceChildren(view.shape === "map" ? "Point at a cell, or use the arrow keys." : "Point at a token on the left, or use the arrow keys.");
  const tokenText = (number) => element("b", {}, data.tokens[number]);
  const weights = weightsOf(view.layer, view.head), size = data.tokens.length;
  if (to !== undefined) return byId("weight").replaceChildren(tokenText(from), " attends to ", tokenText(to), ": ", element("b", {}, percent(weights[from * size + to])));
  const best = visible().sort((a, b) => weights[from * size + b] - weights[from * size + a]).slice(0, 3);
  byId("weight").replaceChildren(tokenText(from), " attends most to ", ...best.flatMap((number, at) => [...(at ? [", "] : []), tokenText(number), ` ${percent(weights[from * size + number])}`]));
}

function show() {
  if (!data?.layers[view.layer - 1]) return;
  const title = `Layer ${view.layer}, head ${view.head}`;
  byId("selected-head").textContent = title;
  if (!visible().length) return byId("large").replaceChildren(element("p", {}, "The text has only special tokens."));
  if (view.shape === "map") {
    large = new AttentionMap(byId("large"), (pair) => read(pair ?? {}));
    large.show({ ...mapData(view.layer, view.head), title });
  } else {
    large = new AttentionLines(byId("large"), (from) => { view.token = from; read({ from }); saveState(); });
    large.show({ ...mapData(view.layer, view.head), token: view.token });
  }
  if (lastRequest) lastRequest = [lastRequest[0], { ...lastRequest[1], layer: view.layer, head: view.head }];
}

function choose(layer, head, focus) {
  Object.assign(view, { layer, head });
  select();
  show();
  saveState(true);
  if (focus) cells[layer - 1][head - 1].focus();
}

byId("grid").addEventListener("click", (event) => {
  const button = event.target.closest("button");
  if (button) choose(Number(button.dataset.layer), Number(button.dataset.head));
});
byId("grid").addEventListener("keydown", (event) => {
  const step = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
  if (!step) return;
  event.preventDefault();
  const layer = view.layer + step[0], head = view.head + step[1];
  if (cells[layer - 1]?.[head - 1]) choose(layer, head, true);
});

const SHAPES = { map: "map", lines: "lines" };
function toggles() {
  const button = (title, pressed, action) => {
    const toggle = element("button", { type: "button", "aria-pressed": pressed }, title);
    toggle.addEventListener("click", () => {
      action();
      toggles();
      show();
      saveState(true);
      [...byId("controls").querySelectorAll("button")].find((other) => other.textContent === title).focus();
    });
    return toggle;
  };
  byId("controls").replaceChildren(
    ...Object.keys(SHAPES).map((shape) => button(SHAPES[shape], view.shape === shape, () => { view.shape = shape; })),
    button("special tokens", view.specials, () => {
      view.specials = !view.specials;
      repaint();
    }),
    button("scale to maximum", view.rescale, () => {
      view.rescale = !view.rescale;
      repaint();
    }),
  );
}

function repaint() {
  for (const one of cells.flat()) paint(one.firstChild, mapData(Number(one.dataset.layer), Number(one.dataset.head)));
}
function redraw() {
  if (!data) return;
  palette = makePalette();
  repaint();
  show();
}
let frame = 0, width = innerWidth;
addEventListener("resize", () => {
  if (innerWidth === width) return; // phone toolbars appear and disappear
  width = innerWidth;
  cancelAnimationFrame(frame);
  frame = requestAnimationFrame(show);
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);

function restore() {
  const state = urlState.read();
  form.fill({ text: state.text ?? "The smith hammers the iron because it is hot.", second: state.second });
  const integer = (text, fallback) => (/^\d+$/.test(text ?? "") ? Number(text) : fallback);
  Object.assign(view, { layer: Math.max(integer(state.layer, 1), 1), head: Math.max(integer(state.head, 1), 1), shape: state.view === "lines" ? "lines" : "map", specials: state.specials !== "no", rescale: state.rescale === "yes", token: integer(state.token, null) });
  toggles();
}
restore(); // before the first response: the user may already type
await loadModels(urlState.read().model, () => { saveState(); run(); });
urlState.onChange(() => { restore(); run(); });
run();
