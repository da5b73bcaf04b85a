"""Style sheet of report pages: system fonts, light and dark mode, tabular digits."""

STYLE = """
:root {
  color-scheme: light dark;
  --page: #f6f7f8; --card: #ffffff; --ink: #1b1f24; --soft: #5b6470; --rule: #e3e6ea;
  --accent: #b54a09; --good: #1f7a4a; --bad: #b3261e;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #101010; --card: #191919; --ink: #e8e8e8; --soft: #a2a2a2; --rule: #343434;
    --accent: #f0955a; --good: #63c491; --bad: #f28b82;
  }
  .heatmap svg { filter: invert(0.9) hue-rotate(180deg); }
}
* { box-sizing: border-box; }
body {
  margin: 0; background: var(--page); color: var(--ink);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", sans-serif;
  font-variant-numeric: tabular-nums;
}
main { max-width: 980px; margin: 0 auto; padding: 56px 32px 72px; }
h1 { margin: 0; font-size: 32px; line-height: 1.2; letter-spacing: -0.015em; overflow-wrap: anywhere; }
h2 { margin: 56px 0 6px; font-size: 20px; line-height: 1.3; }
h3 { margin: 0 0 8px; font-size: 14px; font-weight: 600; }
p { margin: 0 0 16px; max-width: 78ch; color: var(--soft); overflow-wrap: anywhere; }
h1 + p { margin-top: 10px; font-size: 17px; }
.card {
  margin: 0 0 16px; padding: 20px 24px; overflow-x: auto;
  background: var(--card); border: 1px solid var(--rule); border-radius: 12px;
}
.facts { display: grid; grid-template-columns: repeat(auto-fit, minmax(170px, 1fr)); gap: 16px; margin: 28px 0 0; }
.facts div { padding: 16px 20px; background: var(--card); border: 1px solid var(--rule); border-radius: 12px; }
.facts dt { font-size: 13px; color: var(--soft); }
.facts dd { margin: 2px 0 0; font-size: 20px; font-weight: 600; line-height: 1.3; overflow-wrap: anywhere; }
.facts small { display: block; font-size: 13px; font-weight: 400; color: var(--soft); }
.groups { display: grid; grid-template-columns: repeat(auto-fit, minmax(300px, 1fr)); gap: 16px; align-items: start; }
.groups .card { margin: 0; }
table { width: 100%; border-collapse: collapse; font-size: 15px; }
th, td { padding: 7px 24px 7px 0; text-align: left; vertical-align: baseline; min-width: 7em; overflow-wrap: anywhere; }
th:last-child, td:last-child { padding-right: 0; }
thead th { font-size: 13px; font-weight: 500; color: var(--soft); white-space: nowrap; }
tbody th { font-weight: 500; }
tbody tr, tbody.entry { border-top: 1px solid var(--rule); }
tbody.entry tr { border-top: 0; }
tbody.entry th, tbody.entry td:not(.number) { min-width: 10em; }
tbody.entry tr + tr td { padding-top: 0; }
tbody.entry tr:not(:last-child) td:not([rowspan]) { padding-bottom: 4px; }
thead th, .number { min-width: 0; }
.number { text-align: right; white-space: nowrap; }
.settings th { font-weight: 400; color: var(--soft); }
.settings td { text-align: right; }
.mark { display: inline-block; width: 1.4em; font-weight: 600; }
.right { color: var(--good); }
.wrong { color: var(--bad); }
.other { color: var(--soft); }
.thumbnail { display: block; min-width: 56px; max-width: 96px; margin: 0 0 4px; image-rendering: pixelated; }
figure { margin: 0; }
svg { display: block; max-width: 100%; height: auto; }
svg .paper { fill: none; }
.chart svg { fill: var(--ink); min-width: 620px; }
.chart svg .soft { fill: var(--soft); }
.chart svg .grid { stroke: var(--rule); }
.chart svg .series { fill: none; }
.pictures { display: flex; flex-wrap: wrap; gap: 16px; align-items: flex-start; }
.pictures .card { margin: 0; padding: 12px 16px; max-width: 100%; }
.pictures img { display: block; max-width: 100%; height: auto; margin: 0 0 8px; }
@media (max-width: 640px) { main { padding: 32px 16px 48px; } .card { padding: 16px; } }
@media print { body { background: none; } .card, .facts div { break-inside: avoid; } }
"""
