// Live figures of the answer that streams: counted here, then replaced by the server's own.

import { byId, element } from "./dom.js";

const BARS = 160;

// One line on an answer, from what the server counted.
export function summary(metrics) {
  const seconds = metrics.seconds.prompt + metrics.seconds.decode;
  const each = metrics.forwards ? (metrics.tokens / metrics.forwards).toFixed(2) : "\u2013";
  return `${metrics.tokens} tokens, ${metrics.forwards} forwards, ${each} a forward, ${duration(seconds)}`;
}

export class Figures {
  constructor() {
    this.began = performance.now();
    this.first = null;
    this.firstTokens = this.tokens = this.forwards = 0;
    this.bars = [];
    byId("strip").replaceChildren();
    for (const id of ["per-forward", "per-second", "tokens", "forwards", "first", "accepted"]) {
      byId(id).textContent = "\u2013";
    }
  }

  // Tokens that became certain, and which forwards decided them.
  add({ forward, tokens, commits }) {
    const now = performance.now();
    if (this.first === null && tokens.length) {
      this.first = now;
      this.firstTokens = tokens.length;
      byId("first").textContent = duration((now - this.began) / 1000);
    }
    this.tokens += tokens.length;
    this.forwards = Math.max(this.forwards, forward);
    for (const commit of commits) this.bar(commit.forward, commit.tokens);
    this.show(this.tokens, this.forwards);
    const later = this.tokens - this.firstTokens;
    if (later > 0 && now > this.first) {
      byId("per-second").textContent = rounded((1000 * later) / (now - this.first));
    }
  }

  // One bar a forward, as high as it decided tokens; those of a canvas may become certain later.
  bar(forward, tokens) {
    if (!tokens) return;
    const place = this.bars.findLastIndex((entry) => entry.forward <= forward);
    if (this.bars[place]?.forward === forward) {
      this.bars[place].tokens += tokens;
    } else {
      const bar = element("i", { class: "f" + (forward % 6) });
      byId("strip").insertBefore(bar, this.bars[place + 1]?.bar ?? null);
      this.bars.splice(place + 1, 0, { bar, forward, tokens });
    }
    if (this.bars.length > BARS) this.bars.shift().bar.remove();
    const most = Math.max(4, ...this.bars.map((entry) => entry.tokens));
    for (const entry of this.bars) entry.bar.style.height = (100 * entry.tokens) / most + "%";
  }

  // What the server counted.
  end(metrics) {
    const later = metrics.tokens - this.firstTokens;
    this.show(metrics.tokens, metrics.forwards);
    if (later > 0 && metrics.seconds.decode > 0) {
      byId("per-second").textContent = rounded(later / metrics.seconds.decode);
    }
    if (metrics.drafted) {
      const share = Math.round((100 * metrics.accepted) / metrics.drafted);
      byId("accepted").textContent = `${share}\u00a0%`;
    }
  }

  show(tokens, forwards) {
    byId("tokens").textContent = tokens;
    byId("forwards").textContent = forwards;
    byId("per-forward").textContent = forwards ? (tokens / forwards).toFixed(2) : "\u2013";
  }
}

const rounded = (value) => (value < 10 ? value.toFixed(1) : String(Math.round(value)));
const duration = (seconds) =>
  seconds >= 1 ? seconds.toFixed(2) + "\u00a0s" : Math.round(1000 * seconds) + "\u00a0ms";
