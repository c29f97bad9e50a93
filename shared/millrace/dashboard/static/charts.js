// Views as data → elements. Every text is put in as text, never as markup: it may come from an event.

import { drawMap } from "/static/maps.js";

const SVG = "http://www.w3.org/2000/svg";

export function el(name, attributes = {}, ...children) {
  return fill(document.createElement(name), attributes, children);
}

export function svg(name, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, name), attributes, children);
}

function fill(node, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else node.setAttribute(key, value === true ? "" : String(value));
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const short = new Intl.NumberFormat("en", { maximumSignificantDigits: 3 });
const decimal = new Intl.NumberFormat("en", { maximumFractionDigits: 3 });
const money = new Intl.NumberFormat("en", { minimumFractionDigits: 2, maximumFractionDigits: 2 });
const compact = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 });

export function time(ms) {
  const date = new Date(ms);
  return Number.isNaN(date.getTime()) ? String(ms) : date.toISOString().slice(0, 19).replace("T", " ");
}

export function duration(ms) {
  const size = Math.abs(ms);
  if (size < 1000) return `${whole.format(ms)} ms`;
  if (size < 120e3) return `${short.format(ms / 1e3)} s`;
  if (size < 7200e3) return `${short.format(ms / 60e3)} min`;
  if (size < 48 * 3600e3) return `${short.format(ms / 3600e3)} h`;
  return `${short.format(ms / 86400e3)} days`;
}

export function format(value, kind) {
  if (value === null || value === undefined) return "–";
  if (typeof value === "boolean") return value ? "yes" : "no";
  if (typeof value !== "number") return String(value);
  if (kind === "share") return `${short.format(value * 100)} %`;
  if (kind === "money") return money.format(value);
  if (kind === "time") return time(value);
  if (kind === "duration") return duration(value);
  if (kind === "count") return whole.format(value);
  if (kind === "text" || kind === "key") return String(value);
  return Math.abs(value) >= 100 ? whole.format(value) : decimal.format(value);
}

const shown = {
  note: (view) => el("p", { class: `note ${view.tone}` }, view.text),
  numbers: drawNumbers,
  bars: drawBars,
  table: drawTable,
  series: drawSeries,
  points: drawPoints,
  graph: drawGraph,
  map: drawMap,
};

export function draw(view, context) {
  const make = shown[view.type];
  return make ? make(view, context) : el("p", { class: "note" }, `this page cannot show “${view.type}”`);
}

function drawNumbers(view) {
  return el("dl", { class: "numbers" }, ...view.items.map((item) =>
    el("div", {},
      el("dt", {}, item.label),
      el("dd", { class: `${item.tone} ${item.kind}` }, format(item.value, item.kind),
        item.unit && item.value !== null ? el("small", {}, ` ${item.unit}`) : null,
        item.note ? el("span", { class: "said" }, item.note) : null))));
}

function drawBars(view) {
  const most = Math.max(1e-12, ...view.bars.map((bar) => bar.value));
  return el("ul", { class: "bars" }, ...view.bars.map((bar) =>
    el("li", {},
      el("span", { class: "name" }, bar.label),
      svg("svg", { viewBox: "0 0 100 8", preserveAspectRatio: "none", "aria-hidden": "true" },
        svg("rect", { class: "track", width: 100, height: 8 }),
        svg("rect", { class: bar.tone, width: Math.max(0, (100 * bar.value) / most), height: 8 })),
      el("span", { class: "value" }, format(bar.value, view.kind), view.unit ? ` ${view.unit}` : "",
        bar.note ? el("small", {}, ` ${bar.note}`) : null))));
}

// Which page of a table is shown, and which rows are chosen: a table is drawn anew whenever its rows change.
const turned = new Map();

function drawTable(view, context) {
  if (!view.page && !view.choose) return tableOf(view, context, view.rows.map((_, at) => at), view.more);
  const at = view.columns.findIndex((c) => c.name === view.choose);
  const name = `${context.title ?? ""}/${view.choose}`;
  const state = turned.get(name) ?? { page: 0, chosen: "" };
  turned.set(name, state);
  const box = el("div", {});
  const paint = (focused) => {
    const values = at < 0 ? [] : [...new Set(view.rows.map((row) => String(row[at])))].sort();
    if (!values.includes(state.chosen)) state.chosen = "";
    const places = view.rows.map((_, n) => n).filter((n) => state.chosen === "" || String(view.rows[n][at]) === state.chosen);
    const size = view.page || Math.max(1, places.length);
    const last = Math.max(0, Math.ceil(places.length / size) - 1);
    state.page = Math.min(Math.max(0, state.page), last);
    const begin = state.page * size;
    const go = (page, id) => () => { state.page = page; paint(id); };
    const bar = el("div", { class: "turn" });
    if (values.length > 1) {
      const select = el("select", { "aria-label": view.choose, "data-focus": "choose",
        onchange: () => { state.chosen = select.value; state.page = 0; paint("choose"); } },
        el("option", { value: "" }, `every ${view.choose}`), ...values.map((v) => el("option", { value: v }, v)));
      select.value = state.chosen;
      bar.append(select);
    }
    if (last > 0) {
      bar.append(
        el("button", { type: "button", "data-focus": "back", disabled: state.page === 0, onclick: go(state.page - 1, "back") }, "Back"),
        el("span", {}, `${begin + 1}–${Math.min(begin + size, places.length)} of ${whole.format(places.length)}`),
        el("button", { type: "button", "data-focus": "next", disabled: state.page === last, onclick: go(state.page + 1, "next") }, "Next"));
    }
    const table = tableOf(view, context, places.slice(begin, begin + size), view.more);
    box.replaceChildren(...(bar.children.length ? [bar] : []), table);
    if (focused) {
      const there = box.querySelector(`[data-focus="${focused}"]:not(:disabled)`) ?? bar.querySelector("button:not(:disabled)");
      there?.focus({ preventScroll: true });
    }
  };
  paint(null);
  return box;
}

export function tableOf(view, context, places, left) {
  const right = new Set(["count", "number", "share", "money", "duration"]);
  const acts = view.actions.length > 0 && context.actions;
  const head = el("tr", {}, ...view.columns.map((c) => el("th", { scope: "col", class: right.has(c.kind) ? "right" : null }, c.name)));
  if (acts) head.append(el("th", { scope: "col" }, ""));
  const body = places.map((at) => {
    const cells = view.rows[at].map((value, n) => {
      const kind = view.columns[n].kind;
      const side = right.has(kind) ? "right" : kind;
      const text = format(value, kind);
      if (kind !== "key" || value === null || !context.link) return el("td", { class: text.length > 40 ? `${side} long` : side }, text);
      return el("td", { class: "key" }, el("a", { href: context.link(value), "data-focus": `key-${value}` }, String(value)));
    });
    if (acts) cells.push(actCell(view.actions[at], at, context));
    return el("tr", { class: view.tones[at] ?? null }, ...cells);
  });
  const table = el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": context.title ?? "table" },
    el("table", {}, el("thead", {}, head), el("tbody", {}, ...body)));
  const more = left > 0 ? el("p", { class: "more" }, `and ${whole.format(left)} more`) : null;
  return el("div", {}, table, more);
}

function actCell(offers, at, context) {
  return el("td", { class: "acts" }, ...(offers ?? []).map((offer) =>
    actButton(offer.action, offer.values, context, `act-${offer.action}-${at}`)));
}

export function actButton(name, values, context, focus) {
  const action = context.actions.find((a) => a.name === name);
  return action && el("button", {
    type: "button", "data-focus": focus, "data-act": name, disabled: !context.mayAct,
    title: context.mayAct ? null : context.whyNot,
    onclick: () => context.act(action, values),
  }, action.label);
}

// -- graphs: nodes in columns, as tall as the longest of them -----------------------------------

const ROW = 34, BOX = 26, HEAD = 24;

function drawGraph(view, context) {
  // What has heads takes the whole page: rates stand between the nodes.
  const room = view.directed ? Math.min(1180, window.innerWidth - 70) : 0;
  const W = Math.max(width(), room, 150 * view.columns.length), step = W / view.columns.length;
  const wide = Math.min(step - (view.directed ? 76 : 44), view.directed ? 230 : 190);
  const columns = view.columns.map((_, n) => view.nodes.filter((node) => node.column === n));
  const rows = Math.max(1, ...columns.map((nodes) => nodes.length));
  const row = view.directed ? ROW - 4 : ROW, height = HEAD + rows * row + 6;
  const places = new Map();
  columns.forEach((nodes, n) => nodes.forEach((node, at) => {
    const gap = (rows * row) / nodes.length;
    places.set(node.id, { x: step * (n + 0.5), y: HEAD + gap * (at + 0.5), column: n });
  }));
  const most = Math.max(1e-12, ...view.edges.map((edge) => edge.weight));
  // What is amiss lies above what is not.
  const order = { plain: 0, good: 1, warn: 2, bad: 3 };
  const edges = [...view.edges].sort((a, b) => order[a.tone] - order[b.tone]).map((edge) => {
    const [a, b] = [places.get(edge.source), places.get(edge.target)].sort((p, q) => p.x - q.x);
    const [x1, x2] = a.column === b.column ? [a.x + wide / 2, b.x + wide / 2] : [a.x + wide / 2, b.x - wide / 2];
    const bend = a.column === b.column ? 30 : Math.max(16, (x2 - x1) / 2);
    const d = `M${x1.toFixed(1)} ${a.y.toFixed(1)}C${(x1 + bend).toFixed(1)} ${a.y.toFixed(1)} ${(a.column === b.column ? x2 + bend : x2 - bend).toFixed(1)} ${b.y.toFixed(1)} ${x2.toFixed(1)} ${b.y.toFixed(1)}`;
    const line = svg("path", { class: `edge ${edge.tone}`, d, "stroke-width": (1 + 5 * Math.sqrt(edge.weight / most)).toFixed(2) },
      svg("title", {}, edgeText(edge, view)));
    if (!view.directed) return line;
    const head = view.directed ? arrowHead(a.column === b.column ? -1 : 1, a.column === b.column ? places.get(edge.target) : b, wide) : null;
    return svg("g", { class: "arrow" }, line, head, edge.label ? edgeLabel(edge, places, view, wide) : null);
  });
  const nodes = view.nodes.map((node) => {
    const { x, y } = places.get(node.id);
    const letters = Math.max(4, Math.floor((wide - 12) / 6.4));
    const short = node.label.length > letters ? `${node.label.slice(0, letters - 1)}…` : node.label;
    const group = svg("g", { class: `node ${node.tone}${node.chosen ? " chosen" : ""}` },
      svg("title", {}, node.note ? `${node.label}: ${node.note}` : node.label),
      svg("rect", { x: x - wide / 2, y: y - BOX / 2, width: wide, height: BOX, rx: 5 }),
      svg("text", { x, y: y + 4, "text-anchor": "middle" }, short));
    if (!node.key || !context.link) return group;
    return svg("a", { href: context.link(node.key), "data-focus": `node-${node.id}`, "aria-label": `${view.columns[node.column]} ${node.label}` }, group);
  });
  const heads = view.columns.map((name, n) =>
    svg("text", { x: step * (n + 0.5), y: 14, "text-anchor": "middle", class: "head" }, name));
  const counts = view.columns.map((name, n) => `${columns[n].length} ${name}`).join(", ");
  const label = `${context.title ?? "graph"}: ${counts}; ${view.edges.length} edges`;
  const picture = svg("svg", { viewBox: `0 0 ${W} ${height}`, role: "group", "aria-label": label },
    svg("desc", {}, view.edges.slice(0, 100).map((edge) => edgeText(edge, view)).join("; ")), ...edges, ...heads, ...nodes);
  return el("div", { class: "chart graph" }, el("div", { class: "wide" }, picture),
    view.more > 0 ? el("p", { class: "more" }, `and ${whole.format(view.more)} more that are not drawn`) : null,
    el("details", {}, el("summary", {}, "The same as a table"), edgeTable(view, context)));
}

// The head of an arrow that comes from the left, or, between two of a column, from the right.
function arrowHead(from, to, wide) {
  const x = to.x - (from * wide) / 2;
  return svg("path", { class: "head-of", d: `M${x.toFixed(1)} ${to.y.toFixed(1)}l${-8 * from} -4l0 8z` });
}

// A label stands where its arrow is alone: by the node of the side that has more of them.
function edgeLabel(edge, places, view, wide) {
  const a = places.get(edge.source), b = places.get(edge.target);
  if (a.column === b.column) return svg("text", { class: "on-edge", x: a.x + wide / 2 + 27, y: (a.y + b.y) / 2 + 4 }, edge.label);
  const several = (side, id) => view.edges.filter((e) => e[side] === id).length;
  const bySource = several("target", edge.target) >= several("source", edge.source);
  const [x, y, anchor] = bySource ? [a.x + wide / 2 + 6, a.y - 4, "start"] : [b.x - wide / 2 - 12, b.y - 4, "end"];
  return svg("text", { class: "on-edge", x, y, "text-anchor": anchor }, edge.label);
}

function edgeText(edge, view) {
  const name = (id) => { const node = view.nodes.find((n) => n.id === id); return `${view.columns[node.column]} ${node.label}`; };
  return `${name(edge.source)} – ${name(edge.target)}: ${decimal.format(edge.weight)} ${view.unit}${edge.note ? `, ${edge.note}` : ""}`;
}

function edgeTable(view, context) {
  const node = new Map(view.nodes.map((n) => [n.id, n]));
  const name = (id) => `${view.columns[node.get(id).column]} ${node.get(id).label}`;
  const rows = view.edges.map((e) => [name(e.source), name(e.target), e.weight, e.note]);
  const columns = [["from", "text"], ["to", "text"], [view.unit || "weight", "count"], ["", "text"]].map(([n, kind]) => ({ name: n, kind }));
  return tableOf({ columns, rows, tones: view.edges.map((e) => e.tone), actions: [], more: 0 }, context, rows.map((_, at) => at), 0);
}

// -- charts ------------------------------------------------------------------------------------

const H = 210, LEFT = 46, RIGHT = 10, TOP = 8, BOTTOM = 22;
// A chart is drawn as wide as it will be, about: letters keep their size on a telephone.
export const width = () => (window.innerWidth < 760 ? 340 : 640);

export function nice(most) {
  const step = 10 ** Math.floor(Math.log10(most || 1));
  return [1, 2, 2.5, 5, 10].map((f) => f * step).find((top) => top >= most * 0.999) ?? most;
}

function drawSeries(view, context) {
  const bands = view.bands.map((b) => ({ ...b, points: b.points.filter((p) => p[1] !== null && p[2] !== null) }));
  const edges = bands.flatMap((b) => b.points.flatMap((p) => [[p[0], p[1]], [p[0], p[2]]]));
  const points = [...view.series.flatMap((s) => s.points).filter((p) => p[1] !== null), ...edges];
  if (points.length === 0) return el("p", { class: "note" }, "nothing yet");
  const W = width();
  const xs = points.map((p) => p[0]), ys = points.map((p) => p[1]);
  const x0 = Math.min(...xs), x1 = Math.max(...xs, x0 + (view.x_kind === "time" ? 1 : 1e-9));
  let y0 = Math.min(...ys), y1 = Math.max(...ys);
  if (view.from_zero || y0 === y1) { y0 = Math.min(0, y0); y1 = nice(y1); }
  if (y0 === y1) y1 = y0 + 1;
  const x = (v) => LEFT + ((v - x0) / (x1 - x0)) * (W - LEFT - RIGHT);
  const y = (v) => TOP + (1 - (v - y0) / (y1 - y0)) * (H - TOP - BOTTOM);
  const parts = [];
  for (let n = 0; n <= 4; n++) {
    const at = y0 + ((y1 - y0) * n) / 4;
    const text = view.kind === "share" ? `${short.format(at * 100)} %` : view.kind === "duration" ? duration(at) : compact.format(at);
    parts.push(svg("line", { class: n ? "gridline" : "axis", x1: LEFT, x2: W - RIGHT, y1: y(at), y2: y(at) }),
      svg("text", { x: LEFT - 6, y: y(at) + 4, "text-anchor": "end" }, text));
  }
  for (const [n, anchor] of [[0, "start"], [0.5, "middle"], [1, "end"]]) {
    const at = x0 + (x1 - x0) * n;
    const text = view.x_kind !== "time" ? format(at, view.x_kind) : x1 - x0 > 3 * 86400e3 ? time(at).slice(0, 10) : x1 - x0 > 86400e3 ? time(at).slice(5, 16) : time(at).slice(11);
    parts.push(svg("text", { x: x(at), y: H - 5, "text-anchor": anchor }, text));
  }
  const colour = colours(view.series);
  view.bands.forEach((band, n) => { for (const d of areas(band.points, x, y)) parts.push(svg("path", { class: `band b${n % 5}`, d })); });
  view.series.forEach((series, n) => {
    parts.push(svg("path", { class: `line ${colour[n]}`, d: path(series.points, x, y) }));
    const known = series.points.filter((p) => p[1] !== null);
    if (known.length === 1) parts.push(svg("circle", { class: `dot ${colour[n]}`, cx: x(known[0][0]), cy: y(known[0][1]), r: 3 }));
  });
  const cursor = svg("line", { class: "cursor", y1: TOP, y2: H - BOTTOM, visibility: "hidden" });
  const last = view.series.map((s) => s.points.filter((p) => p[1] !== null).at(-1));
  const summary = view.series.map((s, n) => `${s.name} ${last[n] ? format(last[n][1], view.kind) : "–"}`).join(", ");
  const picture = svg("svg", { viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": `${context.title ?? "chart"}: last ${summary} ${view.unit}` }, ...parts, cursor);
  const legend = el("ul", { class: "legend" });
  const when = el("li", {});
  const tell = (at) => {
    legend.replaceChildren(...view.series.map((s, n) => {
      const point = at === null ? last[n] : nearest(s.points, at);
      return el("li", {}, svg("svg", { viewBox: "0 0 18 8", "aria-hidden": "true" }, svg("line", { class: `line ${colour[n]}`, x1: 0, x2: 18, y1: 4, y2: 4, "stroke-width": 3 })),
        `${s.name} `, el("b", {}, point ? format(point[1], view.kind) : "–"), view.unit ? ` ${view.unit}` : "");
    }), ...bands.map((b, n) => {
      const point = at === null ? b.points.at(-1) : nearest(b.points, at);
      return el("li", {}, svg("svg", { viewBox: "0 0 18 8", "aria-hidden": "true" }, svg("rect", { class: `band b${n % 5}`, width: 18, height: 8 })),
        `${b.name} `, el("b", {}, point ? `${format(point[1], view.kind)} – ${format(point[2], view.kind)}` : "–"), view.unit ? ` ${view.unit}` : "");
    }), when);
    when.textContent = view.x_kind !== "time" ? `${view.x_label} ${at === null ? "→" : format(at, view.x_kind)}`
      : at === null ? (view.clock === "event time" ? "by event time" : "") : time(at);
  };
  picture.addEventListener("pointermove", (event) => {
    const box = picture.getBoundingClientRect();
    const share = ((event.clientX - box.left) / box.width * W - LEFT) / (W - LEFT - RIGHT);
    if (share < 0 || share > 1) return;
    const at = x0 + share * (x1 - x0);
    cursor.setAttribute("x1", x(at)); cursor.setAttribute("x2", x(at)); cursor.setAttribute("visibility", "visible");
    tell(at);
  });
  picture.addEventListener("pointerleave", () => { cursor.setAttribute("visibility", "hidden"); tell(null); });
  tell(null);
  return el("div", { class: "chart" }, picture, legend);
}

// Limits have a colour of their own; other lines take theirs in turn.
function colours(series) {
  let at = 0;
  return series.map((s) => (s.look === "limit" ? "limit" : `s${at++ % 5}${s.look === "dashed" ? " dashed" : ""}`));
}

// The outlines of what lies between two lines; a gap ends one.
function areas(points, x, y) {
  const found = [];
  let run = [];
  for (const point of [...points, [0, null, null]]) {
    if (point[1] !== null && point[2] !== null) { run.push(point); continue; }
    if (run.length) {
      const upper = run.map((p) => [p[0], p[2]]), lower = run.map((p) => [p[0], p[1]]).reverse();
      found.push(`${path([...upper, ...lower], x, y)}Z`);
    }
    run = [];
  }
  return found;
}

function path(points, x, y) {
  let text = "", pen = "M";
  for (const [at, value] of points) {
    if (value === null) { pen = "M"; continue; }
    text += `${pen}${x(at).toFixed(1)} ${y(value).toFixed(1)}`;
    pen = "L";
  }
  return text;
}

function nearest(points, at) {
  let best = null;
  for (const point of points) if (point[1] !== null && (best === null || Math.abs(point[0] - at) < Math.abs(best[0] - at))) best = point;
  return best;
}

function drawPoints(view, context) {
  if (view.points.length === 0) return el("p", { class: "note" }, "nothing yet");
  const W = width();
  const xs = view.points.map((p) => p.x), ys = view.points.map((p) => p.y);
  const spread = (values) => { const a = Math.min(...values), b = Math.max(...values), pad = (b - a || 1) * 0.04; return [a - pad, b + pad]; };
  let [x0, x1] = spread(xs), [y0, y1] = spread(ys);
  const height = view.is_map ? 420 : 260;
  if (view.is_map) { // one scale for both axes
    const shrink = Math.cos((((y0 + y1) / 2) * Math.PI) / 180);
    const unit = Math.max(((x1 - x0) * shrink) / (W - LEFT - RIGHT), (y1 - y0) / (height - TOP - BOTTOM));
    const [cx, cy] = [(x0 + x1) / 2, (y0 + y1) / 2];
    [x0, x1] = [cx - (unit * (W - LEFT - RIGHT)) / shrink / 2, cx + (unit * (W - LEFT - RIGHT)) / shrink / 2];
    [y0, y1] = [cy - (unit * (height - TOP - BOTTOM)) / 2, cy + (unit * (height - TOP - BOTTOM)) / 2];
  }
  const x = (v) => LEFT + ((v - x0) / (x1 - x0)) * (W - LEFT - RIGHT);
  const y = (v) => TOP + (1 - (v - y0) / (y1 - y0)) * (height - TOP - BOTTOM);
  const parts = [];
  const digits = (span) => Math.max(0, Math.min(6, 1 - Math.floor(Math.log10(span))));
  for (let n = 0; n <= 4; n++) {
    const ax = x0 + ((x1 - x0) * n) / 4, ay = y0 + ((y1 - y0) * n) / 4;
    parts.push(svg("line", { class: "gridline", x1: LEFT, x2: W - RIGHT, y1: y(ay), y2: y(ay) }),
      svg("line", { class: "gridline", x1: x(ax), x2: x(ax), y1: TOP, y2: height - BOTTOM }),
      svg("text", { x: LEFT - 6, y: y(ay) + 4, "text-anchor": "end" }, ay.toFixed(digits(y1 - y0))),
      svg("text", { x: x(ax), y: height - 6, "text-anchor": n === 0 ? "start" : n === 4 ? "end" : "middle" }, ax.toFixed(digits(x1 - x0))));
  }
  for (const p of view.points) {
    parts.push(svg("circle", { class: `point ${p.tone}`, cx: x(p.x), cy: y(p.y), r: Math.min(16, 4 * Math.sqrt(p.size)) }, svg("title", {}, p.label)));
  }
  const label = `${context.title ?? "points"}: ${view.points.length} points`;
  const axes = [view.x_label && `→ ${view.x_label}`, view.y_label && `↑ ${view.y_label}`].filter(Boolean).join("   ");
  return el("div", { class: "chart" }, svg("svg", { viewBox: `0 0 ${W} ${height}`, role: "img", "aria-label": label }, ...parts),
    axes ? el("p", { class: "more" }, axes) : null);
}
