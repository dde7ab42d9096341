// The trace, and what there was after each of its steps. "After k steps" counts from 0 to the end.

const trace = JSON.parse(byId("trace").textContent);
const steps = trace.steps;
const diffusion = trace.family === "diffusion";
const control = new Set(trace.control);

const piece = (id) => trace.pieces[id] ?? "";

function quoted(id) {
  return `${inline(piece(id)) || "(nothing)"}  #${id}`;
}

const whose = (step) => (step < 0 ? "placed before the first forward" : `forward ${steps[step].forward}`);
const committedBy = (step) => (diffusion ? step.committed.positions.length : step.tokens.length);
const draftedBy = (step) => (diffusion ? 0 : step.accepted);

// Autoregressive: how many tokens the text has after k steps.
const ends = [0];
if (!diffusion) for (const step of steps) ends.push(ends.at(-1) + step.tokens.length);

// Diffusion: the canvas after k steps, one entry a position: null while it is masked.
function canvasAfter(k) {
  const cells = new Array(trace.canvas).fill(null);
  trace.preset.positions.forEach((position, place) => {
    cells[position] = { token: trace.preset.tokens[place], confidence: null, step: -1 };
  });
  for (let index = 0; index < k; index++) {
    const { remasked, committed } = steps[index];
    for (const position of remasked) cells[position] = null;
    committed.positions.forEach((position, place) => {
      cells[position] = {
        token: committed.tokens[place],
        confidence: committed.confidences[place],
        step: index,
      };
    });
  }
  return cells;
}

// What the model proposed for positions that the step left masked.
function proposalsOf(step) {
  const { positions, tokens, confidences } = step.provisional;
  return new Map(
    positions.map((position, place) => [
      position,
      { token: tokens[place], confidence: confidences[place] },
    ]),
  );
}

function readout(k) {
  if (k === 0) return ["Before the first forward."];
  const step = steps[k - 1];
  const done = committedBy(step);
  const parts = [`${count(done, diffusion ? "position" : "token")} committed`];
  if (diffusion) {
    if (step.remasked.length) parts.push(`${step.remasked.length} masked again`);
    const left = canvasAfter(k).slice(...step.block).filter((cell) => cell === null).length;
    parts.push(`${left} of positions ${step.block[0]} to ${step.block[1] - 1} still masked`);
  } else if (step.drafted) {
    parts.push(`${step.accepted} of ${count(step.drafted, "draft token")} accepted`);
  } else {
    parts.push("no draft");
  }
  if (step.seconds > 0) parts.push(duration(step.seconds));
  return [element("strong", {}, parts[0]), ", " + parts.slice(1).join(", ")];
}
