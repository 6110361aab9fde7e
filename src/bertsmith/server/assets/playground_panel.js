// The playground: a form and a result for every task that the models support.
import { request, latest } from "./api.js";
import { copyButtons } from "./code.js";
import { element } from "./elements.js";
import { Form } from "./forms.js";
import { MODELS, modelsFor, loadModels, modelField, byId, showError } from "./page.js";
import * as urlState from "./url_state.js";
import { TASKS } from "./tasks.js";

const saved = new Map(); // form values by task
let task = TASKS[0], form = null, lastRequest = null;

const output = element("div"), errorBox = element("div"), time = element("p", { class: "faint" }), code = element("div");
byId("result").append(errorBox, output, time, code);
copyButtons(code, () => lastRequest);

function saveState(step = false) {
  if (form) saved.set(task.name, form.values());
  urlState.write({ task: task.name, model: MODELS.selected, ...saved.get(task.name) }, { step });
}

const run = latest(async (signal) => {
  const own = form, body = { ...task.body(form.values()), ...modelField() };
  saveState();
  showError(errorBox, null);
  own.setBusy(true);
  try {
    lastRequest = [task.path, body];
    const { result, milliseconds } = await request(task.path, body, { signal });
    const [model] = modelsFor(task.path);
    output.replaceChildren(task.render({ body, result, model, put }));
    time.textContent = `${model.name} · ${milliseconds.toFixed(0)} ms`;
  } catch (error) {
    if (error.name === "AbortError") throw error;
    output.replaceChildren();
    time.textContent = "";
    showError(errorBox, error);
  } finally {
    own.setBusy(false);
  }
});

// Puts values into the form; sends it again if `again`.
function put(values, again) {
  form.fill({ ...form.values(), ...values });
  saveState();
  if (again) run();
}

function show(next, values, { step = false, focus = false } = {}) {
  run.cancel();
  task = next;
  lastRequest = null;
  const models = modelsFor(task.path);
  output.replaceChildren();
  time.textContent = "";
  showError(errorBox, null);
  for (const tab of byId("tasks").children) {
    const current = tab.dataset.task === task.name;
    tab.setAttribute("aria-selected", current);
    tab.tabIndex = current ? 0 : -1;
    tab.classList.toggle("unavailable", !modelsFor(TASKS.find((one) => one.name === tab.dataset.task).path).length);
    if (current && focus) tab.focus();
  }
  byId("workspace").setAttribute("aria-labelledby", `tab-${task.name}`);
  byId("result").hidden = !models.length;
  if (!models.length) {
    form = null;
    const subject = MODELS.selected || (MODELS.list.length > 1 ? "These models" : MODELS.list[0].name);
    byId("form").replaceChildren(element("h2", {}, task.title), element("p", {}, `${subject} cannot do this. This task needs ${task.needs}.`), element("pre", { class: "code", tabindex: "0", "aria-label": "a command that trains one" }, task.command));
    byId("form").onsubmit = (event) => event.preventDefault();
  } else {
    const mask = models[0].mask_token ?? "[MASK]";
    const fields = task.fields.map((field) => ({ ...field, required: !field.optional, hint: field.hint?.replace("[MASK]", mask) }));
    const examples = task.examples.map((example) => Object.fromEntries(Object.entries(example).map(([name, text]) => [name, String(text).replaceAll("[MASK]", mask)])));
    form = new Form(byId("form"), { fields, button: task.button, onSubmit: () => run(), examples, onChange: () => saveState() });
    form.fill(values ?? saved.get(task.name) ?? examples[0]);
    output.replaceChildren(element("p", { class: "faint" }, task.placeholder));
  }
  saveState(step);
  if (values && models.length) run();
}

function restore() {
  const { task: name, model, ...values } = urlState.read();
  const found = TASKS.find((one) => one.name === name);
  const first = TASKS.find((one) => modelsFor(one.path).length) ?? TASKS[0];
  show(found ?? first, found && Object.keys(values).length ? values : undefined);
}

for (const one of TASKS) {
  const tab = element("button", { type: "button", role: "tab", id: `tab-${one.name}`, "data-task": one.name, "aria-controls": "workspace" }, one.title);
  tab.addEventListener("click", () => show(one, undefined, { step: true }));
  byId("tasks").append(tab);
}
byId("tasks").addEventListener("keydown", (event) => {
  const step = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -1, ArrowDown: 1 }[event.key];
  if (!step) return;
  event.preventDefault();
  show(TASKS[(TASKS.indexOf(task) + step + TASKS.length) % TASKS.length], undefined, { step: true, focus: true });
});
await loadModels(urlState.read().model, () => show(task, form?.values()));
urlState.onChange(restore);
restore();
