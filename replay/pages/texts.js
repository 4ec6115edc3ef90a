// Texts: cut while they are huge, compared word by word, and found by what is searched for.

const LONG = 4000; // characters of a text that are shown at once
const MOST_WORDS = 1500; // of a text that is compared word by word; a longer one is compared at its ends only
const LEAST_COMMON = 0.3; // of the words of the longer text: with fewer, texts are other texts and not changed ones

/** A text as it is, in a block; a long one is cut, and a button shows the rest. */
function block(text, marks = null) {
  const pre = element("pre", {}, ...pieces(text.slice(0, LONG), marks));
  if (text.length <= LONG) return pre;
  const more = element(
    "button",
    {
      type: "button",
      class: "more",
      onclick: () => {
        pre.replaceChildren(...pieces(text, marks));
        more.remove();
        pre.dispatchEvent(new Event("grown", { bubbles: true }));
      },
    },
    `Show all ${count(text.length)} characters`,
  );
  return element("div", {}, pre, more);
}

/** `text` with the ranges of `marks` (start, end, in characters) in elements of their own. */
function pieces(text, marks) {
  if (!marks) return [text];
  const made = [];
  let at = 0;
  for (const [start, end] of marks.ranges) {
    if (start >= text.length) break;
    made.push(text.slice(at, start), element(marks.tag, {}, text.slice(start, end)));
    at = Math.min(end, text.length);
  }
  made.push(text.slice(at));
  return made;
}

/** Where two texts differ, by words: the ranges of each that the other does not have. */
function differences(one, other) {
  const a = words(one),
    b = words(other);
  let start = 0,
    aEnd = a.length,
    bEnd = b.length;
  while (start < aEnd && start < bEnd && a[start] === b[start]) start += 1;
  while (aEnd > start && bEnd > start && a[aEnd - 1] === b[bEnd - 1]) {
    aEnd -= 1;
    bEnd -= 1;
  }
  const isLong = Math.max(aEnd, bEnd) - start > MOST_WORDS;
  let kept = isLong ? [] : common(a.slice(start, aEnd), b.slice(start, bEnd));
  const nCommon = start + a.length - aEnd + kept.filter(([n]) => a[start + n].trim()).length;
  if (nCommon < LEAST_COMMON * Math.max(a.length, b.length)) kept = [];
  const inBoth = [new Set(), new Set()];
  for (const [i, j] of kept) {
    inBoth[0].add(start + i);
    inBoth[1].add(start + j);
  }
  return [ranges(a, start, aEnd, inBoth[0]), ranges(b, start, bEnd, inBoth[1])];
}

function words(text) {
  return text.match(/[\p{L}\p{N}_]+|\s+|[^\p{L}\p{N}_\s]/gu) ?? [];
}

/** Pairs of indices of a longest common subsequence: Myers, "An O(ND) Difference Algorithm", 1986. */
function common(a, b) {
  const most = a.length + b.length;
  const furthest = new Int32Array(2 * most + 2),
    trail = [];
  for (let d = 0; d <= most; d += 1) {
    trail.push(furthest.slice(most - d, most + d + 2));
    for (let k = -d; k <= d; k += 2) {
      const down = k === -d || (k !== d && furthest[most + k - 1] < furthest[most + k + 1]);
      let x = down ? furthest[most + k + 1] : furthest[most + k - 1] + 1;
      while (x < a.length && x - k < b.length && a[x] === b[x - k]) x += 1;
      furthest[most + k] = x;
      if (x >= a.length && x - k >= b.length) return backwards(a, b, trail);
    }
  }
  return [];
}

function backwards(a, b, trail) {
  const pairs = [];
  let x = a.length,
    y = b.length;
  for (let d = trail.length - 1; d >= 0; d -= 1) {
    const at = (k) => trail[d][k + d];
    const k = x - y;
    const down = k === -d || (k !== d && at(k - 1) < at(k + 1));
    const before = d === 0 ? 0 : down ? k + 1 : k - 1;
    const beforeX = d === 0 ? 0 : at(before);
    const beforeY = beforeX - before;
    while (x > beforeX && y > beforeY) {
      x -= 1;
      y -= 1;
      pairs.push([x, y]);
    }
    x = beforeX;
    y = beforeY;
  }
  return pairs.reverse();
}

/** Ranges, in characters, of the words from `start` to `end` that are not among `kept`; neighbours are joined. */
function ranges(all, start, end, kept) {
  const found = [];
  let at = sum(all.slice(0, start).map((word) => word.length));
  for (let n = start; n < end; at += all[n].length, n += 1) {
    if (kept.has(n)) continue;
    const last = found.at(-1);
    if (last && last[1] === at) last[1] = at + all[n].length;
    else found.push([at, at + all[n].length]);
  }
  return found;
}

/** Marks every place below `root` that holds `sought`, without touching its elements. */
function highlight(root, sought) {
  if (!globalThis.CSS?.highlights) return;
  const found = [];
  if (sought) {
    const walker = document.createTreeWalker(root, NodeFilter.SHOW_TEXT);
    while (walker.nextNode()) {
      const text = walker.currentNode.data.toLowerCase();
      for (let at = text.indexOf(sought); at >= 0; at = text.indexOf(sought, at + sought.length)) {
        const range = new Range();
        range.setStart(walker.currentNode, at);
        range.setEnd(walker.currentNode, Math.min(at + sought.length, walker.currentNode.length));
        found.push(range);
      }
    }
  }
  CSS.highlights.set("found", new Highlight(...found));
}
