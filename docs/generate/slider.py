"""A slider for problem B5: the weights at 16 values of beta, computed at build time, selected in the browser."""

import json

import torch

import qkv

_PAGE = """<div>
<label>beta <input type="range" id="beta" min="0" max="{last}" value="3" style="width: 20em"></label>
<output id="beta-value"></output>
<table><tbody id="beta-weights"></tbody></table>
</div>
<script>
(() => {{
  const found = {found};
  const slider = document.getElementById("beta");
  const show = () => {{
    const [beta, weights] = found[slider.value];
    document.getElementById("beta-value").textContent = beta.toFixed(2);
    document.getElementById("beta-weights").innerHTML = weights.map((row, i) =>
      `<tr><th>x${{i + 1}} attends to</th>` + row.map((w, j) =>
        `<td style="background: rgba(201, 82, 10, ${{w}})">x${{j + 1}}: ${{w.toFixed(6)}}</td>`).join("") + "</tr>"
    ).join("");
  }};
  slider.addEventListener("input", show);
  show();
}})();
</script>"""


def slider() -> str:
    """Return HTML without a blank line, so that Markdown leaves it unchanged."""
    found = []
    for quarter in range(1, 17):
        a, b, c, d = quarter / 4 * torch.eye(4, dtype=torch.float64)
        x = torch.stack((d + b, a, c + d))[None, None]
        weights = qkv.weights(x, x, scale=1.0)[0, 0]
        found.append([quarter / 4, [[round(w, 9) for w in row] for row in weights.tolist()]])
    return _PAGE.format(last=len(found) - 1, found=json.dumps(found))
