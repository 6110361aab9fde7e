// The last request as a curl command and as a Python program, without the API key.
import { apiKey } from "./api.js";
import { element } from "./elements.js";

const shell = (text) => `'${text.replaceAll("'", `'\\''`)}'`;
const absolute = (path) => new URL(path, document.baseURI).href;

export function asCurl(path, body) {
  const parts = ["curl -sS", shell(absolute(path))];
  if (apiKey()) parts.push(`-H "Authorization: Bearer $BERTSMITH_KEY"`);
  if (body !== undefined) parts.push("-H 'Content-Type: application/json'", `-d ${shell(JSON.stringify(body))}`);
  return parts.join(" \\\n  ");
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
  if (apiKey()) headers.push(`"Authorization": f"Bearer {os.environ['BERTSMITH_KEY']}"`);
  const args = [literal(absolute(path))];
  if (body !== undefined) args.push("json.dumps(body).encode()");
  if (headers.length) args.push(`${body === undefined ? "headers=" : ""}{${headers.join(", ")}}`);
  return [
    "import json",
    ...(apiKey() ? ["import os"] : []),
    "import urllib.request",
    "",
    ...(body === undefined ? [] : [`body = ${literal(body)}`]),
    `request = urllib.request.Request(${args.join(", ")})`,
    "with urllib.request.urlopen(request) as response:",
    "    print(json.load(response))",
    "",
  ].join("\n");
}

export async function copy(text, shown) {
  try {
    await navigator.clipboard.writeText(text);
    return "copied";
  } catch { // only https and localhost have the clipboard API
    getSelection().selectAllChildren(shown);
    return document.execCommand("copy") ? "copied" : "selected: copy it with Ctrl+C";
  }
}

// Two buttons that copy the request that `current` returns: `[path, body]`, or null before the first one.
export function copyButtons(container, current) {
  const shown = element("pre", { class: "code", tabindex: "0", "aria-label": "copied code" }), status = element("span", { class: "faint", role: "status" });
  shown.hidden = true;
  const buttons = Object.entries({ "copy as curl": asCurl, "copy as Python": asPython }).map(([title, format]) => {
    const button = element("button", { type: "button" }, title);
    button.addEventListener("click", async () => {
      const lastRequest = current();
      if (!lastRequest) {
        status.textContent = "Send a request first.";
        return;
      }
      shown.textContent = format(...lastRequest);
      shown.hidden = false;
      status.textContent = await copy(shown.textContent, shown);
    });
    return button;
  });
  container.replaceChildren(element("div", { class: "row code-buttons" }, ...buttons, status), shown);
}
