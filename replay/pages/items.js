// Items of a conversation and messages on the wire, out of the packed form in which the page holds them.

/** A packed value with the blobs that it refers to; what stands in a blob refers to nothing. */
function unpacked(value, blobs) {
  if (Array.isArray(value)) return value.map((inner) => unpacked(inner, blobs));
  if (value === null || typeof value !== "object") return value;
  const name = value.$blob;
  if (typeof name === "string" && Object.keys(value).length === 1)
    return Object.hasOwn(blobs, name) ? blobs[name] : value;
  return Object.fromEntries(Object.entries(value).map(([key, inner]) => [key, unpacked(inner, blobs)]));
}

/** What an item is, who it names, and its text: { kind, name, text }. */
function readItem(item) {
  const kind = item.type ?? "message";
  if (kind === "message")
    return { kind: String(item.role ?? "message"), name: item.phase ?? "", text: content(item.content) };
  if (kind === "reasoning") {
    const text = [content(item.summary), content(item.content)].filter(Boolean).join("\n");
    return { kind, name: "", text: text || "(not in clear)" };
  }
  if (kind === "function_call" || kind === "custom_tool_call") {
    const name = item.namespace ? `${item.namespace}.${item.name}` : String(item.name);
    return { kind: "call", name, text: readable(String(item.arguments ?? item.input ?? "")) };
  }
  if (kind === "function_call_output" || kind === "custom_tool_call_output") {
    return { kind: "output", name: "", text: content(item.output) };
  }
  return { kind: String(kind), name: "", text: JSON.stringify(item, null, 2) };
}

function content(parts) {
  if (typeof parts === "string") return parts;
  if (!Array.isArray(parts)) return parts === undefined || parts === null ? "" : JSON.stringify(parts, null, 2);
  return parts
    .map((part) => {
      const text = part?.text ?? part?.refusal;
      return typeof text === "string" ? text : JSON.stringify(part);
    })
    .join("\n");
}

/** A JSON text with an argument a line; any other text as it is. */
function readable(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}

/**
 * What went over the wire in a turn: { at, from, title, preview, value }, `value` a function that makes the whole of it.
 *
 * `frames` are indices into the session's frames: of the request, of the first one after it, and behind the last.
 */
function messages(session, [ask, first, end], lane, blobs) {
  const found = [];
  let last = null; // the delta event that a run of deltas goes on from
  for (const frame of [session.frames[ask], ...session.frames.slice(first, end)]) {
    if (!frame || ("e" in frame ? false : (frame.l ?? null) !== lane)) continue;
    if ("d" in frame) {
      const before = last;
      const nth = (n) => ({ ...following(before, frame.d[n], n + 1), ...(frame.o && { obfuscation: frame.o[n] }) });
      last = nth(frame.d.length - 1);
      found.push({
        at: frame.t,
        from: "server",
        title: `${before?.type} × ${frame.d.length}`,
        preview: frame.d.join(""),
        value: () => frame.d.map((_, n) => nth(n)),
      });
    } else if ("s" in frame) {
      last = frame.s;
      found.push({
        at: frame.t,
        from: "server",
        title: String(frame.s?.type),
        preview: preview(frame.s),
        value: () => unpacked(frame.s, blobs),
      });
    } else if ("c" in frame) {
      const title = frame.c?.type ?? (session.transport === "websocket" ? "message" : "POST");
      found.push({
        at: frame.t,
        from: "client",
        title: String(title),
        preview: "",
        value: () => unpacked(frame.c, blobs),
      });
    } else if ("x" in frame) {
      found.push({
        at: frame.t,
        from: "client",
        title: "no JSON",
        preview: frame.x.slice(0, 200),
        value: () => frame.x,
      });
    } else {
      found.push({ at: frame.t, from: "", title: frame.e, preview: "", value: null });
    }
  }
  return found;
}

/** The `nth` event after a delta event. */
function following(event, delta, nth) {
  const counted = Number.isInteger(event?.sequence_number) ? { sequence_number: event.sequence_number + nth } : {};
  return { ...event, delta, ...counted };
}

function preview(event) {
  if (typeof event?.delta === "string") return event.delta;
  const error = event?.error ?? event?.response?.error;
  return typeof error?.message === "string" ? error.message : "";
}
