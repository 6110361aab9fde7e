// Which token looks at which: a grid of all layers and heads, one of them large. A layer is asked for at a time.
import { Trouble, ask, latest } from "./api.js";
import { copyButtons } from "./code.js";
import { element } from "./elements.js";
import { Form } from "./forms.js";
import { MODELS, able, models, named, percent, place, trouble } from "./page.js";
import { LargeMap, colours, paint } from "./heatmap.js";
import { Lines } from "./lines.js";
import * as address from "./state.js";

const MOST_TOKENS = 256; // that a screen shows
const failure = element("div");
const view = { layer: 1, head: 1, shape: "map", specials: true, stretch: false, token: null };
let data = null, asked = null, tones = null, large = null, cells = [];

const form = new Form(place("form"), {
  fields: [{ name: "text", label: "text", kind: "text", rows: 2 }, { name: "second", label: "second text, where there is one", kind: "text", rows: 2 }],
  button: "Look",
  act: () => run(),
  examples: [{ title: "English", text: "The smith hammers the iron because it is hot." }, { title: "a pair", text: "The smith lit the fire.", second: "Soon the iron glowed." }, { title: "한국어", text: "대장장이가 뜨거운 쇠를 두드린다." }],
});
place("form").classList.add("asks");
place("form").append(failure);
copyButtons(place("code"), () => asked);

function remember(step = false) {
  const { layer, head, shape, specials, stretch, token } = view;
  address.write({ ...form.values(), model: MODELS.chosen, layer, head, view: shape === "map" ? "" : shape, specials: specials ? "" : "no", stretch: stretch ? "yes" : "", token: token ?? "" }, { step });
}

// Weights grow with the square of the tokens: too many are refused before they are asked for.
async function checkLength(text, second, model, signal) {
  const { result } = await ask("tokenize", { inputs: second ? [text, second] : text, add_special_tokens: false, ...named() }, { signal });
  const count = Math.min(result.flat().length + (second ? 3 : 2), model.max_length);
  if (count > MOST_TOKENS) throw new Trouble(`This text has ${count} tokens; maps are drawn of at most ${MOST_TOKENS}: shorten it.`);
}

const many = (count, word) => `${count} ${word}${count === 1 ? "" : "s"}`;
const flat = (heads, size) => {
  const found = new Float32Array(heads.length * size * size);
  let at = 0;
  for (const rows of heads) for (const row of rows) { found.set(row, at); at += size; }
  return found;
};
const frame = () => new Promise((done) => requestAnimationFrame(done));

const run = latest(async (signal) => {
  trouble(failure, null);
  form.busy(true);
  const { text, second } = form.values(), model = able("attention")[0];
  const question = { inputs: text, ...(second ? { second } : {}), ...named() };
  try {
    if (!model) throw new Trouble("None of these models shows its attention.");
    await checkLength(text, second, model, signal);
    for (let layer = 1; layer <= model.layers; layer++) {
      const body = { ...question, layer };
      const { result } = await ask("attention", body, { signal });
      const size = result.tokens.length;
      if (layer === 1) begin(model, result);
      data.layers.push(flat(result.attention[0], size));
      row(layer);
      if (layer === Math.min(view.layer, model.layers)) {
        asked = ["attention", { ...body, head: view.head }];
        show();
      }
      place("note").textContent = `layer ${layer} of ${model.layers}${result.truncated ? " · the text was longer than the model takes: its end was not read" : ""}`;
      await frame();
    }
    place("note").textContent = `${many(data.tokens.length, "token")}, ${many(model.layers, "layer")} of ${many(data.heads, "head")}${data.truncated ? " · the text was longer than the model takes: its end was not read" : ""}`;
    remember();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    place("attention").hidden = true;
    place("note").textContent = "";
    trouble(failure, error);
  } finally {
    form.busy(false);
  }
});

function begin(model, result) {
  data = { tokens: result.tokens, special: result.sequence_ids.map((number) => number < 0), heads: result.attention[0].length, layers: [], truncated: result.truncated };
  view.layer = Math.min(view.layer, model.layers);
  view.head = Math.min(view.head, data.heads);
  if (view.token !== null && view.token >= data.tokens.length) view.token = null;
  tones = colours();
  cells = [];
  place("attention").hidden = false;
  const head = element("div", { role: "row" }, element("span", { role: "columnheader" }, ""), ...Array.from({ length: data.heads }, (_, number) => element("span", { role: "columnheader" }, String(number + 1))));
  place("grid").replaceChildren(head);
  place("grid").setAttribute("aria-label", `${model.layers} layers, ${data.heads} heads in each`);
  place("grid").style.gridTemplateColumns = `auto repeat(${data.heads}, minmax(0, 96px))`;
}

const kept = () => [...data.tokens.keys()].filter((number) => view.specials || !data.special[number]);
const part = (layer, head) => {
  const square = data.tokens.length ** 2;
  return data.layers[layer - 1].subarray((head - 1) * square, head * square);
};
const about = (layer, head) => ({ weights: part(layer, head), size: data.tokens.length, kept: kept(), tokens: data.tokens, tones, stretch: view.stretch });

function row(layer) {
  const made = Array.from({ length: data.heads }, (_, number) => {
    const canvas = element("canvas", { class: data.tokens.length < 64 ? "few" : "many" }), head = number + 1;
    const button = element("button", { type: "button", role: "gridcell", tabindex: "-1", "aria-selected": "false", "aria-label": `layer ${layer}, head ${head}`, "data-layer": layer, "data-head": head }, canvas);
    paint(canvas, about(layer, head));
    return button;
  });
  cells.push(made);
  place("grid").append(element("div", { role: "row" }, element("span", { role: "rowheader" }, String(layer)), ...made));
  select();
}

function select() {
  for (const button of cells.flat()) {
    const mine = Number(button.dataset.layer) === view.layer && Number(button.dataset.head) === view.head;
    button.setAttribute("aria-selected", mine);
    button.tabIndex = mine ? 0 : -1;
  }
}

function read({ from, to } = {}) {
  if (from === undefined || from === null) return place("weight").replaceChildren(view.shape === "map" ? "Point at a cell, or use the arrow keys." : "Point at a token on the left, or use the arrow keys.");
  const words = (number) => element("b", {}, data.tokens[number]);
  const weights = part(view.layer, view.head), size = data.tokens.length;
  if (to !== undefined) return place("weight").replaceChildren(words(from), " looks at ", words(to), ": ", element("b", {}, percent(weights[from * size + to])));
  const best = kept().sort((a, b) => weights[from * size + b] - weights[from * size + a]).slice(0, 3);
  place("weight").replaceChildren(words(from), " looks most at ", ...best.flatMap((number, at) => [...(at ? [", "] : []), words(number), ` ${percent(weights[from * size + number])}`]));
}

function show() {
  if (!data?.layers[view.layer - 1]) return;
  const title = `Layer ${view.layer}, head ${view.head}`;
  place("which").textContent = title;
  if (!kept().length) return place("large").replaceChildren(element("p", {}, "There is nothing but special tokens."));
  if (view.shape === "map") {
    large = new LargeMap(place("large"), (pair) => read(pair ?? {}));
    large.show({ ...about(view.layer, view.head), title });
  } else {
    large = new Lines(place("large"), (from) => { view.token = from; read({ from }); remember(); });
    large.show({ ...about(view.layer, view.head), token: view.token });
  }
  if (asked) asked = [asked[0], { ...asked[1], layer: view.layer, head: view.head }];
}

function choose(layer, head, focus) {
  Object.assign(view, { layer, head });
  select();
  show();
  remember(true);
  if (focus) cells[layer - 1][head - 1].focus();
}

place("grid").addEventListener("click", (event) => {
  const button = event.target.closest("button");
  if (button) choose(Number(button.dataset.layer), Number(button.dataset.head));
});
place("grid").addEventListener("keydown", (event) => {
  const way = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
  if (!way) return;
  event.preventDefault();
  const layer = view.layer + way[0], head = view.head + way[1];
  if (cells[layer - 1]?.[head - 1]) choose(layer, head, true);
});

// --- switches

const SHAPES = { map: "map", lines: "lines" };
function toggles() {
  const button = (title, pressed, act) => {
    const made = element("button", { type: "button", "aria-pressed": pressed }, title);
    made.addEventListener("click", () => {
      act();
      toggles();
      show();
      remember(true);
      [...place("controls").querySelectorAll("button")].find((other) => other.textContent === title).focus();
    });
    return made;
  };
  place("controls").replaceChildren(
    ...Object.keys(SHAPES).map((shape) => button(SHAPES[shape], view.shape === shape, () => { view.shape = shape; })),
    button("special tokens", view.specials, () => {
      view.specials = !view.specials;
      repaint();
    }),
    button("stretch", view.stretch, () => {
      view.stretch = !view.stretch;
      repaint();
    }),
  );
}

function repaint() {
  for (const one of cells.flat()) paint(one.firstChild, about(Number(one.dataset.layer), Number(one.dataset.head)));
}
function redraw() {
  if (!data) return;
  tones = colours();
  repaint();
  show();
}
let waiting = 0, width = innerWidth;
addEventListener("resize", () => {
  if (innerWidth === width) return; // the bars of a phone come and go
  width = innerWidth;
  cancelAnimationFrame(waiting);
  waiting = requestAnimationFrame(show);
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);

function fromAddress() {
  const found = address.read();
  form.fill({ text: found.text ?? "The smith hammers the iron because it is hot.", second: found.second });
  const whole = (text, otherwise) => (/^\d+$/.test(text ?? "") ? Number(text) : otherwise);
  Object.assign(view, { layer: Math.max(whole(found.layer, 1), 1), head: Math.max(whole(found.head, 1), 1), shape: found.view === "lines" ? "lines" : "map", specials: found.specials !== "no", stretch: found.stretch === "yes", token: whole(found.token, null) });
  toggles();
}
fromAddress(); // before the server is asked: somebody may type meanwhile
await models(address.read().model, () => { remember(); run(); });
address.whenChanged(() => { fromAddress(); run(); });
run();
