
/* Sort, search and filter a board. Without it the table is complete and sorted. Nothing is fetched. The choices are kept
   in the address after #, so that a link can be shared. */
(() => {
  "use strict";
  // On a narrow screen the boards scroll sideways: scroll to the current one.
  const here = document.querySelector(".boards [aria-current]"), list = here?.closest("ul");
  if (list) list.scrollLeft = here.getBoundingClientRect().x - list.getBoundingClientRect().x - (list.clientWidth - here.offsetWidth) / 2;

  const part = document.querySelector("[data-board]");
  if (!part) return;
  const table = part.querySelector("table.board"), body = table.tBodies[0];
  const tools = part.querySelector("form.tools"), count = part.querySelector("output.count");
  const nothing = part.querySelector(".nothing"), pane = part.querySelector(".pane");
  const heads = [...table.tHead.rows[0].cells];
  const selects = [...tools.querySelectorAll("select")];
  const search = tools.querySelector("input[type=search]");
  const order = new Intl.Collator("en", { numeric: true, sensitivity: "base" });
  const first = { key: "rank", up: true };

  const fold = (text) => text.normalize("NFKD").replace(/\p{M}/gu, "").toLowerCase();
  const rows = [...body.rows].map((row, place) => ({
    row, place, text: fold(row.textContent),
    facets: Object.fromEntries(selects.map((s) => [s.name, row.dataset[s.name] ?? ""])),
    name: row.querySelector(".id")?.textContent ?? row.querySelector(".model")?.textContent ?? "",
  }));
  // A record may have several statuses; every other facet has one value, which may contain blanks.
  const values = (entry, name) => (name === "status" ? entry.facets.status.split(" ") : [entry.facets[name]]);

  // ------------------------------------------------------------------------------------------------------- sorting
  let sorted = { ...first };

  function sort(key, up) {
    const at = heads.findIndex((h) => h.dataset.key === key);
    if (at < 0) return;
    sorted = { key, up };
    const number = heads[at].classList.contains("n");
    const value = new Map(rows.map((e) => [e, e.row.cells[at].dataset.v]));
    const sign = up ? 1 : -1;
    rows.sort((a, b) => {
      const x = value.get(a), y = value.get(b);
      if (x === undefined || y === undefined) return (x === undefined) - (y === undefined) || a.place - b.place;
      return sign * (number ? Number(x) - Number(y) : order.compare(x, y)) || a.place - b.place;
    });
    // Sorted by rank, unranked rows keep their original place.
    if (key === first.key && up) rows.sort((a, b) => a.place - b.place);
    body.append(...rows.map((e) => e.row));
    for (const h of heads) h.setAttribute("aria-sort", h.dataset.key !== key ? "none" : up ? "ascending" : "descending");
  }

  for (const head of heads) {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const same = sorted.key === head.dataset.key;
      sort(head.dataset.key, same ? !sorted.up : head.dataset.first === "up");
      remember();
    });
  }

  // ----------------------------------------------------------------------------------------------------- filtering
  const points = [...document.querySelectorAll(".chart .pt[data-label]")];

  function filter() {
    const words = fold(search.value).split(/\s+/).filter(Boolean);
    const found = rows.map((e) => words.every((w) => e.text.includes(w)));
    const fits = (e, s) => !s.value || values(e, s.name).includes(s.value);
    const shown = new Set();
    rows.forEach((e, i) => {
      const yes = found[i] && selects.every((s) => fits(e, s));
      e.row.hidden = !yes;
      if (yes) shown.add(e);
    });
    // Show beside every option how many rows it would keep, given the other filters.
    for (const select of selects) {
      const counts = new Map();
      rows.forEach((e, i) => {
        if (!found[i] || !selects.every((s) => s === select || fits(e, s))) return;
        for (const v of values(e, select.name)) counts.set(v, (counts.get(v) ?? 0) + 1);
      });
      for (const option of select.options) {
        if (option.value) option.textContent = `${option.value} (${counts.get(option.value) ?? 0})`;
      }
    }
    const whole = shown.size === rows.length;
    count.textContent = `${shown.size} of ${rows.length}`;
    nothing.hidden = shown.size > 0;
    const names = new Set([...shown].map((e) => e.name)), every = new Set(rows.map((e) => e.name));
    for (const p of points) p.classList.toggle("faint", !whole && every.has(p.dataset.label) && !names.has(p.dataset.label));
  }

  for (const select of selects) {
    const known = new Map();
    for (const e of rows) for (const v of values(e, select.name)) known.set(v, (known.get(v) ?? 0) + 1);
    const by = (a, b) => known.get(b) - known.get(a) || order.compare(a, b);
    for (const value of [...known.keys()].sort(by)) select.append(new Option(value, value));
    select.disabled = known.size < 2;
  }

  // ------------------------------------------------------------------------------------- what the address remembers
  let written = null;

  function remember() {
    const state = new URLSearchParams();
    if (search.value.trim()) state.set("q", search.value.trim());
    for (const s of selects) if (s.value) state.set(s.name, s.value);
    if (sorted.key !== first.key || sorted.up !== first.up) state.set("sort", `${sorted.up ? "" : "-"}${sorted.key}`);
    written = `#${state}`;
    const address = written === "#" ? location.pathname + location.search : written;
    try { history.replaceState(null, "", address); } catch { location.replace(written); }
  }

  function recall() {
    if (location.hash === written) return;
    const text = location.hash.slice(1);
    const target = text && !text.includes("=") ? document.getElementById(decode(text)) : null;
    if (text && !text.includes("=") && target?.closest("table.board") === null) return; // an id on the page
    const state = new URLSearchParams(target ? "" : text);
    search.value = state.get("q") ?? "";
    for (const s of selects) {
      const wanted = state.get(s.name) ?? "";
      s.value = [...s.options].some((o) => o.value === wanted) ? wanted : "";
    }
    const wanted = state.get("sort") ?? first.key;
    sort(wanted.replace(/^-/, ""), !wanted.startsWith("-"));
    filter();
    target?.scrollIntoView({ block: "center" });
  }

  function decode(text) {
    try { return decodeURIComponent(text); } catch { return text; }
  }

  function changed() {
    filter();
    pane.scrollTop = 0;
    remember();
  }

  function clear() {
    search.value = "";
    for (const s of selects) s.value = "";
    changed();
  }

  tools.hidden = false;
  tools.addEventListener("submit", (e) => e.preventDefault());
  tools.addEventListener("reset", (e) => { e.preventDefault(); clear(); });
  part.querySelector("[data-clear]").addEventListener("click", () => { clear(); search.focus(); });
  search.addEventListener("input", changed);
  for (const s of selects) s.addEventListener("change", changed);
  window.addEventListener("hashchange", recall);
  recall();
  filter();
})();
