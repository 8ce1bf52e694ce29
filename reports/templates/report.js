"use strict";

const byId = (id) => document.getElementById(id);
const announcement = byId("announcement");
const say = (text) => { announcement.textContent = text; };
const island = (id) => JSON.parse(byId(id).textContent);

function element(tag, properties = {}, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}

// --- copying: a page opened from a file may be denied the clipboard; then the text is selected ------------

function openAround(inner) {
  for (let at = inner.closest("details"); at; at = at.parentElement.closest("details")) at.open = true;
}

function select(source) {
  openAround(source);
  if (source instanceof HTMLTextAreaElement) {
    source.focus();
    source.select();
  } else {
    getSelection().selectAllChildren(source);
  }
  say("Selected: press Ctrl+C to copy.");
}

async function copy(source) {
  try {
    await navigator.clipboard.writeText(source.value ?? source.textContent);
    say("Copied.");
  } catch {
    select(source);
  }
}

function copyButton(source) {
  const button = element("button", { type: "button", textContent: "Copy" });
  button.addEventListener("click", () => copy(source));
  return button;
}

for (const button of document.querySelectorAll("button[data-copy]")) {
  button.hidden = false;
  button.addEventListener("click", () => copy(byId(button.dataset.copy)));
}

// --- the state of the view lives in the address: #q=…&sort=…&case=… ---------------------------------------

const isState = (hash) => hash.includes("=");
const state = new URLSearchParams(isState(location.hash) ? location.hash.slice(1) : "");

function keep(name, value) {
  if (value) state.set(name, value);
  else state.delete(name);
  // Replaced, not pushed: typing must not fill the history.
  history.replaceState(null, "", "#" + state);
}

function openTarget(id) {
  const target = byId(id);
  if (!target) return;
  if (target instanceof HTMLDetailsElement) target.open = true;
  else if (target instanceof HTMLTableRowElement) show(target);
  target.scrollIntoView({ block: "start" });
}

// --- the table of all cases -------------------------------------------------------------------------------

const table = byId("cases");
const body = table?.tBodies[0];
const names = island("names");
const facets = island("facets");
const WAYS = table ? [...table.tHead.rows[0].cells].slice(1, 5).map((cell) => cell.textContent.split(" ")[0]) : [];
const VERDICT = 6;
const rows = body ? [...body.rows].map(read) : [];

function read(row, index) {
  const cells = row.cells;
  const verdict = cells[VERDICT].textContent.trim();
  return {
    row,
    index,
    verdict,
    words: verdict.toLowerCase().replace(/[^a-z_ ,]/g, "").trim(),
    text: row.textContent.toLowerCase(),
    failed: WAYS.filter((_, way) => !cells[way + 1].textContent.startsWith("✓ ✓ ✓")).join(" "),
  };
}

const FIELDS = {
  status: (entry) => entry.words,
  way: (entry) => entry.failed,
  route: (entry) => entry.failed,
};
for (const [name, { values, cases }] of Object.entries(facets)) {
  const lower = values.map((value) => value.toLowerCase());
  FIELDS[name] = (entry) => lower[cases[entry.index]];
}

// A word of the query: `-` excludes, `field:value` looks into one field, anything else into the whole row.
function test(word) {
  const wanted = !word.startsWith("-") || word.length === 1;
  const [name, value] = (wanted ? word : word.slice(1)).split(/:(.*)/s);
  const field = value === undefined ? undefined : FIELDS[name];
  if (field) return (entry) => field(entry).includes(value) === wanted;
  const plain = wanted ? word : word.slice(1);
  return (entry) => entry.text.includes(plain) === wanted;
}

function filter(query) {
  const tests = query.toLowerCase().split(/\s+/).filter(Boolean).map(test);
  let shown = 0;
  for (const entry of rows) {
    const fits = tests.every((each) => each(entry));
    if (entry.row.hidden === fits) entry.row.hidden = !fits;
    const below = entry.row.nextElementSibling;
    if (below?.className === "detail") below.hidden = !fits;
    shown += fits;
  }
  byId("shown").textContent = `${shown} of ${rows.length} shown`;
  for (const chip of byId("chips").children) {
    chip.setAttribute("aria-pressed", String(query.split(/\s+/).includes(chip.dataset.word)));
  }
}

const KEYS = rows.length ? [...rows[0].row.cells].map((_, column) => (entry) => entry.row.cells[column].textContent) : [];

function sort(column, direction) {
  const key = KEYS[column];
  const numeric = column === KEYS.length - 1;
  const keyed = rows.map((entry) => [numeric ? parseFloat(key(entry)) || 0 : key(entry), entry]);
  const sign = direction === "descending" ? -1 : 1;
  keyed.sort(([a, x], [b, y]) => sign * (a < b ? -1 : a > b ? 1 : 0) || x.index - y.index);
  for (const detail of body.querySelectorAll("tr.detail")) close(detail);
  body.append(...keyed.map(([, entry]) => entry.row));
  for (const cell of table.tHead.rows[0].cells) cell.removeAttribute("aria-sort");
  table.tHead.rows[0].cells[column].setAttribute("aria-sort", direction);
}

function makeSortable() {
  [...table.tHead.rows[0].cells].forEach((cell, column) => {
    const button = element("button", { type: "button", className: "sort", textContent: cell.textContent });
    button.addEventListener("click", () => {
      const direction = cell.getAttribute("aria-sort") === "ascending" ? "descending" : "ascending";
      sort(column, direction);
      keep("sort", `${column}.${direction}`);
    });
    cell.replaceChildren(button);
  });
}

function makeChips(search) {
  const counts = new Map();
  for (const { words } of rows) counts.set(words, (counts.get(words) ?? 0) + 1);
  if (counts.size < 2) return;
  for (const [words, count] of counts) {
    const word = `status:${words.split(/[ ,]/)[0]}`;
    const chip = element("button", { type: "button", textContent: `${words.toUpperCase()} ${count}` });
    chip.dataset.word = word;
    chip.addEventListener("click", () => {
      const query = search.value.split(/\s+/).filter(Boolean);
      const rest = query.filter((each) => !each.startsWith("status:"));
      search.value = (query.includes(word) ? rest : [...rest, word]).join(" ");
      search.dispatchEvent(new Event("input"));
    });
    byId("chips").append(chip);
  }
}

// --- details of a case that is not shown in full ----------------------------------------------------------

const chunks = document.querySelectorAll("script.details");
const inflated = new Map();

async function inflate(number) {
  const raw = Uint8Array.from(atob(chunks[number].textContent), (c) => c.charCodeAt(0));
  const stream = new Response(raw).body.pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text());
}

async function detailOf(index) {
  const number = Math.floor(index / names.chunk);
  if (number >= chunks.length) return undefined;
  if (!inflated.has(number)) inflated.set(number, inflate(number));
  return (await inflated.get(number))[index % names.chunk];
}

function factsTable(values) {
  const heads = ["Fact", ...WAYS].map((text) => element("th", { scope: "col", textContent: text }));
  const lines = names.routes.map((label, at) => element("tr", {},
    element("th", { scope: "row", className: "plain", textContent: label }),
    ...values[at].map((text) => element("td", { textContent: text }))));
  return element("table", { className: "facts-table" },
    element("caption", { textContent: "Witness of each route" }),
    element("thead", {}, element("tr", {}, ...heads)), element("tbody", {}, ...lines));
}

function drawDetail(cell, id, detail) {
  if (!detail?.length) {
    cell.append(element("p", { textContent: detail ? "This case left no evidence." : `The details are in evidence/${id}.json.` }));
    return;
  }
  const [command, lines, values] = detail;
  const shown = element("pre", { textContent: command, tabIndex: 0 });
  const list = element("dl", { className: "lines" });
  names.lines.forEach((label, at) => list.append(element("div", {},
    element("dt", { textContent: label }), element("dd", { textContent: lines[at] }))));
  cell.append(element("div", { className: "command" }, shown, copyButton(shown)), list, factsTable(values));
}

function close(detail) {
  detail.previousElementSibling.querySelector("a").setAttribute("aria-expanded", "false");
  detail.remove();
}

async function show(row) {
  if (row.nextElementSibling?.className === "detail") return;
  const link = row.querySelector("a");
  const cell = element("td", { colSpan: row.cells.length });
  link.setAttribute("aria-expanded", "true");
  row.after(element("tr", { className: "detail" }, cell));
  const entry = rows.find((each) => each.row === row);
  drawDetail(cell, link.textContent, await detailOf(entry.index));
}

function follow(event) {
  const link = event.target.closest("th a");
  const row = link?.closest("tr");
  if (!row?.id) return;
  event.preventDefault();
  const below = row.nextElementSibling;
  if (below?.className === "detail") {
    close(below);
    keep("case", "");
  } else {
    show(row);
    keep("case", row.id);
  }
}

function start() {
  const search = byId("search");
  byId("filter").hidden = false;
  byId("filter").addEventListener("submit", (event) => event.preventDefault());
  for (const { row } of rows) if (row.id) row.querySelector("a").setAttribute("aria-expanded", "false");
  makeSortable();
  makeChips(search);
  search.value = state.get("q") ?? "";
  search.addEventListener("input", () => {
    filter(search.value);
    keep("q", search.value.trim());
  });
  body.addEventListener("click", follow);
  const [column, direction] = (state.get("sort") ?? "").split(".");
  if (column in KEYS && ["ascending", "descending"].includes(direction)) sort(Number(column), direction);
  filter(search.value);
}

if (rows.length) start();
addEventListener("hashchange", () => { if (!isState(location.hash)) openTarget(location.hash.slice(1)); });
addEventListener("beforeprint", () => {
  for (const details of document.querySelectorAll("details[data-failing]")) details.open = true;
});
openTarget(isState(location.hash) ? state.get("case") : location.hash.slice(1));
