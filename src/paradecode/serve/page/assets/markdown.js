// An answer that has ended, as Markdown: elements made one by one, and all text as text nodes.

import { element, visible } from "./dom.js";

const INLINE = /(`+)([\s\S]+?)\1(?!`)|\*\*(?=\S)([\s\S]+?)\*\*|\*(?=[^\s*])([^*\n]+?)\*/g;
const BULLET = /^\s{0,3}[-*+]\s+/;
const NUMBER = /^\s{0,3}(\d{1,9})[.)]\s+/;
const HEADING = /^(#{1,6})\s+(.*)$/;
const FENCE = /^\s{0,3}(```+|~~~+)\s*([\w+#.-]*)/;

export function markdown(text) {
  const lines = text.split("\n");
  const blocks = [];
  for (let at = 0; at < lines.length; ) {
    const fence = FENCE.exec(lines[at]);
    if (fence) {
      const end = lines.findIndex((line, index) => index > at && line.trim() === fence[1]);
      const stop = end < 0 ? lines.length : end;
      blocks.push(code(lines.slice(at + 1, stop).join("\n"), fence[2]));
      at = stop + 1;
      continue;
    }
    if (!lines[at].trim()) {
      at += 1;
      continue;
    }
    const heading = HEADING.exec(lines[at]);
    if (heading) {
      const level = Math.min(6, heading[1].length + 2);
      blocks.push(element("h" + level, {}, ...inline(heading[2])));
      at += 1;
      continue;
    }
    const kind = [BULLET, NUMBER].find((pattern) => pattern.test(lines[at]));
    let stop = at + 1;
    if (kind) {
      while (stop < lines.length && (kind.test(lines[stop]) || /^\s{2,}\S/.test(lines[stop]))) stop += 1;
      blocks.push(list(lines.slice(at, stop), kind));
    } else {
      const begins = (line) => !line.trim() || [FENCE, HEADING, BULLET, NUMBER].some((p) => p.test(line));
      while (stop < lines.length && !begins(lines[stop])) stop += 1;
      blocks.push(element("p", {}, ...inline(lines.slice(at, stop).join("\n"))));
    }
    at = stop;
  }
  return blocks;
}

function list(lines, kind) {
  const items = [];
  for (const line of lines) {
    if (kind.test(line)) items.push(line.replace(kind, ""));
    else items[items.length - 1] += "\n" + line.trim();
  }
  const start = kind === NUMBER ? { start: NUMBER.exec(lines[0])[1] } : {};
  const made = items.map((item) => element("li", {}, ...inline(item)));
  return element(kind === NUMBER ? "ol" : "ul", start, ...made);
}

function code(text, language) {
  const copy = element("button", { type: "button", class: "copy" }, "Copy");
  copy.addEventListener("click", () => copied(copy, text));
  const head = element("div", { class: "code-head" }, element("span", {}, visible(language)), copy);
  return element("div", { class: "code" }, head, element("pre", {}, element("code", {}, visible(text))));
}

function inline(text) {
  const nodes = [];
  let done = 0;
  for (const found of text.matchAll(INLINE)) {
    nodes.push(visible(text.slice(done, found.index)));
    if (found[2] !== undefined) nodes.push(element("code", {}, visible(found[2].trim())));
    else if (found[3] !== undefined) nodes.push(element("strong", {}, ...inline(found[3])));
    else nodes.push(element("em", {}, visible(found[4])));
    done = found.index + found[0].length;
  }
  return [...nodes, visible(text.slice(done))];
}

// Copies text, and says so on the button for a moment.
export async function copied(button, text) {
  const before = button.textContent;
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
  } catch {
    button.textContent = "Not allowed";
  }
  setTimeout(() => (button.textContent = before), 1500);
}
