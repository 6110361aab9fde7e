// Runs and their curves, updated every two seconds while a run is in progress.
import { request } from "./api.js";
import { copyButtons } from "./code.js";
import { Curves, colour } from "./curves.js";
import { element } from "./elements.js";
import { load, byId, showError } from "./page.js";
import * as urlState from "./url_state.js";

const LIVE_INTERVAL = 2000, IDLE_INTERVAL = 15000, PARTS = ["heads", "scores", "recipes", "tables"];
const curves = new Curves({ controls: byId("controls"), charts: byId("charts"), signs: byId("signs") });
const shown = { selected: [], etag: null, markup: {}, listed: "" };
let runs = [], timer = 0, generation = 0;

const encoded = (name) => name.split("/").map(encodeURIComponent).join("/");
const path = () => `runs/${encoded(shown.selected[0])}/history${shown.selected.length > 1 ? `?${shown.selected.slice(1).map((name) => `with=${encodeURIComponent(name)}`).join("&")}` : ""}`;
copyButtons(byId("code"), () => (shown.selected.length ? [path()] : null));

function facts(run) {
  if (run.error) return run.error;
  const steps = `${run.steps.toLocaleString("en")}${run.planned_steps ? ` of ${run.planned_steps.toLocaleString("en")}` : ""} steps`;
  return [run.state, steps, ...(run.best === null ? [] : [`best ${run.best.toFixed(3)}`])].join(" · ");
}

function list() {
  const now = JSON.stringify([runs, shown.selected]);
  if (now === shown.listed) return;
  shown.listed = now;
  const focused = document.activeElement?.closest("#list") ? document.activeElement.value : null;
  const items = runs.map((run) => {
    const box = element("input", { type: "checkbox", value: run.name });
    box.checked = shown.selected.includes(run.name);
    box.disabled = Boolean(run.error);
    box.addEventListener("change", () => select(runs.map((one) => one.name).filter((name) => (name === run.name ? box.checked : shown.selected.includes(name)))));
    return element("li", {}, element("label", {}, box, element("span", { class: "name" }, run.name), element("span", { class: run.state === "running" ? "faint live" : "faint" }, facts(run))));
  });
  byId("list").replaceChildren(items.length ? element("ul", { class: "list" }, ...items) : element("p", { class: "faint" }, "No runs yet."));
  if (focused !== null) [...byId("list").querySelectorAll("input")].find((box) => box.value === focused)?.focus();
}

function select(names) {
  shown.selected = names;
  shown.etag = null;
  urlState.write({ runs: names.join("\n") }, { step: true });
  list();
  update();
}

// HTML that the server built from its own files and escaped; open details stay open.
function setHtml(name, markup) {
  if (shown.markup[name] === markup) return;
  shown.markup[name] = markup;
  const container = byId(name), open = [...container.querySelectorAll("details")].map((one) => one.open);
  container.innerHTML = markup;
  container.querySelectorAll("details").forEach((one, number) => { one.open = open[number] ?? false; });
  if (name === "heads") colour(container.querySelectorAll(".run h2"));
}

async function draw() {
  byId("report").hidden = !shown.selected.length;
  if (!shown.selected.length) return false;
  const own = shown.selected, { result, headers } = await request(path());
  if (own !== shown.selected) return false; // the selection has changed
  const etag = headers.get("ETag");
  if (etag !== shown.etag || etag === null) {
    shown.etag = etag;
    for (const part of PARTS) setHtml(part, result.parts[part]);
    curves.show(result.data);
  }
  const live = result.runs.some((run) => run.state === "running");
  byId("live").classList.toggle("live", live);
  byId("live").textContent = live ? "in progress: updated every two seconds" : "";
  return live;
}

async function update() {
  clearTimeout(timer);
  const own = ++generation;
  let live = false;
  try {
    live = !document.hidden && (await draw());
    showError(byId("error"), null);
  } catch (error) {
    showError(byId("error"), error);
  }
  if (own === generation) timer = setTimeout(update, live ? LIVE_INTERVAL : IDLE_INTERVAL);
}
async function refresh() {
  try {
    if (!document.hidden) {
      runs = (await request("runs")).result;
      list();
    }
  } catch (error) {
    showError(byId("error"), error);
  }
  setTimeout(refresh, runs.some((run) => run.state === "running") ? 2 * LIVE_INTERVAL : IDLE_INTERVAL);
}
document.addEventListener("visibilitychange", () => { if (!document.hidden) update(); });

function restore() {
  const known = runs.filter((run) => !run.error).map((run) => run.name);
  const requested = (urlState.read().runs ?? "").split("\n").filter((name) => known.includes(name));
  shown.selected = requested.length || urlState.read().runs !== undefined ? requested : known.slice(0, 1);
  shown.etag = null;
  list();
  update();
}
runs = await load("runs");
urlState.onChange(restore);
restore();
setTimeout(refresh, 2 * LIVE_INTERVAL);
