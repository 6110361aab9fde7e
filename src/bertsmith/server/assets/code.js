// The question that was just asked, as a command and as a program. Keys stay out of both.
import { key } from "./api.js";
import { element } from "./elements.js";

const shell = (text) => `'${text.replaceAll("'", `'\\''`)}'`;
const address = (path) => new URL(path, document.baseURI).href;

export function asCurl(path, body) {
  const words = ["curl -sS", shell(address(path))];
  if (key()) words.push(`-H "Authorization: Bearer $BERTSMITH_KEY"`);
  if (body !== undefined) words.push("-H 'Content-Type: application/json'", `-d ${shell(JSON.stringify(body))}`);
  return words.join(" \\\n  ");
}

function literal(value) {
  if (value === null || value === undefined) return "None";
  if (value === true) return "True";
  if (value === false) return "False";
  if (Array.isArray(value)) return `[${value.map(literal).join(", ")}]`;
  if (typeof value === "object") return `{${Object.entries(value).map(([name, one]) => `${JSON.stringify(name)}: ${literal(one)}`).join(", ")}}`;
  return JSON.stringify(value);
}

export function asPython(path, body) {
  const headers = [];
  if (body !== undefined) headers.push('"Content-Type": "application/json"');
  if (key()) headers.push(`"Authorization": f"Bearer {os.environ['BERTSMITH_KEY']}"`);
  const given = [literal(address(path))];
  if (body !== undefined) given.push("json.dumps(question).encode()");
  if (headers.length) given.push(`${body === undefined ? "headers=" : ""}{${headers.join(", ")}}`);
  return [
    "import json",
    ...(key() ? ["import os"] : []),
    "import urllib.request",
    "",
    ...(body === undefined ? [] : [`question = ${literal(body)}`]),
    `request = urllib.request.Request(${given.join(", ")})`,
    "with urllib.request.urlopen(request) as response:",
    "    print(json.load(response))",
    "",
  ].join("\n");
}

async function copy(text, shown) {
  try {
    await navigator.clipboard.writeText(text);
    return "copied";
  } catch { // pages that are not served from this machine or by https have no clipboard
    getSelection().selectAllChildren(shown);
    return document.execCommand("copy") ? "copied" : "marked: copy it with Ctrl+C";
  }
}

// Two buttons that copy what `question` gives: `[path, body]`, or null while nothing was asked.
export function copyButtons(place, question) {
  const shown = element("pre", { class: "code", tabindex: "0", "aria-label": "what was copied" }), said = element("span", { class: "faint", role: "status" });
  shown.hidden = true;
  const buttons = Object.entries({ "copy as curl": asCurl, "copy as Python": asPython }).map(([title, made]) => {
    const button = element("button", { type: "button" }, title);
    button.addEventListener("click", async () => {
      const asked = question();
      if (!asked) {
        said.textContent = "Ask something first.";
        return;
      }
      shown.textContent = made(...asked);
      shown.hidden = false;
      said.textContent = await copy(shown.textContent, shown);
    });
    return button;
  });
  place.replaceChildren(element("div", { class: "row code-buttons" }, ...buttons, said), shown);
}
