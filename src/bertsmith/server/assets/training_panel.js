// Runs and their curves, drawn anew every two seconds while one of them is under way.
import { ask } from "./api.js";
import { copyButtons } from "./code.js";
import { Curves, colour } from "./curves.js";
import { element } from "./elements.js";
import { begin, place, trouble } from "./page.js";
import * as address from "./state.js";

const SOON = 2000, LATER = 15000, PARTS = ["heads", "scores", "recipes", "tables"];
const curves = new Curves({ controls: place("controls"), charts: place("charts"), signs: place("signs") });
const shown = { chosen: [], mark: null, markup: {}, listed: "" };
let runs = [], timer = 0, turn = 0;

const encoded = (name) => name.split("/").map(encodeURIComponent).join("/");
const path = () => `runs/${encoded(shown.chosen[0])}/history${shown.chosen.length > 1 ? `?${shown.chosen.slice(1).map((name) => `with=${encodeURIComponent(name)}`).join("&")}` : ""}`;
copyButtons(place("code"), () => (shown.chosen.length ? [path()] : null));

function facts(run) {
  if (run.error) return run.error;
  const steps = `${run.steps.toLocaleString("en")}${run.planned_steps ? ` of ${run.planned_steps.toLocaleString("en")}` : ""} steps`;
  return [run.state, steps, ...(run.best === null ? [] : [`best ${run.best.toFixed(3)}`])].join(" · ");
}

function list() {
  const now = JSON.stringify([runs, shown.chosen]);
  if (now === shown.listed) return;
  shown.listed = now;
  const focused = document.activeElement?.closest("#list") ? document.activeElement.value : null;
  const items = runs.map((run) => {
    const box = element("input", { type: "checkbox", value: run.name });
    box.checked = shown.chosen.includes(run.name);
    box.disabled = Boolean(run.error);
    box.addEventListener("change", () => choose(runs.map((one) => one.name).filter((name) => (name === run.name ? box.checked : shown.chosen.includes(name)))));
    return element("li", {}, element("label", {}, box, element("span", { class: "name" }, run.name), element("span", { class: run.state === "running" ? "faint live" : "faint" }, facts(run))));
  });
  place("list").replaceChildren(items.length ? element("ul", { class: "list" }, ...items) : element("p", { class: "faint" }, "There is no run yet."));
  if (focused !== null) [...place("list").querySelectorAll("input")].find((box) => box.value === focused)?.focus();
}

function choose(names) {
  shown.chosen = names;
  shown.mark = null;
  address.write({ runs: names.join("\n") }, { step: true });
  list();
  again();
}

// Markup that the server made from its own files, everything in it escaped there; what was open stays open.
function put(name, markup) {
  if (shown.markup[name] === markup) return;
  shown.markup[name] = markup;
  const where = place(name), open = [...where.querySelectorAll("details")].map((one) => one.open);
  where.innerHTML = markup;
  where.querySelectorAll("details").forEach((one, number) => { one.open = open[number] ?? false; });
  if (name === "heads") colour(where.querySelectorAll(".run h2"));
}

async function draw() {
  place("report").hidden = !shown.chosen.length;
  if (!shown.chosen.length) return false;
  const mine = shown.chosen, { result, headers } = await ask(path());
  if (mine !== shown.chosen) return false; // others were chosen meanwhile
  const mark = headers.get("ETag");
  if (mark !== shown.mark || mark === null) {
    shown.mark = mark;
    for (const part of PARTS) put(part, result.parts[part]);
    curves.show(result.data);
  }
  const live = result.runs.some((run) => run.state === "running");
  place("live").classList.toggle("live", live);
  place("live").textContent = live ? "under way: drawn anew every two seconds" : "";
  return live;
}

async function again() {
  clearTimeout(timer);
  const mine = ++turn;
  let live = false;
  try {
    live = !document.hidden && (await draw());
    trouble(place("trouble"), null);
  } catch (error) {
    trouble(place("trouble"), error);
  }
  if (mine === turn) timer = setTimeout(again, live ? SOON : LATER);
}
async function refresh() {
  try {
    if (!document.hidden) {
      runs = (await ask("runs")).result;
      list();
    }
  } catch (error) {
    trouble(place("trouble"), error);
  }
  setTimeout(refresh, runs.some((run) => run.state === "running") ? 2 * SOON : LATER);
}
document.addEventListener("visibilitychange", () => { if (!document.hidden) again(); });

function fromAddress() {
  const known = runs.filter((run) => !run.error).map((run) => run.name);
  const named = (address.read().runs ?? "").split("\n").filter((name) => known.includes(name));
  shown.chosen = named.length || address.read().runs !== undefined ? named : known.slice(0, 1);
  shown.mark = null;
  list();
  again();
}
runs = await begin("runs");
address.whenChanged(fromAddress);
fromAddress();
setTimeout(refresh, 2 * SOON);
