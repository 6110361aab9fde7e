// Draws the charts of a training report from the data embedded in the page; no requests, no storage.
import { Curves, colour } from "./curves.js";

const byId = (name) => document.getElementById(name);
new Curves({ controls: byId("controls"), charts: byId("charts"), signs: byId("signs") }).show(JSON.parse(byId("data").textContent));
colour(document.querySelectorAll(".run h2"));
