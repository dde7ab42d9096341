// Figures of the whole request, and a bar a forward: how many tokens it committed.

function figures() {
  const { stats } = trace;
  const tiles = [
    ["tokens", stats.generated],
    ["forwards", stats.forwards],
    ["tokens per forward", stats.forwards ? (stats.generated / stats.forwards).toFixed(2) : "0"],
  ];
  if (stats.drafted) {
    tiles.push(["draft tokens accepted", stats.accepted, ` of ${stats.drafted}`]);
  }
  const later = stats.generated - stats.first_tokens;
  if (later > 0 && stats.decode_seconds > 0) {
    tiles.push(["decoding", (later / stats.decode_seconds).toFixed(0), " tokens/s"]);
  }
  for (const [name, value, more] of tiles) {
    const figure = element("dd", {}, String(value));
    if (more) figure.append(element("small", {}, more));
    byId("figures").append(element("div", {}, element("dt", {}, name), figure));
  }
}

function timeSplit() {
  const { stats } = trace;
  const whole = stats.prefill_seconds + stats.decode_seconds;
  const shares = [
    ["f4", "target forwards", stats.target_seconds],
    ["f1", "other models", stats.other_model_seconds],
    ["f2", "the method", stats.decoder_seconds],
  ];
  const known = shares.reduce((sum, [, , seconds]) => sum + seconds, 0);
  if (!(whole > 0) || !(known > 0)) return;
  shares.push(["rest", "the rest", Math.max(0, whole - known)]);
  const bar = element("div", { class: "bar", "aria-hidden": "true" });
  const keys = [];
  for (const [colour, name, seconds] of shares) {
    if (!(seconds > 0)) continue;
    const part = element("i", { class: colour });
    part.style.flexGrow = (100 * seconds) / whole;
    bar.append(part);
    keys.push(element("span", { class: `key ${colour}` }, `${name} ${duration(seconds)}`));
  }
  byId("time").append(`${duration(whole)} in all`, bar, ...keys);
  byId("time").hidden = false;
}

class Chart {
  constructor(box, go) {
    const most = Math.max(1, ...steps.map(committedBy));
    const mean = steps.reduce((sum, step) => sum + committedBy(step), 0) / Math.max(1, steps.length);
    const height = most * 1.12;
    const svg = drawn("svg", {
      viewBox: `0 0 ${Math.max(1, steps.length)} ${height}`, preserveAspectRatio: "none", role: "img",
      "aria-label": `Tokens committed by each of ${count(steps.length, "forward")}: ${mean.toFixed(2)} on average, ${most} at most`,
    });
    this.bars = steps.map((step, index) => {
      const bar = drawn("g", { class: hue(index) });
      const all = committedBy(step);
      const drafted = Math.min(draftedBy(step), all);
      const wide = steps.length > 400 ? { x: index, width: 1 } : { x: index + 0.1, width: 0.8 };
      bar.append(
        drawn("rect", { ...wide, class: "drafted", y: height - drafted, height: drafted }),
        drawn("rect", { ...wide, class: diffusion ? "drafted" : "own", y: height - all, height: all - drafted }),
      );
      const hit = drawn("rect", { class: "hit", x: index, width: 1, y: 0, height });
      hint(hit, () => [`forward ${step.forward}`, ...readout(index + 1).map((part) => part.textContent ?? part).join("").split(", ")]);
      hit.addEventListener("click", () => go(index + 1));
      bar.append(hit);
      return bar;
    });
    const level = height - mean;
    svg.append(...this.bars, drawn("line", { class: "rule", x1: 0, x2: steps.length, y1: level, y2: level }));
    box.append(svg);
    const mark = (text, value) => {
      const label = element("span", {}, text);
      label.style.bottom = (100 * value) / height + "%";
      byId("scale").append(label);
    };
    mark(`mean ${mean.toFixed(2)}`, mean);
    if (most > 1.4 * mean) mark(`most ${most}`, most);
    this.shown = 0;
  }

  show(k) {
    this.bars.forEach((bar, index) => {
      bar.classList.toggle("later", index >= k);
    });
    this.bars[this.shown - 1]?.lastChild.classList.remove("now");
    this.bars[k - 1]?.lastChild.classList.add("now");
    this.shown = k;
  }
}
