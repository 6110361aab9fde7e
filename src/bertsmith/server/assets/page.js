// What every panel begins with: which models are served, which of them is chosen, and the key where one is asked for.
import { Trouble, ask, keepKey, key } from "./api.js";
import { element } from "./elements.js";

export const place = (name) => document.getElementById(name);

// An error in words, in its place; nothing where there is none.
export function trouble(where, error) {
  if (error && !(error instanceof Trouble)) console.error(error);
  where.replaceChildren(...(error ? [element("p", { class: "trouble", role: "alert" }, error instanceof Trouble ? error.message : `This page failed: ${error.message}`)] : []));
}

function askForKey() {
  return new Promise((done) => {
    const field = element("input", { type: "password", id: "key", autocomplete: "off", required: "" });
    const form = element("form", { class: "card key" },
      element("label", { for: "key" }, key() ? "The server does not take this key. Another one:" : "This server asks for a key:"),
      field, element("button", { class: "main" }, "use it"),
      element("p", { class: "faint" }, "It is kept in this tab until the tab is closed."));
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      keepKey(field.value.trim());
      form.remove();
      done();
    });
    place("trouble").replaceChildren(form);
    field.focus();
  });
}

function tryAgain() {
  return new Promise((done) => {
    const button = element("button", { type: "button" }, "try again");
    button.addEventListener("click", done);
    place("trouble").append(button);
  });
}

// The answer to a first question, after as many keys and attempts as it takes: without it a panel has nothing to show.
export async function begin(path) {
  for (;;) {
    try {
      const { result } = await ask(path);
      place("trouble").replaceChildren();
      return result;
    } catch (error) {
      if (error.status === 401) {
        await askForKey();
        continue;
      }
      trouble(place("trouble"), error);
      await tryAgain();
    }
  }
}

export const MODELS = { list: [], chosen: "" };
export const able = (what) => MODELS.list.filter((model) => model.routes.includes(what) && (!MODELS.chosen || model.name === MODELS.chosen));
export const named = () => (MODELS.chosen ? { model: MODELS.chosen } : {});
const facts = (model) => [model.architecture, `${model.layers} layers`, `width ${model.width}`, `${(model.parameters / 1e6).toPrecision(3)} M parameters`].join(" · ");

// Fills in the models that are served; `changed` is called when another one is chosen.
export async function models(chosen, changed) {
  const info = await begin("info");
  MODELS.list = info.models;
  MODELS.chosen = info.models.some((model) => model.name === chosen) ? chosen : "";
  const where = place("models");
  if (info.models.length === 1) {
    where.replaceChildren(element("span", { class: "model", title: facts(info.models[0]) }, info.models[0].name));
    return info;
  }
  const select = element("select", { id: "model" }, element("option", { value: "" }, "the first that can"));
  for (const model of info.models) select.append(element("option", { value: model.name, title: facts(model) }, model.name));
  select.value = MODELS.chosen;
  select.addEventListener("change", () => {
    MODELS.chosen = select.value;
    changed();
  });
  where.replaceChildren(element("label", { for: "model" }, "model"), select);
  return info;
}

export const percent = (share) => `${(share * 100).toFixed(share > 0 && share < 0.001 ? 2 : 1)} %`;
