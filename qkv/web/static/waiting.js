// A sign that an answer takes its time, for those who see the picture and for those who hear of it.

import { say } from "./dom.js";

const BLINK = 200;
const WORDS = "Computing …";
let timer = null;

/** What is shown is out of date: after a moment it fades. */
export function startWaiting(box) {
  clearTimeout(timer);
  timer = setTimeout(() => {
    box.classList.add("waiting");
    say(WORDS);
  }, BLINK);
}

/** The new picture is there. */
export function endWaiting(box) {
  clearTimeout(timer);
  if (box.classList.contains("waiting") && document.getElementById("said").textContent === WORDS) say("");
  box.classList.remove("waiting");
}
