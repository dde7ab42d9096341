// The conversation on the page: messages, tokens coloured by forward, a canvas behind them.

import { byId, element, visible } from "./dom.js";
import { copied, markdown } from "./markdown.js";

const MASK = "\u2591\u2009";

function scrolled(change) {
  const log = byId("transcript");
  const atEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 40;
  change();
  if (atEnd) log.scrollTop = log.scrollHeight;
}

const button = (label, act) => {
  const made = element("button", { type: "button" }, label);
  made.addEventListener("click", () => act(made));
  return made;
};

// A message of the person's; `edit` is called to take it back into the field.
export function say(text, edit) {
  byId("welcome").hidden = true;
  const message = element(
    "article", { class: "message user" },
    element("h2", {}, element("b", {}, "You")),
    element("div", { class: "body", dir: "auto" }, visible(text)),
    element("div", { class: "tools" }, button("Edit", () => edit(message))),
  );
  byId("transcript").append(message);
  byId("transcript").scrollTop = byId("transcript").scrollHeight;
}

export function clear() {
  for (const entry of document.querySelectorAll("#transcript > :not(#welcome)")) entry.remove();
  byId("welcome").hidden = false;
}

// Removes a message and all that follows it.
export function cut(message) {
  while (message.nextElementSibling) message.nextElementSibling.remove();
  message.remove();
  byId("welcome").hidden = document.querySelector("#transcript > :not(#welcome)") !== null;
}

// Two answers side by side.
export function pair() {
  const box = element("div", { class: "pair" });
  scrolled(() => byId("transcript").append(box));
  return box;
}

export function remark(place, text) {
  scrolled(() => place.append(element("p", { class: "note remark" }, visible(text))));
}

// An answer that grows.
export class Answer {
  constructor(model, method, place = byId("transcript")) {
    this.text = "";
    this.last = null;
    this.forwards = new Map();
    this.title = element("h2", {}, element("b", {}, visible(model)), ` with ${visible(method)}`);
    this.canvas = element("span", { class: "canvas" });
    this.body = element("div", { class: "body", dir: "auto" }, this.canvas);
    this.box = element(
      "article", { class: "message assistant streaming", "aria-busy": "true" },
      this.title, this.body,
    );
    scrolled(() => place.append(this.box));
  }

  // A piece of the text: what one forward decided of it, which may be more tokens than it shows.
  add({ forward, tokens, text }) {
    const decided = this.forwards.get(forward) ?? { tokens: 0, nodes: [] };
    this.forwards.set(forward, decided);
    decided.tokens += tokens;
    this.text += text;
    scrolled(() => {
      if (text && this.last?.forward === forward) {
        this.last.node.append(visible(text));
      } else if (text) {
        const node = element("span", { class: "t f" + (forward % 6) }, visible(text));
        this.canvas.before(node);
        decided.nodes.push(node);
        this.last = { node, forward };
      }
      const count = `${decided.tokens} token${decided.tokens === 1 ? "" : "s"}`;
      for (const node of decided.nodes) node.title = `forward ${forward}, ${count}`;
    });
  }

  // Behind the certain text: null where a position is still masked.
  show(canvas) {
    scrolled(() => {
      this.canvas.replaceChildren(
        ...canvas.map((text) =>
          text === null
            ? element("span", { class: "masked" }, MASK)
            : element("span", { class: "provisional" }, visible(text)),
        ),
      );
    });
  }

  end(method, note) {
    this.canvas.remove();
    this.box.classList.remove("streaming");
    this.box.setAttribute("aria-busy", "false");
    if (method) this.title.lastChild.data = ` with ${visible(method)}`;
    if (note) scrolled(() => this.box.append(element("p", { class: "note" }, visible(note))));
  }

  // Markdown in place of the coloured forwards, and what can be done with the answer.
  finish(again) {
    const tools = element("div", { class: "tools" });
    if (this.text) tools.append(button("Copy", (made) => copied(made, this.text)));
    if (again) tools.append(button("Regenerate", again));
    const blocks = markdown(this.text);
    const rich = element("div", { class: "rich", dir: "auto" }, ...blocks);
    const formatted = rich.querySelector("pre, code, ul, ol, strong, em, h3, h4, h5, h6") !== null;
    if (formatted) {
      const toggle = button("Forwards", () => {
        rich.hidden = !rich.hidden;
        this.body.hidden = !this.body.hidden;
        toggle.textContent = rich.hidden ? "Formatted" : "Forwards";
      });
      tools.append(toggle);
    }
    scrolled(() => {
      this.body.hidden = formatted;
      if (formatted) this.body.after(rich);
      this.box.append(tools);
    });
  }

  fail(message) {
    scrolled(() =>
      this.box.append(element("p", { class: "error", role: "alert" }, visible(message))),
    );
  }
}
