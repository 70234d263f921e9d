// The list of models, a page of them at a time; what a model takes and how to call it is read when its card is opened.

const cards = new Map();
let models = [];

function tensors(title, specs) {
  const list = specs.map(spec => make("div", {}, make("code", {}, `${spec.name}: ${spec.datatype} ${spec.shape ? "[" + spec.shape.join(", ") + "]" : "any shape"}`), spec.optional ? make("span", {class: "soft"}, " optional") : null));
  return make("div", {}, make("div", {class: "soft"}, title), ...list);
}

function versionPill(version) {
  const kind = {READY: "good", UNAVAILABLE: "bad"}[version.state] || "warn", labels = version.labels.length ? ` (${version.labels.join(", ")})` : "";
  return make("span", {class: "pill " + kind, title: version.reason || version.state}, `v${version.version}${labels} ${version.state.toLowerCase()}`);
}

function card(model, open) {
  const inside = make("div", {class: "inside"}), load = make("div", {class: "soft load", "data-load": model.name});
  const summary = make("summary", {}, make("b", {}, model.name), ...model.versions.map(versionPill),
    model.versions.length ? null : make("span", {class: "pill warn"}, "not loaded"),
    make("span", {class: "soft"}, [model.platform, model.device, model.instances > 1 ? `${model.instances} copies` : null, model.max_batch_size ? `batches of ${model.max_batch_size}` : null, model.decoupled ? "streams" : null, model.sequences ? "sequences" : null, model.verified ? `verified by ${model.verified.by}, sha256 ${model.verified.sha256.slice(0, 12)}…` : null].filter(Boolean).join(" \u00b7 ")));
  for (const version of model.versions) if (version.reason) inside.append(make("p", {class: "bad"}, `Version ${version.version}: ${version.reason}`));
  if (model.reason) inside.append(make("p", {class: "bad"}, model.reason));
  inside.append(load);
  const node = make("details", {class: "card model", "data-model": model.name, open: open ? "" : null}, summary, inside);
  let isRead = false;
  const readOnce = async () => {
    if (!node.open || isRead) return;
    isRead = true;
    try {
      const [whole] = await read("models.json", {models: model.name});
      if (whole?.inputs) inside.append(make("div", {class: "tensors"}, tensors("Inputs", whole.inputs), tensors("Outputs", whole.outputs)));
      if (whole?.samples?.length) inside.append(tryIt(whole));
      else if (whole?.inputs) inside.append(make("p", {class: "soft"}, "No dialect of this port can show one small request of this model."));
    } catch (error) {
      isRead = false;
      inside.append(make("p", {class: "bad"}, String(error.message)));
    }
  };
  node.addEventListener("toggle", readOnce);
  return node;
}

const openModels = () => [...document.querySelectorAll(".model[open]")].map(each => each.dataset.model);

async function showModels() {
  models = await read("models.json", {brief: 1, rows: ROWS, first: view.modelsFirst, search: view.search});
  const open = new Set(openModels());
  const nodes = models.map(model => {
    const said = JSON.stringify(model), had = cards.get(model.name);
    if (had && had.said === said) return had.node;
    const node = card(model, open.has(model.name));
    cards.set(model.name, {said, node});
    return node;
  });
  byId("models").replaceChildren(...nodes);
  if (!nodes.length) byId("models").append(make("p", {class: "soft"}, view.search ? "No model of such a name." : "No model is configured."));
  pager(byId("modelspage"), view.modelsFirst, live.found.models, "models", first => { view.modelsFirst = first; stamp = null; look(); });
}

function showLoad() {
  for (const place of document.querySelectorAll(".model[open] [data-load]")) {
    const loads = live.models.filter(model => model.name === place.dataset.load);
    const sum = key => loads.reduce((total, model) => total + model[key], 0);
    if (!loads.length) { place.replaceChildren(); continue; }
    const text = `${sum("queued")} waiting, ${sum("running")} running` + (sum("batches") ? `, ${short(sum("rows") / sum("batches"))} rows a batch ` : " ");
    const counted = loads.filter(model => model.tokens), total = at => counted.reduce((all, model) => all + model.tokens[at], 0);
    const waiting = loads.some(model => "queued_tokens" in model) ? `, ${short(loads.reduce((all, model) => all + (model.queued_tokens || 0), 0))} tokens waiting ` : "";
    const spent = counted.length ? `, ${short(total(0))} tokens in, ${short(total(1))} out ` : "";
    const told = loads.find(model => "first_answer" in model);
    const streamed = told ? `, first answer after ${short(1e3 * told.first_answer)} ms` + ("next_answer" in told ? `, the next after ${short(1e3 * told.next_answer)} ms ` : " ") : "";
    const aimed = loads.find(model => model.goal)?.goal;
    const goal = aimed ? `, goal ${short(1e3 * aimed.target_s)} ms: ${short(aimed.held)} within, ${short(aimed.missed)} later, ${short(aimed.shed)} refused, ` +
      `up to ${aimed.rows} rows after ${short(1e3 * aimed.waited_s)} ms, run ${short(1e3 * aimed.predicted_s)} ms expected, ${short(1e3 * aimed.actual_s)} ms taken ` : "";
    const crossed = key => loads.reduce((total, model) => total + model.traffic[key], 0);
    const copied = crossed("batches") ? `, to and from the device ${short((crossed("copies_in") + crossed("copies_out")) / crossed("batches"))} copies and ${bytes((crossed("bytes_in") + crossed("bytes_out")) / crossed("batches"))} a batch ` : "";
    const fill = loads.flatMap(model => model.fill), most = Math.max(...fill.map(([, count]) => count), 1);
    const bars = make("span", {class: "fill"}, ...fill.map(([rows, count]) => {
      const bar = make("i", {title: `${count} batches of ${rows < 0 ? "more" : "up to " + rows} rows`});
      bar.style.height = `${Math.max(1, 20 * count / most)}px`;
      return bar;
    }));
    place.replaceChildren(text, waiting, spent, streamed, goal, copied, bars);
  }
}
