// What models can be asked in the playground: the fields of each question, its request, and how its answer looks.
import { element } from "./elements.js";
import { lines } from "./forms.js";
import { percent } from "./page.js";
import { bar, characters, marked } from "./marks.js";

const TEXT = { name: "text", label: "text", kind: "text", rows: 4 };
const long = (found) => (found.truncated ? "The text was longer than the model takes: a part of it was not read." : found.windows > 1 ? `The text was read in ${found.windows} windows.` : "");
const note = (words) => (words ? [element("p", { class: "note" }, words)] : []);
const made = (...parts) => element("div", {}, ...parts);

// --- words in gaps

function gap(sequence, question) {
  const before = characters(question.inputs), after = characters(sequence);
  let start = 0, end = 0;
  while (start < after.length && before[start] === after[start]) start++;
  while (end < after.length - start && before.at(-1 - end) === after.at(-1 - end)) end++;
  return marked(sequence, [{ start, end: after.length - end, made: (words) => element("mark", {}, words) }]);
}

function filled({ question, result, model, put }) {
  const gaps = Array.isArray(result[0]) ? result : [result];
  const mask = model?.mask_token ?? "[MASK]";
  return made(...gaps.map((candidates, number) => {
    const sentence = element("div", {}, gap(candidates[0].sequence, question));
    const list = element("div", { class: "candidates", role: "group", "aria-label": gaps.length > 1 ? `words for gap ${number + 1}` : "words for the gap" });
    for (const one of candidates) {
      const button = element("button", { type: "button", "aria-pressed": "false", "aria-label": `${one.token_str || "(nothing)"} ${percent(one.score)}` },
        bar({ label: one.token_str || "(nothing)", share: one.score, words: percent(one.score) }));
      button.addEventListener("click", () => {
        const taken = button.getAttribute("aria-pressed") !== "true";
        for (const other of list.children) other.setAttribute("aria-pressed", taken && other === button);
        sentence.replaceChildren(gap(taken ? one.sequence : candidates[0].sequence, question));
        put({ text: taken ? one.sequence : question.inputs }, taken && one.sequence.includes(mask));
      });
      list.append(button);
    }
    return element("section", {}, ...(gaps.length > 1 ? [element("h3", {}, `gap ${number + 1}`)] : []), sentence, list, ...note(long(candidates[0])));
  }), element("p", { class: "faint" }, "Choose a word to put it in; choose it again to take it out."));
}

// --- answers from a passage

function answered({ question, result }) {
  const found = Array.isArray(result) ? result : [result];
  const passage = element("div"), list = element("div", { class: "candidates", role: "group", "aria-label": "answers" });
  const words = (one) => one.answer || "no answer in this text";
  const show = (one) => passage.replaceChildren(marked(question.context, one.answer ? [{ start: one.start, end: one.end, made: (text) => element("mark", {}, text) }] : []));
  for (const one of found) {
    const button = element("button", { type: "button", "aria-pressed": one === found[0], "aria-label": `${words(one)} ${percent(one.score)}` },
      bar({ label: words(one), share: one.score, words: percent(one.score), best: one === found[0] }));
    button.addEventListener("click", () => {
      for (const other of list.children) other.setAttribute("aria-pressed", other === button);
      show(one);
    });
    list.append(button);
  }
  show(found[0]);
  return made(element("p", { class: "big" }, words(found[0])), list, passage, ...note(long(found[0])));
}

// --- entities

const tone = (kinds, kind) => `tone${kinds.indexOf(kind) % 10}`;

function tagged({ question, result }) {
  const kinds = [...new Set(result.map((one) => one.entity_group))].sort();
  const stretches = [...result].sort((a, b) => a.start - b.start).map((one) => ({
    start: one.start,
    end: one.end,
    made: (words) => element("mark", { class: `entity ${tone(kinds, one.entity_group)}`, title: `${one.entity_group} ${percent(one.score)}` }, words, element("small", {}, one.entity_group)),
  }));
  if (!result.length) return made(marked(question.inputs, []), element("p", {}, "No entity was found."));
  const legend = element("ul", { class: "legend", "aria-label": "kinds of entities" }, ...kinds.map((kind) =>
    element("li", {}, element("i", { class: `swatch ${tone(kinds, kind)}` }), `${kind} `, element("b", {}, String(result.filter((one) => one.entity_group === kind).length)))));
  const rows = result.map((one) => element("tr", {}, ...[one.word, one.entity_group, percent(one.score), `${one.start} – ${one.end}`].map((cell) => element("td", {}, cell))));
  const head = element("tr", {}, ...["entity", "kind", "sure", "characters"].map((cell) => element("th", { scope: "col" }, cell)));
  const table = element("div", { class: "wide", tabindex: "0" }, element("table", {}, element("thead", {}, head), element("tbody", {}, ...rows)));
  return made(marked(question.inputs, stretches), legend, element("details", {}, element("summary", {}, `${result.length} found`), table));
}

// --- labels and numbers

function labelled({ result }) {
  const found = Array.isArray(result[0]) ? result[0] : Array.isArray(result) ? result : [result];
  if (!("label" in found[0])) return made(element("p", { class: "big" }, found[0].score.toFixed(3)), ...note(long(found[0])));
  const bars = found.map((one, number) => bar({ label: one.label, share: one.score, words: percent(one.score), best: !number }));
  return made(element("p", { class: "big" }, found[0].label), ...bars, ...note(long(found[0])));
}

function alike({ question, result }) {
  const texts = question.inputs.sentences, best = Math.max(...result);
  const bars = texts.map((label, number) => bar({ label, share: result[number], words: result[number].toFixed(3), best: result[number] === best }));
  return made(...bars, element("p", { class: "faint" }, "Cosines: 1 points the same way, 0 has nothing in common."));
}

function ranked({ question, result }) {
  const scores = result.map((one) => one.score), most = Math.max(...scores, 1e-9), least = Math.min(...scores, 0);
  return element("ol", { class: "ranked" }, ...result.map((one, number) => {
    const label = question.texts[one.index];
    return element("li", {}, bar({ label, share: (one.score - least) / (most - least || 1), words: one.score.toFixed(3), best: !number, note: long(one) }));
  }));
}

function chosen({ question, result }) {
  const shares = Array.isArray(result.probabilities) ? result.probabilities : Object.values(result.probabilities);
  const bars = question.choices.map((label, number) => bar({ label, share: shares[number], words: percent(shares[number]), best: number === result.index }));
  return made(element("p", { class: "big" }, result.choice), ...bars, ...note(long(result)));
}

function followed({ result }) {
  const bars = [["follows", result.is_next], ["does not follow", result.not_next]].map(([label, share]) => bar({ label, share, words: percent(share), best: share >= 0.5 }));
  return made(...bars, ...note(long(result)));
}

export const TASKS = [
  {
    name: "fill-mask", path: "fill-mask", title: "Fill in", button: "Fill in", answer: filled,
    needs: "a model that guesses words, as pre-training with the objective masked_lm makes it",
    made: "bertsmith pretrain bert/mini --data SHARDS -o runs/mine",
    about: "The likeliest words for each gap come here.",
    fields: [{ ...TEXT, hint: "[MASK] stands for a word; several side by side for one of several pieces." }, { name: "top", label: "words", kind: "number", otherwise: 5, least: 1, most: 50 }],
    examples: [{ title: "English", text: "The capital of France is [MASK]." }, { title: "한국어", text: "대한민국의 수도는 [MASK]이다." }, { title: "two gaps", text: "The [MASK] hammers the hot [MASK]." }],
    question: ({ text, top }) => ({ inputs: text, top_k: Number(top) || 5 }),
  },
  {
    name: "qa", path: "qa", title: "Answer", button: "Answer", answer: answered,
    needs: "a model that finds answers in a text, fine-tuned on SQuAD or alike",
    made: "bertsmith finetune MODEL --task squad/1.1 --data FOLDER -o runs/answers",
    about: "The answer is marked in the text; the next best ones can be looked at too.",
    fields: [{ name: "question", label: "question", kind: "line" }, { name: "context", label: "text", kind: "text", rows: 7 }, { name: "top", label: "answers", kind: "number", otherwise: 3, least: 1, most: 20 }, { name: "none", label: "there may be no answer", kind: "check" }],
    examples: [{ title: "English", question: "What does the smith hammer?", context: "In the forge by the river the smith hammers iron, while her daughter gilds a clock.", top: 3 }, { title: "한국어", question: "대장장이는 무엇을 두드리는가?", context: "강가의 대장간에서 대장장이가 쇠를 두드린다.", top: 3 }],
    question: ({ question, context, top, none }) => ({ question, context, top_k: Number(top) || 1, ...(none === "yes" ? { no_answer: 0 } : {}) }),
  },
  {
    name: "ner", path: "ner", title: "Entities", button: "Find", answer: tagged,
    needs: "a model that tags words, fine-tuned on entities",
    made: "bertsmith finetune MODEL --task tagging --train FILE --dev FILE -o runs/entities",
    about: "Names of people, places and whatever else the model was taught are marked here.",
    fields: [{ ...TEXT, rows: 6 }],
    examples: [{ title: "English", text: "Ada Lovelace met Charles Babbage in London." }, { title: "한국어", text: "이순신은 서울에서 태어났다." }],
    question: ({ text }) => ({ inputs: text }),
  },
  {
    name: "predict", path: "predict", title: "Classify", button: "Classify", answer: labelled,
    needs: "a model with labels or a number, fine-tuned to classify or to measure",
    made: "bertsmith finetune MODEL --task classification --train FILE --dev FILE -o runs/labels",
    about: "How likely each label is comes here.",
    fields: [TEXT, { name: "second", label: "second text, for models of pairs", kind: "text", rows: 2 }],
    examples: [{ title: "English", text: "A warm and funny film, well told." }, { title: "한국어", text: "따뜻하고 재미있는 영화였다." }],
    question: ({ text, second }) => ({ inputs: second ? [[text, second]] : text, top_k: 20 }),
  },
  {
    name: "similarity", path: "similarity", title: "Compare", button: "Compare", answer: alike,
    needs: "any model with an encoder", made: "bertsmith pretrain bert/mini --data SHARDS -o runs/mine",
    about: "How near each text is to the first comes here.",
    fields: [{ name: "source", label: "text", kind: "line" }, { name: "others", label: "texts to compare with, one a line", kind: "text", rows: 5 }],
    examples: [{ title: "English", source: "The smith hammers iron.", others: "A blacksmith works hot metal.\nThe cat sleeps.\nIron is hammered by the smith." }, { title: "한국어", source: "대장장이가 쇠를 두드린다.", others: "대장간에서 쇠를 달군다.\n고양이가 잔다." }],
    question: ({ source, others }) => ({ inputs: { source_sentence: source, sentences: lines(others) } }),
  },
  {
    name: "rerank", path: "rerank", title: "Rank", button: "Rank", answer: ranked,
    needs: "any model with an encoder, best one fine-tuned on pairs", made: "bertsmith finetune MODEL --task pairs --train FILE --dev FILE -o runs/ranks",
    about: "The texts come here, the best for the question first.",
    fields: [{ name: "query", label: "question", kind: "line" }, { name: "texts", label: "texts, one a line", kind: "text", rows: 5 }, { name: "positive", label: "label that ranks, where there are several", kind: "line" }],
    examples: [{ title: "English", query: "Who works with iron?", texts: "The cat sleeps.\nThe smith hammers iron.\nRivers run to the sea." }],
    question: ({ query, texts, positive }) => ({ query, texts: lines(texts), ...(positive ? { positive } : {}) }),
  },
  {
    name: "choose", path: "choose", title: "Choose", button: "Choose", answer: chosen,
    needs: "a model for multiple choice, fine-tuned on SWAG, CommonsenseQA or alike",
    made: "bertsmith finetune MODEL --task swag --data FOLDER -o runs/choices",
    about: "How likely each choice is comes here.",
    fields: [{ name: "question", label: "question", kind: "text", rows: 2 }, { name: "choices", label: "choices, one a line", kind: "text", rows: 4 }],
    examples: [{ title: "English", question: "The smith takes the hammer. She", choices: "strikes the iron.\nreads the river.\nsleeps the clock." }],
    question: ({ question, choices }) => ({ question, choices: lines(choices) }),
  },
  {
    name: "next-sentence", path: "next-sentence", title: "Next sentence", button: "Judge", answer: followed,
    needs: "a model that was pre-trained with the objective next_sentence",
    made: "bertsmith pretrain bert/mini --data SHARDS -o runs/mine",
    about: "How likely the second text follows the first comes here.",
    fields: [{ name: "first", label: "first", kind: "text", rows: 2 }, { name: "second", label: "second", kind: "text", rows: 2 }],
    examples: [{ title: "English", first: "The smith lit the fire.", second: "Soon the iron glowed." }, { title: "한국어", first: "대장장이가 불을 피웠다.", second: "곧 쇠가 달아올랐다." }],
    question: ({ first, second }) => ({ first, second }),
  },
];
