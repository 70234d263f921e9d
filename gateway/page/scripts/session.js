// Who asks, and how. The key is in the tab's own storage and in a header, never in an address.

const KEY = "tensorgate key";

class Refused extends Error {}

function credentials() {
  const key = sessionStorage.getItem(KEY);
  return key ? {Authorization: "Bearer " + String.fromCharCode(...new TextEncoder().encode(key))} : {};
}

function reason(text) {
  try {
    const told = JSON.parse(text);
    return String(told.error || told.status.msg);
  } catch { return "This is refused"; }
}

function askForKey(why) {
  byId("why").textContent = why;
  byId("sign").hidden = false;
  byId("key").focus();
}

function signIn() {
  const key = byId("key").value.trim();
  if (!key) return;
  sessionStorage.setItem(KEY, key);
  byId("key").value = "";
  byId("sign").hidden = true;
  for (const body of document.querySelectorAll(".try textarea")) body.dispatchEvent(new Event("input"));
  look();
}

function signOut() {
  sessionStorage.removeItem(KEY);
  location.reload();
}

async function read(name, query) {
  const target = base + name + "?" + new URLSearchParams(query);
  const reply = await fetch(target, {cache: "no-store", headers: credentials(), signal: AbortSignal.timeout(PATIENCE_MS)});
  if (reply.status === 401 || reply.status === 403) throw new Refused(reason(await reply.text()));
  if (!reply.ok) throw new Error(`the gateway answers ${reply.status}: ${(await reply.text()).slice(0, 200)}`);
  return reply.json();
}
