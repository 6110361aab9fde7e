// A sortable table of the cases behind a cell of the confusion matrix, or of the errors.
import { element } from "./elements.js";

const ID = 0, TRUE = 1, PREDICTED = 2, CONFIDENCE = 3, TEXTS = 4, SOURCE = 5, CORRECT = 6;
const compared = new Intl.Collator("en", { numeric: true }).compare;

// Fills the table of an evaluation page or panel; calls `chosen` with the selected cell.
export function showCases(root, data, { cell = null, chosen = () => {} } = {}) {
  const byId = (name) => root.querySelector(`#${name}`);
  const matrix = byId("confusion"), table = byId("cases");
  const columns = [["true", TRUE], ["predicted", PREDICTED], [data.confidence_title, CONFIDENCE], ["text", TEXTS], ["source", SOURCE]];
  const view = { cell: data.cells[cell] ? cell : null, column: CONFIDENCE, descending: true };
  const shown = (value) => (data.probabilities ? `${(value * 100).toFixed(1)} %` : value.toPrecision(3));

  function order(first, second) {
    const [a, b] = [data.cases[first][view.column], data.cases[second][view.column]];
    const ascending = view.column === CONFIDENCE ? a - b : compared(String(a), String(b));
    return view.descending ? -ascending : ascending;
  }

  function line(number) {
    const one = data.cases[number];
    return element("tr", {},
      element("td", {}, one[TRUE]),
      element("td", { class: one[CORRECT] ? "right" : "wrong" }, one[PREDICTED]),
      element("td", { class: "number" }, shown(one[CONFIDENCE])),
      element("td", { class: "text" }, ...one[TEXTS].map((part) => element("p", {}, part))),
      element("td", { class: "source", title: `id ${one[ID]}, ${one[SOURCE]}` }, one[SOURCE].split(/[\\/]/).at(-1)),
    );
  }

  function render() {
    const button = view.cell && matrix.querySelector(`[data-cell="${view.cell}"]`);
    const found = [...(view.cell ? data.cells[view.cell] : data.errors)].sort(order);
    const all = view.cell ? Number(button.textContent.replaceAll(",", "")) : data.error_count;
    byId("examples").hidden = !found.length;
    byId("what").textContent = view.cell ? button.getAttribute("aria-label") : "Errors";
    const listed = data.probabilities ? "the most confident" : "the largest";
    const which = view.cell || found.length === all ? "" : `, ${listed}`;
    byId("count").textContent = `${found.length.toLocaleString("en")} of ${all.toLocaleString("en")}${which}`;
    byId("back").hidden = !view.cell;
    table.tBodies[0].replaceChildren(...found.map(line));
    for (const head of table.tHead.rows[0].cells) {
      const mine = Number(head.dataset.column) === view.column;
      head.setAttribute("aria-sort", mine ? (view.descending ? "descending" : "ascending") : "none");
    }
    if (matrix) for (const other of matrix.querySelectorAll("button")) other.setAttribute("aria-pressed", other === button);
  }

  function choose(next) {
    view.cell = next;
    render();
    chosen(next);
    if (next) byId("examples").scrollIntoView({ block: "nearest" });
  }

  // Arrow keys move to the next cell with examples in that direction.
  function step(event) {
    const direction = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
    const from = event.target.closest("td");
    if (!direction || !from) return;
    event.preventDefault();
    let [row, column] = [from.parentNode.rowIndex + direction[0], from.cellIndex + direction[1]];
    for (; matrix.rows[row] && matrix.rows[row].cells[column]; row += direction[0], column += direction[1]) {
      const button = matrix.rows[row].cells[column].querySelector("button");
      if (button) return button.focus();
    }
  }

  for (const [title, column] of columns) {
    const button = element("button", { type: "button" }, title);
    button.addEventListener("click", () => {
      view.descending = view.column === column ? !view.descending : column === CONFIDENCE;
      view.column = column;
      render();
    });
    table.tHead.rows[0].append(element("th", { scope: "col", "data-column": column }, button));
  }
  if (matrix) {
    matrix.addEventListener("click", (event) => {
      const button = event.target.closest("button");
      if (button) choose(button.dataset.cell === view.cell ? null : button.dataset.cell);
    });
    matrix.addEventListener("keydown", step);
  }
  byId("back").addEventListener("click", () => {
    choose(null);
    byId("what").focus();
  });
  root.addEventListener("keydown", (event) => { if (event.key === "Escape" && view.cell) choose(null); });
  render();
}
