"use strict";
// Tables that sort by a click or a key on a column's head, by unrounded values where the column has them, and that are
// filtered by what their rows say. Without this script they stand as they are.
(() => {
  const numbers = (cell) => (cell && cell.dataset.values ? cell.dataset.values.split(" ").map(Number) : null);
  const collator = new Intl.Collator("en", { numeric: true });

  const compare = (one, other) => {
    const [a, b] = [numbers(one), numbers(other)];
    if (a && b) {
      for (let i = 0; i < Math.min(a.length, b.length); i += 1) if (a[i] !== b[i]) return a[i] - b[i];
      return a.length - b.length;
    }
    return collator.compare(one.textContent, other.textContent);
  };

  const empty = (cell, numeric) => (numeric ? !numbers(cell) : ["", "–"].includes(cell.textContent.trim()));

  const sort = (table, column, head) => {
    const body = table.tBodies[0];
    const rows = [...body.rows];
    const numeric = rows.some((row) => numbers(row.cells[column]));
    const before = head.getAttribute("aria-sort");
    const down = before ? before === "ascending" : numeric;
    for (const each of table.tHead.rows[0].cells) each.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    rows.sort((one, other) => {
      const [a, b] = [one.cells[column], other.cells[column]];
      const [noA, noB] = [empty(a, numeric), empty(b, numeric)];
      if (noA || noB) return noA - noB; // what has no value stays last
      return down ? compare(b, a) : compare(a, b);
    });
    body.append(...rows);
  };

  for (const table of document.querySelectorAll("table")) {
    if (table.tBodies[0].rows.length < 2) continue;
    [...table.tHead.rows[0].cells].forEach((head, column) => {
      const button = document.createElement("button");
      button.type = "button";
      button.append(...head.childNodes);
      button.addEventListener("click", () => sort(table, column, head));
      head.append(button);
    });
  }

  window.addEventListener("beforeprint", () => {
    for (const more of document.querySelectorAll(".findings details")) more.open = true;
  });

  for (const box of document.querySelectorAll("p.filter")) {
    const input = box.querySelector("input");
    const status = box.querySelector("[role=status]");
    const rows = [...document.getElementById(input.getAttribute("aria-controls")).rows];
    const texts = rows.map((row) => [...row.cells].map((cell) => cell.textContent).join(" ").toLowerCase());
    box.hidden = false;
    input.addEventListener("input", () => {
      const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
      let left = 0;
      texts.forEach((text, i) => {
        const shown = words.every((word) => text.includes(word));
        rows[i].classList.toggle("away", !shown);
        left += shown;
      });
      status.textContent = words.length ? `${left} of ${rows.length} rows` : `${rows.length} rows`;
    });
  }
})();
