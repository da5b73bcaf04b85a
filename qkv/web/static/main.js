// The frame: tabs, the input, the explanation, the checks. The current screen draws into it.

import { abortOutdated, importScreen, request, saved, startTurn } from "./api.js";
import { onTheme } from "./color.js";
import { announce, card, h, whole } from "./dom.js";
import { figure } from "./figure.js";
import { inputCard } from "./input.js";
import { render } from "./render.js";
import { hideSpinner, showSpinner } from "./spinner.js";
import { followTips, hideTip } from "./tip.js";
import { choose, now, onChange, startState } from "./state.js";

const at = (name) => document.getElementById(name);
let about = null;
let screens = []; // [{name, title, draw, key, help}], from the modules that `about` lists
let turn = 0;
let input = null;
let sideScreen = null; // the screen whose choices the side panel shows

/** The functions that a screen may call during its turn; afterwards they draw nothing. */
function contextOf(screen, mine) {
  const inTurn =
    (act) =>
    (...given) =>
      mine === turn ? act(...given) : undefined;
  return {
    params: () => {
      if (mine !== turn) throw new Error("another picture was chosen"); // so that nothing more is requested for this one
      return params();
    },
    about: () => about,
    width: () => Math.max(260, at("main").clientWidth - 30),
    side: inTurn((make) => drawSide(screen, make)),
    main: inTurn(drawMain),
    explain: inTurn(drawExplain),
    checks: inTurn(drawStrip),
    figure: () => at("main").querySelector("figure"),
    saved,
  };
}

/** Parameters of every request: the input. */
const params = () => (about.text === null || saved ? {} : { text: now().text ?? about.text, answer: now().answer ?? "" });

function drawSide(screen, make) {
  sideScreen = screen;
  render(at("choices"), make);
}

function drawMain({ below, ...picture }) {
  hideSpinner(at("main"));
  render(at("main"), () => figure(picture), below);
}

function drawExplain({ formula, text, values, notes, python }) {
  const remarks = notes?.map((note) => h("p", { class: "note warn" }, h("bdi", {}, note)));
  const pairs = values.filter(Boolean).map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]);
  render(
    at("explain"),
    notes?.length ? h("section", { class: "card" }, h("h3", {}, "About this input"), remarks) : null,
    card("Computation", h("div", { class: "formula" }, formula), h("dl", { class: "values" }, pairs), h("p", { class: "note" }, text)),
    python && card("The same in Python", h("pre", { tabindex: 0 }, python)),
  );
}

function drawStrip(checks, seconds) {
  const failed = checks.some((check) => check.good === false);
  const facts = [
    about.family && `${about.family}, ${whole(about.parameters)} parameters`,
    about.hash && `weights ${about.hash}`,
    about.seed !== undefined && `seed ${about.seed}`,
    `torch ${about.torch}`,
    about.dtype && `${about.dtype} on ${about.device}`,
    seconds !== undefined && `computed in ${(1000 * seconds).toFixed(0)} ms`,
  ];
  at("strip").classList.toggle("failed", failed);
  at("strip").replaceChildren(...checks.map(checkLine), ...facts.filter(Boolean).map((fact) => h("span", {}, fact)));
}

/** A check that cannot be made here (good: null) is neither right nor wrong. */
function checkLine({ words, good }) {
  if (good === null) return h("span", {}, words);
  return h("span", { class: good ? "check" : "check failed" }, `${good ? "✓" : "✗ wrong:"} ${words}`);
}

function drawTabs(current) {
  render(
    at("tabs"),
    screens.map((screen, n) =>
      h(
        "button",
        {
          type: "button",
          role: "tab",
          "aria-selected": String(screen === current),
          tabindex: screen === current ? 0 : -1,
          "data-focus": screen.name,
          title: `key ${n + 1}`,
          onclick: () => visit(screen),
          onkeydown: (event) => {
            const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
            if (!step || event.altKey || event.metaKey) return; // with these, arrows are the browser's Back and Forward
            const next = screens[(n + step + screens.length) % screens.length];
            visit(next);
            document.querySelector(`#tabs [data-focus="${next.name}"]`).focus();
          },
        },
        screen.title,
      ),
    ),
  );
  at("tabs").querySelector("[aria-selected=true]").scrollIntoView({ block: "nearest", inline: "nearest" });
}

const currentScreen = () => screens.find((screen) => screen.name === now().screen) ?? screens[0];

/** Show another screen; the browser's Back returns to the one before, as it was left. */
const visit = (screen) => choose({ screen: screen.name }, screen !== currentScreen());

async function show() {
  const mine = ++turn;
  const screen = currentScreen();
  hideTip();
  startTurn();
  drawTabs(screen);
  input?.update();
  at("main").setAttribute("aria-busy", "true");
  showSpinner(at("main"));
  try {
    await screen.draw(contextOf(screen, mine));
  } catch (error) {
    if (mine === turn) showError(screen, error);
  }
  if (mine !== turn) return;
  abortOutdated();
  at("main").setAttribute("aria-busy", "false");
  at("main").dataset.drawn = String(mine);
}

/** Show an error; the choices stay, so that the one that failed can be undone. */
function showError(screen, error) {
  hideSpinner(at("main"));
  if (sideScreen !== screen) drawSide(screen);
  render(at("main"), errorCard(error));
  render(at("explain"));
  drawStrip([]);
  announce(error.message);
}

const errorCard = (error) =>
  h("section", { class: "card error", role: "alert" }, h("h2", {}, "That did not work"), h("p", {}, h("bdi", {}, error.message)));

function showHelp() {
  const screen = currentScreen();
  const lines = [
    ["1 … 9", "another screen"],
    ["t", "the picture as a table"],
    ["e", "to the export buttons"],
    ["i", "to the input"],
    ...(screen.help ?? []),
    ["?", "this help"],
  ];
  const close = h("button", { type: "button", class: "main", onclick: () => at("dialog").close() }, "Close");
  at("dialog").replaceChildren(
    h("h2", {}, `Keys: ${screen.title}`),
    h(
      "dl",
      {},
      lines.map(([name, text]) => [h("dt", {}, h("kbd", {}, name)), h("dd", {}, text)]),
    ),
    h("p", { class: "note" }, "The address holds every choice: a copied link opens the same picture."),
    close,
  );
  at("dialog").showModal();
}

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || at("dialog").open) return;
  if (event.target.matches("textarea, input[type=text], select")) return;
  const number = Number(event.key);
  if (number >= 1 && number <= screens.length) visit(screens[number - 1]);
  else if (event.key === "t") choose({ table: now().table ? undefined : 1 });
  else if (event.key === "e") document.querySelector("[data-focus^='Save as SVG']")?.focus();
  else if (event.key === "i") {
    event.preventDefault();
    at("text")?.focus();
  } else if (event.key === "?") showHelp();
  else currentScreen().key?.(event, params());
}

function applyTheme() {
  const theme = now().theme;
  document.documentElement.style.colorScheme = theme ?? "";
  if (theme === "dark" || theme === "light") document.documentElement.dataset.theme = theme;
  else delete document.documentElement.dataset.theme;
  dispatchEvent(new Event("themechange"));
}

function toggleTheme() {
  const forced = document.documentElement.dataset.theme;
  const isDark = forced ? forced === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  choose({ theme: isDark ? "light" : "dark" });
}

async function loadScreens() {
  startState(about.screens.flatMap((screen) => screen.integers));
  screens = await Promise.all(about.screens.map(async ({ name, module }) => ({ name, ...(await importScreen(module)) })));
}

async function start() {
  try {
    about = (await request("about")).record;
    await loadScreens();
  } catch (error) {
    render(at("main"), errorCard(error));
    return;
  }
  at("model").textContent = about.name;
  if (!saved) document.title = `${about.name} · qkv`;
  if (about.text !== null) {
    input = inputCard(about);
    at("input").append(input.card);
  }
  at("theme").addEventListener("click", toggleTheme);
  at("help").addEventListener("click", showHelp);
  document.addEventListener("keydown", onKey);
  followTips();
  onChange((changed) => {
    if (changed.has("theme")) applyTheme();
    show();
  });
  if (now().theme) applyTheme();
  onTheme(show);
  let width = innerWidth;
  addEventListener("resize", () => {
    if (innerWidth !== width) show();
    width = innerWidth;
  });
  await show();
}

start();
