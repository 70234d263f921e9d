// Asks once a second for what is to be seen, and shows it.

let next = 0, asked = 0, stamp = null;

async function look() {
  clearTimeout(next);
  const turn = ++asked;
  try {
    const [dialect, model] = (view.chosen || "\n").split("\n"), key = [view.span, view.chosen, live?.run].join("\n");
    const known = series && series.key === key;
    const query = {span: view.span, rows: ROWS, first: view.first, sort: view.sort, search: view.search, errors: ROWS, models: openModels().join("\n")};
    if (view.chosen) Object.assign(query, {dialect, model});
    if (known && live) Object.assign(query, {run: live.run, since: series.first + series.rate.length});
    const said = await read("overview.json", query);
    if (turn !== asked) return;  // another question has overtaken this one
    live = said;
    take(live.series, [view.span, view.chosen, live.run].join("\n"));
    document.querySelector("main").hidden = false;
    byId("out").hidden = !sessionStorage.getItem(KEY);
    if (live.stamp !== stamp) { await showModels(); stamp = live.stamp; }
    showServer();
    showTraffic();
    showTitles();
    showTable();
    showErrors();
    showLists();
    showLoad();
    byId("lost").style.display = "none";
  } catch (error) {
    if (turn !== asked) return;
    if (error instanceof Refused) {
      document.querySelector("main").hidden = true;
      byId("lost").style.display = "none";
      return askForKey(error.message);
    }
    byId("lost").textContent = `${error.name === "Error" ? error.message : "No answer from the gateway"}; trying again every second.`;
    byId("lost").style.display = "block";
  }
  next = setTimeout(look, 1000);
}

byId("find").addEventListener("input", () => {
  Object.assign(view, {search: byId("find").value, first: 0, modelsFirst: 0});
  stamp = null;
  look();
});
for (const button of byId("spans").children) button.addEventListener("click", () => { view.span = button.dataset.span; pointed = null; look(); });
byId("in").addEventListener("click", signIn);
byId("key").addEventListener("keydown", event => event.key === "Enter" && signIn());
byId("out").addEventListener("click", signOut);
addEventListener("resize", () => series && showCharts());
followPointer();
look();
