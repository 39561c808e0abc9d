// Charts and tables of widgets: data that the page draws, from the manifest or a tool of the same plugin.

import { complaint, h, show } from "./dom.js";
import { table } from "./lists.js";

const MOST_ROWS = 200;
const MOST_POINTS = 200;  // of one series
const MOST_SERIES = 8;
const [WIDTH, HEIGHT] = [480, 200];
const SVG = "http://www.w3.org/2000/svg";

/** Draws a widget, and again after each `refreshSeconds`, until `signal`. */
export async function drawn(place, found, call, signal) {
  const { config } = found;
  const draw = async () => {
    try {
      show(place, (found.type === "chart" ? chart : rows)(found.title, { ...config, ...(await fresh(config, call)) }));
    } catch (problem) {
      show(place, complaint(problem.message));
    }
  };
  await draw();
  if (!config.source || !config.refreshSeconds) return;
  const timer = setInterval(() => { if (!document.hidden) draw(); }, config.refreshSeconds * 1000);
  signal.addEventListener("abort", () => clearInterval(timer));
}

async function fresh(config, call) {
  if (!config.source) return {};
  const { success, output, error } = await call(config.source.tool, config.source.args);
  if (!success) throw new Error(`${config.source.tool}: ${error || "it failed"}`);
  const said = JSON.parse(output);
  return Array.isArray(said) ? { rows: said } : said;
}

function listed(value, most) {
  return Array.isArray(value) ? value.slice(0, most) : [];
}

const text = (value) => (value === null || value === undefined ? "" : typeof value === "object" ? JSON.stringify(value)
  : String(value));

function rows(title, { columns, rows: found }) {
  const all = listed(found, MOST_ROWS).filter((row) => row && typeof row === "object");
  const given = listed(columns, 50);
  const keys = given.length ? given : Object.keys(all[0] || {}).map((key) => ({ key }));
  return table(title, keys.map(({ key, label }) => text(label || key)),
    all.map((row) => keys.map(({ key }) => (Object.hasOwn(row, key) ? text(row[key]) : ""))), "There is nothing to show.");
}

function drawing(tag, attributes, ...children) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

function chart(title, { kind, labels, series }) {
  const lines = listed(series, MOST_SERIES).map((one) => ({ label: text(one?.label),
    data: listed(one?.data, MOST_POINTS).map(Number).map((each) => (Number.isFinite(each) ? each : 0)) }));
  const names = listed(labels, MOST_POINTS).map(text);
  const count = Math.max(0, ...lines.map(({ data }) => data.length));
  if (!count) return h("p", {}, "There is nothing to show.");
  const shapes = { line, bar, pie }[kind] || bar;
  return [drawing("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": `${title}, as a chart`, class: "chart" },
    ...shapes(lines, count)),
  h("details", {}, h("summary", {}, "As a table"), table(title, ["", ...lines.map(({ label }, at) => label || `Series ${at + 1}`)],
    Array.from({ length: count }, (_, at) => [names[at] ?? String(at + 1), ...lines.map(({ data }) => text(data[at]))]), ""))];
}

/** Returns a function from a value to its distance from the top. */
function scale(lines) {
  const all = lines.flatMap(({ data }) => data);
  const [low, high] = [Math.min(0, ...all), Math.max(0, ...all)];
  return (value) => HEIGHT - ((value - low) / (high - low || 1)) * HEIGHT;
}

function bar(lines, count) {
  const at = scale(lines);
  const width = WIDTH / (count * lines.length + count);
  return lines.flatMap(({ data }, series) => data.map((value, place) => drawing("rect", {
    x: (place * (lines.length + 1) + series + 0.5) * width, y: Math.min(at(value), at(0)), width,
    height: Math.abs(at(value) - at(0)), class: `fill series-${series}` })));
}

function line(lines, count) {
  const at = scale(lines);
  return lines.map(({ data }, series) => drawing("polyline", { class: `stroke series-${series}`,
    points: data.map((value, place) => `${(place / Math.max(1, count - 1)) * WIDTH},${at(value)}`).join(" ") }));
}

/** Draws the first series only, as a pie has one. */
function pie([{ data }]) {
  const whole = data.reduce((sum, value) => sum + Math.max(0, value), 0) || 1;
  const radius = HEIGHT / 2;
  const point = (turn) => `${WIDTH / 2 + radius * Math.sin(turn)} ${radius - radius * Math.cos(turn)}`;
  let turn = 0;
  return data.map((value, place) => {
    const from = turn;
    turn += Math.min(Math.max(0, value) / whole, 0.99999) * 2 * Math.PI;
    return drawing("path", { class: `fill series-${place % MOST_SERIES}`,
      d: `M ${WIDTH / 2} ${radius} L ${point(from)} A ${radius} ${radius} 0 ${turn - from > Math.PI ? 1 : 0} 1 ${point(turn)} Z` });
  });
}
