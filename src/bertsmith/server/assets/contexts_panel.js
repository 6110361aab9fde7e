// Words in context: the similarities of a marked word's vectors in several sentences, for each model.
import { request, latest } from "./api.js";
import { copyButtons } from "./code.js";
import { element } from "./elements.js";
import { Form, lines } from "./forms.js";
import { MODELS, modelsFor, loadModels, byId, showError } from "./page.js";
import * as urlState from "./url_state.js";

const EXAMPLES = [
  { title: "play", sentences: "The *play* opened in a small theatre.\nShe wrote a *play* about the war.\nA clever *play* won the game in extra time.\nThe coach explained the next *play* to the team.\nThe children *play* in the garden." },
  { title: "bank", sentences: "She opened an account at the *bank*.\nThe *bank* raised its interest rates.\nThey sat on the *bank* of the river.\nWillows grew along the muddy *bank*." },
  { title: "배", sentences: "항구에 큰 *배*가 들어왔다.\n어부는 *배*를 타고 바다로 나갔다.\n가을에는 사과와 *배*가 맛있다.\n달콤한 *배* 한 개를 깎아 먹었다.\n갑자기 *배*가 아파서 병원에 갔다." },
];
const errorBox = element("div");
let lastRequest = null;

const form = new Form(byId("form"), {
  fields: [{ name: "sentences", label: "sentences, one per line", kind: "text", rows: 6, required: true, hint: "Mark one word of each sentence: the *play* began." }, { name: "layer", label: "layer (0 is the embeddings, -1 the last)", kind: "number", step: 1, initial: -1 }],
  button: "Compare",
  onSubmit: () => run(),
  onChange: () => save(),
  examples: EXAMPLES,
});
byId("form").classList.add("inline-form");
byId("form").append(errorBox);
copyButtons(byId("code"), () => lastRequest);

function save() {
  urlState.write({ ...form.values(), model: MODELS.selected });
}

function marked({ text, start, end }) {
  const all = [...text];
  return [all.slice(0, start).join(""), element("mark", {}, all.slice(start, end).join("")), all.slice(end).join("")];
}

// The sentences as a matrix of similarities; the cell of the nearest other sentence of each row is bold, unless all are equally near.
function table(model, { layer, sentences, similarity }) {
  const head = element("tr", {}, element("th", { scope: "col" }, `${model.name}, layer ${layer}`), ...sentences.map((_, number) => element("th", { scope: "col" }, String(number + 1))));
  const rows = sentences.map((sentence, row) => {
    const others = similarity[row].filter((_, column) => column !== row), nearest = Math.max(...others), differ = nearest - Math.min(...others) >= 0.005;
    const cells = similarity[row].map((value, column) => {
      const cell = element("td", { class: column === row ? "faint" : "" }, column === row || value < nearest || !differ ? value.toFixed(2) : element("b", {}, value.toFixed(2)));
      cell.style.background = `color-mix(in srgb, var(--c0) ${(Math.max(value, 0) * 45).toFixed(0)}%, transparent)`;
      return cell;
    });
    return element("tr", {}, element("th", { scope: "row" }, `${row + 1}  `, ...marked(sentence)), ...cells);
  });
  return element("section", { class: "card" }, element("div", { class: "wide contexts", tabindex: "0" }, element("table", {}, element("thead", {}, head), element("tbody", {}, ...rows))));
}

const run = latest(async (signal) => {
  const { sentences, layer } = form.values();
  save();
  showError(errorBox, null);
  form.setBusy(true);
  const found = [];
  try {
    for (const model of modelsFor("word-contexts")) {
      lastRequest = ["word-contexts", { inputs: lines(sentences), layer: Number(layer || -1), model: model.name }];
      const { result } = await request(...lastRequest, { signal });
      found.push(table(model, result));
    }
    byId("result").replaceChildren(...found);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    byId("result").replaceChildren(...found);
    showError(errorBox, error);
  } finally {
    form.setBusy(false);
  }
});

function restore() {
  const { sentences = EXAMPLES[0].sentences, layer = "-1" } = urlState.read();
  form.fill({ sentences, layer });
}
restore();
await loadModels(urlState.read().model, () => run());
urlState.onChange(() => { restore(); run(); });
run();
