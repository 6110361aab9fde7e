"use strict";
// Shows the cases behind a cell of the confusion matrix, or the errors, in one table that can be sorted. Asks for nothing.
const data = JSON.parse(document.getElementById("data").textContent);
const ID = 0, GOLD = 1, SAID = 2, SURE = 3, TEXTS = 4, SOURCE = 5, RIGHT = 6;
const COLUMNS = [["right answer", GOLD], ["said", SAID], [data.sure, SURE], ["text", TEXTS], ["where", SOURCE]];
const view = { cell: null, column: SURE, falling: true };
const matrix = document.getElementById("confusion");
const place = (name) => document.getElementById(name);

function element(name, attributes = {}, text) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}
const shown = (value) => (data.share ? `${(value * 100).toFixed(1)} %` : value.toPrecision(3));
const compared = new Intl.Collator("en", { numeric: true }).compare;

function order(first, second) {
  const [a, b] = [data.cases[first][view.column], data.cases[second][view.column]];
  const way = view.column === SURE ? a - b : compared(String(a), String(b));
  return view.falling ? -way : way;
}

function line(number) {
  const one = data.cases[number], made = element("tr"), text = element("td", { class: "text" });
  for (const part of one[TEXTS]) text.append(element("p", {}, part));
  made.append(
    element("td", {}, one[GOLD]),
    element("td", { class: one[RIGHT] ? "right" : "wrong" }, one[SAID]),
    element("td", { class: "number" }, shown(one[SURE])),
    text,
    element("td", { class: "source", title: `id ${one[ID]}` }, one[SOURCE]),
  );
  return made;
}

function render() {
  const button = view.cell && matrix.querySelector(`[data-cell="${view.cell}"]`);
  const chosen = [...(view.cell ? data.cells[view.cell] : data.errors)].sort(order);
  const all = view.cell ? Number(button.textContent.replaceAll(",", "")) : data.wrong;
  place("examples").hidden = !chosen.length;
  place("what").textContent = view.cell ? button.getAttribute("aria-label") : data.share ? "Most confident errors" : "Furthest off";
  place("count").textContent = `${chosen.length.toLocaleString("en")} of ${all.toLocaleString("en")}`;
  place("back").hidden = !view.cell;
  place("cases").tBodies[0].replaceChildren(...chosen.map(line));
  for (const head of place("cases").tHead.rows[0].cells) {
    const mine = Number(head.dataset.column) === view.column;
    head.setAttribute("aria-sort", mine ? (view.falling ? "descending" : "ascending") : "none");
  }
  if (matrix) for (const other of matrix.querySelectorAll("button")) other.setAttribute("aria-pressed", other === button);
}

function choose(cell) {
  view.cell = cell;
  render();
  if (cell) place("examples").scrollIntoView({ block: "nearest" });
}

// Arrow keys go to the next cell with examples in that direction.
function step(event) {
  if (event.key === "Escape") return choose(null);
  const way = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
  const cell = event.target.closest("td");
  if (!way || !cell) return;
  event.preventDefault();
  let [row, column] = [cell.parentNode.rowIndex + way[0], cell.cellIndex + way[1]];
  for (; matrix.rows[row] && matrix.rows[row].cells[column]; row += way[0], column += way[1]) {
    const button = matrix.rows[row].cells[column].querySelector("button");
    if (button) return button.focus();
  }
}

for (const [title, column] of COLUMNS) {
  const head = element("th", { scope: "col", "data-column": column }), button = element("button", { type: "button" }, title);
  button.addEventListener("click", () => {
    view.falling = view.column === column ? !view.falling : column === SURE;
    view.column = column;
    render();
  });
  head.append(button);
  place("cases").tHead.rows[0].append(head);
}
if (matrix) {
  matrix.addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (button) choose(button.dataset.cell === view.cell ? null : button.dataset.cell);
  });
  matrix.addEventListener("keydown", step);
}
place("back").addEventListener("click", () => {
  choose(null);
  place("what").focus();
});
addEventListener("keydown", (event) => { if (event.key === "Escape" && view.cell) choose(null); });
render();
