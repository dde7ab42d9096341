// The text, each token in the colour of the forward that committed it.

class Output {
  constructor(box) {
    this.box = box;
    this.shown = -1;
    this.ghost = element("span", { class: "ghost" });
    this.spans = trace.tokens.map((token, index) => this.span(token, index));
    box.append(...this.spans);
    const legend = diffusion ? "one colour a forward" : "one colour a forward; underlined: drafted";
    byId("output-legend").append(legend);
  }

  span(token, index) {
    const span = element("span", { tabindex: "-1" });
    span.append(...words(token.text, token.id));
    return hint(span, () => this.describe(token, index));
  }

  describe(token, index) {
    const cell = diffusion ? this.cells[index] : null;
    if (diffusion && cell === null) return [`position ${index}`, "still masked"];
    const id = cell ? cell.token : token.id;
    const step = cell ? cell.step : token.step;
    const lines = [quoted(id), `${whose(step)}, position ${index}`];
    if (!diffusion) lines.push(token.drafted ? "drafted and accepted" : "from the model itself");
    const chance = cell ? cell.confidence : token.probability;
    if (chance !== null) lines.push(`${diffusion ? "confidence" : "probability"} ${percent(chance)}`);
    const others = token.top.filter(([other]) => other !== id);
    for (const [other, share] of others) lines.push(`   ${percent(share)}  ${inline(piece(other))}`);
    return lines;
  }

  show(k) {
    if (diffusion) this.showCanvas(k);
    else this.showText(k);
    this.shown = k;
  }

  showText(k) {
    const now = k - 1;
    const first = this.shown < 0 ? 0 : ends[Math.max(0, Math.min(k, this.shown) - 1)];
    const last = this.shown < 0 ? this.spans.length : ends[Math.max(k, this.shown)];
    for (let index = first; index < last; index++) {
      const { step, drafted } = trace.tokens[index];
      const names = ["t", hue(step), drafted && "drafted", step === now && "now", step > now && "off"];
      this.spans[index].className = names.filter(Boolean).join(" ");
    }
    this.ghost.remove();
    if (k === 0) return;
    const step = steps[now];
    // Behind the end of the output nothing was rejected.
    const rejected = step.accepted < step.tokens.length ? bestRejected(step) : [];
    if (rejected.length === 0) return;
    this.ghost.replaceChildren(visible(rejected.map((node) => piece(step.tree.tokens[node])).join("")));
    const place = ends[now] + step.accepted;
    this.box.insertBefore(this.ghost, this.spans[place]);
    hint(this.ghost, () => ["the likeliest of what was rejected"]);
  }

  showCanvas(k) {
    this.cells = canvasAfter(k);
    this.spans.forEach((span, index) => {
      const cell = this.cells[index] ?? null;
      const state = cell === null ? "masked" : `${hue(cell.step)}${cell.step === k - 1 ? " now" : ""}`;
      const key = `t ${state} ${cell?.token ?? ""}`;
      if (span.dataset.key === key) return;
      span.dataset.key = key;
      span.className = `t ${state}`;
      const token = trace.tokens[index];
      if (cell === null) span.replaceChildren("\u2592\u2592");
      else span.replaceChildren(...words(cell.token === token.id ? token.text : piece(cell.token), cell.token));
    });
  }

  // Keeps the newest tokens in sight while the text grows.
  follow(k) {
    const last = diffusion ? null : this.spans[ends[k] - 1];
    if (last && last.offsetTop + last.offsetHeight > this.box.scrollTop + this.box.clientHeight) {
      this.box.scrollTop = last.offsetTop + last.offsetHeight - this.box.clientHeight + 8;
    }
  }
}

// A token's text as nodes; what has no look of its own gets a sign.
function words(text, id) {
  const sign = (mark) => element("i", { class: "sign" }, mark);
  if (text === "") return [sign(control.has(id) ? inline(piece(id)) : "\u25cc")];
  const nodes = [];
  visible(text).split("\n").forEach((line, index) => {
    if (index > 0) nodes.push(sign("\u23ce"), "\n");
    if (line) nodes.push(line);
  });
  return nodes;
}
