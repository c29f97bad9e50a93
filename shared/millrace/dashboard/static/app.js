// The page: a list of apps, one app's panels live, the detail of a key, and what may be done.

import { actButton, draw, el, time } from "/static/charts.js";
import { asked, logsIn, showOperator, whyNot } from "/static/operators.js";

const main = document.getElementById("main");
const statusLine = document.getElementById("status");
const detailBox = document.getElementById("detail");
const actBox = document.getElementById("act");
const leaveButton = document.getElementById("leave");
const session = { is_known: false, may_act: false };
let current = null; // { name, about, source, timer, table, past }

// The half of a session that lets act: it came behind the # of the address, once, and stays with this page's
// own address, port included, where no other server of this machine can ask for it.
const HALF = "millrace.act";
const half = () => localStorage.getItem(HALF) ?? "";
{
  const came = /^#act=([\w-]+)$/.exec(location.hash);
  if (came) {
    localStorage.setItem(HALF, came[1]);
    history.replaceState(null, "", "/");
  }
}

async function knowSession() {
  Object.assign(session, await get("/api/session", { "x-millrace-csrf": half() }));
  if (!session.may_act && !session.operator) localStorage.removeItem(HALF);
  leaveButton.hidden = !session.is_known;
  showOperator(session);
}

logsIn((act) => {
  localStorage.setItem(HALF, act);
  location.reload();
});

leaveButton.addEventListener("click", async () => {
  await fetch("/api/leave", {
    method: "POST", body: "{}", headers: { "content-type": "application/json", "x-millrace-csrf": half() },
  });
  localStorage.removeItem(HALF);
  location.reload();
});

async function get(path, headers = {}) {
  const response = await fetch(path, { headers: { accept: "application/json", ...headers } });
  if (!response.ok) throw new Error(await reason(response));
  return response.json();
}

async function reason(response) {
  const text = await response.text();
  try { return JSON.parse(text).error ?? text; } catch { return text.trim(); }
}

function tell(state, text) {
  statusLine.dataset.state = state;
  statusLine.textContent = text;
}

// -- where we are: #/, #/fraud, #/fraud/key/card-1 -----------------------------------------------

function place() {
  const [, app = "", what = "", ...rest] = location.hash.split("/");
  const key = what === "key" ? decodeURIComponent(rest.join("/")) : null;
  return { app: decodeURIComponent(app), key };
}

const linkTo = (app, key) => `#/${encodeURIComponent(app)}` + (key === undefined ? "" : `/key/${encodeURIComponent(key)}`);

// Who goes on before a page has come must not get it in place of the next.
let turn = 0;

async function go() {
  const { app, key } = place();
  const mine = ++turn;
  const isOver = () => mine !== turn;
  try {
    if (app === "") await showApps(isOver);
    else if (current?.name !== app) await showApp(app, isOver);
    if (isOver()) return;
    if (app !== "" && key !== null) await showDetail(app, key);
    else if (detailBox.open) detailBox.close();
  } catch (error) {
    tell("lost", "not reachable");
    if (current !== null) return;
    main.replaceChildren(el("p", { class: "note bad" }, error.message));
    await knowSession().catch(() => {});
  }
}

function leave() {
  current?.source?.close();
  clearInterval(current?.timer);
  current = null;
}

async function navigation(apps, name) {
  document.getElementById("apps").replaceChildren(...apps.filter((a) => !a.error).map((a) =>
    el("a", { href: linkTo(a.app), "aria-current": a.app === name ? "page" : null }, a.app)));
  document.title = name ? `${name} · Millrace` : "Millrace";
}

// -- all apps: what runs, how fast, its flow; the rest is folded ----------------------------------

async function showApps(isOver) {
  leave();
  const [apps, about] = await Promise.all([get("/api/apps"), get("/api/overview")]);
  await knowSession();
  if (isOver()) return;
  await navigation(apps, "");
  current = { name: "", about: { detail: null, actions: [] }, source: null, timer: 0, table: null, past: { at: null, asked: 0, replays: new Set(), live: new Map() } };
  const sections = about.apps.map((a) =>
    el("section", { class: "panel full app", id: `panel-${a.id}`, "data-version": 0, "aria-labelledby": `title-${a.id}` },
      el("h2", { id: `title-${a.id}` }, el("a", { href: linkTo(a.app), "data-app": a.app }, a.app)),
      el("p", { class: "about" }, `${a.summary} Data: ${a.root}`),
      el("div", { class: "view" }, el("p", { class: "note" }, "…")),
      el("div", { class: "more-views" })));
  const broken = Object.entries(about.broken).map(([name, why]) =>
    el("section", { class: "panel full" }, el("h2", {}, name), el("p", { class: "note warn" }, why)));
  main.replaceChildren(el("div", { class: "grid", id: "overview" },
    el("section", { class: "panel full", id: "panel-apps", "data-version": 0, "aria-labelledby": "title-apps" },
      el("h2", { id: "title-apps" }, "What runs"), el("div", { class: "view" }, el("p", { class: "note" }, "…"))),
    ...sections, ...broken));
  const source = new EventSource("/api/overview/events");
  current.source = source;
  source.addEventListener("panel", (event) => putOverview(JSON.parse(event.data)));
  source.addEventListener("beat", (event) => tell("live", `live, ${time(Number(event.data)).slice(11)}`));
  source.addEventListener("error", () => tell("lost", "connection lost, trying again"));
}

function putOverview(panel) {
  const section = document.getElementById(`panel-${panel.id}`);
  if (!section || current?.name !== "") return;
  const known = { title: panel.id, actions: [], mayAct: false, link: (key) => linkTo(key), replay: null };
  if (panel.view) section.querySelector(".view").replaceChildren(draw(panel.view, { ...known, title: "What runs" }));
  else {
    section.dataset.state = panel.state;
    section.querySelector(".view").replaceChildren(
      ...(panel.note ? [el("p", { class: `note ${panel.tone}` }, panel.note)] : []),
      ...panel.views.filter((v) => v.view).map((v) => el("div", { class: "part", "data-part": v.id }, draw(v.view, { ...known, title: v.title }))));
    fold(section.querySelector(".more-views"), panel, known);
  }
  section.dataset.version = Number(section.dataset.version) + 1;
}

// What is folded stays open or shut as the reader left it, whatever comes.
function fold(box, panel, known) {
  const shut = new Map([...box.children].map((part) => [part.dataset.part, part]));
  box.replaceChildren(...panel.more.map((part) => {
    const details = shut.get(part.id) ?? el("details", { class: "folded", "data-part": part.id }, el("summary", {}, part.title), el("div", {}));
    details.lastChild.replaceChildren(draw(part.view, { ...known, title: part.title, link: null }));
    return details;
  }));
}

async function showApp(name, isOver) {
  leave();
  const [apps, about] = await Promise.all([get("/api/apps"), get(`/api/apps/${encodeURIComponent(name)}`)]);
  await knowSession();
  if (isOver()) return;
  const replays = new Set(about.panels.filter((p) => p.replays).map((p) => p.id));
  const choosable = new Set(about.panels.filter((p) => p.chosen).map((p) => p.id));
  const choice = { value: "", asked: 0, asking: 0, choosable, live: new Map() };
  current = { name, about, choice, source: null, timer: 0, table: null, past: { at: null, asked: 0, replays, live: new Map() } };
  await navigation(apps, name);
  const [first, rest] = [about.panels.filter((p) => !p.folded), about.panels.filter((p) => p.folded)];
  const rows = rowsPanel(name, about);
  main.replaceChildren(
    el("p", { class: "lead" }, el("b", {}, about.summary), ` Data: ${about.root}`, about.broker ? `, broker ${about.broker}` : ""),
    ...(about.detail ? [searchBox(name, about.detail)] : []),
    ...(about.choice ? [choiceBox(about.choice)] : []),
    el("div", { class: "grid" }, ...first.map(panelOf), ...rest.map(panelOf), rows));
  listen(name);
  if (about.choice) choose("");
}

// -- one choice for several panels: of which part of all they tell ---------------------------------

const EVERYTHING = "everything";

function choiceBox(label) {
  const select = el("select", { id: "choice", "aria-label": label, onchange: () => choose(select.value) },
    el("option", { value: "" }, EVERYTHING));
  return el("p", { class: "choice" }, el("label", { for: "choice" }, `${label} `), select);
}

async function choose(value) {
  const { name, choice } = current;
  const mine = ++choice.asked;
  choice.asking++;
  const found = await get(`/api/apps/${encodeURIComponent(name)}/chosen?value=${encodeURIComponent(value)}`).catch(() => null);
  choice.asking--;
  if (!found || current?.choice !== choice || mine !== choice.asked) return;
  const select = document.getElementById("choice"), told = found.values.join("\n");
  if (select.dataset.told !== told) {
    select.dataset.told = told;
    select.replaceChildren(el("option", { value: "" }, EVERYTHING), ...found.values.map((v) => el("option", { value: v }, v)));
  }
  if (value !== "" && !found.values.includes(value)) return choose(""); // it is not there any more
  const changed = choice.value !== value;
  choice.value = select.value = value;
  if (value !== "") found.panels.forEach(showPanel);
  else if (changed) [...choice.live.values()].forEach(showPanel);
  if (changed) current.about.panels.forEach((p) => sayOf(document.getElementById(`title-${p.id}`), p.id));
}

// Says beside a panel's title what it tells of, as long as something is chosen: some can tell of all only.
function sayOf(title, id) {
  const { value, choosable } = current.choice;
  if (value === "" || !title) delete title?.dataset.of;
  else title.dataset.of = choosable.has(id) ? value : EVERYTHING;
}

function panelOf(p) {
  return foldable(p.id, el("section", { class: `panel ${p.folded ? "full" : p.width}`, id: `panel-${p.id}`, "data-version": 0, "aria-labelledby": `title-${p.id}` },
    el("h2", { id: `title-${p.id}` }, p.title),
    p.about ? el("p", { class: "about" }, p.about) : null,
    el("div", { class: "view" }, el("p", { class: "note" }, "…")),
    p.actions.length ? el("div", { class: "acts below" }, ...p.actions.map((act) => actButton(act, {}, context(p.title), `act-${act}`))) : null), p.folded);
}

// Panels that were opened stay so, until the page is loaded anew.
const opened = new Set();

// Shuts a panel but for its heading, which opens it.
function foldable(id, panel, folded) {
  if (!folded) return panel;
  const name = `${current.name}/${id}`, [title, ...rest] = panel.children;
  const details = el("details", { open: opened.has(name), ontoggle: () => (details.open ? opened.add(name) : opened.delete(name)) },
    el("summary", {}, title), ...rest);
  panel.classList.add("foldable");
  panel.replaceChildren(details);
  return panel;
}

function searchBox(name, label) {
  const input = el("input", { id: "search", name: "key", placeholder: `${label}…`, "aria-label": label, autocomplete: "off" });
  return el("form", {
    class: "search", role: "search",
    onsubmit: (event) => { event.preventDefault(); if (input.value.trim()) location.hash = linkTo(name, input.value.trim()); },
  }, input, el("button", {}, `Show ${label.toLowerCase()}`));
}

function listen(name) {
  const source = new EventSource(`/api/apps/${encodeURIComponent(name)}/events`);
  current.source = source;
  source.addEventListener("panel", (event) => putPanel(JSON.parse(event.data)));
  source.addEventListener("beat", (event) => {
    if (current?.about.choice && !current.choice.asking) choose(current.choice.value); // what is being asked goes first
    tell("live", `live, ${time(Number(event.data)).slice(11)}`);
  });
  source.addEventListener("error", () => tell("lost", "connection lost, trying again"));
}

function context(title) {
  const { name, about } = current;
  return {
    title, actions: about.actions, mayAct: session.may_act, whyNot: whyNot(session), act: openAction,
    link: about.detail ? (key) => linkTo(name, key) : null, replay: { at: current.past.at, to: lookBack },
  };
}

// -- a moment that is over: what panels would have shown then -------------------------------------

// Shows a moment (UTC ms) in the panels that can tell; null: now.
async function lookBack(at) {
  const { name, past } = current;
  const mine = ++past.asked;
  const views = at === null ? [...past.live.values()] : await get(`/api/apps/${encodeURIComponent(name)}/at?ms=${at}`);
  if (current?.past !== past || mine !== past.asked) return;
  past.at = at;
  views.forEach(showPanel);
}

function putPanel(panel) {
  const { choice, past } = current;
  if (choice.choosable.has(panel.id)) {
    choice.live.set(panel.id, panel);
    if (choice.value !== "") return;
  }
  if (past.replays.has(panel.id)) {
    past.live.set(panel.id, panel);
    if (past.at !== null) return;
  }
  showPanel(panel);
}

function showPanel({ id, view }) {
  const panel = document.getElementById(`panel-${id}`);
  if (!panel) return;
  const { past } = current;
  const isPast = past.at !== null && past.replays.has(id), title = panel.querySelector("h2");
  panel.classList.toggle("past", isPast);
  if (isPast) title.dataset.at = time(past.at).slice(11);
  else delete title.dataset.at;
  sayOf(title, id);
  const focused = panel.contains(document.activeElement) ? document.activeElement.dataset.focus : null;
  const scrolled = panel.querySelector(".scroll")?.scrollTop ?? 0;
  const body = panel.querySelector(".view"), made = draw(view, context(panel.querySelector("h2").textContent));
  if (body.firstChild !== made) body.replaceChildren(made); // what moves stays, and is not drawn anew
  panel.dataset.version = Number(panel.dataset.version) + 1;
  const table = panel.querySelector(".scroll");
  if (table) table.scrollTop = scrolled;
  if (focused) panel.querySelector(`[data-focus="${CSS.escape(focused)}"]`)?.focus({ preventScroll: true });
}

// -- latest rows of each table -------------------------------------------------------------------

function rowsPanel(name, about) {
  const body = el("div", { class: "view", id: "rows-body" }, el("p", { class: "note" }, about.tables.length ? "choose a table" : "no table yet"));
  const tabs = about.tables.map((table) => el("button", {
    type: "button", "aria-pressed": "false", "data-table": table,
    onclick: (event) => {
      current.table = table;
      for (const other of event.target.parentElement.children) other.setAttribute("aria-pressed", String(other === event.target));
      loadRows(name, table, body);
      clearInterval(current.timer);
      current.timer = setInterval(() => loadRows(name, table, body), 5000);
    },
  }, table));
  return el("section", { class: "panel full", id: "panel-rows", "aria-labelledby": "title-rows" },
    el("h2", { id: "title-rows" }, "Latest rows"), el("div", { class: "tabs" }, ...tabs), body);
}

async function loadRows(name, table, body) {
  try {
    const view = await get(`/api/apps/${encodeURIComponent(name)}/tables/${encodeURIComponent(table)}?rows=20`);
    if (current?.name === name && current.table === table) body.replaceChildren(draw({ ...view, type: "table" }, context(table)));
  } catch (error) {
    body.replaceChildren(el("p", { class: "note bad" }, error.message));
  }
}

// -- one key -------------------------------------------------------------------------------------

async function showDetail(app, key) {
  const [start, kind] = Object.entries(current.about.kinds).find(([begin]) => key.startsWith(begin)) ?? ["", current.about.detail ?? "Key"];
  document.getElementById("detail-title").textContent = `${kind} ${key.slice(start.length)}`;
  const body = document.getElementById("detail-body");
  body.replaceChildren(el("p", { class: "note" }, "…"));
  if (!detailBox.open) detailBox.showModal();
  try {
    const parts = await get(`/api/apps/${encodeURIComponent(app)}/detail?key=${encodeURIComponent(key)}`);
    body.replaceChildren(...(parts.length
      ? parts.map((part) => el("section", { class: "titled" }, el("h3", {}, part.title), draw(part.view, context(part.title))))
      : [el("p", { class: "note" }, "nothing is known of it")]));
  } catch (error) {
    body.replaceChildren(el("p", { class: "note bad" }, error.message));
  }
}

detailBox.addEventListener("close", () => { if (current && place().key !== null) location.hash = linkTo(current.name); });

// -- doing something -----------------------------------------------------------------------------

let acting = null; // the action whose form is open

function openAction(action, values) {
  acting = action;
  const fields = asked(action.fields, session).map((field) => {
    const common = { name: field.name, required: field.required };
    if (field.hidden) return el("input", { ...common, type: "hidden", value: values[field.name] ?? "" });
    const input = field.choices
      ? el("select", common, el("option", { value: "" }, field.hint || "choose"), ...Object.entries(field.choices).map(([value, label]) => el("option", { value }, label)))
      : el("input", { ...common, maxlength: 500, autocomplete: "off", placeholder: field.hint || null });
    if (values[field.name]) input.value = values[field.name];
    return el("label", {}, field.label, input);
  });
  const first = Object.values(values)[0];
  document.getElementById("act-title").textContent = first ? `${action.label}: ${first}` : action.label;
  document.getElementById("act-about").textContent = action.about;
  document.getElementById("act-fields").replaceChildren(...fields);
  document.getElementById("act-view").replaceChildren();
  document.getElementById("act-look").hidden = !action.looks;
  said("", false);
  busy(false);
  actBox.showModal();
}

function said(text, done) {
  const line = document.getElementById("act-said");
  line.textContent = text;
  line.className = done ? "done" : "";
}

function busy(is) {
  for (const id of ["act-send", "act-look"]) document.getElementById(id).disabled = is;
}

async function post(more) {
  const values = Object.fromEntries(new FormData(document.getElementById("act-form")));
  const response = await fetch(`/api/apps/${encodeURIComponent(current.name)}/action?action=${encodeURIComponent(acting.name)}${more}`, {
    method: "POST", body: JSON.stringify(values),
    headers: { "content-type": "application/json", "x-millrace-csrf": half() },
  });
  if (!response.ok) throw new Error(await reason(response));
  return response.json();
}

document.getElementById("act-cancel").addEventListener("click", () => actBox.close());
document.getElementById("act-look").addEventListener("click", async () => {
  busy(true);
  said("", false);
  try {
    const { view } = await post("&look=true");
    document.getElementById("act-view").replaceChildren(draw(view, { title: acting.label, actions: [], mayAct: false, link: null }));
  } catch (error) {
    said(error.message, false);
  }
  busy(false);
});
document.getElementById("act-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  busy(true);
  try {
    said((await post("")).said, true);
    setTimeout(() => actBox.close(), 1200);
  } catch (error) {
    said(error.message, false);
    busy(false);
  }
});

window.addEventListener("hashchange", go);
window.addEventListener("pagehide", leave);
go();
