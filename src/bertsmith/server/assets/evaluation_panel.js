// Evaluations and what went wrong in them: the examples behind each cell, errors by how sure the model was.
import { ask, latest } from "./api.js";
import { showCases } from "./cases.js";
import { copyButtons } from "./code.js";
import { element } from "./elements.js";
import { begin, place, trouble } from "./page.js";
import * as address from "./state.js";

let all = [], chosen = null;
const path = (name) => `evaluations/${name.split("/").map(encodeURIComponent).join("/")}`;
copyButtons(place("code"), () => (chosen ? [path(chosen)] : null));

function facts(one) {
  if (one.error) return one.error;
  return [`${one.task} ${one.split}`, ...(one.score === null ? [] : [`${one.main} ${one.score.toFixed(4)}`]), `${one.examples.toLocaleString("en")} examples`].join(" · ");
}

function list() {
  const items = all.map((one) => {
    const button = element("button", { type: "button", "aria-current": one.name === chosen }, element("span", { class: "name" }, one.name), element("span", { class: "faint" }, facts(one)));
    button.disabled = Boolean(one.error);
    button.addEventListener("click", () => show(one.name, null, true));
    return element("li", {}, button);
  });
  place("list").replaceChildren(items.length ? element("ul", { class: "list" }, ...items) : element("p", { class: "faint" }, "There is no evaluation yet: bertsmith evaluate writes one."));
}

const show = latest(async (signal, name, cell, step) => {
  chosen = name;
  for (const button of place("list").querySelectorAll("button")) button.setAttribute("aria-current", button.firstChild.textContent === name);
  address.write({ name, cell }, { step });
  try {
    const { result } = await ask(path(name), undefined, { signal });
    const root = element("div");
    root.innerHTML = result.main; // made by the server from its own files, everything in it escaped there
    place("shown").replaceChildren(root);
    place("page").hidden = false;
    showCases(root, result.data, { cell, chosen: (next) => address.write({ name, cell: next }) });
    trouble(place("trouble"), null);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    place("page").hidden = true;
    trouble(place("trouble"), error);
  }
});

function fromAddress() {
  const { name, cell } = address.read();
  const known = all.filter((one) => !one.error).map((one) => one.name);
  const found = known.includes(name) ? name : known[0];
  list();
  if (found) show(found, found === name ? cell ?? null : null, false);
}
all = await begin("evaluations");
address.whenChanged(fromAddress);
fromAddress();
