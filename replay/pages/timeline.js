// The page of one recording, or of two side by side: the timeline, the list of turns, the search, and the panel.

const SMALLEST_ZOOM = 1, LARGEST_ZOOM = 256;
const NUMBER_PX = 22, TICK_PX = 90; // what a turn's number needs, and a tick's label
const shown = JSON.parse(document.getElementById("shown").textContent);
const fixtures = shown.fixtures.map((fixture, n) => prepared(fixture, shown.fixtures.length > 1 ? "AB"[n] : ""));
const entries = shown.pairs
  ? shown.pairs.map(({ a, b, differs }) => ({ turns: [fixtures[0].turns[a], fixtures[1].turns[b]], differs }))
  : fixtures[0].turns.map((turn) => ({ turns: [turn], differs: [] }));
entries.forEach((entry, n) => {
  entry.number = n;
  entry.turns.forEach((turn) => { if (turn) turn.entry = entry; });
});

const state = { zoom: 1, shorten: true, selected: null };

/** A fixture with what follows from it: numbers, rates, waits between turns, and the rows of its timeline. */
function prepared(fixture, letter) {
  fixture.letter = letter;
  const before = [];
  fixture.turns.forEach((turn, n) => {
    turn.number = n + 1;
    turn.fixture = fixture;
    const tokens = turn.usage?.output_tokens, saying = turn.took - turn.first;
    turn.rate = tokens > 1 && turn.first !== null && saying > 0 ? tokens / saying : null;
    const last = before[turn.track];
    turn.waited = last ? Math.max(0, turn.at - last.at - last.took) : null;
    turn.waitedFor = last?.said.some((item) => /_call$/.test(unpacked(item, fixture.blobs).type)) ? "for tools" : "idle";
    before[turn.track] = turn;
  });
  fixture.rows = fixture.tracks.map((track, n) => ({
    label: track.transport === "websocket" ? `session ${track.session}` : "POSTs",
    lane: track.transport === "websocket" ? track.lane : `from session ${track.session}`,
    turns: fixture.turns.filter((turn) => turn.track === n),
    marks: fixture.marks.filter((mark) => mark.track === n),
  }));
  const withTurns = new Set(fixture.turns.map((turn) => turn.session));
  const left = fixture.marks.filter((mark) => mark.track === null);
  for (const mark of left.filter((mark) => withTurns.has(mark.session))) {
    fixture.rows.find((row) => row.turns.some((turn) => turn.session === mark.session)).marks.push(mark);
  }
  for (const [number, session] of Object.entries(fixture.sessions)) {
    if (withTurns.has(Number(number))) continue;
    const marks = left.filter((mark) => mark.session === Number(number));
    const last = fixture.rows.at(-1);
    if (session.transport !== "websocket" && last?.refused) last.marks.push(...marks);
    else fixture.rows.push({ label: `session ${number}`, lane: "no turn", turns: [], marks, refused: session.transport !== "websocket" });
  }
  return fixture;
}

// --- what is above the timeline ---------------------------------------------------------------------------------

function header() {
  const title = (fixture) => element("h1", {}, fixture.letter ? element("span", { class: "letter" }, fixture.letter) : null, fixture.name);
  const line = (fixture) => {
    const { n_sessions, n_calls, n_bytes } = fixture.counts;
    const agents = [...new Set(Object.values(fixture.sessions).flatMap((session) => [session.agent, session.upstream && `relayed to ${session.upstream.split(" of ").at(-1)}`]).filter(Boolean))];
    const first = Math.min(...Object.values(fixture.sessions).map((session) => session.wall));
    const when = Number.isFinite(first) && Math.abs(first) < 8e12 ? `${new Date(first * 1000).toISOString().slice(0, 16).replace("T", " ")} UTC` : "";
    return element("p", {}, [several(n_sessions, "session"), several(fixture.turns.length, "turn"), several(n_calls, "tool call"), size(n_bytes), when, ...agents.slice(0, 4), fixture.whole ? "" : "cut off"].filter(Boolean).join(" · "));
  };
  return element("header", {}, fixtures.map((fixture) => element("div", {}, title(fixture), line(fixture))));
}

/** Each name with its value in every fixture. */
function tiles() {
  const each = (name, of) => element("div", { class: "tile" }, element("dt", {}, name), fixtures.map((fixture) => element("dd", {}, fixture.letter ? element("span", { class: "letter" }, fixture.letter) : null, of(fixture.turns))));
  const used = (name) => (turns) => count(turns.some((turn) => turn.usage) ? sum(turns.map((turn) => turn.usage?.[name] ?? 0)) : null);
  return element("dl", { class: "tiles" },
    each("Wall time", (turns) => seconds(extent(turns))),
    each("Model", (turns) => seconds(sum(turns.map((turn) => turn.took)))),
    each("Tools", (turns) => seconds(sum(turns.map((turn) => (turn.waitedFor === "for tools" ? turn.waited ?? 0 : 0))))),
    each("First token, median", (turns) => seconds(median(turns.map((turn) => turn.first)))),
    each("Rate, median", (turns) => rate(median(turns.map((turn) => turn.rate)))),
    each("Tokens in", used("input_tokens")),
    each("Cached", used("cached_tokens")),
    each("Tokens out", used("output_tokens")),
    shown.pairs ? element("div", { class: "tile" }, element("dt", {}, "Turns that differ"), element("dd", {}, `${entries.filter(isDifferent).length} of ${entries.length}`)) : null);
}

function extent(turns) {
  return turns.length ? Math.max(...turns.map((turn) => turn.at + turn.took)) - Math.min(...turns.map((turn) => turn.at)) : 0;
}

function isDifferent(entry) {
  return entry.differs.length > 0 || entry.turns.includes(undefined);
}

function toolbar() {
  const search = element("input", { type: "search", placeholder: "Search texts", "aria-label": "Search texts of all turns", autocomplete: "off", spellcheck: "false", oninput: () => find(search.value), onkeydown: (event) => { if (event.key === "Enter") nextFound(event.shiftKey ? -1 : 1); } });
  const zoom = (label, name, factor) => element("button", { type: "button", "aria-label": name, title: name, onclick: () => zoomTo(factor === 0 ? 1 : state.zoom * factor) }, label);
  const shorten = element("input", { type: "checkbox", checked: state.shorten, onchange: () => { state.shorten = shorten.checked; drawTimeline(); } });
  return element("div", { class: "toolbar", role: "search" },
    search, element("output", { id: "found", "aria-live": "polite" }),
    element("span", { class: "zoom", role: "group", "aria-label": "Zoom" }, zoom("−", "Zoom out", 0.5), zoom("Fit", "Fit to the width", 0), zoom("+", "Zoom in", 2)),
    element("label", {}, shorten, "Shorten waits"));
}

// --- the timeline -----------------------------------------------------------------------------------------------

const timeline = element("section", { class: "timeline", "aria-label": "Timeline" });

function drawTimeline() {
  const spans = fixtures.flatMap((fixture) => fixture.turns.map((turn) => [turn.at, turn.at + turn.took]));
  const end = Math.max(0.001, ...fixtures.flatMap((fixture) => [...fixture.turns.map((turn) => turn.at + turn.took), ...fixture.marks.map((mark) => mark.at)]));
  const scale = new Scale(spans, end, state.shorten);
  const lanes = element("div", { class: "lane" });
  const grid = element("div", { class: "grid", style: { "--zoom": state.zoom } }, element("div", { class: "row axis", "aria-hidden": "true" }, element("div", { class: "label" }), lanes));
  const { scrollLeft, scrollTop } = timeline;
  timeline.replaceChildren(grid);
  const width = lanes.clientWidth;
  const bar = (turn) => {
    const from = scale.at(turn.at), to = scale.at(turn.at + turn.took);
    const first = turn.first === null ? to : scale.at(turn.at + turn.first);
    return turn.bar = element("button", {
      type: "button", class: `bar ${turn.end}${isDifferent(turn.entry) ? " differs" : ""}`, tabindex: "-1",
      "aria-label": spoken(turn), title: spoken(turn), onclick: () => select(turn.entry),
      style: { left: share(from), width: share(to - from), "--first": to > from ? share((first - from) / (to - from)) : "0%" },
    }, (to - first) * width > NUMBER_PX ? String(turn.number) : null);
  };
  const wait = (turn) => turn.waited > 0 && element("span", { class: `wait ${turn.waitedFor === "idle" ? "idle" : "tools"}`, title: `${seconds(turn.waited)} ${turn.waitedFor}`, style: { left: share(scale.at(turn.at - turn.waited)), width: share(scale.at(turn.at) - scale.at(turn.at - turn.waited)) } });
  const dot = (fixture) => (mark) => element("button", { type: "button", class: `mark ${mark.kind}`, tabindex: "-1", "aria-label": `${markName(mark)} at ${seconds(mark.at)}`, title: markName(mark), style: { left: share(scale.at(mark.at)) }, onclick: () => selectMark(fixture, mark) });
  const row = (fixture) => ({ label, lane, turns, marks }) => element("div", { class: "row", role: "group", "aria-label": lane ? `${label}, ${lane}` : label },
    element("div", { class: "label", title: lane ?? label }, fixture.letter ? element("span", { class: "letter" }, fixture.letter) : null, label, lane ? element("small", {}, lane) : null),
    element("div", { class: "lane" }, turns.map(wait), turns.map(bar), marks.map(dot(fixture))));
  lanes.append(...axisMarks(scale, width, TICK_PX));
  grid.append(...fixtures.flatMap((fixture) => fixture.rows.map(row(fixture))));
  timeline.scrollTo(scrollLeft, scrollTop);
  const stops = [...grid.querySelectorAll("button")];
  if (stops.length) stops[0].tabIndex = 0;
  grid.addEventListener("keydown", (event) => move(event, grid, { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity }));
  showFound();
  showSelected();
}

function spoken(turn) {
  const parts = [`Turn ${turn.number}`, `${seconds(turn.took)}`, turn.first === null ? "no token" : `first token after ${seconds(turn.first)}`, turn.rate === null ? null : rate(turn.rate), ENDED[turn.end] ?? `ended by ${turn.end}`];
  return (turn.fixture.letter ? `${turn.fixture.letter}: ` : "") + parts.filter(Boolean).join(", ");
}

function markName(mark) {
  return { refused: "Refused request", lost: "Not replayable", "warm-up": "Warm-up", message: "Message" }[mark.kind];
}

function zoomTo(wanted) {
  const zoom = Math.max(SMALLEST_ZOOM, Math.min(LARGEST_ZOOM, wanted));
  const lanes = timeline.scrollWidth - timeline.clientWidth;
  const selected = state.selected?.turns.find(Boolean)?.bar;
  const centre = lanes > 0 ? (timeline.scrollLeft + timeline.clientWidth / 2) / timeline.scrollWidth : 0;
  state.zoom = zoom;
  drawTimeline();
  if (selected) state.selected.turns.find(Boolean).bar.scrollIntoView({ inline: "center", block: "nearest" });
  else timeline.scrollLeft = centre * timeline.scrollWidth - timeline.clientWidth / 2;
}

/** Moves the focus among the buttons below `root`; only the one that has it is a stop of the Tab key. */
function move(event, root, steps) {
  if (!(event.key in steps)) return;
  const stops = [...root.querySelectorAll("button")].filter((stop) => stop.tabIndex >= -1 && stop.closest("details") === null);
  const now = stops.indexOf(document.activeElement);
  if (now < 0) return;
  event.preventDefault();
  const next = stops[Math.max(0, Math.min(stops.length - 1, now + steps[event.key]))];
  for (const stop of stops) stop.tabIndex = stop === next ? 0 : -1;
  next.focus();
  next.scrollIntoView({ inline: "nearest", block: "nearest" });
}

// --- the list of turns ------------------------------------------------------------------------------------------

const list = element("nav", { class: "turns", "aria-label": "Turns" });

function drawList() {
  const groups = new Map();
  for (const entry of entries) {
    const turn = entry.turns.find(Boolean);
    const row = turn.fixture.rows[turn.track];
    if (!groups.has(row)) groups.set(row, []);
    groups.get(row).push(entry);
  }
  for (const [row, inside] of groups) {
    if (groups.size > 1) list.append(element("h2", {}, row.lane ? `${row.label}, ${row.lane}` : row.label));
    list.append(element("ol", {}, inside.map(listed)));
  }
  if (!entries.length) list.append(element("p", { class: "none" }, "No turn was recorded."));
  const first = list.querySelector("button");
  if (first) first.tabIndex = 0;
  list.addEventListener("keydown", (event) => move(event, list, { ArrowUp: -1, ArrowDown: 1, Home: -Infinity, End: Infinity }));
}

function listed(entry) {
  const turn = entry.turns.find(Boolean);
  const only = entry.turns.includes(undefined) ? `only in ${turn.fixture.letter}` : null;
  const numbers = entry.turns.filter(Boolean).map((each) => element("span", { class: "numbers" },
    each.fixture.letter ? element("span", { class: "letter" }, each.fixture.letter) : null,
    [each.first === null ? null : seconds(each.first), each.rate === null ? null : rate(each.rate), each.usage ? `${count(each.usage.output_tokens)} out` : null].filter(Boolean).join(" · ")));
  return element("li", {}, entry.button = element("button", { type: "button", class: `turn ${turn.end}`, tabindex: "-1", onclick: () => select(entry) },
    element("span", { class: "number" }, String(turn.number)),
    element("span", { class: "told" },
      element("span", { class: "asked" }, excerpt(turn.prompt.at(-1), turn.fixture.blobs)),
      element("span", { class: "said" }, turn.failure ?? (turn.said.filter((item) => unpacked(item, turn.fixture.blobs).type !== "reasoning").map((item) => excerpt(item, turn.fixture.blobs)).join("  ") || (turn.end === "open" ? "not finished" : "")))),
    numbers,
    entry.differs.length || only ? element("span", { class: "badges" }, only ? badge(only) : entry.differs.map(badge)) : null));
}

/** The beginning of an item, in one line. */
function excerpt(item, blobs) {
  if (item === undefined) return "";
  const { kind, name, text } = readItem(unpacked(item, blobs));
  const line = text.slice(0, 400).replace(/\s+/g, " ").trim().slice(0, 160);
  return kind === "call" ? `→ ${name} ${line}` : line;
}

// --- what is selected, and what is found ------------------------------------------------------------------------

const panel = element("section", { class: "panel", "aria-label": "Turn", tabindex: "-1", hidden: true });

/** Shows the panel of an entry; the address says which, so that it can be sent to somebody. */
function select(entry) {
  const sides = entry.turns.filter(Boolean).map((turn) => ({ letter: turn.fixture.letter, fixture: turn.fixture, turn }));
  const title = shown.pairs ? `Turn ${entry.number + 1}` : `Turn ${entry.turns[0].number}`;
  state.selected = entry;
  history.replaceState(null, "", `#turn-${entry.number + 1}`);
  openPanel(title, turnPanel(sides, entry.differs), entry);
}

function selectMark(fixture, mark) {
  state.selected = null;
  openPanel(markName(mark), markPanel(fixture, mark), null);
}

function openPanel(title, inside, entry) {
  const step = (label, name, by) => element("button", { type: "button", "aria-label": name, title: name, disabled: !entries[entry.number + by], onclick: () => select(entries[entry.number + by]) }, label);
  panel.replaceChildren(
    element("div", { class: "head" }, element("h2", {}, title),
      entry ? [step("‹", "Previous turn", -1), step("›", "Next turn", 1)] : null,
      element("button", { type: "button", "aria-label": "Close", title: "Close", onclick: closePanel }, "×")),
    inside);
  panel.hidden = false;
  panel.scrollTop = 0;
  document.body.classList.add("open");
  showSelected();
  showFound();
  panel.focus({ preventScroll: true });
}

function closePanel() {
  const entry = state.selected;
  state.selected = null;
  panel.hidden = true;
  document.body.classList.remove("open");
  history.replaceState(null, "", location.pathname + location.search);
  showSelected();
  entry?.button.focus();
}

function showSelected() {
  for (const entry of entries) {
    const on = entry === state.selected;
    entry.button?.toggleAttribute("aria-current", on);
    for (const turn of entry.turns) turn?.bar?.classList.toggle("selected", on);
  }
  const entry = state.selected;
  entry?.button?.scrollIntoView({ block: "nearest" });
  entry?.turns.find(Boolean)?.bar?.scrollIntoView({ inline: "nearest", block: "nearest" });
}

let sought = "";

function find(text) {
  sought = text.trim().toLowerCase();
  for (const entry of entries) entry.found = sought !== "" && entry.turns.some((turn) => turn && haystack(turn).includes(sought));
  showFound();
}

/** All texts of a turn, for the search; made when first needed. */
function haystack(turn) {
  return turn.haystack ??= [...turn.prompt, ...turn.said].map((item) => { const { name, text } = readItem(unpacked(item, turn.fixture.blobs)); return `${name}\n${text}`; }).concat(turn.model, turn.failure ?? "").join("\n").toLowerCase();
}

function showFound() {
  const n = entries.filter((entry) => entry.found).length;
  const output = document.getElementById("found");
  if (output) output.textContent = sought ? `${several(n, "turn")}` : "";
  document.body.classList.toggle("searching", sought !== "");
  for (const entry of entries) {
    entry.button?.classList.toggle("found", entry.found === true);
    for (const turn of entry.turns) turn?.bar?.classList.toggle("found", entry.found === true);
  }
  highlight(panel, sought);
}

/** Goes to the next turn that was found, after the selected one; round at the end. */
function nextFound(by) {
  const found = entries.filter((entry) => entry.found);
  if (!found.length) return;
  const now = state.selected?.number ?? (by > 0 ? -1 : entries.length);
  const next = by > 0 ? found.find((entry) => entry.number > now) : found.findLast((entry) => entry.number < now);
  const focused = document.activeElement;
  select(next ?? found.at(by > 0 ? 0 : -1));
  focused?.focus();
}

panel.addEventListener("grown", () => highlight(panel, sought));
panel.addEventListener("toggle", () => highlight(panel, sought), true);
document.addEventListener("keydown", (event) => {
  const typing = event.target.matches?.("input");
  if (event.key === "Escape" && !panel.hidden) closePanel();
  else if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
  else if (event.key === "/") { event.preventDefault(); document.querySelector("input[type=search]").focus(); }
  else if (event.key === "+" || event.key === "=") zoomTo(state.zoom * 2);
  else if (event.key === "-") zoomTo(state.zoom / 2);
});

document.body.append(header(), tiles(), toolbar(), timeline, element("main", {}, list, panel));
drawList();
drawTimeline();
addEventListener("resize", drawTimeline);
const asked = /^#turn-(\d+)$/.exec(location.hash);
if (asked && entries[asked[1] - 1]) select(entries[asked[1] - 1]);
