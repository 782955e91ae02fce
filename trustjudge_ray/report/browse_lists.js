"use strict";
// The lists of the browser of judgments: the worst contradictions, and all judgments.
(() => {
  const { PAGE, load, numbered, el, at, percent, number, count, named, pager, pageOf, choice, list, views, go } = trustjudgeBrowser;

  // --- contradictions ------------------------------------------------------------------------

  const KINDS = {
    conflicts: {
      title: "Scores against comparisons",
      what: "Two answers of which the scores say one thing and the comparison another. Strength: the smaller of two margins. The scores' margin is their distance as a share of the scale's range (0 where they tie); the comparison's is the probability of its outcome less the larger of the other two, both orders averaged.",
      types: { reversal: "the opposite", score_tie: "only the scores tie", pair_tie: "only the comparison ties" },
    },
    cycles: {
      title: "Cycles of three",
      what: "Three answers to one question whose three comparisons fit no ordering. Strict cycles first, then by strength: the smallest of the three comparisons' margins (the probability of the outcome less the larger of the other two, both orders averaged).",
      types: { strict_cycle: "strict cycle", chain: "chain with equal ends", ties: "ties that are not transitive" },
    },
    flips: {
      title: "Order flips",
      what: "Pairs about which the judge said something else when the two answers were shown in the other order. Opposite verdicts first, then by strength: the smaller of the two orders' margins (the probability of the label that was emitted less the larger of the other two).",
      types: { first_shown: "the first shown, both times", second_shown: "the second shown, both times", one_tie: "a tie in one order" },
    },
  };

  views.worst = async (start, parameters) => {
    const lanes = start.worst.map((lane, file) => ({ ...lane, file }));
    const totals = Object.fromEntries(Object.keys(KINDS).map((kind) => [kind, lanes.filter((lane) => lane.kind === kind).reduce((sum, lane) => sum + lane.total, 0)]));
    const kind = KINDS[parameters.get("kind")] ? parameters.get("kind") : (Object.keys(KINDS).find((name) => totals[name]) ?? "conflicts");
    const mine = lanes.filter((lane) => lane.kind === kind);
    const chosen = mine.find((lane) => String(lane.file) === parameters.get("lane")) ?? mine.find((lane) => lane.total) ?? mine[0];
    const kinds = el("ul", { class: "kinds" }, Object.entries(KINDS).map(([name, about]) => el("li", {}, el("a", { href: at({ kind: name }), "aria-current": name === kind && "true" }, `${about.title} (${count(totals[name])})`))));
    const head = [el("h2", { tabindex: -1 }, "The worst contradictions"), kinds, el("p", { class: "note" }, KINDS[kind].what)];
    if (!chosen) return [...head, el("p", { class: "counted" }, "Nothing of this kind was asked for in this run."), el("p", {}, el("a", { href: at({ view: "all" }) }, "All judgments"))];
    const data = await load(numbered("worst", chosen.file));
    const type = KINDS[kind].types[parameters.get("type")] ? parameters.get("type") : "";
    const rows = data.type.map((_, row) => row).filter((row) => !type || data.type[row] === type);
    const page = pageOf(parameters, rows.length);
    const here = { kind, lane: chosen.file, type };
    const shown = rows.slice((page - 1) * PAGE, page * PAGE).map((row) => ROWS[kind](Object.fromEntries(Object.entries(data).map(([name, values]) => [name, values[row]])), chosen));
    return [
      ...head,
      el("form", { class: "choose", submit: (event) => event.preventDefault() },
        choice("Judge and protocols", "lane", mine.map((lane) => [lane.file, `${laneName(lane)} (${count(lane.total)})`]), chosen.file, (event) => go({ ...here, type: "", lane: event.target.value })),
        choice("Type", "type", [["", `all (${count(chosen.total)})`], ...Object.entries(chosen.by_type).map(([name, n]) => [name, `${KINDS[kind].types[name]} (${count(n)})`])], type, (event) => go({ ...here, type: event.target.value }))),
      el("p", { class: "counted" }, counted(chosen, kind, type && chosen.by_type[type], rows.length)),
      chosen.too_many > 0 && el("p", { class: "note" }, `${count(chosen.too_many)} questions with over 100 compared answers are left out: too many triples to look through.`),
      rows.length > 0 && list(COLUMNS[kind], shown, KINDS[kind].title),
      rows.length > 0 && pager(here, page, rows.length),
    ].filter(Boolean);
  };

  const laneName = (lane) => (lane.kind === "conflicts" ? `${lane.judge}: ${lane.protocol} against ${lane.pair_protocol}` : `${lane.judge}: ${lane.pair_protocol}`);

  function counted(lane, kind, ofType, listed) {
    const cases = kind === "cycles" ? "triples with all three verdicts" : kind === "flips" ? "pairs with a verdict in both orders" : "pairs with two scores and a verdict";
    const rules = [lane.score_rule && `score rule ${lane.score_rule}, tolerance ${lane.tolerance}`, lane.verdict_rule && `verdict rule ${lane.verdict_rule}, tolerance ${lane.verdict_tolerance}`].filter(Boolean);
    const all = ofType || lane.total;
    const first = listed < all ? ` Listed: ${count(listed)} of ${count(all)}${ofType ? " of this type" : ""}, the worst of all ${count(lane.total)} first.` : "";
    return `${count(lane.total)} of ${count(lane.cases)} ${cases}${rules.length ? ` (${rules.join("; ")})` : ""}.${first}`;
  }

  const COLUMNS = {
    conflicts: [["Question"], ["Scores say"], ["Comparison says"], ["Type"], ["Score margin", "number"], ["Comparison margin", "number"], ["Strength", "number"]],
    cycles: [["Question"], ["Verdicts"], ["Type"], ["Margins"], ["Strength", "number"]],
    flips: [["Question"], ["Answers"], ["Preferred"], ["Margins"], ["Strength", "number"]],
  };

  const side = (row, letter) => named({ id: row[`response_${letter}`] ?? row[letter], model: row[`model_${letter}`] });

  const ROWS = {
    conflicts: (row, lane) => {
      const gap = row.score_a - row.score_b;
      const over = row.type === "score_tie" ? "=" : gap > 0 ? ">" : "<";
      const said = { 1: side(row, "a"), "-1": side(row, "b"), 0: "a tie" }[row.outcome];
      const p = { 1: row.p_a, "-1": row.p_b, 0: row.p_tie }[row.outcome];
      return [
        el("a", { href: at({ pair: row.question_id, a: row.response_a, b: row.response_b }) }, row.question_id),
        [side(row, "a"), " ", el("b", {}, number(row.score_a, 2)), ` ${over} `, el("b", {}, number(row.score_b, 2)), " ", side(row, "b")],
        [el("b", {}, said), ` ${percent(p)}`],
        KINDS[lane.kind].types[row.type], percent(row.score_margin), percent(row.verdict_margin), percent(row.strength),
      ];
    },
    cycles: (row, lane) => {
      const signs = { strict_cycle: [" > ", " > ", " > "], chain: [" > ", " > ", " = "], ties: [" = ", " = ", " < "] }[row.type];
      return [
        el("a", { href: at({ cycle: row.question_id, x: row.x, y: row.y, z: row.z, judge: lane.judge, protocol: lane.pair_protocol }) }, row.question_id),
        [side(row, "x"), signs[0], side(row, "y"), signs[1], side(row, "z"), signs[2], side(row, "x")],
        KINDS.cycles.types[row.type], [row.margin_xy, row.margin_yz, row.margin_xz].map(percent).join(", "), percent(row.strength),
      ];
    },
    flips: (row) => [
      el("a", { href: at({ pair: row.question_id, a: row.response_a, b: row.response_b }) }, row.question_id),
      `${side(row, "a")} and ${side(row, "b")}`, KINDS.flips.types[row.type], `${percent(row.margin_ab)}, ${percent(row.margin_ba)}`, percent(row.strength),
    ],
  };

  // --- all judgments -------------------------------------------------------------------------

  let table = null;

  /** The whole index as flat columns; loaded once. */
  async function index() {
    if (table) return table;
    const { index: files } = await load("questions");
    const parts = await Promise.all(files.map((_, file) => load(numbered("index", file))));
    const rows = parts.reduce((sum, part) => sum + part.l.length, 0);
    const made = { questions: [], ids: [], models: [], size: rows };
    for (const name of ["question", "a", "b", "l", "o", "s", "e", "g", "w", "n", "r"]) made[name] = new Int32Array(rows).fill(-1);
    let row = 0;
    for (const part of parts) {
      let inPart = 0;
      let answers = made.ids.length;
      part.questions.forEach((id, q) => {
        for (let end = inPart + part.rows[q]; inPart < end; inPart++, row++) {
          made.question[row] = made.questions.length;
          made.a[row] = answers + part.a[inPart];
          if (part.b[inPart] !== null) made.b[row] = answers + part.b[inPart];
          for (const name of ["l", "o", "s", "e", "g", "w"]) if (part[name][inPart] !== null) made[name][row] = part[name][inPart];
          made.n[row] = part.n?.[inPart] ?? 0;
          made.r[row] = part.r?.[inPart] ?? 0;
        }
        answers += part.answers[q];
        made.questions.push(id);
      });
      for (const id of part.ids) made.ids.push(id);
      for (const model of part.models) made.models.push(model);
    }
    table = made;
    return table;
  }

  /** The numbers of the rows that fit the filters, in order. */
  function chosenRows(start, all, parameters) {
    const text = (parameters.get("q") ?? "").trim();
    const folded = text.replace(/\*$/, "").toLocaleLowerCase();
    const exact = all.questions.includes(text);
    const holds = all.questions.map((id) => id.toLocaleLowerCase().includes(folded));
    const question = exact ? all.questions.map((id) => id === text) : holds;
    const others = exact ? holds.filter(Boolean).length - 1 : 0;
    const lane = start.lanes.map(([judge, protocol]) => fits(parameters.get("judge"), judge) && fits(parameters.get("protocol"), protocol));
    const status = start.statuses.map((name) => fits(parameters.get("status"), name));
    const model = parameters.get("model") ? start.models.indexOf(parameters.get("model")) : null;
    const found = [];
    for (let row = 0; row < all.size; row++) {
      if (!question[all.question[row]] || !lane[all.l[row]] || !status[all.s[row]]) continue;
      if (model !== null && all.models[all.a[row]] !== model && (all.b[row] < 0 || all.models[all.b[row]] !== model)) continue;
      found.push(row);
    }
    const by = { gap: all.g, mass: all.w }[(parameters.get("sort") ?? "").replace("-", "")];
    if (by) {
      const sign = parameters.get("sort").startsWith("-") ? -1 : 1;
      found.sort((one, other) => (by[one] < 0) - (by[other] < 0) || sign * (by[one] - by[other]) || one - other);
    }
    return { found, exact, others };
  }

  const filters = (parameters) => ({ view: "all", ...Object.fromEntries(["q", "model", "judge", "protocol", "status", "sort"].map((name) => [name, parameters.get(name)])) });

  const fits = (wanted, name) => !wanted || wanted === name;

  views.all = async (start, parameters) => {
    const here = filters(parameters);
    const all = await index();
    const { found, exact, others } = chosenRows(start, all, parameters);
    const page = pageOf(parameters, found.length);
    const rows = found.slice((page - 1) * PAGE, page * PAGE).map((row) => judgmentRow(start, all, row));
    // What is chosen by now, not when the form was made: typing leaves the form as it is.
    const changed = (name) => (event) => go({ ...filters(new URLSearchParams(location.hash.slice(1))), [name]: event.target.value }, name === "q");
    const of = (name, texts) => [["", "all"], ...texts.map((text) => [text, text])];
    const protocols = [...new Set(start.lanes.map(([, protocol]) => protocol))];
    const note = exact ? ` of the question ${here.q.trim()}${others > 0 ? `; ${count(others)} other ids hold that text (write ${here.q.trim()}* to see them)` : ""}` : "";
    return [
      el("h2", { tabindex: -1 }, "All judgments"),
      el("form", { class: "choose", role: "search", submit: (event) => event.preventDefault() },
        el("label", {}, "Question", el("input", { type: "search", name: "q", value: here.q ?? "", autocomplete: "off", placeholder: "id, or a part of it", input: changed("q") })),
        choice("Model", "model", of("model", start.models), here.model, changed("model")),
        choice("Judge", "judge", of("judge", start.judges), here.judge, changed("judge")),
        choice("Protocol", "protocol", of("protocol", protocols), here.protocol, changed("protocol")),
        choice("Status", "status", [["", "all"], ...start.statuses.map((name, i) => [name, `${name} (${count(start.counts[i])})`])], here.status, changed("status")),
        choice("Order", "sort", [["", "as planned"], ["gap", "least sure first"], ["-gap", "surest first"], ["mass", "smallest label mass first"], ["-mass", "largest label mass first"]], here.sort, changed("sort"))),
      el("div", { id: "results" },
        el("p", { class: "counted" }, `${count(found.length)} of ${count(all.size)} judgments${note}.`),
        found.length > 0 && list([["Question"], ["Answers"], ["Judge"], ["Protocol"], ["Said"], sortable("Gap", "gap", here), sortable("Label mass", "mass", here), ["Status"]], rows, "Judgments"),
        found.length > 0 && el("p", { class: "note" }, "Gap: how far the most probable label is ahead of the next, both as shares of the label mass. Label mass: how much of the judge's probability went to labels."),
        found.length > 0 && pager(here, page, found.length)),
    ];
  };

  function sortable(title, name, here) {
    const direction = { [name]: "ascending", [`-${name}`]: "descending" }[here.sort];
    const next = direction === "ascending" ? `-${name}` : name;
    const content = el("button", { type: "button", name: `by-${name}`, click: () => go({ ...here, sort: next }) }, title, { ascending: " ▲", descending: " ▼" }[direction] ?? "");
    return [title, "number", { content, attributes: { "aria-sort": direction } }];
  }

  function judgmentRow(start, all, row) {
    const answer = (place) => ({ model: start.models[all.models[place]], id: all.ids[place] === 0 ? start.models[all.models[place]] : all.ids[place] });
    const [judge, protocol] = start.lanes[all.l[row]];
    const { kind, labels } = start.protocols[protocol] ?? { kind: "", labels: [] };
    const question = all.questions[all.question[row]];
    const a = answer(all.a[row]);
    const b = all.b[row] < 0 ? null : answer(all.b[row]);
    const label = labels[all.e[row]];
    const said = kind === "compare" ? { a: named(a), b: b && named(b), tie: "a tie" }[label] : label;
    const link = b ? at({ pair: question, a: a.id, b: b.id }) : at({ answer: question, a: a.id });
    const shown = b && all.o[row] === 1 ? [b, a] : [a, b];
    const again = [all.n[row] > 0 && `sample ${all.n[row]}`, all.r[row] > 0 && `repeat ${all.r[row]}`].filter(Boolean).join(", ");
    const status = start.statuses[all.s[row]];
    return [
      el("a", { href: link }, question), shown.filter(Boolean).map(named).join(", then "), judge, [protocol, again && ` (${again})`], said ?? "–",
      all.g[row] < 0 ? "–" : percent(all.g[row] / 1e6), all.w[row] < 0 ? "–" : percent(all.w[row] / 1e6), el("span", { class: status === "ok" ? "" : "failed" }, status),
    ];
  }
})();
