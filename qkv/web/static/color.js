// Values as colors: one scale from 0 to the largest, and one for signed values, each with even steps in lightness.

const SCALES = {
  light: {
    plain: ["#ffffff", "#d3e5f6", "#8fc0e6", "#4690cb", "#14609f", "#07355f"],
    signed: ["#a33b0b", "#e58a52", "#f8dcc8", "#ffffff", "#cfe1f5", "#5f9fd6", "#124f8f"],
  },
  dark: {
    plain: ["#161b22", "#173652", "#1c5a8e", "#2f86c8", "#79bcec", "#e9f5ff"],
    signed: ["#ffb07a", "#c2621f", "#5a2f16", "#161b22", "#1b3a5c", "#3a86c6", "#b5dcfa"],
  },
};
const tables = {};

/** Whether the dark theme is on. */
export function dark() {
  const forced = document.documentElement.dataset.theme;
  return forced ? forced === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

const parse = (color) => [1, 3, 5].map((start) => parseInt(color.slice(start, start + 2), 16));

/** The stops of the scale, for a legend. */
export const stops = (signed) => SCALES[dark() ? "dark" : "light"][signed ? "signed" : "plain"];

/** 256 colors as bytes. */
export function table(signed) {
  const key = `${dark()} ${signed}`;
  if (!tables[key]) {
    const colors = stops(signed).map(parse);
    const found = new Uint8ClampedArray(256 * 4);
    for (let n = 0; n < 256; n++) {
      const at = (n / 255) * (colors.length - 1);
      const low = Math.min(Math.floor(at), colors.length - 2);
      for (let c = 0; c < 3; c++) found[4 * n + c] = colors[low][c] + (at - low) * (colors[low + 1][c] - colors[low][c]);
      found[4 * n + 3] = 255;
    }
    tables[key] = found;
  }
  return tables[key];
}

/** The index of a value in the table; signed scales have 0 in the middle. */
export function shade(value, largest, signed) {
  const part = largest > 0 ? value / largest : 0;
  const index = Math.round(signed ? 127.5 + 127.5 * part : 255 * part);
  return index >= 0 ? Math.min(index, 255) : 0; // NaN too
}

const INKS = ["#000000", "#ffffff"]; // on every color one of them has a contrast of 4.5

/** Relative luminance and contrast by WCAG 2. */
const luminance = (color) =>
  color
    .map((part) => part / 255)
    .map((part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4))
    .reduce((sum, part, n) => sum + part * [0.2126, 0.7152, 0.0722][n], 0);

function contrast(one, other) {
  const [dark, light] = [luminance(one), luminance(other)].sort((a, b) => a - b);
  return (light + 0.05) / (dark + 0.05);
}

/** The color of a value, and the text color to use on it. */
export function paint(value, largest, signed) {
  const colors = table(signed);
  const at = 4 * shade(value, largest, signed);
  const [r, g, b] = colors.slice(at, at + 3);
  const ink = INKS.reduce((best, one) => (contrast(parse(one), [r, g, b]) > contrast(parse(best), [r, g, b]) ? one : best));
  return { fill: `rgb(${r},${g},${b})`, ink };
}

/** Call `redraw` when the theme changes between light and dark. */
export function onTheme(redraw) {
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  addEventListener("themechange", redraw);
}
