// Shows the cases of an evaluation from the data embedded in the page. Makes no requests.
import { showCases } from "./cases.js";

showCases(document, JSON.parse(document.getElementById("data").textContent));
