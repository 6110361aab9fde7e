// A form made from a list of fields: `{ name, label, kind, rows, hint, otherwise, least, most }`, kind text, line, number or check.
import { element } from "./elements.js";

function input({ name, kind, rows = 3, otherwise = "", least, most }) {
  const own = { id: `field-${name}`, name };
  if (kind === "text") return element("textarea", { ...own, rows, spellcheck: "false" });
  if (kind === "check") return element("input", { ...own, type: "checkbox" });
  if (kind === "number") return element("input", { ...own, type: "number", min: least, max: most, value: otherwise });
  return element("input", { ...own, type: "text", autocomplete: "off", spellcheck: "false" });
}

export class Form {
  // `act` is called when it is sent: by its button, by Enter in a line, by Ctrl+Enter in a text.
  constructor(form, { fields, button, act, examples = [], changed = () => {} }) {
    this.form = form;
    this.fields = fields;
    this.inputs = new Map();
    const rows = fields.map((field) => this.row(field));
    this.button = element("button", { class: "main", type: "submit" }, button);
    const end = element("div", { class: "row" }, this.button, element("span", { class: "faint keys" }, "Ctrl + Enter"));
    form.replaceChildren(...rows, end);
    if (examples.length) form.append(this.examples(examples, act));
    form.onsubmit = (event) => {
      event.preventDefault();
      act();
    };
    form.onkeydown = (event) => {
      if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey)) return;
      event.preventDefault();
      act();
    };
    form.oninput = () => changed();
  }
  row(field) {
    const made = input(field), label = element("label", { for: made.id }, field.label);
    this.inputs.set(field.name, made);
    const row = element("div", { class: `field ${field.kind}` }, ...(field.kind === "check" ? [made, label] : [label, made]));
    if (field.hint) {
      made.setAttribute("aria-describedby", `${made.id}-hint`);
      row.append(element("span", { class: "faint", id: `${made.id}-hint` }, field.hint));
    }
    return row;
  }
  examples(examples, act) {
    const made = element("div", { class: "row examples" }, element("span", { class: "faint" }, "examples"));
    for (const { title, ...values } of examples) {
      const button = element("button", { type: "button" }, title);
      button.addEventListener("click", () => {
        this.fill(values);
        act();
      });
      made.append(button);
    }
    return made;
  }
  fill(values) {
    for (const { name, kind, otherwise = "" } of this.fields) {
      const made = this.inputs.get(name), value = values[name];
      if (kind === "check") made.checked = value === undefined ? Boolean(otherwise) : value === "yes" || value === true;
      else made.value = value ?? otherwise;
    }
  }
  // As text, by name: what stands in the address of the page.
  values() {
    return Object.fromEntries(this.fields.map(({ name, kind }) => {
      const made = this.inputs.get(name);
      return [name, kind === "check" ? (made.checked ? "yes" : "no") : made.value];
    }));
  }
  busy(is) {
    this.button.setAttribute("aria-busy", is);
  }
}

export const lines = (text) => text.split("\n").map((line) => line.trim()).filter(Boolean);
