// Elements, and numbers as people read them. Text from a recording only ever becomes a text node.

/** An element; `style` holds CSS properties, `onclick` and the like a listener, null and false children are left out. */
function element(name, properties = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(properties)) {
    if (value === null || value === undefined || value === false) continue;
    if (key === "style") for (const [property, set] of Object.entries(value)) made.style.setProperty(property, set);
    else if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else made.setAttribute(key, value === true ? "" : value);
  }
  made.append(...children.flat(2).filter((child) => child !== null && child !== undefined && child !== false));
  return made;
}

/** "0.240 s", "12.4 s", "3 min 20 s", "2 h 5 min". */
function seconds(value) {
  if (value === null || value === undefined) return "–";
  if (value < 1) return `${Math.round(value * 1000)} ms`;
  if (value < 99.95) return `${value.toFixed(value < 9.995 ? 2 : 1)} s`;
  const whole = Math.round(value);
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${whole % 60} s`;
  return `${Math.floor(whole / 3600)} h ${Math.round((whole % 3600) / 60)} min`;
}

/** "12,345". */
function count(value) {
  return value === null || value === undefined ? "–" : value.toLocaleString("en");
}

/** "3 turns", "1 turn". */
function several(number, noun) {
  return `${count(number)} ${noun}${number === 1 ? "" : "s"}`;
}

/** "2026-11-29 08:00 UTC"; "" for a time beyond the calendar. */
function moment(unix) {
  const date = new Date(unix * 1000);
  return Number.isNaN(date.getTime()) ? "" : `${date.toISOString().slice(0, 16).replace("T", " ")} UTC`;
}

function size(bytes) {
  return bytes < 1000
    ? `${bytes} bytes`
    : bytes < 1e6
      ? `${Math.round(bytes / 1000)} KB`
      : `${(bytes / 1e6).toFixed(1)} MB`;
}

/** Tokens a second, in words. */
function rate(value) {
  return value === null || value === undefined
    ? "–"
    : `${value < 10 ? value.toFixed(1) : count(Math.round(value))} tok/s`;
}

/** The middle of some numbers; null of none. */
function median(values) {
  const sorted = values.filter((value) => value !== null).sort((a, b) => a - b);
  if (!sorted.length) return null;
  const middle = sorted.length >> 1;
  return sorted.length % 2 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
}

function sum(values) {
  return values.reduce((total, value) => total + value, 0);
}

/** Names and values, as a list of facts. */
function facts(pairs) {
  const shown = pairs.filter(([, value]) => value !== null && value !== undefined && value !== "");
  return element(
    "dl",
    { class: "facts" },
    shown.map(([name, value]) => element("div", {}, element("dt", {}, name), element("dd", {}, value))),
  );
}
