// The page of a drive's report, or of two side by side: runs, timelines, and a line for every turn.

const TICK_PX = 90; // what the label of a tick needs
const shown = JSON.parse(document.getElementById("shown").textContent);
const reports = shown.reports.map((report, n) => ({ ...report, letter: shown.reports.length > 1 ? "AB"[n] : "" }));
const runs = paired(reports.map(runsOf), (run) => `${run.fixture}\n${run.repeat}`);

/** The runs of a report, each turn with its verdict, its timings and the letter of its report. */
function runsOf({ verdicts, timings, letter }) {
  return verdicts.runs.map((run, n) => ({
    ...run,
    letter,
    timings: timings.runs[n],
    turns: run.turns.map((turn, k) => ({ ...turn, letter, timings: timings.runs[n].turns[k] })),
  }));
}

/** What has the same key in each list stands together: an array with a place for every list. */
function paired(lists, key) {
  const rows = new Map();
  lists.forEach((list, n) => list.forEach((each) => {
    if (!rows.has(key(each))) rows.set(key(each), lists.map(() => undefined));
    rows.get(key(each))[n] = each;
  }));
  return [...rows.values()];
}

function letter(name) {
  return name ? element("span", { class: "letter" }, name) : null;
}

// --- the whole --------------------------------------------------------------------------------------------------

function header() {
  return element("header", {}, reports.map(({ setup, verdicts, timings, letter: name }) => element("div", {},
    element("h1", {}, letter(name), setup.target),
    element("p", {}, [
      several(verdicts.fixtures.length, "fixture"), several(verdicts.runs.length, "run"), verdicts.mode, verdicts.design,
      setup.model ? `model ${setup.model}` : "", `tool time ${setup.tool_time}`, `${setup.parallel} at once`,
      `${new Date(timings.began * 1000).toISOString().slice(0, 16).replace("T", " ")} UTC`, `Turntape ${setup.turntape}`,
    ].filter(Boolean).join(" · ")))));
}

function tiles() {
  const turnsOf = (report) => report.timings.runs.flatMap((run) => run.turns);
  const each = (name, of) => element("div", { class: "tile" }, element("dt", {}, name), reports.map((report) => element("dd", {}, letter(report.letter), of(report))));
  const recorded = (value, before) => [value, element("small", {}, `recorded ${before}`)];
  const middle = (report, of, read) => recorded(read(median(turnsOf(report).map((turn) => of(turn.got)))), read(median(turnsOf(report).map((turn) => of(turn.recorded)))));
  return element("dl", { class: "tiles" },
    each("Turns", (report) => count(sum(Object.values(report.verdicts.counts)))),
    each("Verdicts", (report) => Object.entries(report.verdicts.counts).map(([verdict, n]) => element("span", { class: `badge ${verdict}` }, `${count(n)} ${verdict}`))),
    each("First token, median", (report) => middle(report, (pace) => pace.ttft_s, seconds)),
    each("Rate, median", (report) => middle(report, (pace) => pace.tokens_per_s, rate)),
    each("Overhead, median", (report) => seconds(median(turnsOf(report).map(overhead)))),
    each("Wall time of runs", (report) => recorded(seconds(sum(report.timings.runs.map((run) => run.wall_s))), seconds(sum(report.timings.runs.map((run) => run.recorded_wall_s))))),
    each("Tokens in", (report) => count(sum(report.timings.runs.map((run) => run.input_tokens)))),
    each("Cached", (report) => count(sum(report.timings.runs.map((run) => run.cached_tokens)))),
    each("Tokens out", (report) => count(sum(report.timings.runs.map((run) => run.output_tokens)))),
    reports.length > 1 ? element("div", { class: "tile" }, element("dt", {}, "Verdicts that changed"), element("dd", {}, count(sum(runs.map((pair) => turnPairs(pair).filter(changed).length))))) : null);
}

/** What the server added to a turn; null where there is no backend of our own to tell it apart. */
function overhead(timings) {
  return timings.overhead_before_s === null ? null : timings.overhead_before_s + (timings.overhead_after_s ?? 0);
}

function turnPairs(pair) {
  return paired(pair.map((run) => run?.turns ?? []), (turn) => turn.where || `beyond the recording ${turn.turn}`);
}

function changed(turns) {
  return turns.length > 1 && turns[0]?.verdict !== turns[1]?.verdict;
}

// --- a run ------------------------------------------------------------------------------------------------------

function runSection(pair, n) {
  const run = pair.find(Boolean);
  const summary = element("summary", {}, element("h2", {}, run.fixture, run.repeat > 1 ? `, time ${run.repeat}` : ""),
    pair.map((each) => each && element("span", { class: "counts" }, letter(each.letter),
      Object.entries(each.counts).map(([verdict, many]) => element("span", { class: `badge ${verdict}` }, `${many} ${verdict}`)),
      ` ${seconds(each.timings.wall_s)}, recorded ${seconds(each.timings.recorded_wall_s)}`)));
  const details = element("details", { class: "run" }, summary);
  details.addEventListener("toggle", () => {
    if (!details.open || details.children.length > 1) return;
    const line = element("section", { class: "timeline", "aria-label": `Timeline of ${run.fixture}` });
    details.append(line, pair.flatMap((each) => each?.departures.map((departure) => departed(each, departure)) ?? []).reduce((all, each) => (all.append(each), all), document.createDocumentFragment()), turnList(pair));
    drawTimeline(line, pair);
    new ResizeObserver(() => drawTimeline(line, pair)).observe(details);
  });
  if (n === 0) details.open = true;
  return details;
}

/** A lane for every conversation of each report: from the request to the first token, to the end. */
function drawTimeline(root, pair) {
  const present = pair.filter(Boolean);
  const times = present.flatMap((run) => run.timings.turns.map((turn) => [turn.began_s, turn.began_s + (turn.got.took_s ?? 0)]));
  const scale = new Scale(times, Math.max(0.001, ...times.map(([, end]) => end)), true);
  const axis = element("div", { class: "lane" });
  const grid = element("div", { class: "grid", style: { "--zoom": 1 } }, element("div", { class: "row axis", "aria-hidden": "true" }, element("div", { class: "label" }), axis));
  root.replaceChildren(grid);
  axis.append(...axisMarks(scale, axis.clientWidth, TICK_PX));
  for (const run of present) {
    for (const thread of new Set(run.turns.map((turn) => turn.thread))) {
      const bars = run.turns.filter((turn) => turn.thread === thread).map((turn) => {
        const { began_s: began, got } = turn.timings;
        const [from, to] = [scale.at(began), scale.at(began + (got.took_s ?? 0))];
        const first = got.ttft_s === null ? to : scale.at(began + got.ttft_s);
        return element("a", { class: `bar ${turn.verdict === "failed" ? "failed" : ""}`, href: `#${anchor(run, turn)}`, title: told(turn), "aria-label": told(turn), onclick: () => openTurn(run, turn), style: { left: share(from), width: share(to - from), "--first": to > from ? share((first - from) / (to - from)) : "0%" } });
      });
      grid.append(element("div", { class: "row", role: "group", "aria-label": `${run.letter} conversation ${thread}` }, element("div", { class: "label" }, letter(run.letter), `conversation ${thread}`), element("div", { class: "lane" }, bars)));
    }
  }
}

function told(turn) {
  return `Turn ${turn.turn}: ${turn.verdict}, ${seconds(turn.timings.got.took_s)}, first token after ${seconds(turn.timings.got.ttft_s)}`;
}

function anchor(run, turn) {
  return `run-${run.run}-turn-${turn.turn}`;
}

function openTurn(run, turn) {
  const details = document.getElementById(anchor(run, turn));
  if (details) details.open = true;
}

function departed(run, { turn, where, reason, expected, got }) {
  const calls = (list) => list.map(({ name, arguments: text }) => `${name} ${text}`).join("\n") || "no call";
  return element("section", { class: "departure" }, element("h3", {}, letter(run.letter), `Departed at turn ${turn}, ${where}`), element("p", {}, reason),
    element("div", { class: "sides" }, element("div", {}, element("h3", {}, "Recorded"), block(calls(expected))), element("div", {}, element("h3", {}, "Came"), block(calls(got)))));
}

// --- the turns of a run -----------------------------------------------------------------------------------------

function turnList(pair) {
  const rows = turnPairs(pair);
  const longest = Math.max(0.001, ...rows.flat().filter(Boolean).flatMap(({ timings }) => [(timings.got.took_s ?? 0) + (overhead(timings) ?? 0), timings.recorded.took_s ?? 0]));
  const lost = pair.filter(Boolean).filter((run) => run.not_reached.length).map((run) => element("p", { class: "none" }, letter(run.letter), `Not reached: ${run.not_reached.join(", ")}.`));
  return element("div", {}, element("div", { class: "legend", "aria-hidden": "true" }, ["overhead", "prefill", "tokens", "recorded"].map((name) => element("span", { class: name }, name === "prefill" ? "first token" : name))),
    element("ol", { class: "driven" }, rows.map((turns) => element("li", {}, turnDetails(pair, turns, longest)))), lost);
}

function turnDetails(pair, turns, longest) {
  const turn = turns.find(Boolean);
  const run = pair[turns.indexOf(turn)];
  const lines = turns.filter(Boolean).map((each) => element("span", { class: "line" },
    element("span", { class: "verdictmark" }, letter(each.letter), element("span", { class: `badge ${each.verdict}` }, each.verdict)),
    paceBar(each.timings, longest),
    element("span", { class: "numbers" }, [seconds(each.timings.got.ttft_s), seconds(each.timings.got.took_s), rate(each.timings.got.tokens_per_s)].map((value) => element("span", {}, value)))));
  const summary = element("summary", {}, element("span", { class: "number" }, String(turn.turn)), element("span", { class: "lines" }, lines), changed(turns) ? element("span", { class: "badge failed" }, "changed") : null);
  const details = element("details", { id: anchor(run, turn) }, summary);
  details.addEventListener("toggle", () => {
    if (details.open && details.children.length === 1) details.append(...turns.filter(Boolean).map(findings));
  });
  return details;
}

/** The times of a turn to the run's scale: overhead, until the first token, until the end; the recorded ones below. */
function paceBar({ got, recorded, overhead_before_s: before }, longest) {
  const part = (name, value) => value > 0 ? element("i", { class: name, style: { width: share(value / longest) } }) : null;
  const parts = (pace) => [part("prefill", pace.ttft_s ?? pace.took_s), pace.ttft_s === null ? null : part("tokens", (pace.took_s ?? pace.ttft_s) - pace.ttft_s)];
  return element("span", { class: "pacebar", role: "img", "aria-label": `first token after ${seconds(got.ttft_s)}, recorded ${seconds(recorded.ttft_s)}; took ${seconds(got.took_s)}, recorded ${seconds(recorded.took_s)}` },
    element("span", { class: "now" }, part("overhead", before), parts(got)), element("span", { class: "recorded" }, parts(recorded)));
}

/** What differs in a turn, and all of its numbers. */
function findings(turn) {
  const { got, recorded } = turn.timings;
  const both = (name, read, field) => [name, got[field] === null && recorded[field] === null ? null : [read(got[field]), element("small", {}, `recorded ${read(recorded[field])}`)]];
  return element("div", { class: "findings" },
    turn.letter ? element("h3", { class: "letter" }, `${turn.letter} · ${turn.verdict}`) : null,
    turn.failure ? element("p", { class: "failure" }, `${turn.failure.status} ${turn.failure.code}: ${turn.failure.message}`) : null,
    turn.structured && !turn.structured.valid ? element("p", { class: "failure" }, `Not valid by its schema: ${turn.structured.problem}`) : null,
    turn.finish_recorded === turn.finish_got ? null : element("p", { class: "failure" }, `Recorded end: ${turn.finish_recorded ?? "none"}; this one: ${turn.finish_got ?? "none"}.`),
    turn.text.equal ? null : element("div", {}, element("h3", {}, "Text"), quoted(turn.text)),
    turn.calls.map((call) => element("div", {}, element("h3", {}, "Call", element("span", { class: `badge ${call.verdict}` }, call.verdict)),
      beside(call.recorded && `${call.recorded.name} ${call.recorded.arguments}`, call.got && `${call.got.name} ${call.got.arguments}`))),
    facts([
      both("First token after", seconds, "ttft_s"), both("Took", seconds, "took_s"), both("Rate", rate, "tokens_per_s"),
      both("Between reads, median", seconds, "itl_p50_s"), both("99th percentile", seconds, "itl_p99_s"),
      ["Overhead before, after", turn.timings.overhead_before_s === null ? null : `${seconds(turn.timings.overhead_before_s)}, ${seconds(turn.timings.overhead_after_s)}`],
      both("Tokens in", count, "input_tokens"), both("Cached", count, "cached_tokens"), both("Tokens out", count, "output_tokens"),
      ["Waited before", seconds(turn.timings.waited_s)], ["Recorded at", turn.where],
    ]));
}

function quoted(text) {
  const cut = (whole, quotation) => (text.quoted_from ? "…" : "") + quotation + (text.quoted_from + quotation.length < whole ? "…" : "");
  return beside(cut(text.n_recorded, text.recorded), cut(text.n_got, text.got));
}

/** Two texts, what each has alone marked; null is a text that is not there. */
function beside(recorded, came) {
  const [mine, theirs] = differences(recorded ?? "", came ?? "");
  const side = (name, text, tag, ranges) => element("div", {}, element("h3", {}, name), text ? block(text, { tag, ranges }) : element("p", { class: "none" }, "nothing"));
  return element("div", { class: "sides" }, side("Recorded", recorded, "del", mine), side("Came", came, "ins", theirs));
}

document.body.append(header(), tiles());
for (const report of reports) {
  const left = report.verdicts.fixtures.flatMap((fixture) => fixture.left_out);
  if (left.length) document.body.append(element("details", {}, element("summary", {}, letter(report.letter), `${several(left.length, "recorded turn")} left out`), element("ul", {}, left.map(({ where, reason }) => element("li", {}, `${where}: ${reason}`)))));
}
document.body.append(element("main", { class: "runs" }, runs.map(runSection)));
