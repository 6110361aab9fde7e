// A text as its tokens: boxes over the text as it was typed, with ids, places and a count.
import { ask, latest } from "./api.js";
import { copyButtons } from "./code.js";
import { element } from "./elements.js";
import { Form } from "./forms.js";
import { MODELS, able, models, named, place, trouble } from "./page.js";
import { characters } from "./marks.js";
import * as address from "./state.js";

const UNKNOWN = ["[UNK]", "<unk>"], AT_ONCE = 1500, PAUSE = 180;
const START = "대장장이가 쇠를 두드린다. The blacksmith is hammering 🔨 iron.";
const failure = element("div");
let asked = null, tokens = [], boxes = [], looked = -1;

const form = new Form(place("form"), {
  fields: [{ name: "text", label: "text", kind: "text", rows: 4 }, { name: "specials", label: "special tokens", kind: "check", otherwise: true }, { name: "ids", label: "ids", kind: "check" }],
  button: "Split",
  act: () => run(),
  changed: () => later(),
  examples: [{ title: "mixed", text: START }, { title: "한국어", text: "안녕하세요, 세계! 서울에서 만나요." }, { title: "emoji", text: "👩‍🚀 and 👨‍👩‍👧‍👦 fly 🇰🇷" }],
});
place("form").classList.add("asks");
const forms = element("div", { class: "row examples" }, element("span", { class: "faint" }, "write it in"));
for (const shape of ["NFC", "NFD"]) {
  const button = element("button", { type: "button", title: shape === "NFC" ? "letters with their marks as one character" : "marks and the parts of Hangul as characters of their own" }, shape);
  button.addEventListener("click", () => {
    form.fill({ ...form.values(), text: form.values().text.normalize(shape) });
    run();
  });
  forms.append(button);
}
place("form").append(forms, failure);
copyButtons(place("code"), () => asked);

let waiting = 0;
function later() {
  clearTimeout(waiting);
  waiting = setTimeout(() => run(), PAUSE);
}

const run = latest(async (signal) => {
  clearTimeout(waiting);
  const { text, specials, ids } = form.values();
  address.write({ text, model: MODELS.chosen, specials: specials === "no" ? "no" : "", ids: ids === "yes" ? "yes" : "" });
  form.busy(true);
  try {
    asked = ["tokenize", { inputs: text, add_special_tokens: specials === "yes", ...named() }];
    const { result } = await ask(...asked, { signal });
    trouble(failure, null);
    tokens = result[0];
    show(text, ids === "yes");
  } catch (error) {
    if (error.name === "AbortError") throw error;
    trouble(failure, error);
  } finally {
    form.busy(false);
  }
});

// Tokens that share characters, as the bytes of an emoji do, stand in one box.
function boxed(text) {
  const all = characters(text), found = [];
  let at = 0;
  tokens.forEach((token, number) => {
    if (token.special || token.start === token.stop) return void found.push({ words: token.text, special: true, numbers: [number] }); // of no character
    const last = found.at(-1);
    if (token.start < at && last && !last.special) {
      last.numbers.push(number);
      if (token.stop > at) last.words += all.slice(at, token.stop).join("");
    } else {
      if (token.start > at) found.push({ between: all.slice(at, token.start).join("") });
      found.push({ words: all.slice(token.start, token.stop).join(""), numbers: [number] });
    }
    at = Math.max(at, token.stop);
  });
  if (at < all.length) found.push({ between: all.slice(at).join("") });
  return found;
}

function box({ words, special, numbers }, ids, tone) {
  const unknown = !special && numbers.some((number) => UNKNOWN.includes(tokens[number].text));
  const shown = /^\p{M}/u.test(words) ? `◌${words}` : words; // a mark alone stands on nothing
  const made = element("span", { class: `token tone${tone}${special ? " special" : ""}${unknown ? " unknown" : ""}`, role: "listitem", title: numbers.map((number) => tokens[number].id).join(" "), "data-number": boxes.length }, shown);
  if (ids) made.append(element("small", {}, numbers.map((number) => tokens[number].id).join(" ")));
  made.numbers = numbers;
  boxes.push(made);
  return made;
}

function show(text, ids, most = AT_ONCE) {
  boxes = [];
  looked = -1;
  const all = boxed(text), parts = all.slice(0, most).map((part) => (part.between !== undefined ? part.between : box(part, ids, boxes.length % 5)));
  place("tokens").replaceChildren(...parts);
  if (all.length > most) {
    const more = element("button", { type: "button" }, `show the other ${(all.length - most).toLocaleString("en")}`);
    more.addEventListener("click", () => show(text, ids, most * 10));
    place("tokens").append(" ", more);
  }
  place("tokens").tabIndex = 0;
  place("about").replaceChildren();
  counts(text);
  table();
}

function counts(text) {
  const real = tokens.filter((token) => !token.special), unknown = real.filter((token) => UNKNOWN.includes(token.text)).length;
  const words = text.split(/\s+/u).filter(Boolean).length, room = able("tokenize")[0]?.max_length;
  const facts = { tokens: tokens.length.toLocaleString("en"), characters: characters(text).length.toLocaleString("en"), words: words.toLocaleString("en"), "tokens a word": words ? (real.length / words).toFixed(2) : "–" };
  if (room) facts["places of the model"] = `${tokens.length.toLocaleString("en")} of ${room.toLocaleString("en")}${tokens.length > room ? ": too long" : ""}`;
  if (unknown) facts.unknown = unknown.toLocaleString("en");
  place("counts").replaceChildren(element("dl", { class: "figures" }, ...Object.entries(facts).map(([name, value]) => element("div", {}, element("dt", {}, name), element("dd", {}, value)))));
}

function table() {
  place("listed").hidden = !tokens.length;
  place("listed").ontoggle = () => {
    if (!place("listed").open) return;
    const rows = tokens.slice(0, AT_ONCE).map((token, number) => element("tr", {}, ...[number + 1, token.text, token.id, token.special ? "special" : `${token.start} – ${token.stop}`].map((cell) => element("td", {}, String(cell)))));
    const head = element("tr", {}, ...["", "token", "id", "characters"].map((cell) => element("th", { scope: "col" }, cell)));
    place("table").replaceChildren(element("div", { class: "wide", tabindex: "0" }, element("table", {}, element("thead", {}, head), element("tbody", {}, ...rows))));
    if (tokens.length > AT_ONCE) place("table").append(element("p", { class: "faint" }, `The first ${AT_ONCE} of ${tokens.length.toLocaleString("en")}.`));
  };
  place("listed").ontoggle();
}

function look(number) {
  boxes[looked]?.classList.remove("looked");
  looked = number;
  boxes[looked]?.classList.add("looked");
  const one = boxes[looked];
  if (!one) return place("about").replaceChildren();
  const facts = one.numbers.flatMap((at, place) => [...(place ? ["  ·  "] : []), element("b", {}, tokens[at].text), ` id ${tokens[at].id}`]);
  const { special, start, stop } = tokens[one.numbers[0]];
  place("about").replaceChildren(...facts, special ? "  ·  special" : `  ·  characters ${start} – ${Math.max(stop, tokens[one.numbers.at(-1)].stop)}`, `  ·  token ${one.numbers[0] + 1} of ${tokens.length}`);
}
place("tokens").addEventListener("pointerover", (event) => {
  const found = event.target.closest(".token");
  if (found) look(Number(found.dataset.number));
});
place("tokens").addEventListener("click", (event) => {
  const found = event.target.closest(".token");
  if (found) look(Number(found.dataset.number));
});
place("tokens").addEventListener("keydown", (event) => {
  const way = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity }[event.key];
  if (!way || !boxes.length) return;
  event.preventDefault();
  look(Math.min(Math.max(looked + way, 0), boxes.length - 1));
  boxes[looked].scrollIntoView({ block: "nearest" });
});

function fromAddress() {
  const { text = START, specials = "yes", ids = "no" } = address.read();
  form.fill({ text, specials, ids });
}
fromAddress(); // before the server is asked: somebody may type meanwhile
await models(address.read().model, () => run());
address.whenChanged(() => { fromAddress(); run(); });
run();
