// The turns of a run: verdicts, paces beside the recorded ones, and what differs.

function turnList(pair) {
  const rows = turnPairs(pair);
  const longest = Math.max(
    0.001,
    ...rows
      .flat()
      .filter(Boolean)
      .flatMap(({ timings }) => [(timings.got.took_s ?? 0) + (overhead(timings) ?? 0), timings.recorded.took_s ?? 0]),
  );
  const lost = pair
    .filter(Boolean)
    .filter((run) => run.not_reached.length)
    .map((run) => element("p", { class: "none" }, letter(run.letter), `Not reached: ${run.not_reached.join(", ")}.`));
  return element(
    "div",
    {},
    element(
      "div",
      { class: "legend", "aria-hidden": "true" },
      ["overhead", "prefill", "tokens", "recorded"].map((name) =>
        element("span", { class: name }, name === "prefill" ? "first token" : name),
      ),
    ),
    element(
      "ol",
      { class: "driven" },
      rows.map((turns) => element("li", {}, turnDetails(pair, turns, longest))),
    ),
    lost,
  );
}

function turnDetails(pair, turns, longest) {
  const turn = turns.find(Boolean);
  const run = pair[turns.indexOf(turn)];
  const lines = turns.filter(Boolean).map((each) =>
    element(
      "span",
      { class: "line" },
      element(
        "span",
        { class: "verdictmark" },
        letter(each.letter),
        element("span", { class: `badge ${each.verdict}` }, each.verdict),
      ),
      paceBar(each.timings, longest),
      element(
        "span",
        { class: "numbers" },
        [seconds(each.timings.got.ttft_s), seconds(each.timings.got.took_s), rate(each.timings.got.tokens_per_s)].map(
          (value) => element("span", {}, value),
        ),
      ),
    ),
  );
  const summary = element(
    "summary",
    {},
    element("span", { class: "number" }, String(turn.turn)),
    element("span", { class: "lines" }, lines),
    changed(turns) ? element("span", { class: "badge failed" }, "changed") : null,
  );
  const details = element("details", { id: anchor(run, turn) }, summary);
  details.addEventListener("toggle", () => {
    if (details.open && details.children.length === 1) details.append(...turns.filter(Boolean).map(findings));
  });
  return details;
}

/** The times of a turn to the run's scale: overhead, until the first token, until the end; the recorded ones below. */
function paceBar({ got, recorded, overhead_before_s: before }, longest) {
  const part = (name, value) =>
    value > 0 ? element("i", { class: name, style: { width: share(value / longest) } }) : null;
  const parts = (pace) => [
    part("prefill", pace.ttft_s ?? pace.took_s),
    pace.ttft_s === null ? null : part("tokens", (pace.took_s ?? pace.ttft_s) - pace.ttft_s),
  ];
  return element(
    "span",
    {
      class: "pacebar",
      role: "img",
      "aria-label": `first token after ${seconds(got.ttft_s)}, recorded ${seconds(recorded.ttft_s)}; took ${seconds(got.took_s)}, recorded ${seconds(recorded.took_s)}`,
    },
    element("span", { class: "now" }, part("overhead", before), parts(got)),
    element("span", { class: "recorded" }, parts(recorded)),
  );
}

/** What differs in a turn, and all of its numbers. */
function findings(turn) {
  const { got, recorded } = turn.timings;
  const both = (name, read, field) => [
    name,
    got[field] === null && recorded[field] === null
      ? null
      : [read(got[field]), element("small", {}, `recorded ${read(recorded[field])}`)],
  ];
  return element(
    "div",
    { class: "findings" },
    turn.letter ? element("h3", { class: "letter" }, `${turn.letter} · ${turn.verdict}`) : null,
    turn.failure
      ? element("p", { class: "failure" }, `${turn.failure.status} ${turn.failure.code}: ${turn.failure.message}`)
      : null,
    turn.structured && !turn.structured.valid
      ? element("p", { class: "failure" }, `Not valid by its schema: ${turn.structured.problem}`)
      : null,
    turn.finish_recorded === turn.finish_got
      ? null
      : element(
          "p",
          { class: "failure" },
          `Recorded end: ${turn.finish_recorded ?? "none"}; this one: ${turn.finish_got ?? "none"}.`,
        ),
    turn.text.equal ? null : element("div", {}, element("h3", {}, "Text"), quoted(turn.text)),
    turn.calls.map((call) =>
      element(
        "div",
        {},
        element("h3", {}, "Call", element("span", { class: `badge ${call.verdict}` }, call.verdict)),
        beside(
          call.recorded && `${call.recorded.name} ${call.recorded.arguments}`,
          call.got && `${call.got.name} ${call.got.arguments}`,
        ),
      ),
    ),
    facts([
      both("First token after", seconds, "ttft_s"),
      both("Took", seconds, "took_s"),
      both("Rate", rate, "tokens_per_s"),
      both("Between reads, median", seconds, "itl_p50_s"),
      both("99th percentile", seconds, "itl_p99_s"),
      [
        "Overhead before, after",
        turn.timings.overhead_before_s === null
          ? null
          : `${seconds(turn.timings.overhead_before_s)}, ${seconds(turn.timings.overhead_after_s)}`,
      ],
      both("Tokens in", count, "input_tokens"),
      both("Cached", count, "cached_tokens"),
      both("Tokens out", count, "output_tokens"),
      ["Waited before", seconds(turn.timings.waited_s)],
      ["Recorded at", turn.where],
    ]),
  );
}

function quoted(text) {
  const cut = (whole, quotation) =>
    (text.quoted_from ? "…" : "") + quotation + (text.quoted_from + quotation.length < whole ? "…" : "");
  return beside(cut(text.n_recorded, text.recorded), cut(text.n_got, text.got));
}

/** Two texts, what each has alone marked; null is a text that is not there. */
function beside(recorded, came) {
  const [mine, theirs] = differences(recorded ?? "", came ?? "");
  const side = (name, text, tag, ranges) =>
    element(
      "div",
      {},
      element("h3", {}, name),
      text ? block(text, { tag, ranges }) : element("p", { class: "none" }, "nothing"),
    );
  return element("div", { class: "sides" }, side("Recorded", recorded, "del", mine), side("Came", came, "ins", theirs));
}
