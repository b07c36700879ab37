"use strict";
// Draws the plots and the timelines from the figures in the page, and makes its tables sortable. Text from models enters
// the page by `textContent` only.

const DATA = JSON.parse(document.getElementById("data").textContent);
const byId = (id) => document.getElementById(id);

function html(tag, attributes, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

function svg(tag, attributes, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "colour") element.style.setProperty("--c", value);
    else if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((c) => c !== null && c !== undefined));
  return element;
}

const colour = (arm) => (arm.colour === null ? "var(--many)" : `var(--c${arm.colour})`);

// Numbers

const percent = (v) => `${(v * 100).toFixed(1)} %`;
const clock = (v) => (v < 0.1 ? `${trim(v * 1e3)} ms` : `${trim(v)} s`);
const end = (v, show) => (v === null ? "?" : show(v));
const trim = (v) => Number(v.toPrecision(3)).toString();

function large(value) {
  for (const [power, unit] of [[1e15, "P"], [1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]])
    if (value >= power) return `${trim(value / power)} ${unit}`;
  return trim(value);
}

const MEASURES = {
  share: { name: "target share", show: percent, from: 0, to: 1 },
  p50: { name: "latency, P50", show: clock, from: 0 },
  p90: { name: "latency, P90", show: clock, from: 0 },
  p99: { name: "latency, P99", show: clock, from: 0 },
  flops: { name: "FLOPs an answer", show: large, from: 0 },
  energy: { name: "energy an answer, J", show: trim, from: 0 },
  memory: { name: "GPU memory, bytes", show: large, from: 0 },
};

function ticks(low, high, count) {
  const raw = (high - low) / Math.max(1, count) || 1;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].map((m) => m * power).find((s) => s >= raw * 0.999);
  const out = [];
  for (let n = Math.ceil(low / step - 1e-9); n * step <= high + step * 1e-6; n++) out.push(n * step);
  return out;
}

// Plots

const drawn = new Map();

/** Draws into a box now and whenever its width changes. */
function plot(box, draw) {
  const again = () => {
    box.querySelector("svg")?.remove();
    if (box.clientWidth) box.prepend(draw(box.clientWidth));
  };
  if (!drawn.has(box)) {
    let width = 0;
    new ResizeObserver(() => {
      if (box.clientWidth !== width) {
        width = box.clientWidth;
        drawn.get(box)();
      }
    }).observe(box);
  }
  drawn.set(box, again);
  again();
}

/** Axes of a plot: gives its SVG and the scales of both directions. */
function frame(width, title, x, y) {
  const height = Math.min(420, Math.max(240, width * 0.55));
  const [left, right, top, bottom] = [58, 18, 14, 44];
  const sx = (v) => left + ((v - x.low) / (x.high - x.low || 1)) * (width - left - right);
  const sy = (v) => height - bottom - ((v - y.low) / (y.high - y.low || 1)) * (height - top - bottom);
  const root = svg("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "group", "aria-label": title });
  for (const t of y.ticks || ticks(y.low, y.high, 5)) {
    root.append(svg("line", { class: "grid", x1: left, x2: width - right, y1: sy(t), y2: sy(t) }));
    root.append(svg("text", { x: left - 8, y: sy(t) + 4, "text-anchor": "end" }, y.show(t)));
  }
  for (const t of x.ticks || ticks(x.low, x.high, width < 480 ? 3 : 6)) {
    root.append(svg("line", { class: "axis", x1: sx(t), x2: sx(t), y1: sy(y.low), y2: sy(y.low) + 4 }));
    root.append(svg("text", { x: sx(t), y: height - bottom + 18, "text-anchor": "middle" }, x.show(t)));
  }
  root.append(svg("line", { class: "axis", x1: left, x2: width - right, y1: sy(y.low), y2: sy(y.low) }));
  root.append(svg("text", { x: (left + width - right) / 2, y: height - 6, "text-anchor": "middle" }, x.name));
  return { root, sx, sy, height };
}

const path = (points) => points.map(([x, y], n) => `${n ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`).join("");

/** A sign that tells runs apart without colour. */
function sign(x, y, run, attributes) {
  const r = 6.5;
  const corners = [null, [[-r, -r], [r, -r], [r, r], [-r, r]], [[0, -r - 1.5], [r + 1.5, 0], [0, r + 1.5], [-r - 1.5, 0]]][run % 3];
  if (!corners) return svg("circle", { cx: x, cy: y, r, ...attributes });
  return svg("path", { d: `${path(corners.map(([a, b]) => [x + a, y + b]))}Z`, ...attributes });
}

/** Shows a text beside a mark while it is pointed at or has the focus. */
function told(mark, box, text) {
  const show = () => {
    hide();
    const [at, frame] = [mark.getBoundingClientRect(), box.getBoundingClientRect()];
    const tip = html("div", { class: "tip" }, text);
    box.append(tip);
    const left = Math.min(Math.max(0, at.left - frame.left + 12), frame.width - tip.offsetWidth);
    tip.style.left = `${left}px`;
    tip.style.top = `${Math.max(0, at.top - frame.top - tip.offsetHeight - 6)}px`;
  };
  const hide = () => box.querySelector(".tip")?.remove();
  mark.setAttribute("tabindex", "0");
  mark.setAttribute("role", "img");
  mark.setAttribute("aria-label", text.replaceAll("\n", ", "));
  for (const name of ["pointerenter", "focus"]) mark.addEventListener(name, show);
  for (const name of ["pointerleave", "blur"]) mark.addEventListener(name, hide);
  return mark;
}

const shown = new Set(DATA.arms.map((_, n) => n));
const visible = () => DATA.arms.filter((_, n) => shown.has(n));
let measure = "share";

function tradeoff() {
  const box = byId("plot-tradeoff");
  plot(box, (width) => {
    const arms = visible().filter((a) => a.accuracy && a.x[measure]);
    const about = MEASURES[measure];
    const heights = arms.flatMap((a) => a.accuracy.filter((v) => v !== null));
    const widths = arms.flatMap((a) => a.x[measure].filter((v) => v !== null));
    const y = range(heights, 0, 1);
    y.show = (v) => `${Math.round(v * 1000) / 10} %`;
    const x = { low: about.from, high: about.to ?? Math.max(...widths, 1e-12) * 1.06, name: about.name, show: about.show };
    if (measure === "share") x.show = (v) => `${Math.round(v * 100)} %`;
    const { root, sx, sy } = frame(width, `Accuracy against ${about.name}`, x, y);
    const at = (a) => [sx(a.x[measure][0]), sy(a.accuracy[0])];
    DATA.runs.forEach((_, run) => {
      const chance = arms.filter((a) => a.run === run && (a.control || a.router === "target" || a.router === "draft"));
      chance.sort((a, b) => a.x[measure][0] - b.x[measure][0]);
      if (chance.some((a) => a.control)) root.append(svg("path", { class: "control", d: path(chance.map(at)) }));
      const front = frontOf(run, measure, arms);
      if (front.length > 1) root.append(svg("path", { class: "front", d: path(front.map(at)) }));
    });
    const taken = [];
    for (const a of [...arms].sort((a, b) => (a.colour ?? 99) - (b.colour ?? 99))) {
      const [px, py] = at(a);
      const [, low, high] = a.accuracy;
      const [, near, far] = a.x[measure];
      const tint = { colour: colour(a) };
      if (low !== null && high !== null) root.append(svg("line", { class: "whisker", x1: px, x2: px, y1: sy(low), y2: sy(high), ...tint }));
      if (near !== null && far !== null) root.append(svg("line", { class: "whisker", x1: sx(near), x2: sx(far), y1: py, y2: py, ...tint }));
      const interval = (v, show) => (v[1] === null && v[2] === null ? show(v[0]) : `${show(v[0])} (${end(v[1], show)} to ${end(v[2], show)})`);
      const text = `${a.name}\naccuracy ${interval(a.accuracy, percent)}\n${about.name} ${interval(a.x[measure], about.show)}`;
      root.append(told(sign(px, py, a.run, { class: "mark", ...tint }), box, text));
      if (a.colour !== null) label(root, a.name, px, py, width, taken);
    }
    return root;
  });
  const left = visible().filter((a) => !a.accuracy || !a.x[measure]).map((a) => a.name);
  const dashed = DATA.arms.some((a) => a.control) ? "Dashed: switching at random between draft and target. " : "";
  const front = DATA.runs.some((_, n) => frontOf(n, measure, DATA.arms).length > 1) ? "Thin line: no arm is both cheaper and more accurate. " : "";
  byId("tradeoff-note").textContent = dashed + front + (left.length ? `Not measured here: ${left.join(", ")}.` : "");
}

/** Arms of a run on its Pareto front, from left to right; none where the run has no front for the measure. */
function frontOf(run, name, arms) {
  const labels = DATA.fronts[run]?.[name];
  if (!labels) return [];
  const members = arms.filter((a) => a.run === run && labels.includes(a.label) && a.x[name]);
  return members.sort((a, b) => a.x[name][0] - b.x[name][0]);
}

/** A name beside its mark, where no other name is. */
function label(root, text, x, y, width, taken) {
  const size = text.length * 7;
  const left = x + 12 + size > width;
  for (const shift of [4, -10, 18, -24, 32]) {
    const spot = { from: left ? x - 12 - size : x + 12, to: left ? x - 12 : x + 12 + size, y: y + shift };
    if (taken.some((t) => spot.from < t.to && t.from < spot.to && Math.abs(t.y - spot.y) < 14)) continue;
    taken.push(spot);
    root.append(svg("text", { class: "name", x: left ? x - 12 : x + 12, y: spot.y, "text-anchor": left ? "end" : "start" }, text));
    return;
  }
}

/** A range that holds the values with some air, and stays within bounds. */
function range(values, least, most) {
  if (!values.length) return { low: least, high: most };
  const [low, high] = [Math.min(...values), Math.max(...values)];
  const air = Math.max((high - low) * 0.1, 0.01 * (most - least));
  return { low: Math.max(least, low - air), high: Math.min(most, high + air) };
}

function latency() {
  const arms = visible().filter((a) => a.latency?.curve.length);
  byId("latency").hidden = !DATA.arms.some((a) => a.latency?.curve.length);
  const box = byId("plot-latency");
  plot(box, (width) => {
    const longest = Math.max(...arms.map((a) => a.latency.curve.at(-1)[0]), 1e-9);
    const x = { low: 0, high: longest * 1.03, name: "seconds", show: trim };
    const { root, sx, sy } = frame(width, "Distribution of latencies", x, { low: 0, high: 1, show: (v) => `${Math.round(v * 100)} %` });
    for (const a of arms) {
      const steps = [[0, 0], ...a.latency.curve].flatMap(([s, f], n, all) => (n ? [[s, all[n - 1][1]], [s, f]] : [[s, f]]));
      const median = a.latency.curve.find(([, f]) => f >= 0.5);
      root.append(svg("path", { class: "curve", d: path(steps.map(([s, f]) => [sx(s), sy(f)])), colour: colour(a) }));
      if (median) root.append(told(sign(sx(median[0]), sy(0.5), a.run, { class: "mark", colour: colour(a) }), box, `${a.name}\nmedian ${clock(median[0])} of ${a.latency.n} answers`));
    }
    return root;
  });
  const censored = arms.filter((a) => a.latency.censored).map((a) => `${a.latency.censored} of ${a.name}`);
  byId("latency-note").textContent = censored.length ? `Cut off at the deadline, so that the curve ends below 100 %: ${censored.join(", ")}.` : "";
}

function levels() {
  const arms = visible().filter((a) => a.levels);
  const names = [...new Set(DATA.arms.flatMap((a) => Object.keys(a.levels || {})))];
  byId("difficulty").hidden = names.length < 2;
  if (names.length < 2) return;
  const wanted = byId("level-measure").value;
  const box = byId("plot-levels");
  plot(box, (width) => {
    const values = arms.flatMap((a) => Object.values(a.levels).map((l) => l[wanted]).filter((v) => v !== null && v !== undefined));
    const y = { ...range(values, 0, 1), show: (v) => `${Math.round(v * 1000) / 10} %` };
    const x = { low: -0.3, high: names.length - 0.7, ticks: names.map((_, n) => n), show: (n) => names[n], name: "level" };
    const { root, sx, sy } = frame(width, `${wanted} by level`, x, y);
    for (const a of arms) {
      const points = names.map((l, n) => [n, a.levels[l]?.[wanted], a.levels[l]?.n]).filter(([, v]) => v !== null && v !== undefined);
      root.append(svg("path", { class: "curve", d: path(points.map(([n, v]) => [sx(n), sy(v)])), colour: colour(a) }));
      for (const [n, v, count] of points)
        root.append(told(sign(sx(n), sy(v), a.run, { class: "mark", colour: colour(a) }), box, `${a.name}, level ${names[n]}\n${percent(v)} of ${count} questions`));
    }
    return root;
  });
}

const LOADS = {
  p50: { name: "latency, P50", show: clock },
  p99: { name: "latency, P99", show: clock },
  ttft: { name: "first token, P50", show: clock },
  goodput: { name: "good answers a second", show: trim },
};

function loads() {
  const wanted = byId("load-measure").value;
  if (!wanted) return;
  const box = byId("plot-loads");
  plot(box, (width) => {
    const known = (p) => p.answered !== null && p[wanted] !== null;
    const arms = visible().map((a) => [a, a.load.filter(known).sort((p, q) => p.answered - q.answered)]);
    const all = arms.flatMap(([, points]) => points);
    const x = { low: 0, high: Math.max(...all.map((p) => p.answered), 1e-9) * 1.06, name: "answers a second", show: trim };
    const y = { low: 0, high: Math.max(...all.map((p) => p[wanted]), 1e-9) * 1.06, show: LOADS[wanted].show };
    const { root, sx, sy } = frame(width, `${LOADS[wanted].name} against answers a second`, x, y);
    for (const [a, points] of arms) {
      root.append(svg("path", { class: "curve", d: path(points.map((p) => [sx(p.answered), sy(p[wanted])])), colour: colour(a) }));
      for (const p of points)
        root.append(told(sign(sx(p.answered), sy(p[wanted]), a.run, { class: `mark${p.valid ? "" : " hollow"}`, colour: colour(a) }), box,
          `${a.name}, ${p.point}\n${LOADS[wanted].name} ${LOADS[wanted].show(p[wanted])}\n${trim(p.answered)} answers a second`));
    }
    return root;
  });
}

function reliability() {
  const found = DATA.reliability[Number(byId("score").value)];
  const box = byId("plot-reliability");
  const names = Object.keys(found.sets);
  plot(box, (width) => {
    const share = { low: 0, high: 1, show: (v) => `${Math.round(v * 100)} %` };
    const { root, sx, sy } = frame(width, `Reliability of ${found.name}`, { ...share, name: "said to be harmless" }, share);
    root.append(svg("path", { class: "control", d: path([[sx(0), sy(0)], [sx(1), sy(1)]]) }));
    names.forEach((name, n) => {
      const tint = { colour: `var(--c${(n + 3) % 8})` };
      const bars = found.sets[name].filter((b) => b.n && b.predicted !== null && b.keep !== null);
      root.append(svg("path", { class: "curve", d: path(bars.map((b) => [sx(b.predicted), sy(b.keep)])), ...tint }));
      for (const b of bars) {
        if (b.keep_ci) root.append(svg("line", { class: "whisker", x1: sx(b.predicted), x2: sx(b.predicted), y1: sy(b.keep_ci[0]), y2: sy(b.keep_ci[1]), ...tint }));
        root.append(told(sign(sx(b.predicted), sy(b.keep), n, { class: "mark", ...tint }), box, `${name}\nsaid ${percent(b.predicted)}, found ${percent(b.keep)}\n${b.n} steps`));
      }
    });
    return root;
  });
  byId("reliability-note").replaceChildren(...names.map((name, n) => html("span", { colour: `var(--c${(n + 3) % 8})` }, html("i", { class: "dot" }), ` ${name}  `)));
}

function plots() {
  tradeoff();
  latency();
  levels();
  loads();
}

function legend() {
  const many = DATA.arms.filter((a) => a.colour === null).length;
  DATA.arms.forEach((a, n) => {
    if (a.colour === null) return;
    const change = (event) => { event.target.checked ? shown.add(n) : shown.delete(n); plots(); };
    byId("legend").append(html("label", { colour: colour(a) }, html("input", { type: "checkbox", checked: true, onchange: change }), html("i", { class: "dot" }), a.name));
  });
  if (!many) return;
  const change = (event) => {
    DATA.arms.forEach((a, n) => { if (a.colour === null) event.target.checked ? shown.add(n) : shown.delete(n); });
    plots();
  };
  byId("legend").append(html("label", { colour: "var(--many)" }, html("input", { type: "checkbox", checked: true, onchange: change }), html("i", { class: "dot" }), `${many} more`));
}

// Tables

function sortable(table) {
  const body = table.tBodies[0];
  const first = [...body.rows];
  table.querySelectorAll("thead th").forEach((head, column) => {
    const key = (row) => {
      const value = row.cells[column].dataset.sort;
      return value === undefined ? null : Number.isNaN(Number(value)) ? value : Number(value);
    };
    const sort = () => {
      const order = head.getAttribute("aria-sort");
      const next = order === "descending" ? "ascending" : order === "ascending" ? null : column ? "descending" : "ascending";
      const then = { descending: "ascending", ascending: column ? null : "descending" };
      const wanted = order ? then[order] : next;
      table.querySelectorAll("[aria-sort]").forEach((h) => h.removeAttribute("aria-sort"));
      if (wanted) head.setAttribute("aria-sort", wanted);
      const rows = [...first];
      // What was not measured stays at the end, whichever way.
      if (wanted) rows.sort((a, b) => {
        const [x, y] = [key(a), key(b)];
        if (x === null || y === null) return (x === null) - (y === null);
        return (x < y ? -1 : x > y ? 1 : 0) * (wanted === "ascending" ? 1 : -1);
      });
      body.append(...rows);
    };
    const name = head.textContent;
    head.textContent = "";
    head.append(html("button", { type: "button", onclick: sort }, name));
  });
}

// Timelines

let picked = 0;

function question() {
  const q = DATA.questions[picked];
  byId("question").value = String(picked);
  byId("detail").replaceChildren();
  byId("transcript").replaceChildren();
  const about = [q.level === null ? "" : `level ${q.level}`, `right answer: ${q.gold}`, q.pass === "latency" ? "one of the timed answers" : "times are of a pass with many answers at once"];
  byId("shown-question").replaceChildren(
    html("p", { class: "lead" }, `${q.why}; ${about.filter(Boolean).join("; ")}.`),
    html("div", { class: "asked", tabindex: "0" }, q.text),
  );
  const longest = Math.max(...q.generations.map((g) => g.seconds), 1e-9);
  byId("lanes").replaceChildren(...q.generations.map((g) => lane(g, longest)));
  if (q.left_out) byId("lanes").append(html("p", { class: "missing" }, `${q.left_out} generations are left out here: the page would grow too large.`));
}

function lane(g, longest) {
  const arm = DATA.arms[g.arm];
  const verdict = g.correct === null ? ["", "not graded"] : g.correct ? ["right", "✓ right"] : ["wrong", "✗ wrong"];
  const share = g.share === null ? "" : `target share ${percent(g.share)}`;
  const ended = g.finish === "end_of_text" ? "" : `ended by ${g.finish}`;
  const facts = [clock(g.seconds), `${g.tokens} tokens`, share, ended].filter(Boolean).join(" · ");
  const box = html("div", { class: "plot" });
  const out = html("section", { class: "lane", "aria-label": arm.name },
    html("h4", {}, arm.name, html("span", { class: verdict[0] }, `${verdict[1]}: ${g.answer}`), html("span", {}, facts),
      html("button", { type: "button", onclick: () => transcript(g, arm) }, "Read")),
    box);
  plot(box, (width) => bars(g, arm, width, longest));
  return out;
}

/** One generation: kept segments above, what was thrown away below, decisions and helpers between. */
function bars(g, arm, width, longest) {
  const x = (s) => (s / longest) * (width - 2) + 1;
  const height = 74;
  const root = svg("svg", { viewBox: `0 0 ${width} ${height}`, height, tabindex: "0", role: "group", "aria-label": `Timeline of ${arm.name}: ${g.segments.length} segments; arrow keys go from one to the next` });
  root.append(svg("line", { class: "grid", x1: 1, x2: width - 1, y1: 56, y2: 56 }));
  for (const t of ticks(0, longest, width < 480 ? 4 : 8))
    root.append(svg("line", { class: "axis", x1: x(t), x2: x(t), y1: 56, y2: 59 }), svg("text", { x: x(t), y: 71, "text-anchor": t ? "middle" : "start" }, t ? clock(t) : "0"));
  for (const h of g.helpers) root.append(svg("line", { class: "help", x1: x(h.from), x2: Math.max(x(h.to), x(h.from) + 1), y1: 31, y2: 31 }));
  const rects = g.segments.map((s, n) => {
    const from = s.first ?? s.from;
    const y = s.kept ? 6 : 36;
    if (s.from < from) root.append(svg("line", { class: "wait", x1: x(s.from), x2: x(from), y1: y + 9, y2: y + 9 }));
    const rect = svg("rect", { class: `seg ${s.role}${s.kept ? "" : " lost"}`, x: x(from), y, width: Math.max(1.5, x(s.to) - x(from)), height: 18, onclick: () => pick(n) });
    rect.append(svg("title", {}, `${s.role}, ${s.tokens} tokens${s.kept ? "" : ", thrown away"}`));
    root.append(rect);
    return rect;
  });
  for (const d of g.decisions) {
    const at = x(d.at);
    const mark = svg("path", { class: `gate${d.outcome ? "" : " no"}`, d: `M${at} 26L${at + 4} 30L${at} 34L${at - 4} 30Z` });
    mark.append(svg("title", {}, decided(d)));
    root.append(mark);
  }
  let at = -1;
  const pick = (n) => {
    at = Math.min(Math.max(0, n), rects.length - 1);
    document.querySelectorAll(".seg.picked").forEach((r) => r.classList.remove("picked"));
    rects[at]?.classList.add("picked");
    detail(g, arm, at);
  };
  root.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    pick(at + step);
  });
  return root;
}

function decided(d) {
  const limit = d.threshold === null ? "" : `, threshold ${trim(d.threshold)}`;
  return `${d.outcome ? "accepted" : "rejected"}: ${d.scorer ?? "score"} ${trim(d.score)}${limit}, gate ${d.gate}${d.reason ? ` (${d.reason})` : ""}`;
}

function detail(g, arm, n) {
  const s = g.segments[n];
  if (!s) return;
  const gates = g.decisions.filter((d) => d.node === s.id);
  const facts = [
    s.role + (s.kind === "write" ? "" : ` (${s.kind})`), s.kept ? "kept" : "thrown away", `${s.tokens} tokens`,
    s.joined > 1 ? `${s.joined} segments in a row` : "", `${clock(s.from)} to ${clock(s.to)}`,
    s.ended_by ? `ended by ${s.ended_by}${s.detail ? ` “${s.detail}”` : ""}` : s.detail || "", s.overshoot ? `${s.overshoot} tokens of overshoot` : "",
  ];
  byId("detail").replaceChildren(
    html("p", {}, html("strong", {}, `${arm.name}, segment ${n + 1} of ${g.segments.length}. `), facts.filter(Boolean).join(" · ")),
    ...gates.map((d) => html("p", {}, decided(d))),
    html("div", { class: "written" }, html("span", { class: s.role + (s.kept ? "" : " lost") }, s.text)),
  );
}

/** The whole generation as text, then its events as a table: what the timeline shows, for those who cannot see it. */
function transcript(g, arm) {
  const written = g.segments.filter((s) => s.kind !== "probe");
  const events = [
    ...g.segments.map((s) => [s.from, s.role, `${s.tokens} tokens${s.kept ? "" : ", thrown away"}, until ${clock(s.to)}${s.ended_by ? `, ended by ${s.ended_by}` : ""}`]),
    ...g.decisions.map((d) => [d.at, "gate", decided(d)]),
    ...g.helpers.map((h) => [h.from, h.by, `${h.tokens} tokens computed, until ${clock(h.to)}`]),
  ].sort((a, b) => a[0] - b[0]);
  const rows = events.map(([at, who, what]) => html("tr", {}, html("td", {}, clock(at)), html("td", { class: "text" }, who), html("td", { class: "text" }, what)));
  const cut = g.segments_left + g.decisions_left;
  const parts = [
    html("h3", { tabindex: "-1" }, `What ${arm.name} wrote`),
    html("div", { class: "written" }, ...written.map((s) => html("span", { class: s.role + (s.kept ? "" : " lost"), title: s.role }, s.text))),
    cut ? html("p", { class: "missing" }, `${g.segments_left} later segments and ${g.decisions_left} later decisions are left out.`) : null,
    html("details", {}, html("summary", {}, `${events.length} events in order`),
      html("div", { class: "scroll", tabindex: "0" }, html("table", {}, html("thead", {}, html("tr", {}, ...["when", "who", "what"].map((c) => html("th", { scope: "col" }, c)))), html("tbody", {}, ...rows)))),
  ];
  byId("transcript").replaceChildren(...parts.filter(Boolean));
  parts[0].focus();
}

function timelines() {
  DATA.questions.forEach((q, n) => byId("question").append(html("option", { value: n }, `${n + 1}. ${q.id}: ${q.why}`)));
  const go = (n) => { picked = (n + DATA.questions.length) % DATA.questions.length; question(); };
  byId("question").addEventListener("change", (event) => go(Number(event.target.value)));
  byId("previous").addEventListener("click", () => go(picked - 1));
  byId("next").addEventListener("click", () => go(picked + 1));
  question();
}

// Theme

function theme() {
  const button = byId("theme");
  const root = document.documentElement;
  const dark = () => (root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches);
  const name = () => { button.textContent = dark() ? "Light" : "Dark"; };
  button.hidden = false;
  button.addEventListener("click", () => { root.dataset.theme = dark() ? "light" : "dark"; name(); });
  name();
}

theme();
document.querySelectorAll("table.sortable").forEach(sortable);
const measured = Object.keys(MEASURES).filter((m) => DATA.arms.some((a) => a.accuracy && a.x[m]));
if (measured.length) {
  measure = measured[0];
  measured.forEach((m) => byId("measure").append(html("option", { value: m }, MEASURES[m].name)));
  byId("measure").addEventListener("change", (event) => { measure = event.target.value; tradeoff(); });
  byId("level-measure").addEventListener("change", levels);
  byId("tradeoff").hidden = false;
  legend();
}
const loaded = Object.keys(LOADS).filter((m) => DATA.arms.some((a) => a.load.some((p) => p.answered !== null && p[m] !== null)));
if (loaded.length) {
  loaded.forEach((m) => byId("load-measure").append(html("option", { value: m }, LOADS[m].name)));
  byId("load-measure").addEventListener("change", loads);
  byId("loads").hidden = false;
}
if (DATA.reliability.length) {
  DATA.reliability.forEach((r, n) => byId("score").append(html("option", { value: n }, r.name)));
  byId("score").addEventListener("change", reliability);
  byId("reliability").hidden = false;
  reliability();
}
plots();
if (DATA.questions.length) timelines();
