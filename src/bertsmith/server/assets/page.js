// Shared by all panels: errors, the API key, and the list of models with the selected one.
import { RequestError, apiKey, request, storeKey } from "./api.js";
import { element } from "./elements.js";

export const byId = (id) => document.getElementById(id);

// Shows an error, or removes it if there is none.
export function showError(container, error) {
  if (error && !(error instanceof RequestError)) console.error(error);
  container.replaceChildren(...(error ? [element("p", { class: "error", role: "alert" }, error instanceof RequestError ? error.message : `This page failed: ${error.message}`)] : []));
}

function promptForKey() {
  return new Promise((done) => {
    const field = element("input", { type: "password", id: "key", autocomplete: "off", required: "" });
    const form = element("form", { class: "card key" },
      element("label", { for: "key" }, apiKey() ? "The server rejected this API key. Enter another one:" : "This server requires an API key:"),
      field, element("button", { class: "main" }, "Use key"),
      element("p", { class: "faint" }, "The key is stored in this tab until the tab is closed."));
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      storeKey(field.value.trim());
      form.remove();
      done();
    });
    byId("error").replaceChildren(form);
    byId("main").classList.add("blocked");
    field.focus();
  });
}

function tryAgain() {
  return new Promise((done) => {
    const button = element("button", { type: "button" }, "Try again");
    button.addEventListener("click", done);
    byId("error").append(button);
    byId("main").classList.add("blocked");
  });
}

// The result of a GET that a panel cannot do without; asks for the API key and retries until it succeeds.
export async function load(path) {
  for (;;) {
    try {
      const { result } = await request(path);
      byId("error").replaceChildren();
      byId("main").classList.remove("blocked");
      return result;
    } catch (error) {
      if (error.status === 401) {
        await promptForKey();
        continue;
      }
      showError(byId("error"), error);
      await tryAgain();
    }
  }
}

export const MODELS = { list: [], selected: "" };
export const modelsFor = (route) => MODELS.list.filter((model) => model.routes.includes(route) && (!MODELS.selected || model.name === MODELS.selected));
export const modelField = () => (MODELS.selected ? { model: MODELS.selected } : {});
const facts = (model) => [model.architecture, `${model.layers} layers`, `width ${model.width}`, `${(model.parameters / 1e6).toPrecision(3)} M parameters`].join(" · ");

// Loads the list of models and builds its menu; `onChange` is called when another one is selected.
export async function loadModels(selected, onChange) {
  const info = await load("info");
  MODELS.list = info.models;
  MODELS.selected = info.models.some((model) => model.name === selected) ? selected : "";
  const container = byId("models");
  if (info.models.length === 1) {
    container.replaceChildren(element("span", { class: "model", title: facts(info.models[0]) }, info.models[0].name));
    return info;
  }
  const select = element("select", { id: "model" }, element("option", { value: "" }, "automatic"));
  for (const model of info.models) select.append(element("option", { value: model.name, title: facts(model) }, model.name));
  select.value = MODELS.selected;
  select.addEventListener("change", () => {
    MODELS.selected = select.value;
    onChange();
  });
  container.replaceChildren(element("label", { for: "model" }, "model"), select);
  return info;
}

export const percent = (value) => `${(value * 100).toFixed(value > 0 && value < 0.001 ? 2 : 1)} %`;
