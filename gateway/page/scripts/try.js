// Calls made by hand: every kind of every dialect that the model has, with the answer as it arrives.

const MAX_SHOWN = 200_000;

function tryIt(model) {
  const samples = model.samples;
  const line = make("pre", {class: "curl"}), body = make("textarea", {spellcheck: "false", "aria-label": "body of the request"});
  const told = make("span", {class: "soft told", role: "status"}), answer = make("pre", {class: "answer", hidden: ""});
  const tabs = samples.map(sample => make("button", {role: "tab", "data-dialect": sample.dialect, "data-kind": sample.kind, onclick: () => pick(sample)}, samples.some(other => other !== sample && other.dialect === sample.dialect) && sample.kind ? `${sample.dialect} ${sample.kind}` : sample.dialect));
  const languages = SNIPPETS.map(([name]) => make("button", {"data-language": name, onclick: () => { language = name; update(); }}, name));
  const run = make("button", {class: "run", onclick: () => leave ? leave.abort() : send()}, "Run");
  const copy = make("button", {onclick: copied}, "Copy");
  let sample = null, language = "curl", leave = null;

  function pick(other) {
    sample = other;
    body.value = other.body;
    tabs.forEach((tab, index) => tab.setAttribute("aria-selected", String(samples[index] === other)));
    told.textContent = "";
    answer.hidden = true;
    update();
  }

  function update() {
    const texts = new Map(SNIPPETS.map(([name, write]) => [name, write(sample, body.value, model)]));
    if (texts.get(language) === null) language = "curl";
    languages.forEach(button => {
      button.hidden = texts.get(button.dataset.language) === null;
      button.setAttribute("aria-pressed", String(button.dataset.language === language));
    });
    line.textContent = texts.get(language);
  }

  async function copied() {
    try { await navigator.clipboard.writeText(line.textContent); copy.textContent = "Copied"; }
    catch { getSelection().selectAllChildren(line); copy.textContent = "Press Ctrl+C"; }
    setTimeout(() => { copy.textContent = "Copy"; }, 1500);
  }

  async function send() {
    leave = new AbortController();
    run.textContent = "Stop";
    told.textContent = "waiting\u2026";
    told.className = "told soft";
    answer.textContent = "";
    answer.hidden = true;
    const begun = performance.now();
    let pieces = 0, text = "", first = null, reply = null;
    try {
      const headers = {...credentials(), ...(sample.content_type ? {"Content-Type": sample.content_type} : {})};
      reply = await fetch(base.slice(0, -1) + sample.path, {method: "POST", headers, body: body.value, cache: "no-store", signal: leave.signal});
      const decoder = new TextDecoder();
      for (const reader = reply.body.getReader(); ;) {
        const {done, value} = await reader.read();
        if (done) break;
        first ??= performance.now() - begun;
        pieces += 1;
        text += decoder.decode(value, {stream: true});
        answer.textContent = text.slice(0, MAX_SHOWN);
        answer.hidden = false;
        if (sample.streams) told.textContent = `${reply.status} ${reply.statusText} \u00b7 ${pieces} pieces so far`;
      }
      const took = performance.now() - begun;
      told.textContent = `${reply.status} ${reply.statusText} \u00b7 ${took.toFixed(1)} ms \u00b7 ${text.length} characters` + (sample.streams && first !== null ? ` \u00b7 ${pieces} pieces, the first after ${first.toFixed(1)} ms` : "");
      told.className = "told " + (reply.ok ? "good" : "bad");
      answer.hidden = false;
      if (reply.status === 401 || reply.status === 403) askForKey(reason(text));
    } catch (error) {
      told.textContent = error.name === "AbortError" ? "stopped" : String(error);
      told.className = "told " + (error.name === "AbortError" ? "soft" : "bad");
    }
    leave = null;
    run.textContent = "Run";
  }

  body.addEventListener("input", update);
  pick(samples[0]);
  return make("div", {class: "try"}, make("div", {class: "row", role: "tablist"}, ...tabs),
    make("div", {class: "row"}, make("span", {class: "soft"}, "The body, to change as you like:")), body,
    make("div", {class: "row"}, run, told), answer,
    make("div", {class: "row"}, make("span", {class: "soft"}, "The same from"), ...languages, make("span", {class: "right"}, copy)), line);
}
