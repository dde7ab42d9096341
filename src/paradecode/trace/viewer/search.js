// The branches of a search as a tree that grows to the right; the answer's branches are filled.

const BRANCH = 46;
const SHOWN = 30;

// Places: a branch is one column behind the one it goes on from, each leaf in a row of its own.
function branchPlaces(branches) {
  const children = new Map();
  branches.forEach(({ after }, index) => {
    const key = after ?? -1;
    if (!children.has(key)) children.set(key, []);
    children.get(key).push(index);
  });
  const places = new Map([[-1, { depth: 0, row: 0 }]]);
  let rows = 0;
  const open = [-1];
  while (open.length) {
    const index = open.pop();
    const own = places.get(index);
    if (index >= 0) own.row = own.first ? places.get(branches[index].after ?? -1).row : rows;
    const below = children.get(index) ?? [];
    if (below.length === 0) rows++;
    // The answer's own branches first: they make the top row.
    below.sort((a, b) => branches[b].chosen - branches[a].chosen || a - b);
    below.forEach((child, place) => places.set(child, { depth: own.depth + 1, row: 0, first: place === 0 }));
    open.push(...below.reverse());
  }
  return { places, rows };
}

function branchNote({ score, tokens, reason }) {
  const said = [count(tokens, "token"), reason];
  if (score !== null) said.unshift(score.toFixed(3));
  return said.join(" \u00b7 ");
}

function searchTree(box) {
  const { branches } = trace;
  if (branches.length < 2) return;
  byId("search").hidden = false;
  const { places, rows } = branchPlaces(branches);
  const label = (text) => clipped(inline(text.trim()) || "\u25cc", SHOWN);
  const root = { kind: "root", label: clipped("prompt", SHOWN), note: "", text: "the prompt", after: null, ...places.get(-1) };
  const nodes = branches.map((branch, index) => ({
    ...places.get(index),
    kind: branch.chosen ? "kept" : "cut",
    label: label(branch.text),
    note: branchNote(branch),
    text: branch.text,
    after: branch.after ?? -1,
  }));
  nodes[-1] = root;
  const all = [root, ...nodes];
  const wide = (node) => Math.max(boxWidth(node.label), 6.1 * node.note.length + 16);
  const widths = [];
  for (const node of all) widths[node.depth] = Math.max(widths[node.depth] ?? 0, wide(node));
  const lefts = [MARGIN];
  widths.forEach((width, depth) => lefts.push(lefts[depth] + width + GAP));
  const edges = drawn("g");
  const marks = drawn("g");
  for (const node of all) {
    const x = lefts[node.depth];
    const y = MARGIN + node.row * BRANCH;
    const width = wide(node);
    node.right = x + width;
    node.middle = y + (BRANCH - 8) / 2;
    if (node.after !== null) edges.append(edge(nodes[node.after], x, node));
    const mark = drawn("g", { class: `node ${node.kind}`, tabindex: "-1" });
    mark.append(
      drawn("rect", { x, y, width, height: BRANCH - 8, rx: 7 }),
      drawn("text", { class: "word", x: x + 8, y: y + (node.note ? 16 : 23) }, node.label.text),
    );
    if (node.note) mark.append(drawn("text", { class: "note", x: x + 8, y: y + 30 }, node.note));
    marks.append(hint(mark, () => [node.note, node.text].filter(Boolean)));
  }
  const width = lefts.at(-1) - GAP + MARGIN;
  const height = rows * BRANCH - 8 + 2 * MARGIN;
  box.append(drawn("svg", { class: "f2", width, height, viewBox: `0 0 ${width} ${height}` }, edges, marks));
  const made = branches.reduce((sum, { tokens }) => sum + tokens, 0);
  byId("search-figures").append(`${count(branches.length, "branch", "branches")}, ${count(made, "token")}`);
  byId("search-legend").append(
    element("span", { class: "swatch kept f2" }, "the answer"),
    element("span", { class: "swatch" }, "another branch"),
    "below each: its score, how many tokens it wrote, and why it ended",
  );
}
