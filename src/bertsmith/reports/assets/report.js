// Draws the charts of a training report from the data embedded in the page. Asks for nothing; stores nothing.
import { Curves, colour } from "./curves.js";

const place = (name) => document.getElementById(name);
new Curves({ controls: place("controls"), charts: place("charts"), signs: place("signs") }).show(JSON.parse(place("data").textContent));
colour(document.querySelectorAll(".run h2"));
