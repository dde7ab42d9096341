// Elements, colours, and text that cannot play tricks. All text reaches the page as text nodes.

const byId = (id) => document.getElementById(id);

function element(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

function drawn(tag, attributes = {}, ...children) {
  return filled(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

function filled(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

// Controls, bidirectional overrides, invisible and unpaired characters would hide or reorder text.
const UNSEEN =
  /[\u0000-\u0009\u000b-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]|[\u{e0000}-\u{e007f}]|\p{Cs}/gu;

function escaped(character) {
  if (character === "\t") return "\u21e5\t";
  return "\u27e8" + character.codePointAt(0).toString(16).toUpperCase().padStart(4, "0") + "\u27e9";
}

const visible = (text) => text.replace(UNSEEN, escaped);

// One line, spaces shown: for nodes, cells and hints.
const inline = (text) =>
  visible(text).replaceAll("\t", "").replaceAll("\n", "\u23ce").replaceAll(" ", "\u00b7");

const WIDE = /[\u1100-\u115f\u2e80-\ua4cf\uac00-\ud7a3\uf900-\ufaff\ufe30-\ufe6f\uff00-\uff60]|[\u{1f300}-\u{3fffd}]/u;

function clipped(text, most) {
  let width = 0;
  let kept = "";
  for (const character of text) {
    width += WIDE.test(character) ? 2 : 1;
    if (width > most) return { text: kept + "\u2026", width: most + 1 };
    kept += character;
  }
  return { text: kept, width };
}

const hue = (step) => (step < 0 ? "rest" : "f" + ((steps[step].forward - 1) % 6));
const percent = (share) => (100 * share).toFixed(share > 0.0995 || share === 0 ? 0 : 1) + "\u00a0%";
const count = (number, one, many = one + "s") => `${number} ${number === 1 ? one : many}`;

function duration(seconds) {
  if (seconds >= 1) return seconds.toFixed(2) + "\u00a0s";
  return (1000 * seconds).toFixed(seconds < 0.01 ? 1 : 0) + "\u00a0ms";
}

// Hints: an element is given a function that returns the lines to show.

const hints = new WeakMap();
let hinted = null;

function hint(node, lines) {
  hints.set(node, lines);
  return node;
}

function showHint(node) {
  if (node === hinted) return;
  hideHint();
  const tip = byId("tip");
  tip.replaceChildren(...hints.get(node)().map((line) => element("p", {}, visible(line))));
  tip.hidden = false;
  hinted = node;
  node.setAttribute("aria-describedby", "tip");
  const at = node.getClientRects()[0] ?? node.getBoundingClientRect();
  const left = Math.min(at.left, document.documentElement.clientWidth - tip.offsetWidth - 8);
  const below = at.bottom + 8;
  const fits = below + tip.offsetHeight < window.innerHeight;
  tip.style.left = Math.max(8, left) + "px";
  tip.style.top = Math.max(8, fits ? below : at.top - tip.offsetHeight - 8) + "px";
}

function hideHint() {
  hinted?.removeAttribute("aria-describedby");
  hinted = null;
  byId("tip").hidden = true;
}

function nearest(target) {
  for (let node = target; node instanceof Element; node = node.parentNode) {
    if (hints.has(node)) return node;
  }
  return null;
}

for (const event of ["mouseover", "focusin"]) {
  document.addEventListener(event, ({ target }) => {
    const node = nearest(target);
    if (node) showHint(node);
    else hideHint();
  });
}
document.addEventListener("focusout", hideHint);
document.addEventListener("scroll", hideHint, true);
document.documentElement.addEventListener("mouseleave", hideHint);

// Arrow keys inside a region that says data-walk go from one of its parts to the next.
document.addEventListener("keydown", (event) => {
  const region = event.target.closest?.("[data-walk]");
  const direction = { ArrowLeft: -1, ArrowUp: -1, ArrowRight: 1, ArrowDown: 1 }[event.key];
  if (!region || !direction || event.altKey || event.ctrlKey || event.metaKey) return;
  event.preventDefault();
  const parts = [...region.querySelectorAll("[tabindex='-1']:not(.off)")];
  const here = parts.indexOf(event.target);
  const start = direction > 0 ? 0 : parts.length - 1;
  parts[here < 0 ? start : here + direction]?.focus();
});
