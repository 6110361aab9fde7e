// Stretches of a text marked. Places are characters as the server counts them (code points), not as JavaScript does.
import { element } from "./elements.js";

export const characters = (text) => Array.from(text);

// The text with marks: `[{ start, end, made }]` in order, none over another; `made(words)` gives the element.
export function marked(text, stretches) {
  const all = characters(text), parts = [];
  let at = 0;
  for (const { start, end, made } of stretches) {
    if (start < at || end > all.length) continue;
    if (start > at) parts.push(all.slice(at, start).join(""));
    parts.push(made(all.slice(start, end).join("")));
    at = end;
  }
  parts.push(all.slice(at).join(""));
  return element("p", { class: "passage", tabindex: "0" }, ...parts);
}

// A line with a bar: how much, of how much.
export function bar({ label, share, words, note = "", best = false, low = 0 }) {
  const fill = element("i", { class: "fill" });
  fill.style.width = `${(Math.min(Math.max((share - low) / (1 - low), 0), 1) * 100).toFixed(2)}%`;
  const made = element("div", { class: best ? "bar best" : "bar" }, element("span", { class: "label" }, label), element("b", {}, words), element("span", { class: "track" }, fill));
  if (note) made.append(element("span", { class: "faint" }, note));
  return made;
}
