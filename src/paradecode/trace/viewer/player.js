// Puts the page together, and moves through the steps.

const SLOWEST = 700;
const FASTEST = 40;
const WHOLE = 12000; // Milliseconds for the whole replay, if that is within the two.

const output = new Output(byId("output"));
const panel = diffusion ? new Canvas(byId("canvas")) : new Tree(byId("tree"));
const chart = new Chart(byId("chart"), (k) => go(k));
const slider = byId("slider");
let at = steps.length;
let timer = null;

function go(k) {
  at = Math.min(steps.length, Math.max(0, k));
  hideHint();
  output.show(at);
  panel.show(at);
  chart.show(at);
  slider.value = at;
  const forward = at ? steps[at - 1].forward : 0;
  slider.setAttribute("aria-valuetext", `forward ${forward} of ${trace.stats.forwards}`);
  byId("place").value = `${forward} / ${trace.stats.forwards}`;
  byId("readout").replaceChildren(...readout(at));
  if (at === steps.length) stop();
}

function stop() {
  clearInterval(timer);
  timer = null;
  byId("play").textContent = "\u25b6\ufe0e";
  byId("play").setAttribute("aria-label", "Play");
  byId("readout").setAttribute("aria-live", "polite");
}

function play() {
  if (steps.length === 0) return;
  if (at === steps.length) go(0);
  const pause = Math.min(SLOWEST, Math.max(FASTEST, WHOLE / steps.length));
  timer = setInterval(() => {
    go(at + 1);
    output.follow(at);
  }, pause);
  byId("play").textContent = "\u23f8\ufe0e";
  byId("play").setAttribute("aria-label", "Pause");
  byId("readout").setAttribute("aria-live", "off");
}

function move(k) {
  stop();
  go(k);
  output.follow(at);
}

const keys = {
  ArrowLeft: () => move(at - 1),
  ArrowRight: () => move(at + 1),
  Home: () => move(0),
  End: () => move(steps.length),
  " ": () => (timer ? stop() : play()),
};

document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") hideHint();
  if (event.altKey || event.ctrlKey || event.metaKey || event.defaultPrevented) return;
  const on = event.target;
  const busy = on === slider ? event.key !== " " : on.closest?.("button, summary") && event.key === " ";
  if (busy || !keys[event.key]) return;
  event.preventDefault();
  keys[event.key]();
});
slider.max = steps.length;
slider.addEventListener("input", () => move(Number(slider.value)));
byId("back").onclick = () => move(at - 1);
byId("next").onclick = () => move(at + 1);
byId("play").onclick = keys[" "];

byId("theme").onclick = () => {
  const root = document.documentElement;
  const system = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  root.dataset.theme = (root.dataset.theme ?? system) === "dark" ? "light" : "dark";
  byId("theme").setAttribute("aria-pressed", String(root.dataset.theme === "dark"));
};

byId("decoder").append(visible(trace.decoder));
byId("model").append(visible(`${trace.model}, ${trace.backend} backend; finished: ${trace.finish_reason}`));
byId("prompt").append(visible(trace.prompt));
byId(diffusion ? "board" : "draft").hidden = false;
searchTree(byId("branches"));
figures();
timeSplit();
// A number behind the page's address is the step to start at.
const asked = location.hash.slice(1);
go(/^\d+$/.test(asked) ? Number(asked) : steps.length);
