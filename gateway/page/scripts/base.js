"use strict";
// What all parts of the page use: elements, numbers in words, and the state that they share.

const base = new URL(document.querySelector("header").dataset.root, location.href).pathname;
const ROWS = 25, PATIENCE_MS = 8000;
const byId = id => document.getElementById(id);

/** What the page shows now; whatever changes it calls `look` to have it read. */
const view = {span: "minutes", chosen: null, sort: "-calls", first: 0, modelsFirst: 0, search: ""};
let live = null;

/** An element; attributes that begin with "on" listen, those that are false or null are left out. */
function make(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value !== false && value != null) node.setAttribute(name, value);
  }
  node.append(...children.filter(child => child != null));
  return node;
}

function svg(tag, attributes) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  return node;
}

/** A number as people read it; a dash for what was not asked. */
function short(value) {
  if (value == null) return "\u2013";
  if (value >= 1e6) return (value / 1e6).toFixed(1) + "M";
  if (value >= 1e4) return (value / 1e3).toFixed(1) + "k";
  if (value >= 100 || Number.isInteger(value)) return String(Math.round(value));
  return value >= 10 ? value.toFixed(1) : value.toFixed(value >= 0.1 ? 2 : 3);
}
const bytes = value => value >= 2 ** 30 ? (value / 2 ** 30).toFixed(1) + " GiB" : Math.round(value / 2 ** 20) + " MiB";
const last = values => values.length ? values[values.length - 1] : null;

function since(seconds) {
  const days = Math.floor(seconds / 86400), hours = Math.floor(seconds / 3600) % 24, minutes = Math.floor(seconds / 60) % 60;
  return days ? `${days} d ${hours} h` : hours ? `${hours} h ${minutes} min` : minutes ? `${minutes} min` : `${Math.floor(seconds)} s`;
}

/** "26 to 50 of 500", with buttons that go on and back. */
function pager(place, first, found, what, go) {
  if (found <= ROWS) { place.replaceChildren(found ? `${found} ${what}` : ""); return; }
  const step = (text, label, to, there) => make("button", {"aria-label": label, onclick: () => go(to), disabled: there ? null : ""}, text);
  place.replaceChildren(`${first + 1} to ${Math.min(first + ROWS, found)} of ${found} ${what} `,
    step("\u2039", `${what} before`, Math.max(0, first - ROWS), first > 0), " ", step("\u203a", `more ${what}`, first + ROWS, first + ROWS < found));
}
