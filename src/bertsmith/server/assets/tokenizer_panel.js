// The tokenizer: tokens as boxes over the text as typed, with ids, offsets and counts.
import { request, latest } from "./api.js";
import { copyButtons } from "./code.js";
import { element } from "./elements.js";
import { Form } from "./forms.js";
import { MODELS, modelsFor, loadModels, modelField, byId, showError } from "./page.js";
import { characters } from "./text_marks.js";
import * as urlState from "./url_state.js";

const UNKNOWN = ["[UNK]", "<unk>"], MAX_BOXES = 1500, PAUSE = 180;
const DEFAULT_TEXT = "대장장이가 쇠를 두드린다. The blacksmith is hammering 🔨 iron.";
const errorBox = element("div");
let lastRequest = null, tokens = [], boxes = [], selected = -1;

const form = new Form(byId("form"), {
  fields: [{ name: "text", label: "text", kind: "text", rows: 4 }, { name: "specials", label: "special tokens", kind: "check", initial: true }, { name: "ids", label: "ids", kind: "check" }],
  button: "Tokenize",
  onSubmit: () => run(),
  onChange: () => schedule(),
  examples: [{ title: "mixed", text: DEFAULT_TEXT }, { title: "한국어", text: "안녕하세요! 다음 주에 서울에서 만나요." }, { title: "emoji", text: "👩‍🚀 and 👨‍👩‍👧‍👦 fly 🇰🇷" }],
});
byId("form").classList.add("inline-form");
const normalization = element("div", { class: "row examples" }, element("span", { class: "faint" }, "Unicode normalization"));
for (const name of ["NFC", "NFD"]) {
  const button = element("button", { type: "button", title: name === "NFC" ? "composed characters" : "decomposed characters: combining marks and Hangul jamo" }, name);
  button.addEventListener("click", () => {
    form.fill({ ...form.values(), text: form.values().text.normalize(name) });
    run();
  });
  normalization.append(button);
}
byId("form").append(normalization, errorBox);
copyButtons(byId("code"), () => lastRequest);

let timer = 0;
function schedule() {
  clearTimeout(timer);
  timer = setTimeout(() => run(), PAUSE);
}

const run = latest(async (signal) => {
  clearTimeout(timer);
  const { text, specials, ids } = form.values();
  urlState.write({ text, model: MODELS.selected, specials: specials === "no" ? "no" : "", ids: ids === "yes" ? "yes" : "" });
  form.setBusy(true);
  try {
    lastRequest = ["tokenize", { inputs: text, add_special_tokens: specials === "yes", ...modelField() }];
    const { result } = await request(...lastRequest, { signal });
    showError(errorBox, null);
    tokens = result[0];
    show(text, ids === "yes");
  } catch (error) {
    if (error.name === "AbortError") throw error;
    showError(errorBox, error);
  } finally {
    form.setBusy(false);
  }
});

// One box for tokens that share characters, such as the bytes of an emoji.
function groupTokens(text) {
  const all = characters(text), found = [];
  let at = 0;
  tokens.forEach((token, number) => {
    if (token.special || token.start === token.stop) return void found.push({ text: token.text, special: true, numbers: [number] }); // it covers no characters
    const last = found.at(-1);
    if (token.start < at && last && !last.special) {
      last.numbers.push(number);
      if (token.stop > at) last.text += all.slice(at, token.stop).join("");
    } else {
      if (token.start > at) found.push({ between: all.slice(at, token.start).join("") });
      found.push({ text: all.slice(token.start, token.stop).join(""), numbers: [number] });
    }
    at = Math.max(at, token.stop);
  });
  if (at < all.length) found.push({ between: all.slice(at).join("") });
  return found;
}

function tokenBox({ text, special, numbers }, ids, tone) {
  const unknown = !special && numbers.some((number) => UNKNOWN.includes(tokens[number].text));
  const shown = /^\p{M}/u.test(text) ? `◌${text}` : text; // a base for a combining mark
  const box = element("span", { class: `token tone${tone}${special ? " special" : ""}${unknown ? " unknown" : ""}`, role: "listitem", title: numbers.map((number) => tokens[number].id).join(" "), "data-number": boxes.length }, shown);
  if (ids) box.append(element("small", {}, numbers.map((number) => tokens[number].id).join(" ")));
  box.numbers = numbers;
  boxes.push(box);
  return box;
}

function show(text, ids, limit = MAX_BOXES) {
  boxes = [];
  selected = -1;
  const all = groupTokens(text), parts = all.slice(0, limit).map((part) => (part.between !== undefined ? part.between : tokenBox(part, ids, boxes.length % 5)));
  byId("tokens").replaceChildren(...parts);
  if (all.length > limit) {
    const more = element("button", { type: "button" }, `show ${(all.length - limit).toLocaleString("en")} more`);
    more.addEventListener("click", () => show(text, ids, limit * 10));
    byId("tokens").append(" ", more);
  }
  byId("tokens").tabIndex = 0;
  byId("about").replaceChildren();
  counts(text);
  table();
}

function counts(text) {
  const real = tokens.filter((token) => !token.special), unknown = real.filter((token) => UNKNOWN.includes(token.text)).length;
  const words = text.split(/\s+/u).filter(Boolean).length, maxLength = modelsFor("tokenize")[0]?.max_length;
  const facts = { tokens: tokens.length.toLocaleString("en"), characters: characters(text).length.toLocaleString("en"), words: words.toLocaleString("en"), "tokens per word": words ? (real.length / words).toFixed(2) : "–" };
  if (maxLength) facts["maximum length"] = `${tokens.length.toLocaleString("en")} of ${maxLength.toLocaleString("en")}${tokens.length > maxLength ? ": too long" : ""}`;
  if (unknown) facts.unknown = unknown.toLocaleString("en");
  byId("counts").replaceChildren(element("dl", { class: "figures" }, ...Object.entries(facts).map(([name, value]) => element("div", {}, element("dt", {}, name), element("dd", {}, value)))));
}

function table() {
  byId("listed").hidden = !tokens.length;
  byId("listed").ontoggle = () => {
    if (!byId("listed").open) return;
    const rows = tokens.slice(0, MAX_BOXES).map((token, number) => element("tr", {}, ...[number + 1, token.text, token.id, token.special ? "special" : `${token.start} – ${token.stop}`].map((cell) => element("td", {}, String(cell)))));
    const head = element("tr", {}, ...["", "token", "id", "characters"].map((cell) => element("th", { scope: "col" }, cell)));
    byId("table").replaceChildren(element("div", { class: "wide", tabindex: "0" }, element("table", {}, element("thead", {}, head), element("tbody", {}, ...rows))));
    if (tokens.length > MAX_BOXES) byId("table").append(element("p", { class: "faint" }, `First ${MAX_BOXES} of ${tokens.length.toLocaleString("en")}.`));
  };
  byId("listed").ontoggle();
}

function select(number) {
  boxes[selected]?.classList.remove("selected");
  selected = number;
  boxes[selected]?.classList.add("selected");
  const one = boxes[selected];
  if (!one) return byId("about").replaceChildren();
  const facts = one.numbers.flatMap((at, index) => [...(index ? ["  ·  "] : []), element("b", {}, tokens[at].text), ` id ${tokens[at].id}`]);
  const { special, start, stop } = tokens[one.numbers[0]];
  byId("about").replaceChildren(...facts, special ? "  ·  special" : `  ·  characters ${start} – ${Math.max(stop, tokens[one.numbers.at(-1)].stop)}`, `  ·  token ${one.numbers[0] + 1} of ${tokens.length}`);
}
byId("tokens").addEventListener("pointerover", (event) => {
  const found = event.target.closest(".token");
  if (found) select(Number(found.dataset.number));
});
byId("tokens").addEventListener("click", (event) => {
  const found = event.target.closest(".token");
  if (found) select(Number(found.dataset.number));
});
byId("tokens").addEventListener("keydown", (event) => {
  const step = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity }[event.key];
  if (!step || !boxes.length) return;
  event.preventDefault();
  select(Math.min(Math.max(selected + step, 0), boxes.length - 1));
  boxes[selected].scrollIntoView({ block: "nearest" });
});

function restore() {
  const { text = DEFAULT_TEXT, specials = "yes", ids = "no" } = urlState.read();
  form.fill({ text, specials, ids });
}
restore(); // before the first response: the user may already type
await loadModels(urlState.read().model, () => run());
urlState.onChange(() => { restore(); run(); });
run();
