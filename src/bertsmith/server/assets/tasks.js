// The tasks of the playground: the fields of each form, its request body, and the rendering of its result.
import { element } from "./elements.js";
import { lines } from "./forms.js";
import { percent } from "./page.js";
import { bar, characters, marked } from "./text_marks.js";
import { TRANSLATION } from "./translation_task.js";

const TEXT = { name: "text", label: "text", kind: "text", rows: 4 };
const lengthNote = (one) => (one.truncated ? "The text was longer than the model's maximum length and was truncated." : one.windows > 1 ? `The text was read in ${one.windows} windows.` : "");
const note = (text) => (text ? [element("p", { class: "note" }, text)] : []);
const container = (...parts) => element("div", {}, ...parts);

// The filled text, with the words in place of the mask marked.
function highlightFilled(sequence, body) {
  const before = characters(body.inputs), after = characters(sequence);
  let start = 0, end = 0;
  while (start < after.length && before[start] === after[start]) start++;
  while (end < after.length - start && before.at(-1 - end) === after.at(-1 - end)) end++;
  return marked(sequence, [{ start, end: after.length - end, render: (text) => element("mark", {}, text) }]);
}

function renderMasks({ body, result, model, put }) {
  const masks = Array.isArray(result[0]) ? result : [result];
  const mask = model?.mask_token ?? "[MASK]";
  return container(...masks.map((candidates, number) => {
    const sentence = element("div", {}, highlightFilled(candidates[0].sequence, body));
    const list = element("div", { class: "candidates", role: "group", "aria-label": masks.length > 1 ? `words for mask ${number + 1}` : "words for the mask" });
    for (const one of candidates) {
      const button = element("button", { type: "button", "aria-pressed": "false", "aria-label": `${one.token_str || "(nothing)"} ${percent(one.score)}` },
        bar({ label: one.token_str || "(nothing)", value: one.score, text: percent(one.score) }));
      button.addEventListener("click", () => {
        const pressed = button.getAttribute("aria-pressed") !== "true";
        for (const other of list.children) other.setAttribute("aria-pressed", pressed && other === button);
        sentence.replaceChildren(highlightFilled(pressed ? one.sequence : candidates[0].sequence, body));
        put({ text: pressed ? one.sequence : body.inputs }, pressed && one.sequence.includes(mask));
      });
      list.append(button);
    }
    return element("section", {}, ...(masks.length > 1 ? [element("h3", {}, `mask ${number + 1}`)] : []), sentence, list, ...note(lengthNote(candidates[0])));
  }), element("p", { class: "faint" }, "Click a word to insert it; click it again to remove it."));
}

function renderAnswers({ body, result }) {
  const results = Array.isArray(result) ? result : [result];
  const passage = element("div"), list = element("div", { class: "candidates", role: "group", "aria-label": "answers" });
  const answerText = (one) => one.answer || "no answer in this text";
  const show = (one) => passage.replaceChildren(marked(body.context, one.answer ? [{ start: one.start, end: one.end, render: (text) => element("mark", {}, text) }] : []));
  for (const one of results) {
    const button = element("button", { type: "button", "aria-pressed": one === results[0], "aria-label": `${answerText(one)} ${percent(one.score)}` },
      bar({ label: answerText(one), value: one.score, text: percent(one.score), best: one === results[0] }));
    button.addEventListener("click", () => {
      for (const other of list.children) other.setAttribute("aria-pressed", other === button);
      show(one);
    });
    list.append(button);
  }
  show(results[0]);
  return container(element("p", { class: "big" }, answerText(results[0])), list, passage, ...note(lengthNote(results[0])));
}

const tone = (groups, group) => `tone${groups.indexOf(group) % 10}`;

function renderEntities({ body, result }) {
  const groups = [...new Set(result.map((one) => one.entity_group))].sort();
  const spans = [...result].sort((a, b) => a.start - b.start).map((one) => ({
    start: one.start,
    end: one.end,
    render: (text) => element("mark", { class: `entity ${tone(groups, one.entity_group)}`, title: `${one.entity_group} ${percent(one.score)}` }, text, element("small", {}, one.entity_group)),
  }));
  if (!result.length) return container(marked(body.inputs, []), element("p", {}, "No entities."));
  const legend = element("ul", { class: "legend", "aria-label": "entity types" }, ...groups.map((group) =>
    element("li", {}, element("i", { class: `swatch ${tone(groups, group)}` }), `${group} `, element("b", {}, String(result.filter((one) => one.entity_group === group).length)))));
  const table = spanTable(["entity", "type"], result.map((one) => ({ ...one, label: one.entity_group })));
  return container(marked(body.inputs, spans), legend, element("details", {}, element("summary", {}, `${result.length} entities`), table));
}

function spanTable(names, results) {
  const rows = results.map((one) => element("tr", {}, ...[one.word, one.label, percent(one.score), `${one.start} – ${one.end}`].map((cell) => element("td", {}, cell))));
  const head = element("tr", {}, ...[...names, "score", "characters"].map((cell) => element("th", { scope: "col" }, cell)));
  return element("div", { class: "wide", tabindex: "0" }, element("table", {}, element("thead", {}, head), element("tbody", {}, ...rows)));
}

function renderWords({ result }) {
  return container(result.length ? spanTable(["word", "label"], result) : element("p", {}, "No words."));
}

function renderLabels({ result }) {
  const results = Array.isArray(result[0]) ? result[0] : Array.isArray(result) ? result : [result];
  if (!("label" in results[0])) return container(element("p", { class: "big" }, results[0].score.toFixed(3)), ...note(lengthNote(results[0])));
  const bars = results.map((one, number) => bar({ label: one.label, value: one.score, text: percent(one.score), best: !number }));
  return container(element("p", { class: "big" }, results[0].label), ...bars, ...note(lengthNote(results[0])));
}

function renderSimilarity({ body, result }) {
  const texts = body.inputs.sentences, best = Math.max(...result);
  const bars = texts.map((label, number) => bar({ label, value: result[number], text: result[number].toFixed(3), best: result[number] === best }));
  return container(...bars, element("p", { class: "faint" }, "Cosine similarity: 1 for equal directions, 0 for unrelated texts."));
}

function renderRanking({ body, result }) {
  const scores = result.map((one) => one.score), most = Math.max(...scores, 1e-9), least = Math.min(...scores, 0);
  return element("ol", { class: "ranked" }, ...result.map((one, number) => {
    const label = body.texts[one.index];
    return element("li", {}, bar({ label, value: (one.score - least) / (most - least || 1), text: one.score.toFixed(3), best: !number, note: lengthNote(one) }));
  }));
}

function renderChoices({ body, result }) {
  const probabilities = Array.isArray(result.probabilities) ? result.probabilities : Object.values(result.probabilities);
  const bars = body.choices.map((label, number) => bar({ label, value: probabilities[number], text: percent(probabilities[number]), best: number === result.index }));
  return container(element("p", { class: "big" }, result.choice), ...bars, ...note(lengthNote(result)));
}

function renderNextSentence({ result }) {
  const names = result.objective === "sentence_order" ? { in_order: "in order", swapped: "swapped" } : { is_next: "follows", not_next: "does not follow" };
  const bars = Object.entries(names).map(([key, label]) => bar({ label, value: result[key], text: percent(result[key]), best: result[key] >= 0.5 }));
  return container(...bars, ...note(lengthNote(result)));
}

// The text with a button for each token, which shows the most likely tokens at its position.
function renderGenerated({ body, result }) {
  const [{ text, logprobs, finish_reason }] = result.choices, written = characters(text);
  const alternatives = element("div", { class: "candidates", role: "group", "aria-label": "most likely tokens" });
  const show = (position) => alternatives.replaceChildren(...Object.entries(logprobs.top_logprobs[position]).map(([token, value]) =>
    bar({ label: token, value: Math.exp(value), text: percent(Math.exp(value)), best: token === logprobs.tokens[position] })));
  const tokens = logprobs.tokens.map((token, position) => {
    const piece = written.slice(logprobs.text_offset[position], logprobs.text_offset[position + 1] ?? written.length).join("");
    const button = element("button", { type: "button", "aria-pressed": "false", title: `${token} ${percent(Math.exp(logprobs.token_logprobs[position]))}` }, piece || token);
    button.addEventListener("click", () => {
      for (const other of tokens) other.setAttribute("aria-pressed", other === button);
      show(position);
    });
    return button;
  });
  const reason = finish_reason === "length" ? "The text ends at the maximum of new tokens." : "The model ended the text, or a stop string did.";
  return container(element("p", { class: "generated" }, element("span", { class: "faint" }, body.prompt), ...tokens), alternatives,
    element("p", { class: "faint" }, `${reason} Click a token to see the ten most likely tokens at its position.`));
}

export const TASKS = [
  {
    name: "fill-mask", path: "fill-mask", title: "Fill mask", button: "Fill", render: renderMasks,
    needs: "a model pre-trained with the objective masked_lm",
    command: "bertsmith pretrain bert/mini --data SHARDS -o runs/mine",
    placeholder: "Shows the most likely words for each mask.",
    fields: [{ ...TEXT, hint: "[MASK] stands for one token; several in a row for a word of several tokens." }, { name: "top", label: "words", kind: "number", initial: 5, min: 1, max: 50 }],
    examples: [{ title: "English", text: "The capital of France is [MASK]." }, { title: "한국어", text: "대한민국의 수도는 [MASK]이다." }, { title: "two masks", text: "The [MASK] hammers the hot [MASK]." }],
    body: ({ text, top }) => ({ inputs: text, top_k: Number(top) || 5 }),
  },
  {
    name: "qa", path: "qa", title: "Question answering", button: "Answer", render: renderAnswers,
    needs: "a model fine-tuned for question answering, for example on SQuAD",
    command: "bertsmith finetune MODEL --task squad/1.1 --data FOLDER -o runs/answers",
    placeholder: "Marks the answer in the text, and lists the next best ones.",
    fields: [{ name: "question", label: "question", kind: "line" }, { name: "context", label: "text", kind: "text", rows: 7 }, { name: "top", label: "answers", kind: "number", initial: 3, min: 1, max: 20 }, { name: "none", label: "allow no answer", kind: "check" }],
    examples: [{ title: "English", question: "What does the smith hammer?", context: "In the forge by the river the smith hammers iron, while her daughter gilds a clock.", top: 3 }, { title: "한국어", question: "대장장이는 무엇을 두드리는가?", context: "강가의 대장간에서 대장장이가 쇠를 두드린다.", top: 3 }],
    body: ({ question, context, top, none }) => ({ question, context, top_k: Number(top) || 1, ...(none === "yes" ? { no_answer: 0 } : {}) }),
  },
  {
    name: "ner", path: "ner", title: "Entities", button: "Find", render: renderEntities,
    needs: "a model fine-tuned for token classification, with labels such as B-PER",
    command: "bertsmith finetune MODEL --task tagging --train FILE --dev FILE -o runs/entities",
    placeholder: "Marks people, places and the other entity types of the model.",
    fields: [{ ...TEXT, rows: 6 }],
    examples: [{ title: "English", text: "Ada Lovelace met Charles Babbage in London." }, { title: "한국어", text: "이순신은 서울에서 태어났다." }],
    body: ({ text }) => ({ inputs: text }),
  },
  {
    name: "tag-words", path: "tag-words", title: "Word labels", button: "Tag", render: renderWords,
    needs: "a model fine-tuned for token classification",
    command: "bertsmith finetune MODEL --task tagging --train FILE --dev FILE -o runs/entities",
    placeholder: "Shows the label of each word, such as its part of speech.",
    fields: [{ ...TEXT, rows: 6 }],
    examples: [{ title: "English", text: "The smith hammers the hot iron." }, { title: "한국어", text: "대장장이가 쇠를 두드린다." }],
    body: ({ text }) => ({ inputs: text }),
  },
  {
    name: "predict", path: "predict", title: "Classify", button: "Classify", render: renderLabels,
    needs: "a model fine-tuned for classification or regression",
    command: "bertsmith finetune MODEL --task classification --train FILE --dev FILE -o runs/labels",
    placeholder: "Shows the probability of each label.",
    fields: [TEXT, { name: "second", label: "second text, for pairs", kind: "text", rows: 2, optional: true }],
    examples: [{ title: "English", text: "A warm and funny film, well told." }, { title: "한국어", text: "따뜻하고 재미있는 영화였다." }],
    body: ({ text, second }) => ({ inputs: second ? [[text, second]] : text, top_k: 20 }),
  },
  {
    name: "generate", path: "v1/completions", title: "Generate", button: "Generate", render: renderGenerated,
    needs: "a causal language model",
    command: "bertsmith pretrain gpt/small --data SHARDS -o runs/mine",
    placeholder: "Continues the text, and shows the most likely tokens at each step.",
    fields: [{ name: "prompt", label: "prompt", kind: "text", rows: 4 }, { name: "tokens", label: "new tokens", kind: "number", initial: 40, min: 1 },
      { name: "temperature", label: "temperature", kind: "number", initial: 0, min: 0, max: 5, step: 0.1, hint: "0: always the most likely token." },
      { name: "top_p", label: "top p", kind: "number", initial: 1, min: 0.05, max: 1, step: 0.05 }, { name: "seed", label: "seed", kind: "number", initial: 0, min: 0 },
      { name: "stop", label: "stop at this text", kind: "line", optional: true }],
    examples: [{ title: "English", prompt: "The smith heats the iron" }, { title: "sampled", prompt: "The smith heats the iron", temperature: 0.8, top_p: 0.95, seed: 1 }],
    body: ({ prompt, tokens, temperature, top_p, seed, stop }) => ({ prompt, max_tokens: Number(tokens) || 40, temperature: Number(temperature), top_p: Number(top_p) || 1, seed: Number(seed), logprobs: 10, ...(stop ? { stop } : {}) }),
  },
  TRANSLATION,
  {
    name: "similarity", path: "similarity", title: "Similarity", button: "Compare", render: renderSimilarity,
    needs: "any model", command: "bertsmith pretrain bert/mini --data SHARDS -o runs/mine",
    placeholder: "Shows the similarity of each text to the first.",
    fields: [{ name: "source", label: "text", kind: "line" }, { name: "others", label: "texts to compare with, one per line", kind: "text", rows: 5 }],
    examples: [{ title: "English", source: "The smith hammers iron.", others: "A blacksmith works hot metal.\nThe cat sleeps.\nIron is hammered by the smith." }, { title: "한국어", source: "대장장이가 쇠를 두드린다.", others: "대장간에서 쇠를 달군다.\n고양이가 잔다." }],
    body: ({ source, others }) => ({ inputs: { source_sentence: source, sentences: lines(others) } }),
  },
  {
    name: "rerank", path: "rerank", title: "Rank", button: "Rank", render: renderRanking,
    needs: "any model, preferably one fine-tuned on pairs", command: "bertsmith finetune MODEL --task pairs --train FILE --dev FILE -o runs/ranks",
    placeholder: "Lists the texts, the best match for the query first.",
    fields: [{ name: "query", label: "query", kind: "line" }, { name: "texts", label: "texts, one per line", kind: "text", rows: 5 }, { name: "positive", label: "label whose probability is the score", kind: "line", optional: true }],
    examples: [{ title: "English", query: "Who works with iron?", texts: "The cat sleeps.\nThe smith hammers iron.\nRivers run to the sea." }],
    body: ({ query, texts, positive }) => ({ query, texts: lines(texts), ...(positive ? { positive } : {}) }),
  },
  {
    name: "choose", path: "choose", title: "Multiple choice", button: "Choose", render: renderChoices,
    needs: "a model fine-tuned for multiple choice, for example on SWAG",
    command: "bertsmith finetune MODEL --task swag --data FOLDER -o runs/choices",
    placeholder: "Shows the probability of each choice.",
    fields: [{ name: "question", label: "question", kind: "text", rows: 2 }, { name: "choices", label: "choices, one per line", kind: "text", rows: 4 }],
    examples: [{ title: "English", question: "The smith takes the hammer. She", choices: "strikes the iron.\nreads the river.\nsleeps the clock." }],
    body: ({ question, choices }) => ({ question, choices: lines(choices) }),
  },
  {
    name: "next-sentence", path: "next-sentence", title: "Next sentence", button: "Predict", render: renderNextSentence,
    needs: "a model pre-trained with the objective next_sentence or sentence_order",
    command: "bertsmith pretrain bert/mini --data SHARDS -o runs/mine",
    placeholder: "Shows the probability that the second text follows the first, or that both are in order.",
    fields: [{ name: "first", label: "first", kind: "text", rows: 2 }, { name: "second", label: "second", kind: "text", rows: 2 }],
    examples: [{ title: "English", first: "The smith lit the fire.", second: "Soon the iron glowed." }, { title: "한국어", first: "대장장이가 불을 피웠다.", second: "곧 쇠가 달아올랐다." }],
    body: ({ first, second }) => ({ first, second }),
  },
];
