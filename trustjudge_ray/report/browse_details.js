"use strict";
// What is known of one pair of answers, one answer, or a cycle of three.
(() => {
  const { load, numbered, el, at, percent, number, count, named, list, views, back } = trustjudgeBrowser;
  const FEW = 12; // labels that are shown as rows of bars; more of them as columns

  /** A question with everything about it; an error that says where it is, if it is not here. */
  async function questionOf(start, id) {
    const { ids, groups } = await load("questions");
    const place = ids.indexOf(id);
    if (place < 0) {
      const why = start.shown < start.total ? "This browser does not hold all of the run" : "No judgment of this run is about it";
      throw new Error(`Question ${id}: not in this browser. ${why}: trustjudge show ${start.run} --question … lists what there is.`);
    }
    const group = groups.findLastIndex((first) => first <= place);
    const { questions } = await load(numbered("group", group));
    return questions[place - groups[group]];
  }

  /** The place of an answer to a question, by its id. */
  function placeOf(question, id) {
    const place = question.answers.findIndex((answer) => answer.id === id);
    if (place < 0) throw new Error(`Question ${question.id}: no judgment is about a response ${id}.`);
    return place;
  }

  /** Columns as rows, those that fit. */
  function rowsOf(columns, fits) {
    const names = Object.keys(columns);
    const rows = (columns[names[0]] ?? []).map((_, i) => Object.fromEntries(names.map((name) => [name, columns[name][i] ?? null])));
    return rows.filter(fits);
  }

  // --- texts ---------------------------------------------------------------------------------

  const textBlock = (label, text) => el("div", { class: "text", dir: "auto", tabindex: 0, role: "region", "aria-label": label }, text);

  const conversation = (messages) => (messages ?? []).map((message) => [el("p", { class: "role" }, message.role ?? ""), textBlock(`${message.role ?? ""} message`, message.content ?? "")]);

  function asked(question) {
    if (!question.messages) return el("p", { class: "weak" }, "The run folder holds no text of this question.");
    return el("section", {}, el("h3", {}, "Question"), el("div", { class: "box" }, conversation(question.messages)), question.reference && el("details", {}, el("summary", {}, "Reference"), textBlock("Reference", question.reference)));
  }

  /** An answer's own text, under a heading with its letter. */
  function answered(question, place, letter) {
    const answer = question.answers[place];
    const replies = answer.replies ?? [];
    return el("div", { class: `box side-${letter.toLowerCase()}` },
      el("h3", {}, letter && el("span", { class: "weak" }, `${letter}: `), named(answer)),
      answer.messages && el("details", {}, el("summary", {}, "It answers another conversation"), conversation(answer.messages)),
      replies.map((reply, i) => [replies.length > 1 && el("p", { class: "role" }, `turn ${i + 1}`), textBlock(`Answer of ${named(answer)}`, reply || "(empty)")]),
      !replies.length && el("p", { class: "weak" }, "The run folder holds no text of this answer."));
  }

  // --- probabilities -------------------------------------------------------------------------

  /** Label probabilities as bars, as shares of what went to labels; with numbers, and the emitted label in bold. */
  function bars(names, probabilities, kinds, emitted = null) {
    const known = (probabilities ?? []).map((p) => p ?? 0);
    const sum = known.reduce((total, p) => total + p, 0);
    if (!sum) return el("p", { class: "weak" }, "No label probabilities.");
    const shares = known.map((p) => p / sum);
    if (names.length > FEW) return columns(names, shares, kinds[0], emitted);
    return el("div", { class: "bars" }, names.map((name, i) => [
      el("span", { class: i === emitted ? "name emitted" : "name", title: name }, i === emitted ? `${name} ✓` : name),
      track(shares[i], kinds[i]),
      el("span", { class: "share" }, probabilities[i] === null ? "not reported" : percent(shares[i])),
    ]));
  }

  function track(share, kind) {
    const fill = el("span", { class: `fill ${kind ?? ""}` });
    fill.style.width = `${100 * share}%`;
    return el("span", { class: "track", "aria-hidden": "true" }, fill);
  }

  function columns(names, shares, kind, emitted) {
    const most = Math.max(...shares);
    const drawn = el("div", { class: `columns ${kind ?? ""}`, "aria-hidden": "true" }, shares.map((share) => {
      const column = el("span");
      column.style.height = `${(100 * share) / most}%`;
      return column;
    }));
    const top = shares.map((share, i) => [share, i]).sort((one, other) => other[0] - one[0]).slice(0, 5).filter(([share]) => share >= 0.0005);
    return el("div", {}, drawn, el("div", { class: "ends small weak", "aria-hidden": "true" }, el("span", {}, names[0]), el("span", {}, names.at(-1))),
      el("p", { class: "small" }, `Most probable: ${top.map(([share, i]) => `${names[i]} (${percent(share)})`).join(", ")}.`, emitted !== null && ` Emitted: ${names[emitted]}.`));
  }

  // --- judgments -----------------------------------------------------------------------------

  const KINDS = { compare: ["a", "b", "tie"] };

  /** One judgment: what it says, how sure, what was written before, and how to see its prompt. `more` is put below. */
  function judged(start, question, row, title, side = "", more = null) {
    const protocol = start.protocols[start.lanes[row.l][1]];
    const status = start.statuses[row.s];
    const compares = protocol?.kind === "compare";
    const names = compares ? [named(question.answers[row.a]), named(question.answers[row.b]), "tie"] : (protocol?.labels ?? []);
    const again = [row.n && `sample ${row.n}`, row.r && `repeat ${row.r}`].filter(Boolean).join(", ");
    const drawn = row.p && names.length > 0;
    const emitted = row.e ?? null;
    const facts = [
      ["label mass", row.w === null || row.w === undefined ? null : percent(row.w / 1e6)],
      ["emitted", emitted === null ? row.said : drawn ? null : names[emitted]],
      ["shortened", { answer: "an answer was cut to fit the judge's context", rationale: "the rationale reached its budget" }[row.cut]],
      ["prompt", row.tokens ? `${count(row.tokens)} tokens` : null],
      ["detail", row.detail],
    ].filter(([, value]) => value !== null && value !== undefined);
    return el("div", { class: "box" },
      el("h4", {}, title, again && ` (${again})`, " ", status !== "ok" && el("span", { class: "tag failed" }, status)),
      drawn && bars(names, row.p, compares ? KINDS.compare : names.map(() => side), emitted),
      el("dl", { class: "facts small" }, facts.map(([name, value]) => [el("dt", {}, name), el("dd", {}, value)])),
      ["thinking", "rationale", "output"].map((name) => row[name] && el("details", { open: name === "output" }, el("summary", {}, { thinking: "Thinking", rationale: "Rationale", output: "What it answered" }[name]), textBlock(name, row[name]))),
      el("code", { class: "command" }, `trustjudge show ${start.run} ${row.t}`),
      more);
  }

  const OUTCOMES = (first, second) => ({ 1: `${first} better`, 0: "a tie", "-1": `${second} better` });

  /** Verdicts of a pair by every rule, the main one first. */
  function byRule(start, verdict, names) {
    const said = OUTCOMES(...names);
    return el("details", {}, el("summary", {}, "The verdict by rule"), el("dl", { class: "facts small" }, start.verdict_rules.map((rule) => [el("dt", {}, rule), el("dd", {}, said[verdict[rule]] ?? verdict[rule] ?? "–")])));
  }

  /** The main rule; `baseline` where only that has a number (imports without probabilities). */
  const readable = (main, rows) => [main, "baseline"].find((rule) => rows.every((row) => Number.isFinite(Number.parseFloat(row[rule])))) ?? main;

  /** What the judges said about two answers at a glance: a row for each judge's protocol. */
  function glance(start, question, a, b, verdicts) {
    const names = [named(question.answers[a]), named(question.answers[b])];
    const rows = verdicts.map((verdict) => {
      const rule = readable(start.verdict_rules[0], [verdict]);
      const p = verdict.p ? ` (${[...names, "tie"].map((name, i) => `${name} ${percent(verdict.p[i] / 1e6)}`).join(", ")})` : "";
      return [start.lanes[verdict.l], [el("b", {}, OUTCOMES(...names)[verdict[rule]] ?? `no verdict: ${verdict[rule]}`), p, ` by ${rule}`]];
    });
    start.lanes.forEach((lane, l) => {
      if (start.protocols[lane[1]]?.kind !== "score") return;
      const [first, second] = [a, b].map((place) => rowsOf(question.scores, (row) => row.l === l && row.a === place)[0]);
      if (!first && !second) return;
      const rule = readable(start.score_rules[0], [first, second].filter(Boolean));
      const values = [first, second].map((row) => Number.parseFloat(row?.[rule]));
      const said = values.some(Number.isNaN) ? "no two scores" : values[0] > values[1] ? `${names[0]} scored higher` : values[0] < values[1] ? `${names[1]} scored higher` : "the same score";
      rows.push([lane, [el("b", {}, said), ` (${names[0]} ${first?.[rule] ?? "–"}, ${names[1]} ${second?.[rule] ?? "–"}) by ${rule}`]]);
    });
    if (!rows.length) return null;
    return list([["Judge"], ["Protocol"], ["Says"]], rows.map(([lane, says]) => [...lane, says]), "At a glance", false);
  }

  const inOrder = (question, row) => `${named(question.answers[row.o === 1 ? row.b : row.a])} shown first`;

  /** Both orders of a pair under one judge and protocol, and the verdict by rule. */
  function compared(start, question, a, b, l, heading) {
    const rows = rowsOf(question.judgments, (row) => row.l === l && row.a === a && row.b === b);
    const verdict = rowsOf(question.verdicts, (row) => row.l === l && row.a === a && row.b === b)[0];
    const names = [named(question.answers[a]), named(question.answers[b])];
    return el("section", {}, heading, el("div", { class: "sides" }, rows.map((row) => judged(start, question, row, row.o === null ? "one order" : inOrder(question, row)))), verdict && byRule(start, verdict, names));
  }

  /** Score distributions and scores of some answers under one judge and protocol. */
  function scored(start, question, places, l) {
    const letters = places.length > 1 ? ["a", "b", ""] : [""];
    const boxes = places.flatMap((place, i) => {
      const score = rowsOf(question.scores, (row) => row.l === l && row.a === place)[0];
      const rows = rowsOf(question.judgments, (row) => row.l === l && row.a === place && (row.b ?? null) === null);
      return rows.map((row, n) => judged(start, question, row, named(question.answers[place]), letters[i] ?? "", n === 0 && score && scoreFacts(start, score)));
    });
    return boxes.length ? el("section", {}, el("h3", {}, `${start.lanes[l][1]}, by ${start.lanes[l][0]}`), el("div", { class: "sides" }, boxes)) : null;
  }

  const scoreFacts = (start, score) => el("dl", { class: "facts small" }, start.score_rules.map((rule, i) => [el("dt", {}, `score by ${rule}`), el("dd", {}, i === 0 ? el("b", {}, score[rule]) : score[rule])]), score.entropy !== null && score.entropy !== undefined && [el("dt", {}, "entropy"), el("dd", {}, `${number(score.entropy)} nats`)]);

  const head = (start, question, title) => [
    el("p", {}, el("a", { href: back() }, "Back to the list")),
    el("h2", { tabindex: -1 }, title),
    el("p", { class: "note" }, "Question ", el("a", { href: at({ q: question.id }) }, question.id), question.category && `, category ${question.category}`),
  ];
  const lanesOf = (columns, fits) => [...new Set(rowsOf(columns, fits).map((row) => row.l))];

  // --- views ---------------------------------------------------------------------------------

  views.pair = async (start, parameters) => {
    const question = await questionOf(start, parameters.get("pair"));
    let [a, b] = ["a", "b"].map((letter) => placeOf(question, parameters.get(letter)));
    const swapped = (row) => row.a === b && row.b === a;
    if (rowsOf(question.judgments, swapped).length) [a, b] = [b, a];
    const ours = (row) => row.a === a && row.b === b;
    const lanes = lanesOf(question.judgments, ours);
    const alone = lanesOf(question.judgments, (row) => [a, b].includes(row.a) && (row.b ?? null) === null);
    return [
      ...head(start, question, `${named(question.answers[a])} and ${named(question.answers[b])}`),
      glance(start, question, a, b, rowsOf(question.verdicts, ours)),
      asked(question),
      el("section", {}, el("h3", {}, "Answers"), el("div", { class: "sides" }, answered(question, a, "A"), answered(question, b, "B"))),
      el("h2", {}, "Compared, in both orders"),
      el("p", { class: "note" }, "Shares of the label mass; ✓ is the label that was emitted."),
      lanes.length ? lanes.map((l) => compared(start, question, a, b, l, el("h3", {}, `${start.lanes[l][1]}, by ${start.lanes[l][0]}`))) : el("p", {}, "Nobody compared these two."),
      el("h2", {}, "Scored, each alone"),
      alone.length ? alone.map((l) => scored(start, question, [a, b], l)) : el("p", {}, "Nobody scored either."),
    ].flat().filter(Boolean);
  };

  views.answer = async (start, parameters) => {
    const question = await questionOf(start, parameters.get("answer"));
    const a = placeOf(question, parameters.get("a"));
    const alone = lanesOf(question.judgments, (row) => row.a === a && (row.b ?? null) === null);
    const pairs = new Map(rowsOf(question.judgments, (row) => (row.b ?? null) !== null && (row.a === a || row.b === a)).map((row) => [`${row.a} ${row.b}`, row]));
    const answers = alone.length && alone.every((l) => start.protocols[start.lanes[l][1]]?.kind === "answer");
    return [
      ...head(start, question, named(question.answers[a])),
      asked(question),
      !answers && el("section", {}, el("h3", {}, "Answer"), answered(question, a, "")),
      el("h2", {}, answers ? "What it answered" : "Judged alone"),
      alone.length ? alone.map((l) => scored(start, question, [a], l)) : el("p", {}, "Nobody judged it alone."),
      pairs.size > 0 && el("h2", {}, "Compared with"),
      pairs.size > 0 && el("ul", {}, [...pairs.values()].map((row) => el("li", {}, el("a", { href: at({ pair: question.id, a: question.answers[row.a].id, b: question.answers[row.b].id }) }, named(question.answers[row.a === a ? row.b : row.a]))))),
    ].flat().filter(Boolean);
  };

  views.cycle = async (start, parameters) => {
    const question = await questionOf(start, parameters.get("cycle"));
    const three = ["x", "y", "z"].map((letter) => placeOf(question, parameters.get(letter)));
    const l = start.lanes.findIndex(([judge, protocol]) => judge === parameters.get("judge") && protocol === parameters.get("protocol"));
    if (l < 0) throw new Error(`No judgment by ${parameters.get("judge")} under ${parameters.get("protocol")}.`);
    const names = three.map((place) => named(question.answers[place]));
    const lane = start.worst.find((one) => one.kind === "cycles" && one.judge === start.lanes[l][0] && one.pair_protocol === start.lanes[l][1]);
    const rule = lane?.verdict_rule ?? start.verdict_rules[0];
    const pairs = [[0, 1], [1, 2], [0, 2]].map(([i, j]) => {
      const [a, b] = [three[i], three[j]];
      const [first, second] = rowsOf(question.judgments, (row) => row.a === b && row.b === a).length ? [b, a] : [a, b];
      const verdict = rowsOf(question.verdicts, (row) => row.l === l && row.a === first && row.b === second)[0];
      const said = OUTCOMES(named(question.answers[first]), named(question.answers[second]))[verdict?.[rule]] ?? "no verdict";
      const title = el("h3", {}, el("a", { href: at({ pair: question.id, a: question.answers[first].id, b: question.answers[second].id }) }, `${names[i]} and ${names[j]}`), `: ${said}`);
      return compared(start, question, first, second, l, title);
    });
    return [
      ...head(start, question, `${names[0]}, ${names[1]} and ${names[2]}`),
      el("p", { class: "note" }, `Three verdicts of ${start.lanes[l][0]} under ${start.lanes[l][1]} by the rule ${rule} that fit no ordering.`),
      ...pairs,
      asked(question),
      el("section", {}, el("h3", {}, "Answers"), el("div", { class: "sides" }, three.map((place) => answered(question, place, "")))),
    ];
  };
})();
