// A form built from fields `{ name, label, kind, rows, hint, initial, min, max, step, required }`; kind is text, line, number, check or hidden.
import { element } from "./elements.js";

function input({ name, kind, rows = 3, initial = "", min, max, step, required = false }) {
  const attributes = { id: `field-${name}`, name, ...(required && kind !== "check" ? { required: "" } : {}) };
  if (kind === "text") return element("textarea", { ...attributes, rows, spellcheck: "false" });
  if (kind === "check") return element("input", { ...attributes, type: "checkbox" });
  if (kind === "number") return element("input", { ...attributes, type: "number", min, max, step, value: initial });
  if (kind === "hidden") return element("input", { ...attributes, type: "hidden" });
  return element("input", { ...attributes, type: "text", autocomplete: "off", spellcheck: "false" });
}

export class Form {
  // `onSubmit` is called by the button, by Enter in a line, and by Ctrl+Enter in a text.
  constructor(form, { fields, button, onSubmit, examples = [], onChange = () => {} }) {
    this.form = form;
    this.fields = fields;
    this.inputs = new Map();
    const rows = fields.map((field) => this.row(field));
    this.button = element("button", { class: "main", type: "submit" }, button);
    const end = element("div", { class: "row" }, this.button, element("span", { class: "faint keys" }, "Ctrl + Enter"));
    form.replaceChildren(...rows, end);
    if (examples.length) form.append(this.exampleButtons(examples, onSubmit));
    form.onsubmit = (event) => {
      event.preventDefault();
      onSubmit();
    };
    form.onkeydown = (event) => {
      if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey)) return;
      event.preventDefault();
      form.requestSubmit();
    };
    form.oninput = () => onChange();
  }
  row(field) {
    const control = input(field), label = element("label", { for: control.id }, field.label);
    this.inputs.set(field.name, control);
    if (field.kind === "hidden") return control;
    const row = element("div", { class: `field ${field.kind}` }, ...(field.kind === "check" ? [control, label] : [label, control]));
    if (field.hint) {
      control.setAttribute("aria-describedby", `${control.id}-hint`);
      row.append(element("span", { class: "faint", id: `${control.id}-hint` }, field.hint));
    }
    return row;
  }
  exampleButtons(examples, onSubmit) {
    const row = element("div", { class: "row examples" }, element("span", { class: "faint" }, "examples"));
    for (const { title, ...values } of examples) {
      const button = element("button", { type: "button" }, title);
      button.addEventListener("click", () => {
        this.fill(values);
        onSubmit();
      });
      row.append(button);
    }
    return row;
  }
  fill(values) {
    for (const { name, kind, initial = "" } of this.fields) {
      const control = this.inputs.get(name), value = values[name];
      if (kind === "check") control.checked = value === undefined ? Boolean(initial) : value === "yes" || value === true;
      else control.value = value ?? initial;
    }
  }
  // By name, as strings: the state in the URL.
  values() {
    return Object.fromEntries(this.fields.map(({ name, kind }) => {
      const control = this.inputs.get(name);
      return [name, kind === "check" ? (control.checked ? "yes" : "no") : control.value];
    }));
  }
  setBusy(busy) {
    this.button.setAttribute("aria-busy", busy);
  }
}

export const lines = (text) => text.split("\n").map((line) => line.trim()).filter(Boolean);
