"use strict";
// The browser of judgments: loads data files when they are looked at, and shows the view that the address names.
// Everything from a corpus or a judge becomes a text node (`el`); the page's policy refuses anything else.
const trustjudgeBrowser = (() => {
  const PAGE = 50;
  const waiting = new Map();
  const policy = window.trustedTypes
    ? window.trustedTypes.createPolicy("browse", { createScriptURL: (name) => address(name) })
    : null;

  function address(name) {
    if (!/^[a-z]+(-[0-9]{4,})?$/.test(name)) throw new Error(`no data file: ${name}`);
    return `browse/${name}.js`;
  }

  // What each data file calls.
  window.trustjudge = (name, data) => waiting.get(name)?.arrived(data);

  /** The data of a file, loaded once. */
  function load(name) {
    if (!waiting.has(name)) {
      const entry = {};
      entry.promise = new Promise((arrived, failed) => Object.assign(entry, { arrived, failed }));
      waiting.set(name, entry);
      const script = document.createElement("script");
      script.charset = "utf-8";
      script.src = policy ? policy.createScriptURL(name) : address(name);
      script.onerror = () => {
        waiting.delete(name);
        entry.failed(new Error(`browse/${name}.js cannot be loaded. The folder browse/ belongs beside this page, as the report wrote both.`));
      };
      document.head.append(script);
    }
    return waiting.get(name).promise;
  }

  const numbered = (kind, number) => `${kind}-${String(number).padStart(4, "0")}`;

  /** An element; strings and numbers among the children become text. */
  function el(tag, attributes = {}, ...children) {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (name === "click" || name === "change" || name === "input" || name === "submit") made.addEventListener(name, value);
      else if (value === true) made.setAttribute(name, "");
      else if (value !== null && value !== undefined && value !== false) made.setAttribute(name, value);
    }
    made.append(...children.flat(3).filter((child) => child !== null && child !== undefined && child !== false));
    return made;
  }

  /** A link to a place in this page, from its parameters; empty ones are left out. */
  function at(parameters) {
    const kept = Object.entries(parameters).filter(([, value]) => value !== null && value !== undefined && value !== "");
    return `#${new URLSearchParams(kept.map(([name, value]) => [name, String(value)]))}`;
  }

  const percent = (share) => (Number.isFinite(share) ? `${(100 * share).toFixed(1)} %` : "–");
  const number = (value, digits = 3) => (Number.isFinite(value) ? value.toFixed(digits) : "–");
  const count = (value) => value.toLocaleString("en");
  const named = (answer) => (answer.id === answer.model ? answer.model : `${answer.model} (${answer.id})`);

  /** Links to the pages of a list of so many rows. */
  function pager(parameters, page, rows) {
    const last = Math.max(Math.ceil(rows / PAGE), 1);
    const to = (text, wanted) => (wanted >= 1 && wanted <= last && wanted !== page ? el("a", { href: at({ ...parameters, page: wanted }) }, text) : el("span", { class: "weak" }, text));
    const shown = rows ? `${count((page - 1) * PAGE + 1)}–${count(Math.min(page * PAGE, rows))} of ${count(rows)}` : "none";
    return el("nav", { class: "pager", "aria-label": "Pages of the list" }, el("span", {}, shown), last > 1 && [to("First", 1), to("Previous", page - 1), to("Next", page + 1), to("Last", last)]);
  }

  /** The page that is asked for, of a list of so many rows. */
  const pageOf = (parameters, rows) => Math.min(Math.max(Number.parseInt(parameters.get("page") ?? "1", 10) || 1, 1), Math.max(Math.ceil(rows / PAGE), 1));

  /** A choice with a label; `options` are [value, text]. */
  function choice(label, name, options, chosen, change) {
    const select = el("select", { name, change }, options.map(([value, text]) => el("option", { value, selected: String(value) === String(chosen ?? "") }, text)));
    return el("label", {}, label, select);
  }

  /** A table whose rows become blocks on a narrow window; columns are [title, class], rows are lists of cells. */
  function list(columns, rows, caption, hidden = true) {
    // Roles, because a browser forgets a table that is laid out as blocks.
    const head = el("tr", { role: "row" }, columns.map(([title, kind, more]) => el("th", { scope: "col", role: "columnheader", class: kind, ...(more?.attributes ?? {}) }, more?.content ?? title)));
    const body = rows.map((cells) => el("tr", { role: "row" }, cells.map((cell, i) => el("td", { role: "cell", class: columns[i][1], "data-name": columns[i][0] }, el("span", {}, cell)))));
    const parts = [el("thead", { role: "rowgroup" }, head), el("tbody", { role: "rowgroup" }, body)];
    return el("table", { class: "list", role: "table" }, el("caption", { class: hidden && "sr" }, caption), parts);
  }

  // --- views --------------------------------------------------------------------------------

  const views = {};
  let turn = 0;
  let opened = null;
  let listed = "#";

  /** The view that an address names. */
  const viewOf = (parameters) => ["pair", "answer", "cycle"].find((name) => parameters.has(name)) ?? (parameters.has("q") || parameters.get("view") === "all" ? "all" : "worst");

  /** Show what the address names. `typing`: the person is in a field of this very view, which keeps the focus. */
  async function show(typing = false) {
    const mine = ++turn;
    const parameters = new URLSearchParams(location.hash.slice(1));
    let view = viewOf(parameters);
    const main = document.getElementById("view");
    let content;
    try {
      const start = await load("start");
      if (!location.hash && !start.worst.length) view = "all";
      content = await views[view](start, parameters);
    } catch (error) {
      content = [el("h2", { tabindex: -1 }, "This cannot be shown"), el("p", { class: "findings" }, error.message)];
    }
    if (mine !== turn) return;
    for (const link of document.querySelectorAll("[data-view]")) {
      if (link.dataset.view === view) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
    }
    const field = main.contains(document.activeElement) ? document.activeElement.getAttribute("name") : null;
    const nodes = content.flat(2);
    const results = typing && nodes.find((node) => node.id === "results");
    if (results) document.getElementById("results").replaceWith(results);
    else main.replaceChildren(...nodes);
    const heading = main.querySelector("h2");
    document.title = `${heading?.textContent ?? "Judgments"} · ${document.querySelector("h1").textContent}`;
    document.getElementById("said").textContent = main.querySelector(".counted")?.textContent ?? heading?.textContent ?? "";
    if (view === "all" || view === "worst") {
      listed = location.hash || "#";
      const back = opened && [...main.querySelectorAll("a")].find((link) => link.getAttribute("href") === opened);
      if (back) back.focus();
      else if (field && !results) main.querySelector(`[name="${field}"]`)?.focus(); // a field was made anew under a person's hands
      opened = null;
    } else {
      opened = location.hash;
      window.scrollTo(0, 0);
      heading?.focus();
    }
  }

  /** Go to a place in this page; in place of the one that is shown where a person is still typing. */
  function go(parameters, typing = false) {
    if (!typing) {
      location.hash = at(parameters);
      return;
    }
    history.replaceState(null, "", at(parameters));
    show(true);
  }

  async function begin() {
    window.addEventListener("hashchange", () => show());
    document.getElementById("skip").addEventListener("click", (event) => {
      event.preventDefault();
      document.getElementById("view").focus();
    });
    try {
      const start = await load("start");
      const notes = document.getElementById("notes");
      notes.replaceChildren(...start.notes.map((note) => el("li", {}, note)));
      notes.hidden = !start.notes.length;
    } catch {
      // Said by `show`.
    }
    show();
  }

  document.addEventListener("DOMContentLoaded", begin);
  return { PAGE, load, numbered, el, at, percent, number, count, named, pager, pageOf, choice, list, views, go, back: () => listed };
})();
