// A small text at the pointer: the value under it, wherever the readout of the picture is.

const DISTANCE = 14;
let box = null;

/** Show a text beside the pointer, inside of the window. */
export function showTip({ clientX, clientY }, text) {
  if (!box) {
    box = document.createElement("div");
    box.id = "tip";
    box.setAttribute("aria-hidden", "true"); // arrow keys announce the same
    document.body.append(box);
  }
  box.textContent = text;
  box.hidden = false;
  const [width, height] = [box.offsetWidth, box.offsetHeight];
  const x = clientX + DISTANCE + width > innerWidth ? clientX - DISTANCE - width : clientX + DISTANCE;
  const y = clientY + DISTANCE + height > innerHeight ? clientY - DISTANCE - height : clientY + DISTANCE;
  box.style.transform = `translate(${Math.max(0, x)}px, ${Math.max(0, y)}px)`;
}

export function hideTip() {
  if (box) box.hidden = true;
}

/** Follow the pointer over elements that carry their text in `data-tip`. */
export function followTips() {
  document.addEventListener("pointermove", (event) => {
    const found = event.target.closest?.("[data-tip], svg");
    if (found?.dataset.tip) showTip(event, found.dataset.tip);
    else if (!found || !found.querySelector("image")) hideTip();
  });
  addEventListener("scroll", hideTip, { passive: true });
}
