// One text, one question, one answer: every task that a model can be asked.
import { ask, latest } from "./api.js";
import { copyButtons } from "./code.js";
import { element } from "./elements.js";
import { Form } from "./forms.js";
import { MODELS, able, models, named, place, trouble } from "./page.js";
import * as address from "./state.js";
import { TASKS } from "./tasks.js";

const kept = new Map(); // by task: what stands in its form
let task = TASKS[0], form = null, asked = null;

const output = element("div"), failure = element("div"), time = element("p", { class: "faint" }), code = element("div");
place("answer").append(failure, output, time, code);
copyButtons(code, () => asked);

function remember(step = false) {
  if (form) kept.set(task.name, form.values());
  address.write({ do: task.name, model: MODELS.chosen, ...kept.get(task.name) }, { step });
}

const run = latest(async (signal) => {
  const mine = form, question = task.question(form.values());
  remember();
  trouble(failure, null);
  mine.busy(true);
  try {
    const body = { ...question, ...named() };
    asked = [task.path, body];
    const { result, milliseconds } = await ask(task.path, body, { signal });
    const [model] = able(task.name);
    output.replaceChildren(task.answer({ question, result, model, put }));
    time.textContent = `${model.name} · ${milliseconds.toFixed(0)} ms`;
  } catch (error) {
    if (error.name === "AbortError") throw error;
    output.replaceChildren();
    time.textContent = "";
    trouble(failure, error);
  } finally {
    mine.busy(false);
  }
});

// Puts values into the form, for answers that can be taken over; asks again where `again` says so.
function put(values, again) {
  form.fill({ ...form.values(), ...values });
  remember();
  if (again) run();
}

function show(next, values, { step = false, focus = false } = {}) {
  run.cancel();
  task = next;
  asked = null;
  const can = able(task.name);
  output.replaceChildren();
  time.textContent = "";
  trouble(failure, null);
  for (const tab of place("tasks").children) {
    const mine = tab.dataset.task === task.name;
    tab.setAttribute("aria-selected", mine);
    tab.tabIndex = mine ? 0 : -1;
    tab.classList.toggle("unable", !able(tab.dataset.task).length);
    if (mine && focus) tab.focus();
  }
  place("bench").setAttribute("aria-labelledby", `tab-${task.name}`);
  place("answer").hidden = !can.length;
  if (!can.length) {
    form = null;
    const whose = MODELS.chosen || (MODELS.list.length > 1 ? "None of these models" : MODELS.list[0].name);
    place("form").replaceChildren(element("h2", {}, task.title), element("p", {}, `${whose} cannot do this: it takes ${task.needs}.`), element("pre", { class: "code", tabindex: "0", "aria-label": "a command that makes one" }, task.made));
    place("form").onsubmit = (event) => event.preventDefault();
  } else {
    const mask = can[0].mask_token ?? "[MASK]";
    const fields = task.fields.map((field) => ({ ...field, hint: field.hint?.replace("[MASK]", mask) }));
    const examples = task.examples.map((example) => Object.fromEntries(Object.entries(example).map(([name, text]) => [name, String(text).replaceAll("[MASK]", mask)])));
    form = new Form(place("form"), { fields, button: task.button, act: () => run(), examples, changed: () => remember() });
    form.fill(values ?? kept.get(task.name) ?? examples[0]);
    output.replaceChildren(element("p", { class: "faint" }, task.about));
  }
  remember(step);
  if (values && can.length) run();
}

function fromAddress() {
  const { do: name, model, ...values } = address.read();
  const found = TASKS.find((one) => one.name === name);
  const first = TASKS.find((one) => able(one.name).length) ?? TASKS[0];
  show(found ?? first, found && Object.keys(values).length ? values : undefined);
}

for (const one of TASKS) {
  const tab = element("button", { type: "button", role: "tab", id: `tab-${one.name}`, "data-task": one.name, "aria-controls": "bench" }, one.title);
  tab.addEventListener("click", () => show(one, undefined, { step: true }));
  place("tasks").append(tab);
}
place("tasks").addEventListener("keydown", (event) => {
  const way = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -1, ArrowDown: 1 }[event.key];
  if (!way) return;
  event.preventDefault();
  show(TASKS[(TASKS.indexOf(task) + way + TASKS.length) % TASKS.length], undefined, { step: true, focus: true });
});
await models(address.read().model, () => show(task, form?.values()));
address.whenChanged(fromAddress);
fromAddress();
