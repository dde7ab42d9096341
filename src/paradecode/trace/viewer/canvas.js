// The canvas of a diffusion method: every position masked, proposed or committed.

const WIDEST = 12;
const HISTORY = 6;

// Blocks are drawn as groups where they tile the canvas; sliding windows are only marked.
function tiles() {
  const ranges = [...new Set(steps.map(({ block }) => block.join()))].map((key) => key.split(",").map(Number));
  ranges.sort((a, b) => a[0] - b[0] || a[1] - b[1]);
  const apart = ranges.every(([start], index) => index === 0 || start >= ranges[index - 1][1]);
  if (!apart) return [[0, trace.canvas]];
  const groups = [];
  let end = 0;
  for (const range of ranges) {
    if (range[0] > end) groups.push([end, range[0]]);
    groups.push(range);
    end = range[1];
  }
  if (end < trace.canvas) groups.push([end, trace.canvas]);
  return groups;
}

class Canvas {
  constructor(box) {
    const widths = new Array(trace.canvas).fill(2);
    const parts = steps.flatMap(({ committed, provisional }) => [committed, provisional]);
    for (const { positions, tokens } of [trace.preset, ...parts]) {
      positions.forEach((position, place) => {
        const { width } = clipped(inline(piece(tokens[place])), WIDEST);
        widths[position] = Math.max(widths[position], width);
      });
    }
    this.cells = widths.map((width, position) => this.cell(width, position));
    this.blocks = tiles().map(([start, end], index, all) => {
      const title = all.length === 1 ? `positions ${start} to ${end - 1}` : `block ${index + 1}: positions ${start} to ${end - 1}`;
      const group = element("div", { class: "block" }, element("h3", {}, title));
      group.append(...this.cells.slice(start, end));
      return { start, end, group };
    });
    box.append(...this.blocks.map(({ group }) => group));
    byId("canvas-legend").append(
      sample("masked", "masked"), sample("provisional", "proposed"), sample("committed f0", "committed"),
      sample("committed now f0", "now"), sample("masked remasked", "masked again"),
      "small figures: the forward that committed, or the confidence of a proposal",
    );
  }

  cell(width, position) {
    const cell = element("div", { tabindex: "-1" }, element("span"), element("small"));
    cell.style.setProperty("--w", width);
    return hint(cell, () => this.describe(position));
  }

  show(k) {
    this.k = k;
    this.state = canvasAfter(k);
    const step = steps[k - 1];
    this.proposals = step ? proposalsOf(step) : new Map();
    const [start, end] = step?.block ?? [0, 0];
    const again = new Set(step?.remasked);
    this.cells.forEach((cell, position) => {
      const kept = this.state[position];
      const proposed = kept ? undefined : this.proposals.get(position);
      const names = ["cell", kept ? "committed" : proposed ? "provisional" : "masked"];
      if (kept) names.push(hue(kept.step));
      if (kept?.step === k - 1) names.push("now");
      if (!kept && again.has(position)) names.push("remasked");
      if (this.blocks.length === 1 && position >= start && position < end) names.push("window");
      const word = kept ?? proposed;
      const text = word ? inline(piece(word.token)) || "\u25cc" : "";
      const small = kept ? (steps[kept.step]?.forward ?? "") : proposed ? proposed.confidence.toFixed(2).replace("0.", ".") : "";
      const key = [names.join(" "), text, small].join("|");
      if (cell.dataset.key === key) return;
      cell.dataset.key = key;
      cell.className = names.join(" ");
      cell.firstChild.replaceChildren(clipped(text, WIDEST).text);
      cell.lastChild.replaceChildren(String(small));
    });
    for (const block of this.blocks) {
      block.group.classList.toggle("open", block.start < end && start < block.end);
    }
  }

  describe(position) {
    const kept = this.state[position];
    const lines = [];
    if (kept) {
      lines.push(quoted(kept.token), `position ${position}, ${whose(kept.step)}`);
      if (kept.confidence !== null) lines.push(`confidence ${percent(kept.confidence)}`);
    } else {
      const proposed = this.proposals.get(position);
      lines.push(proposed ? quoted(proposed.token) : "masked", `position ${position}`);
      if (proposed) lines.push(`proposed with confidence ${percent(proposed.confidence)}`);
    }
    return [...lines, ...this.history(position)];
  }

  // What happened to a position before.
  history(position) {
    const lines = [];
    for (let index = this.k - 2; index >= 0 && lines.length < HISTORY; index--) {
      const { forward, remasked, committed, provisional } = steps[index];
      const say = (verb, { positions, tokens, confidences }) => {
        const place = positions.indexOf(position);
        if (place < 0) return;
        const chance = percent(confidences[place]);
        lines.push(`   forward ${forward}: ${verb} ${inline(piece(tokens[place]))} ${chance}`);
      };
      say("committed", committed);
      say("proposed", provisional);
      if (remasked.includes(position)) lines.push(`   forward ${forward}: masked again`);
    }
    return lines.slice(0, HISTORY);
  }
}

function sample(names, text) {
  return element("span", { class: `cell ${names}` }, text);
}
