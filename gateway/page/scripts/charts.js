// The two charts and the small lines of the table. Values come oldest first; null is a gap, for nothing was asked then.

const NAMES = {minutes: "the last two minutes", hour: "the last hour", day: "the last day", month: "the last month"};
const AGES = {minutes: "2 min ago", hour: "1 h ago", day: "1 day ago", month: "30 days ago"};
const HEIGHT = 130, FLOOR = 18, ROOF = 16;
let series = null, pointed = null;

/** Adds the points that are new to those that are here, or starts anew where another span or stream was asked for. */
function take(said, key) {
  const known = series && series.key === key && said.first === series.first + series.rate.length;
  const columns = ["rate", "failed", "p50", "p99", "refused_p50", "refused_p99"];
  const joined = {...said, key};
  for (const name of columns) joined[name] = (known ? series[name] : []).concat(said[name]).slice(-said.points);
  joined.first = said.first + said.rate.length - joined.rate.length;
  series = joined;
}

/** Alone between two gaps, a value is a dot. */
function path(values, points, width, height, part) {
  const step = width / (points - 1), start = width - step * (values.length - 1);
  const at = (value, index) => `${(start + index * step).toFixed(1)} ${(height - height * part(value)).toFixed(1)}`;
  return values.map((value, index) => value === null ? "" : index && values[index - 1] !== null ? "L" + at(value, index) : `M${at(value, index)}h0`).join("");
}

function round(value) {
  if (value <= 0) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 2.5, 5, 10].map(each => each * power).find(each => each >= value);
}

/** Linear from 0 on, or by powers of ten: what part of the height a value has, and the values that are written beside. */
function scaleOf(values, logarithmic) {
  const there = values.filter(value => value !== null && (!logarithmic || value > 0));
  if (!logarithmic || !there.length) {
    const top = round(Math.max(...there, 0));
    return {part: value => value / top, marks: [0, top / 2, top]};
  }
  const low = Math.floor(Math.log10(Math.min(...there))), high = Math.max(Math.ceil(Math.log10(Math.max(...there))), low + 1);
  const marks = Array.from({length: high - low + 1}, (_, index) => 10 ** (low + index));
  return {part: value => value > 0 ? (Math.log10(value) - low) / (high - low) : 0, marks};
}

function draw(chart, lines, logarithmic = false) {
  const width = chart.clientWidth || 500, scale = scaleOf(lines.flatMap(([values]) => values), logarithmic);
  const room = HEIGHT - FLOOR - ROOF;
  chart.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
  chart.replaceChildren();
  const label = (text, x, y, anchor) => {
    const node = svg("text", {x, y, fill: "var(--soft)", "font-size": 10, "text-anchor": anchor});
    node.textContent = text;
    chart.append(node);
  };
  for (const mark of scale.marks) {
    const y = ROOF + room * (1 - scale.part(mark));
    chart.append(svg("line", {x1: 0, x2: width, y1: y, y2: y, stroke: "var(--line)"}));
    label(mark ? short(mark) : "", 2, y - 3, "start");
  }
  label(AGES[series.span], 0, HEIGHT - 4, "start");
  label("now", width, HEIGHT - 4, "end");
  for (const [values, colour] of lines) {
    if (values.every(value => value === null)) continue;
    chart.append(svg("path", {d: path(values, series.points, width, room, scale.part), fill: "none", stroke: colour, "stroke-width": 1.6, "stroke-linejoin": "round", "stroke-linecap": "round", transform: `translate(0 ${ROOF})`}));
  }
  if (pointed !== null) {
    const x = width - width * pointed / (series.points - 1);
    chart.append(svg("line", {x1: x, x2: x, y1: ROOF, y2: HEIGHT - FLOOR, stroke: "var(--soft)", "stroke-dasharray": "2 2"}));
  }
}

function spark(digits) {
  const chart = svg("svg", {class: "spark", viewBox: "0 0 110 22", preserveAspectRatio: "none"}), values = Array.from(digits, Number);
  if (values.length) chart.append(svg("path", {d: path(values, values.length, 110, 20, value => value / 9), fill: "none", stroke: "var(--blue)", "stroke-width": 1.2, transform: "translate(0 1)"}));
  return chart;
}

function showCharts() {
  draw(byId("rate"), [[series.rate, "var(--blue)"], [series.failed, "var(--bad)"]]);
  draw(byId("latency"), [[series.refused_p50, "var(--soft)"], [series.p99, "var(--orange)"], [series.p50, "var(--blue)"]], true);
  const at = series.rate.length - 1 - (pointed ?? 0), there = pointed !== null && at >= 0;
  const when = pointed === 0 ? "now" : `${since((pointed ?? 0) * series.step)} ago`;
  const told = {
    rate: () => `${when}\nrequests/s ${short(series.rate[at])}\nerrors/s ${short(series.failed[at])}`,
    latency: () => `${when}\np50 ${short(series.p50[at])} ms\np99 ${short(series.p99[at])} ms\nrefused ${short(series.refused_p50[at])} ms`,
  };
  for (const [id, words] of Object.entries(told)) {
    const chart = byId(id), box = chart.parentNode.querySelector("output");
    box.textContent = there ? words() : "";
    if (!there) continue;
    const right = pointed > series.points / 2 ? 1 - pointed / (series.points - 1) : null;
    box.style.left = right === null ? "" : `${14 + 8 + chart.clientWidth * right}px`;
    box.style.right = right === null ? `${14 + 8 + chart.clientWidth * pointed / (series.points - 1)}px` : "";
  }
}

/** With the mouse, a finger, or the arrow keys while the charts have the focus. */
function followPointer() {
  const point = age => { pointed = age === null ? null : Math.min(series.points - 1, Math.max(0, age)); showCharts(); };
  for (const id of ["rate", "latency"]) {
    const chart = byId(id), at = event => {
      const box = chart.getBoundingClientRect();
      if (series) point(Math.round((series.points - 1) * (1 - (event.clientX - box.left) / box.width)));
    };
    for (const kind of ["pointermove", "pointerdown"]) chart.addEventListener(kind, at);
    chart.addEventListener("pointerleave", event => event.pointerType === "mouse" && series && point(null));
  }
  byId("charts").addEventListener("keydown", event => {
    const step = {ArrowLeft: 1, ArrowRight: -1}[event.key];
    if (event.key === "Escape") point(null);
    if (!step || !series) return;
    event.preventDefault();
    point(pointed === null ? 0 : pointed + step);
  });
}
