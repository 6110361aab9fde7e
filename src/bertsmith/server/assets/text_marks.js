// Marked spans of a text, and bars. Offsets are Unicode code points, as on the server, not UTF-16 units.
import { element } from "./elements.js";

export const characters = (text) => Array.from(text);

// The text with marked spans `[{ start, end, render }]`, sorted and disjoint; `render(text)` returns an element.
export function marked(text, spans) {
  const all = characters(text), parts = [];
  let at = 0;
  for (const { start, end, render } of spans) {
    if (start < at || end > all.length) continue;
    if (start > at) parts.push(all.slice(at, start).join(""));
    parts.push(render(all.slice(start, end).join("")));
    at = end;
  }
  parts.push(all.slice(at).join(""));
  return element("p", { class: "passage", tabindex: "0" }, ...parts);
}

// A labelled bar.
export function bar({ label, value, text, note = "", best = false, low = 0 }) {
  const fill = element("i", { class: "fill" });
  fill.style.width = `${(Math.min(Math.max((value - low) / (1 - low), 0), 1) * 100).toFixed(2)}%`;
  const row = element("div", { class: best ? "bar best" : "bar" }, element("span", { class: "label" }, label), element("b", {}, text), element("span", { class: "track" }, fill));
  if (note) row.append(element("span", { class: "faint" }, note));
  return row;
}
