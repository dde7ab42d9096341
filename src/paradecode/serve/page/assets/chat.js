// The page's main program: what happens when something is sent, stopped, or chosen.

import { byId, element } from "./dom.js";
import { Figures, summary } from "./figures.js";
import * as settings from "./settings.js";
import { ask } from "./stream.js";
import { Answer, clear, cut, pair, remark, say } from "./transcript.js";

const EXAMPLES = [
  "Write HTML for a menu with the links Home, News, Shop, Team, Jobs and Help.",
  "What are the benefits of reading books?",
  "Write a Python class for a bank account with deposit and withdraw.",
];
const REASONS = {
  length: "Cut at the token limit.",
  deadline: "The server's time limit was reached.",
  cancelled: "Stopped.",
};

let conversation = [];
let running = null;

function status(text) {
  byId("status").textContent = text;
}

async function connect() {
  try {
    await settings.load();
    status("");
    return true;
  } catch (error) {
    const locked = error.status === 401;
    status(locked ? "This server wants an API key." : `The server does not answer: ${error.message}`);
    if (locked) {
      openSettings(true);
      byId("key").focus();
    }
    return false;
  }
}

async function send(text) {
  if (running || !text.trim()) return;
  if (byId("model").disabled && !(await connect())) return;
  let body;
  try {
    body = settings.body();
  } catch (error) {
    openSettings(true);
    status(error.message);
    return;
  }
  const before = [...conversation];
  say(text, (message) => {
    if (running) return;
    cut(message);
    conversation = before;
    byId("prompt").value = text;
    byId("prompt").focus();
  });
  byId("prompt").value = "";
  conversation.push({ role: "user", content: text });
  await answer(body, text);
}

async function answer(body, text) {
  const asked = [...conversation];
  const chat = settings.model().chat;
  const said = { messages: [...settings.system(), ...conversation], separate_reasoning: false };
  const prompt = chat ? said : { prompt: text };
  const path = chat ? "/v1/chat/completions" : "/v1/completions";
  const whole = { ...body, ...prompt };
  const stop = new AbortController();
  busy(stop);
  const beside = byId("beside").checked;
  const place = beside ? pair() : byId("transcript");
  const streams = [follow(path, whole, stop, place, new Figures())];
  if (beside) streams.push(follow(path, { ...whole, speculative: "none" }, stop, place, null));
  const ended = await Promise.all(streams);
  const [main, plain] = ended;
  if (beside) {
    for (const { shown, metrics } of ended) if (metrics) remark(shown.box, summary(metrics));
    const same = main.shown.text === plain.shown.text;
    const done = ended.every(({ metrics }) => metrics);
    const differ = body.temperature ? "The texts differ: both are samples." : "The texts differ.";
    if (done) remark(place, same ? "Same text." : differ);
  }
  // A question without an answer would confuse the next one.
  if (main.shown.text) conversation.push({ role: "assistant", content: main.shown.text });
  else conversation.pop();
  const again = () => {
    if (running) return;
    cut(beside ? place : main.shown.box);
    conversation = asked;
    let fresh = body;
    try {
      fresh = settings.body();
    } catch {
      // What was asked is asked again.
    }
    answer(fresh, text);
  };
  main.shown.finish(main.shown.text || main.failed || main.empty ? again : null);
  plain?.shown.finish(null);
  busy(null);
}

// One stream: its answer, and what the server counted.
async function follow(path, body, stop, place, figures) {
  const answer = new Answer(body.model, body.speculative ?? settings.model().decoder, place);
  let reason = null;
  let failed = false;
  let metrics = null;
  try {
    for await (const event of ask(path, body, settings.key(), stop.signal)) {
      const choice = event.choices[0];
      const progress = event.paradecode;
      if (progress) {
        for (const commit of progress.commits) answer.add(commit);
        figures?.add(progress);
        if (progress.canvas) answer.show(progress.canvas);
      }
      reason = choice?.stop_reason ?? choice?.finish_reason ?? reason;
      metrics = event.metrics ?? metrics;
    }
  } catch (error) {
    if (stop.signal.aborted) reason = "cancelled";
    else {
      answer.fail(error.message);
      failed = true;
    }
  }
  if (metrics) figures?.end(metrics);
  const empty = !answer.text && !failed && !stop.signal.aborted;
  answer.end(metrics?.method, REASONS[reason] ?? (empty ? "The model said nothing." : undefined));
  return { shown: answer, metrics, failed, empty };
}

function busy(stop) {
  running = stop;
  byId("send").hidden = stop !== null;
  byId("stop").hidden = stop === null;
  byId("new").disabled = stop !== null;
  status(stop ? "Answering" : "");
  byId("prompt").focus();
}

function openSettings(open) {
  byId("settings").hidden = !open;
  byId("settings-button").setAttribute("aria-expanded", String(open));
}

byId("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  send(byId("prompt").value);
});
byId("prompt").addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  send(byId("prompt").value);
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") running?.abort();
});
byId("stop").addEventListener("click", () => running?.abort());
byId("new").addEventListener("click", () => {
  conversation = [];
  clear();
  byId("prompt").focus();
});
byId("settings-button").addEventListener("click", () => openSettings(byId("settings").hidden));
byId("settings").addEventListener("submit", (event) => event.preventDefault());
byId("model").addEventListener("change", settings.offerMethods);
byId("method").addEventListener("change", settings.describeMethod);
byId("key").addEventListener("change", connect);

const dark = matchMedia("(prefers-color-scheme: dark)");
byId("theme").setAttribute("aria-pressed", String(dark.matches));
byId("theme").addEventListener("click", () => {
  const next = byId("theme").getAttribute("aria-pressed") !== "true";
  byId("theme").setAttribute("aria-pressed", String(next));
  document.documentElement.dataset.theme = next ? "dark" : "light";
});

byId("examples").append(
  ...EXAMPLES.map((text) => {
    const button = element("button", { type: "button" }, text);
    button.addEventListener("click", () => send(text));
    return button;
  }),
);
byId("prompt").focus();
connect();
