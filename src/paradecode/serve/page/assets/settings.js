// What is asked for: model, method, sampling. Nothing of it is stored, least of all the key.

import { byId, element, visible } from "./dom.js";
import { get } from "./stream.js";

const DEFAULT = "";
const FAMILIES = { autoregressive: "draft and verify", diffusion: "diffusion" };

let models = [];
let methods = [];

export const key = () => byId("key").value;
export const model = () => models.find(({ id }) => id === byId("model").value);

export async function load() {
  const [listed, known] = await Promise.all([get("/v1/models", key()), get("/page/methods", key())]);
  models = listed.data;
  methods = known;
  const chosen = byId("model").value;
  byId("model").replaceChildren(
    ...models.map(({ id }) => element("option", { value: id }, visible(id))),
  );
  if (models.some(({ id }) => id === chosen)) byId("model").value = chosen;
  byId("model").disabled = byId("method").disabled = false;
  offerMethods();
}

// The methods that the chosen model can be decoded with.
export function offerMethods() {
  const own = model();
  const chosen = byId("method").value;
  const usable = methods.filter(
    ({ family, needs }) => own.families.includes(family) && (!needs || own.draft_model),
  );
  const groups = Object.entries(FAMILIES).map(([family, label]) => {
    const options = usable.filter((method) => method.family === family).map(option);
    return options.length ? [element("optgroup", { label }, ...options)] : [];
  });
  byId("method").replaceChildren(
    element("option", { value: DEFAULT }, `default (${visible(own.decoder)})`),
    ...groups.flat(),
  );
  byId("method").value = usable.some(({ name }) => name === chosen) ? chosen : DEFAULT;
  describeMethod();
}

function option({ name, guarantee, summary }) {
  const lossy = guarantee === "lossy" ? " (lossy)" : "";
  const label = `${name}${lossy} \u2013 ${summary}`;
  return element("option", { value: name, title: `${guarantee}: ${summary}` }, label);
}

export function describeMethod() {
  const chosen = methods.find(({ name }) => name === byId("method").value);
  byId("about").textContent = chosen ? `${chosen.name}, ${chosen.guarantee}: ${chosen.summary}` : "";
  byId("method-settings").disabled = !chosen;
}

// The request's body, the prompt aside. Throws if a field is not usable.
export function body() {
  for (const input of byId("settings").elements) {
    if (!input.checkValidity()) {
      const label = input.labels[0].firstChild.textContent.trim();
      throw new Error(`${label}: ${input.validationMessage}`);
    }
  }
  const method = byId("method").value;
  const own = byId("method-settings").value.trim();
  const seed = byId("seed").value;
  return {
    model: model().id,
    temperature: byId("temperature").valueAsNumber,
    top_p: byId("top-p").valueAsNumber,
    max_tokens: byId("max-tokens").valueAsNumber,
    ...(seed === "" ? {} : { seed: Number(seed) }),
    ...(method === DEFAULT ? {} : { speculative: own ? `${method}(${own})` : method }),
    ...(model().families.includes("diffusion") ? { provisional: true } : {}),
    include_metrics: true,
    stream_options: { include_usage: true },
  };
}

export function system() {
  const content = byId("system").value.trim();
  return content ? [{ role: "system", content }] : [];
}
