// The draft of one step as a tree that grows to the right; the committed path is its top row.

const ROW = 42;
const HEIGHT = 32;
const GAP = 26;
const GLYPH = 7.9;
const MARGIN = 12;

function childrenOf(tree) {
  const children = new Map();
  tree.parents.forEach((parent, node) => {
    if (!children.has(parent)) children.set(parent, []);
    children.get(parent).push(node);
  });
  return children;
}

// The likeliest path of rejected nodes below the last accepted one.
function bestRejected(step) {
  const children = childrenOf(step.tree);
  const path = [];
  let node = step.tree.accepted.at(-1) ?? -1;
  for (;;) {
    const next = children.get(node) ?? [];
    if (next.length === 0) return path;
    const estimate = (child) => step.tree.estimates[child];
    node = next.reduce((best, child) => (estimate(child) > estimate(best) ? child : best));
    path.push(node);
  }
}

// Places of all nodes: the root, the draft's nodes, and the tokens that the model itself added.
function layout(k) {
  const step = steps[k - 1];
  const { tree } = step;
  const children = childrenOf(tree);
  const accepted = new Set(tree.accepted);
  const before = trace.tokens[ends[k - 1] - 1];
  const nodes = [];
  const add = (parent, kind, token, estimate, depth, row) => {
    const label = clipped(token === null ? "prompt" : inline(piece(token)) || "\u25cc", 16);
    nodes.push({ parent, kind, token, estimate, depth, row, label });
    return nodes.length - 1;
  };
  const root = add(null, "root", before ? before.id : null, null, 0, 0);

  // The committed path first; everything else hangs below it, each leaf in a row of its own.
  let tip = root;
  const placed = new Map([[-1, root]]);
  step.tokens.forEach((token, index) => {
    const node = tree.accepted[index];
    const kind = index < step.accepted ? "kept drafted" : "kept own";
    tip = add(tip, kind, token, node === undefined ? null : tree.estimates[node], index + 1, 0);
    if (node !== undefined) placed.set(node, tip);
  });
  let rows = 1;
  const hang = (node) => {
    const rest = (children.get(node) ?? []).filter((child) => !accepted.has(child));
    rest.sort((a, b) => tree.estimates[b] - tree.estimates[a]);
    const from = placed.get(node);
    const { depth } = nodes[from];
    rest.forEach((child, index) => {
      const row = index === 0 && nodes[from].row > 0 ? nodes[from].row : rows++;
      placed.set(child, add(from, "cut", tree.tokens[child], tree.estimates[child], depth + 1, row));
      hang(child);
    });
  };
  // The deepest part of the path first, so that edges do not cross.
  for (const node of [...tree.accepted].reverse()) hang(node);
  hang(-1);
  return nodes;
}

const boxWidth = (label) => Math.max(54, label.width * GLYPH + 16);

class Tree {
  constructor(box) {
    this.box = box;
    this.zoom = 1;
    byId("smaller").onclick = () => this.scale(this.zoom / 1.25);
    byId("larger").onclick = () => this.scale(this.zoom * 1.25);
    byId("fit").onclick = () => this.fit();
    byId("tree-legend").append(
      element("span", { class: "swatch kept drafted f0" }, "accepted"),
      element("span", { class: "swatch kept f0" }, "from the model"),
      element("span", { class: "swatch" }, "\u00d7 rejected"),
      "small figures: the drafter's estimate",
    );
  }

  show(k) {
    this.box.replaceChildren();
    if (k === 0) {
      this.svg = null;
      return;
    }
    const step = steps[k - 1];
    const nodes = layout(k);
    const widths = [];
    for (const { depth, label } of nodes) {
      widths[depth] = Math.max(widths[depth] ?? 0, boxWidth(label));
    }
    const lefts = [MARGIN];
    widths.forEach((width, depth) => lefts.push(lefts[depth] + width + GAP));
    this.width = lefts.at(-1) - GAP + MARGIN;
    this.height = (Math.max(...nodes.map((node) => node.row)) + 1) * ROW - (ROW - HEIGHT) + 2 * MARGIN;
    const opinion = step.tree.estimates.some((estimate) => estimate < 1);
    const edges = drawn("g");
    const marks = drawn("g");
    nodes.forEach((node) => {
      const x = lefts[node.depth];
      const y = MARGIN + node.row * ROW;
      const width = boxWidth(node.label);
      node.right = x + width;
      node.middle = y + HEIGHT / 2;
      if (node.parent !== null) edges.append(edge(nodes[node.parent], x, node));
      const mark = drawn("g", { class: `node ${node.kind}`, tabindex: "-1" });
      const small = [node.kind === "cut" && "\u00d7", opinion && node.estimate?.toFixed(2)];
      const note = small.filter(Boolean).join(" ");
      mark.append(
        drawn("rect", { x, y, width, height: HEIGHT, rx: 7 }),
        drawn("text", { class: "word", x: x + 8, y: y + (note ? 14.5 : 20.5) }, node.label.text),
      );
      if (note) mark.append(drawn("text", { class: "note", x: x + 8, y: y + 26 }, note));
      marks.append(hint(mark, () => describeNode(node)));
    });
    const said = `Draft tree with ${count(step.tree.tokens.length, "node")}, ${step.accepted} accepted`;
    this.svg = drawn("svg", { class: hue(k - 1), viewBox: `0 0 ${this.width} ${this.height}` }, edges, marks);
    this.box.setAttribute("aria-label", said + "; arrow keys walk along the nodes");
    this.box.append(this.svg);
    this.scale(this.zoom);
  }

  scale(zoom) {
    this.zoom = Math.min(3, Math.max(0.15, zoom));
    this.svg?.setAttribute("width", this.width * this.zoom);
    this.svg?.setAttribute("height", this.height * this.zoom);
  }

  fit() {
    if (!this.svg) return;
    const height = 0.5 * window.innerHeight - 20;
    this.scale(Math.min(1, (this.box.clientWidth - 2) / this.width, height / this.height));
  }
}

function edge(from, x, to) {
  const bend = (from.right + x) / 2;
  const curve = `M${from.right} ${from.middle}C${bend} ${from.middle} ${bend} ${to.middle} ${x} ${to.middle}`;
  return drawn("path", { d: curve, class: `edge ${to.kind}` });
}

function describeNode({ kind, token, estimate }) {
  const word = token === null ? "the prompt" : quoted(token);
  const lines = {
    root: "committed before",
    "kept drafted": "drafted and accepted",
    "kept own": "from the model itself",
    cut: "drafted and rejected",
  };
  const said = [word, lines[kind]];
  if (estimate !== null) said.push(`estimate, given its parent: ${percent(estimate)}`);
  return said;
}
