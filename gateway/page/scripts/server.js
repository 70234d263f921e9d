// The server itself: its state, what is wrong in words, doors, ports, GPUs, routes and callers.

function showServer() {
  byId("version").textContent = live.version;
  const [worst, why] = live.problems[0] || ["", ""], more = live.problems.filter(([level]) => level !== "note").length - 1;
  byId("state").textContent = live.state + (worst && worst !== "note" ? `: ${why.slice(0, 80)}${more > 0 ? `, and ${more} more` : ""}` : "");
  byId("state").className = "pill " + (worst === "bad" ? "bad" : worst === "warn" ? "warn" : {ready: "good", loading: "warn", draining: "warn"}[live.state] || "bad");
  byId("problems").replaceChildren(...live.problems.map(([level, text]) => make("li", {class: level}, text)));
  byId("host").textContent = [`up ${since(live.uptime_s)}`, `CPU ${short(live.cpu_percent)} % of a core`, `memory ${bytes(live.memory_bytes)}`].join("  \u00b7  ");
}

function listed(title, heads, rows) {
  if (!rows.length) return null;
  const head = heads.map((text, index) => make("th", {class: index ? "number" : null}, text));
  const body = rows.map(row => make("tr", {}, ...row.map((cell, index) => make("td", {class: index ? "number" : null}, cell))));
  const table = make("table", {}, make("thead", {}, make("tr", {}, ...head)), make("tbody", {}, ...body));
  return make("section", {"aria-label": title}, make("h2", {}, title), make("div", {class: "card scroll"}, table));
}

function weights(route) {
  const total = route.targets.reduce((sum, target) => sum + target.weight, 0);
  return route.targets.map(target => `${target.model}${target.label ? " " + target.label : target.version !== null ? " version " + target.version : ""} ${short(100 * target.weight / total)} %`).join(", ");
}

function showLists() {
  const percent = value => value === null ? "\u2013" : `${short(100 * value)} %`, unit = (value, name) => value === null ? "\u2013" : `${short(value)} ${name}`;
  byId("lists").replaceChildren(...[
    listed("GPUs", ["Device", "Memory", "Busy", "Power", "Temperature"], live.gpus.map(gpu => [`${gpu.device} ${gpu.name}`, `${bytes(gpu.used)} of ${bytes(gpu.total)}`, percent(gpu.utilization), unit(gpu.power_watts, "W"), unit(gpu.temperature_celsius, "\u00b0C")])),
    listed("Routes", ["Route", "Share", "Answered", "Running", "Refused"], live.routes.map(route => [route.name, weights(route) + (route.mirrored ? ", mirrored" : ""), Object.entries(route.taken).map(([model, calls]) => `${model}: ${short(calls)}`).join(", ") || "0", short(route.running), short(route.refused)])),
    listed("Doors", ["Door", "Connections", "Up since", "Restarts"], live.doors.map(door => [`door ${door.slot}`, short(door.connections), door.up ? since(door.since_s) : "restarting", short(door.restarts)])),
    listed("Ports", ["Port", "Connections", "Running"], live.listeners.map(port => [`${port.name} (${port.transport})`, short(port.connections), short(port.running)])),
    listed("Callers", ["Caller", "Calls", "Failed", "Rows", "In the model"], live.callers.map(each => [each.caller || "(nobody known)", short(each.calls), short(each.failed), short(each.rows), `${short(1e3 * each.compute_s)} ms`])),
    listed("Shares", ["Caller", "Weight", "Device", "Time there", "Waiting", "Refused"], live.shares.map(each => [each.caller || "(nobody known)", short(each.weight), each.device, `${short(each.seconds)} s`, short(each.queued), short(each.refused)])),
  ].filter(Boolean));
}
