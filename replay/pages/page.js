// What is selected and what is searched for, the keys, and the page itself.

const state = { zoom: 1, shorten: true, selected: null, sought: "" };
const panel = element("section", { class: "panel", "aria-label": "Turn", tabindex: "-1", hidden: true });

/** Shows the panel of an entry; the address says which, so that it can be sent to somebody. */
function select(entry) {
  const sides = entry.turns
    .filter(Boolean)
    .map((turn) => ({ letter: turn.fixture.letter, fixture: turn.fixture, turn }));
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
  const step = (label, name, by) =>
    element(
      "button",
      {
        type: "button",
        "aria-label": name,
        title: name,
        disabled: !entries[entry.number + by],
        onclick: () => select(entries[entry.number + by]),
      },
      label,
    );
  panel.replaceChildren(
    element(
      "div",
      { class: "head" },
      element("h2", {}, title),
      entry ? [step("‹", "Previous turn", -1), step("›", "Next turn", 1)] : null,
      element("button", { type: "button", "aria-label": "Close", title: "Close", onclick: closePanel }, "×"),
    ),
    inside,
  );
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

function find(text) {
  state.sought = text.trim().toLowerCase();
  for (const entry of entries)
    entry.found = state.sought !== "" && entry.turns.some((turn) => turn && haystack(turn).includes(state.sought));
  showFound();
}

function showFound() {
  const n = entries.filter((entry) => entry.found).length;
  const output = document.getElementById("found");
  if (output) output.textContent = state.sought ? `${several(n, "turn")}` : "";
  document.body.classList.toggle("searching", state.sought !== "");
  for (const entry of entries) {
    entry.button?.classList.toggle("found", entry.found === true);
    for (const turn of entry.turns) turn?.bar?.classList.toggle("found", entry.found === true);
  }
  highlight(panel, state.sought);
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

panel.addEventListener("grown", () => highlight(panel, state.sought));
panel.addEventListener("toggle", () => highlight(panel, state.sought), true);
document.addEventListener("keydown", (event) => {
  const typing = event.target.matches?.("input");
  if (event.key === "Escape" && !panel.hidden) closePanel();
  else if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
  else if (event.key === "/") {
    event.preventDefault();
    document.querySelector("input[type=search]").focus();
  } else if (event.key === "+" || event.key === "=") zoomTo(state.zoom * 2);
  else if (event.key === "-") zoomTo(state.zoom / 2);
});

document.body.append(header(), tiles(), toolbar(), timeline, element("main", {}, list, panel));
drawList();
drawTimeline();
addEventListener("resize", drawTimeline);
const asked = /^#turn-(\d+)$/.exec(location.hash);
if (asked && entries[asked[1] - 1]) select(entries[asked[1] - 1]);
