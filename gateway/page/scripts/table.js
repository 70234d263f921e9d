// Traffic in numbers: the tiles, and a table that the server has filtered, sorted and cut into pages.

const COLUMNS = [
  ["Dialect", "dialect"], ["Model", "model"], ["Requests/s", "calls"], ["Errors/s", "errors"], ["p50 ms", "p50"], ["p99 ms", "p99"],
  ["Requests", "all_calls"], ["Errors", "all_errors"], ["Refused ms", "refused_p50"], ["Lately", null],
];
const keyOf = calls => calls.dialect + "\n" + calls.model;

function shown() { return series; }

function tile(title, value, unit = "") {
  return make("div", {class: "card tile"}, make("span", {class: "soft"}, title), make("b", {}, value, unit && make("small", {class: "soft"}, " " + unit)));
}

function choose(key) {
  view.chosen = view.chosen === key ? null : key;
  look();
}

/** By a column, the largest first; once more, the other way. Names begin with A. */
function sortBy(column) {
  const falls = "-" + column, first = column === "dialect" || column === "model" ? column : falls;
  view.sort = view.sort === first ? (first === falls ? column : falls) : first;
  view.first = 0;
  look();
}

function showTitles() {
  const row = byId("calls").tHead.rows[0];
  row.replaceChildren(...COLUMNS.map(([title, column], index) => {
    const kind = index > 1 && column ? "number" : null;
    if (!column) return make("th", {class: kind}, title);
    const sorted = view.sort === column ? "ascending" : view.sort === "-" + column ? "descending" : "none";
    return make("th", {class: kind, "aria-sort": sorted}, make("button", {onclick: () => sortBy(column), "data-sort": column}, title));
  }));
}

function showTraffic() {
  const load = live.load, [dialect, model] = (view.chosen || "\n").split("\n");
  byId("chosen").textContent = (view.chosen ? `of ${model || "refused calls"} in ${dialect}` : "of all models") + ", " + NAMES[view.span];
  for (const button of byId("spans").children) button.setAttribute("aria-pressed", String(button.dataset.span === view.span));
  byId("tiles").replaceChildren(
    tile("Requests per second", short(last(series.rate))), tile("Errors per second", short(last(series.failed))),
    tile("Median", short(last(series.p50)), "ms"), tile("99th percentile", short(last(series.p99)), "ms"),
    tile("Waiting", short(load.queued)), tile("Running", short(load.running)),
    tile("Rows per batch", load.batches ? short(load.rows / load.batches) : "\u2013"));
  showCharts();
}

function showTable() {
  const cell = value => make("td", {class: "number"}, short(value));
  const focused = document.activeElement?.dataset?.key;
  const rows = live.calls.map(each => make("tr", {tabindex: 0, "data-key": keyOf(each), "aria-selected": String(view.chosen === keyOf(each)), onclick: () => choose(keyOf(each)), onkeydown: event => (event.key === "Enter" || event.key === " ") && (event.preventDefault(), choose(keyOf(each)))},
    make("td", {}, each.dialect), make("td", {class: each.model ? "" : "soft"}, each.model || "refused before a model"), cell(each.rate), make("td", {class: each.failed ? "number bad" : "number"}, short(each.failed)),
    cell(each.p50), cell(each.p99), cell(each.calls), make("td", {class: each.errors ? "number bad" : "number"}, short(each.errors)), cell(each.refused_p50), make("td", {}, spark(each.spark))));
  byId("calls").tBodies[0].replaceChildren(...rows);
  if (!rows.length) byId("calls").tBodies[0].append(make("tr", {}, make("td", {colspan: 10, class: "soft"}, view.search ? "No call of such a model." : "No call has reached a model yet: open one below and try it.")));
  if (focused) rows.find(row => row.dataset.key === focused)?.focus();
  pager(byId("callspage"), view.first, live.found.calls, "kinds of calls", first => { view.first = first; look(); });
}

function showErrors() {
  const time = seconds => new Date(1000 * seconds).toLocaleString();
  const cells = error => [time(error.last), error.dialect, `${error.model} ${error.version}`, `${error.method} ${error.transport}`, error.code, error.reason];
  const rows = live.errors.map(error => make("tr", {}, ...cells(error).map(text => make("td", {}, text)),
    make("td", {class: "number bad"}, short(error.count)), make("td", {}, time(error.since)), make("td", {}, error.text)));
  byId("errors").tBodies[0].replaceChildren(...rows);
  if (!rows.length) byId("errors").tBodies[0].append(make("tr", {}, make("td", {colspan: 9, class: "soft"}, "No call has failed yet.")));
}
