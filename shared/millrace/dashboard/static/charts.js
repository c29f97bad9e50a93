// Views as data → elements. Every text is put in as text, never as markup: it may come from an event.

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

function drawTable(view, context) {
  const right = new Set(["count", "number", "share", "money", "duration"]);
  const acts = view.actions.length > 0 && context.action;
  const head = el("tr", {}, ...view.columns.map((c) => el("th", { scope: "col", class: right.has(c.kind) ? "right" : null }, c.name)));
  if (acts) head.append(el("th", { scope: "col" }, ""));
  const body = view.rows.map((row, at) => {
    const cells = row.map((value, n) => {
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
  const more = view.more > 0 ? el("p", { class: "more" }, `and ${whole.format(view.more)} more`) : null;
  return el("div", {}, table, more);
}

function actCell(values, at, context) {
  if (!values) return el("td", {});
  return el("td", {}, el("button", {
    type: "button", "data-focus": `act-${at}`, disabled: !context.mayAct,
    title: context.mayAct ? null : context.whyNot,
    onclick: () => context.act(values),
  }, context.action.label));
}

// -- charts ------------------------------------------------------------------------------------

const H = 210, LEFT = 46, RIGHT = 10, TOP = 8, BOTTOM = 22;
// A chart is drawn as wide as it will be, about: letters keep their size on a telephone.
const width = () => (window.innerWidth < 760 ? 340 : 640);

function nice(most) {
  const step = 10 ** Math.floor(Math.log10(most || 1));
  return [1, 2, 2.5, 5, 10].map((f) => f * step).find((top) => top >= most * 0.999) ?? most;
}

function drawSeries(view, context) {
  const points = view.series.flatMap((s) => s.points).filter((p) => p[1] !== null);
  if (points.length === 0) return el("p", { class: "note" }, "nothing yet");
  const W = width();
  const xs = points.map((p) => p[0]), ys = points.map((p) => p[1]);
  const x0 = Math.min(...xs), x1 = Math.max(...xs, x0 + 1);
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
    const text = x1 - x0 > 3 * 86400e3 ? time(at).slice(0, 10) : x1 - x0 > 86400e3 ? time(at).slice(5, 16) : time(at).slice(11);
    parts.push(svg("text", { x: x(at), y: H - 5, "text-anchor": anchor }, text));
  }
  view.series.forEach((series, n) => {
    parts.push(svg("path", { class: `line s${n % 5}`, d: path(series.points, x, y) }));
    const known = series.points.filter((p) => p[1] !== null);
    if (known.length === 1) parts.push(svg("circle", { class: `dot s${n % 5}`, cx: x(known[0][0]), cy: y(known[0][1]), r: 3 }));
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
      return el("li", {}, svg("svg", { viewBox: "0 0 18 8", "aria-hidden": "true" }, svg("line", { class: `line s${n % 5}`, x1: 0, x2: 18, y1: 4, y2: 4, "stroke-width": 3 })),
        `${s.name} `, el("b", {}, point ? format(point[1], view.kind) : "–"), view.unit ? ` ${view.unit}` : "");
    }), when);
    when.textContent = at === null ? (view.clock === "event time" ? "by event time" : "") : time(at);
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
