// The list of turns: what each was asked and what it answered, in a line each.

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
  list.addEventListener("keydown", (event) =>
    move(event, list, { ArrowUp: -1, ArrowDown: 1, Home: -Infinity, End: Infinity }),
  );
}

function listed(entry) {
  const turn = entry.turns.find(Boolean);
  const only = entry.turns.includes(undefined) ? `only in ${turn.fixture.letter}` : null;
  const numbers = entry.turns
    .filter(Boolean)
    .map((each) =>
      element(
        "span",
        { class: "numbers" },
        each.fixture.letter ? element("span", { class: "letter" }, each.fixture.letter) : null,
        [
          each.first === null ? null : seconds(each.first),
          each.rate === null ? null : rate(each.rate),
          each.usage ? `${count(each.usage.output_tokens)} out` : null,
        ]
          .filter(Boolean)
          .join(" · "),
      ),
    );
  return element(
    "li",
    {},
    (entry.button = element(
      "button",
      { type: "button", class: `turn ${turn.end}`, tabindex: "-1", onclick: () => select(entry) },
      element("span", { class: "number" }, String(turn.number)),
      element(
        "span",
        { class: "told" },
        element("span", { class: "asked" }, excerpt(turn.prompt.at(-1), turn.fixture.blobs)),
        element(
          "span",
          { class: "said" },
          turn.failure ??
            (turn.said
              .filter((item) => unpacked(item, turn.fixture.blobs).type !== "reasoning")
              .map((item) => excerpt(item, turn.fixture.blobs))
              .join("  ") ||
              (turn.end === "open" ? "not finished" : "")),
        ),
      ),
      numbers,
      entry.differs.length || only
        ? element("span", { class: "badges" }, only ? badge(only) : entry.differs.map(badge))
        : null,
    )),
  );
}

/** The beginning of an item, in one line. */
function excerpt(item, blobs) {
  if (item === undefined) return "";
  const { kind, name, text } = readItem(unpacked(item, blobs));
  const line = text.slice(0, 400).replace(/\s+/g, " ").trim().slice(0, 160);
  return kind === "call" ? `→ ${name} ${line}` : line;
}
