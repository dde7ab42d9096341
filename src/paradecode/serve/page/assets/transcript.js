// The conversation on the page: messages, tokens coloured by forward, a canvas behind them.

import { byId, element, visible } from "./dom.js";

const MASK = "\u2591\u2009";

function scrolled(change) {
  const log = byId("transcript");
  const atEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 40;
  change();
  if (atEnd) log.scrollTop = log.scrollHeight;
}

export function say(text) {
  byId("welcome").hidden = true;
  const message = element(
    "article", { class: "message user" },
    element("h2", {}, element("b", {}, "You")),
    element("div", { class: "body", dir: "auto" }, visible(text)),
  );
  byId("transcript").append(message);
  byId("transcript").scrollTop = byId("transcript").scrollHeight;
}

export function clear() {
  for (const message of document.querySelectorAll("#transcript > .message")) message.remove();
  byId("welcome").hidden = false;
}

// An answer that grows.
export class Answer {
  constructor(model, method) {
    this.text = "";
    this.forward = 0;
    this.last = null;
    this.title = element("h2", {}, element("b", {}, visible(model)), ` with ${visible(method)}`);
    this.canvas = element("span", { class: "canvas" });
    this.body = element("div", { class: "body", dir: "auto" }, this.canvas);
    this.box = element(
      "article", { class: "message assistant streaming", "aria-busy": "true" },
      this.title, this.body,
    );
    scrolled(() => byId("transcript").append(this.box));
  }

  // Text that became certain, and what the server says of the forward that made it so.
  add(text, progress) {
    if (progress) this.forward = progress.forward;
    if (!text) return;
    this.text += text;
    scrolled(() => {
      if (this.last && this.last.forward === this.forward) {
        this.last.node.append(visible(text));
      } else {
        const node = element("span", { class: "t f" + (this.forward % 6) }, visible(text));
        this.canvas.before(node);
        this.last = { node, forward: this.forward };
      }
      const count = progress ? `, ${progress.tokens.length} token${progress.tokens.length === 1 ? "" : "s"}` : "";
      this.last.node.title = `forward ${this.forward}${count}`;
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

  fail(message) {
    scrolled(() =>
      this.box.append(element("p", { class: "error", role: "alert" }, visible(message))),
    );
  }
}
