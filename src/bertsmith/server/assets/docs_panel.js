// The API documentation: examples with the address of this page, which a proxy may have changed, and buttons to copy them.
import { copy } from "./code.js";
import { element } from "./elements.js";

const address = new URL(".", document.baseURI).href.replace(/\/$/, "");
for (const shown of document.querySelectorAll(".address")) shown.textContent = address;
for (const example of document.querySelectorAll(".route .code")) {
  const button = element("button", { type: "button" }, "copy"), status = element("span", { class: "faint", role: "status" });
  button.addEventListener("click", async () => { status.textContent = await copy(example.textContent, example); });
  example.after(element("div", { class: "row code-buttons" }, button, status));
}
