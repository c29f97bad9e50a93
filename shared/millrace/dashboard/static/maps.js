// A map without a background: areas shaded by a layer, marks that move, a slider over the last hours.

import { duration, el, format, nice, svg, tableOf, time, width } from "/static/charts.js";

const EDGE = 14, STEPS = 5, PACE = 700;
const shapes = {
  circle: "M0-4.5A4.5 4.5 0 1 1 0 4.5A4.5 4.5 0 1 1 0-4.5Z",
  ring: "M0-3.5A3.5 3.5 0 1 1 0 3.5A3.5 3.5 0 1 1 0-3.5Z",
  diamond: "M0-6L6 0L0 6L-6 0Z",
  up: "M0-6L5.5 4.5H-5.5Z",
  down: "M0 6L5.5-4.5H-5.5Z",
  square: "M-4.2-4.2H4.2V4.2H-4.2Z",
  cross: "M-4.5-4.5L4.5 4.5M4.5-4.5L-4.5 4.5",
  star: "M0-6.5L1.9-2.2L6.4-2L2.9 1L4 5.5L0 3L-4 5.5L-2.9 1L-6.4-2L-1.9-2.2Z",
};
const hollow = new Set(["ring", "cross"]);

// A map stays when new data come: its marks move, and what was chosen stays chosen.
const kept = new Map();

export function drawMap(view, context) {
  const name = `${location.hash.split("/")[1]}/${context.title ?? ""}`;
  let map = context.replay ? kept.get(name) : null;
  if (!map?.box.isConnected) {
    map = makeMap(width() < 400 ? [340, 340] : view.layers.length ? [760, 560] : [480, 360]);
    if (context.replay) kept.set(name, map);
  }
  map.show(view, context);
  return map.box;
}

function makeMap([W, H]) {
  const state = { layer: 0, hidden: new Set(), view: null, context: null, playing: 0, zoom: 1, x: 0, y: 0 };
  const areas = svg("g", {}), outlines = svg("g", {}), marks = svg("g", {}), scale = svg("g", { class: "scale" });
  const picture = svg("svg", { viewBox: `0 0 ${W} ${H}`, role: "img" }, areas, outlines, marks, scale);
  const layers = el("div", { class: "tabs", role: "group", "aria-label": "Areas by" });
  const said = el("p", { class: "about" });
  const shades = el("ul", { class: "shades" }), kinds = el("ul", { class: "kinds" });
  const table = el("div", {}), more = el("details", {}, el("summary", {}, "The same as a table"), table);
  const replay = makeReplay(state);
  const zoom = el("div", { class: "zoom", role: "group", "aria-label": "Zoom" },
    ...[["Closer", 1.6], ["Wider", 1 / 1.6], ["Reset", 0]].map(([name, by]) => el("button", {
      type: "button", onclick: () => { Object.assign(state, by ? { zoom: Math.min(64, Math.max(0.1, state.zoom * by)) } : { zoom: 1, x: 0, y: 0 }); again(); },
    }, name)));
  const box = el("div", { class: "map" }, el("div", { class: "picture" }, picture, replay.box, zoom),
    el("div", { class: "key" }, layers, said, shades, kinds), more);
  const there = new Map(); // mark → its element
  more.addEventListener("toggle", () => fillTable());
  const again = () => show(state.view, state.context);
  // Moves the map by hand; x and y are of its own width and height, as of no zoom.
  let from = null;
  picture.addEventListener("pointerdown", (event) => { if (event.pointerType === "mouse") from = event; });
  picture.addEventListener("pointermove", (event) => {
    if (!from || !(event.buttons & 1)) { from = null; return; }
    const long = picture.getBoundingClientRect().width / W * state.zoom;
    state.x += (event.clientX - from.clientX) / long;
    state.y += (event.clientY - from.clientY) / long;
    from = event;
    again();
  });

  function show(view, context) {
    box.classList.toggle("moves", state.view !== null && state.view !== view); // not when it is moved by hand
    Object.assign(state, { view, context });
    state.layer = Math.max(0, Math.min(state.layer, view.layers.length - 1));
    for (const node of [layers, said, shades, more]) node.hidden = view.layers.length === 0;
    const place = placed(view.box, W, H, state);
    if (view.layers.length) paint(place);
    outlines.replaceChildren(...(view.outlines ?? []).flatMap((one) => outlined(one, place)));
    move(place);
    drawScale(scale, view.box, place, H);
    replay.show(view, context);
    fillTable();
    const counts = view.kinds.map((kind, n) => `${view.marks.filter((m) => m.kind === n).length} ${kind.name}`);
    picture.setAttribute("aria-label", `${context.title ?? "map"} at ${time(view.at_ms)}: ${view.layers.length ? `${view.areas.length} cells by ${view.layers[state.layer].name}; ` : ""}${[...counts, ...(view.outlines ?? []).filter((one) => one.kind === "pen").map((one) => one.label)].join(", ")}`);
  }

  function paint(place) {
    const { view } = state, layer = view.layers[state.layer];
    const bounds = classes(view.areas.map((area) => area.values[state.layer]), layer.kind);
    areas.replaceChildren(...view.areas.map((area) => {
      const value = area.values[state.layer], rank = rankOf(value, bounds);
      const figures = view.layers.map((l, n) => `${l.name} ${format(area.values[n], l.kind)}`).join(", ");
      return svg("path", { class: `area r${rank}`, d: `M${area.outline.map((p) => place(p[0], p[1]).map((v) => v.toFixed(1)).join(" ")).join("L")}Z` },
        svg("title", {}, `${area.id}: ${figures}`));
    }));
    layers.replaceChildren(...view.layers.map((l, n) => el("button", {
      type: "button", "aria-pressed": String(n === state.layer), "data-focus": `layer-${n}`,
      onclick: () => { state.layer = n; again(); layers.children[n].focus(); },
    }, l.name)));
    said.textContent = layer.about;
    const text = (n) => layer.kind === "duration" ? `to ${duration(bounds[n])}`
      : bounds[n] - (n ? bounds[n - 1] : 0) > 1 ? `${(n ? bounds[n - 1] : 0) + 1}–${bounds[n]}` : `${bounds[n]}`;
    shades.replaceChildren(...bounds.map((_, n) => el("li", {},
      svg("svg", { viewBox: "0 0 18 12", "aria-hidden": "true" }, svg("rect", { class: `area r${shadeOf(n, bounds)}`, width: 18, height: 12 })), text(n))));
  }

  function move(place) {
    const { view, context } = state, seen = new Set();
    const numbers = view.kinds.map(() => 0);
    for (const mark of view.marks) {
      numbers[mark.kind]++;
      seen.add(mark.id);
      const kind = view.kinds[mark.kind], [x, y] = place(mark.lon, mark.lat);
      let one = there.get(mark.id);
      if (!one) {
        one = svg("g", {}, svg("path", {}), ...(mark.text ? [svg("text", { x: 8, y: 4 })] : []), svg("title", {}));
        one.addEventListener("click", () => { if (one.key && state.context.link) location.hash = state.context.link(one.key); });
        there.set(mark.id, one);
        marks.append(one);
      }
      one.key = mark.key;
      one.setAttribute("class", `mark ${kind.tone}${hollow.has(kind.shape) ? " hollow" : ""}${mark.key && context.link ? " leads" : ""}`);
      one.style.transform = `translate(${x.toFixed(1)}px, ${y.toFixed(1)}px)`;
      one.style.display = state.hidden.has(kind.name) ? "none" : "";
      one.firstChild.setAttribute("d", shapes[kind.shape]);
      if (one.children.length > 2) one.children[1].textContent = mark.text ?? "";
      one.lastChild.textContent = mark.label;
    }
    for (const [id, one] of there) if (!seen.has(id)) { one.remove(); there.delete(id); }
    kinds.replaceChildren(...view.kinds.map((kind, n) => el("li", {}, el("button", {
      type: "button", "aria-pressed": String(!state.hidden.has(kind.name)), "data-focus": `kind-${n}`, title: "show or hide",
      onclick: () => {
        if (!state.hidden.delete(kind.name)) state.hidden.add(kind.name);
        again();
        kinds.querySelector(`[data-focus="kind-${n}"]`).focus();
      },
    }, svg("svg", { viewBox: "-8 -8 16 16", "aria-hidden": "true" },
      svg("g", { class: `mark ${kind.tone}${hollow.has(kind.shape) ? " hollow" : ""}` }, svg("path", { d: shapes[kind.shape] }))),
      `${kind.name} `, el("b", {}, format(numbers[n], "count"))))));
  }

  function fillTable() {
    if (!more.open) return;
    const { view, context } = state;
    const columns = [{ name: "cell", kind: "text" }, ...view.layers.map(({ name, kind }) => ({ name, kind }))];
    const rows = view.areas.map((area) => [area.id, ...area.values]);
    table.replaceChildren(tableOf({ columns, rows, tones: [], actions: [] }, context, rows.map((_, at) => at), 0));
  }

  return { box, show };
}

// The edge of a place, and what is written into it.
function outlined(one, place) {
  const rings = one.rings.map((ring) => ring.map((p) => place(p[0], p[1])));
  const d = rings.map((ring) => `M${ring.map((p) => p.map((v) => v.toFixed(1)).join(" ")).join("L")}Z`).join("");
  const edge = svg("path", { class: `outline ${one.kind}`, d, "fill-rule": "evenodd" }, svg("title", {}, one.label));
  if (!one.text) return [edge];
  const [xs, ys] = [0, 1].map((n) => rings.flat().map((p) => p[n]));
  const x = (Math.min(...xs) + Math.max(...xs)) / 2;
  const y = one.kind === "zone" ? Math.min(...ys) - 4 : (Math.min(...ys) + Math.max(...ys)) / 2 + 4;
  return [edge, svg("text", { class: "outlined", x: x.toFixed(1), y: y.toFixed(1) }, svg("title", {}, one.label), one.text)];
}

// The moment that is shown, and the way to others.
function makeReplay(state) {
  const slider = el("input", { type: "range", "aria-label": "Moment that is shown" });
  const when = el("output", {});
  const play = el("button", { type: "button", "data-act": "play" }, "Play");
  const now = el("button", { type: "button", "data-act": "now" }, "Now");
  const box = el("div", { class: "replay" }, play, slider, when, now);
  let held = false; // somebody moves the slider: what comes meanwhile must not take it from them

  const to = (at) => state.context.replay.to(at).catch((error) => { stop(); when.textContent = error.message; });
  const isNewest = (at) => at >= state.view.until_ms;
  function stop() { state.playing++; play.textContent = "Play"; }

  slider.addEventListener("pointerdown", () => { held = true; });
  slider.addEventListener("pointerup", () => { held = false; });
  slider.addEventListener("input", () => {
    stop();
    const at = Number(slider.value);
    to(isNewest(at) ? null : at);
  });
  now.addEventListener("click", () => { stop(); held = false; to(null); });
  play.addEventListener("click", async () => {
    if (play.textContent === "Pause") { stop(); return; }
    const mine = ++state.playing;
    play.textContent = "Pause";
    let at = state.context.replay.at ?? state.view.since_ms;
    while (mine === state.playing && box.isConnected && !isNewest(at)) {
      const begin = performance.now();
      await to(at);
      await new Promise((done) => setTimeout(done, Math.max(50, PACE - (performance.now() - begin))));
      at += state.view.step_ms;
    }
    if (mine === state.playing) { stop(); if (box.isConnected) await to(null); }
  });

  return {
    box,
    show(view, context) {
      box.hidden = !view.step_ms || !context.replay || view.until_ms <= view.since_ms;
      if (box.hidden) return;
      const isLive = context.replay.at === null;
      Object.assign(slider, { min: view.since_ms, max: Math.ceil((view.until_ms - view.since_ms) / view.step_ms) * view.step_ms + view.since_ms, step: view.step_ms });
      if (!held) slider.value = isLive ? slider.max : view.at_ms;
      slider.setAttribute("aria-valuetext", isLive ? "now" : time(view.at_ms));
      when.textContent = isLive ? `${time(view.at_ms)}, the newest` : time(view.at_ms);
      now.disabled = isLive;
    },
  };
}

// Degrees → the plane: one scale for both axes, the box in the middle.
function placed([west, south, east, north], W, H, { zoom, x, y }) {
  const shrink = Math.cos((((south + north) / 2) * Math.PI) / 180);
  const unit = Math.min((W - 2 * EDGE) / Math.max(1e-9, (east - west) * shrink), (H - 2 * EDGE) / Math.max(1e-9, north - south));
  const [cx, cy] = [(west + east) / 2, (south + north) / 2];
  const place = (lon, lat) => [W / 2 + ((lon - cx) * shrink * unit + x) * zoom, H / 2 + (y - (lat - cy) * unit) * zoom];
  place.perMetre = (unit * zoom) / 111_195;
  return place;
}

// A line as long as a round number of metres.
function drawScale(scale, box, place, H) {
  const metres = [100, 200, 500, 1e3, 2e3, 5e3, 1e4, 2e4, 5e4].findLast((m) => m * place.perMetre <= 130) ?? 100;
  const long = metres * place.perMetre, text = metres < 1000 ? `${metres} m` : `${metres / 1000} km`;
  scale.replaceChildren(
    svg("rect", { x: 6, y: H - 30, width: Math.max(long, 40) + 16, height: 26, rx: 4 }),
    svg("path", { d: `M14 ${H - 14}v5h${long.toFixed(1)}v-5` }), svg("text", { x: 14, y: H - 17 }, text));
}

// Upper bounds of the classes that values are shaded by; a value is in the first whose bound it does not pass.
function classes(values, kind) {
  const most = Math.max(0, ...values.filter((v) => v !== null));
  if (most <= 0) return [];
  if (kind === "duration") {
    const top = nice(most / 60e3) * 60e3;
    return Array.from({ length: STEPS }, (_, n) => (top * (n + 1)) / STEPS);
  }
  if (kind === "number") {
    const least = Math.min(...values.filter((v) => v !== null && v > 0));
    return Array.from({ length: STEPS }, (_, n) => least + ((most - least) * (n + 1)) / STEPS);
  }
  const number = Math.min(STEPS, Math.ceil(most));
  return Array.from({ length: number }, (_, n) => Math.ceil((most * (n + 1)) / number));
}

function rankOf(value, bounds) {
  if (value === null || value <= 0) return 0;
  const rank = bounds.findIndex((bound) => value <= bound * (1 + 1e-9));
  return rank < 0 ? STEPS : shadeOf(rank, bounds);
}

const shadeOf = (rank, bounds) => Math.ceil(((rank + 1) * STEPS) / bounds.length);
