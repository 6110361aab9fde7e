// Evaluations: scores, the examples of each confusion-matrix cell, and the most confident errors.
import { request, latest } from "./api.js";
import { showCases } from "./cases.js";
import { copyButtons } from "./code.js";
import { element } from "./elements.js";
import { load, byId, showError } from "./page.js";
import * as urlState from "./url_state.js";

let all = [], selected = null;
const path = (name) => `evaluations/${name.split("/").map(encodeURIComponent).join("/")}`;
copyButtons(byId("code"), () => (selected ? [path(selected)] : null));

function facts(one) {
  if (one.error) return one.error;
  return [`${one.task} ${one.split}`, ...(one.score === null ? [] : [`${one.main} ${one.score.toFixed(4)}`]), `${one.examples.toLocaleString("en")} examples`].join(" · ");
}

function list() {
  const items = all.map((one) => {
    const button = element("button", { type: "button", "aria-current": one.name === selected }, element("span", { class: "name" }, one.name), element("span", { class: "faint" }, facts(one)));
    button.disabled = Boolean(one.error);
    button.addEventListener("click", () => show(one.name, null, true));
    return element("li", {}, button);
  });
  byId("list").replaceChildren(items.length ? element("ul", { class: "list" }, ...items) : element("p", { class: "faint" }, "No evaluations yet: bertsmith evaluate writes one."));
}

const show = latest(async (signal, name, cell, step) => {
  selected = name;
  for (const button of byId("list").querySelectorAll("button")) button.setAttribute("aria-current", button.firstChild.textContent === name);
  urlState.write({ name, cell }, { step });
  try {
    const { result } = await request(path(name), undefined, { signal });
    const root = element("div");
    root.innerHTML = result.main; // built by the server from its own files and escaped there
    byId("shown").replaceChildren(root);
    byId("page").hidden = false;
    showCases(root, result.data, { cell, chosen: (next) => urlState.write({ name, cell: next }) });
    showError(byId("error"), null);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    byId("page").hidden = true;
    showError(byId("error"), error);
  }
});

function restore() {
  const { name, cell } = urlState.read();
  const known = all.filter((one) => !one.error).map((one) => one.name);
  const found = known.includes(name) ? name : known[0];
  list();
  if (found) show(found, found === name ? cell ?? null : null, false);
}
all = await load("evaluations");
urlState.onChange(restore);
restore();
