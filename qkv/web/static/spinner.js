// A sign that a response takes its time, both visible and for screen readers.

import { announce } from "./dom.js";

const DELAY = 200;
const MESSAGE = "Computing …";
let timer = null;

/** Fade the outdated picture after a moment. */
export function showSpinner(box) {
  clearTimeout(timer);
  timer = setTimeout(() => {
    box.classList.add("waiting");
    announce(MESSAGE);
  }, DELAY);
}

/** Remove the sign: the new picture is there. */
export function hideSpinner(box) {
  clearTimeout(timer);
  if (box.classList.contains("waiting") && document.getElementById("announcement").textContent === MESSAGE) announce("");
  box.classList.remove("waiting");
}
