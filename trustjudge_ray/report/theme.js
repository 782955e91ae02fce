"use strict";
// The theme of a page: auto (as the system has it), light or dark. `button#theme` goes from one to the next; the choice
// is kept where the browser allows it. Whoever draws in colours listens to "themechange" on the document.
(() => {
  const choices = ["auto", "light", "dark"];
  const root = document.documentElement;
  const system = window.matchMedia("(prefers-color-scheme: dark)");
  let chosen = "auto";
  try {
    const kept = window.localStorage.getItem("trustjudge-theme");
    if (choices.includes(kept)) chosen = kept;
  } catch {
    // No storage for this page: the choice lasts as long as the page.
  }

  const apply = () => {
    if (chosen === "auto") root.removeAttribute("data-theme");
    else root.dataset.theme = chosen;
    const button = document.getElementById("theme");
    if (button) {
      button.hidden = false;
      button.textContent = `Theme: ${chosen}`;
    }
    document.dispatchEvent(new CustomEvent("themechange"));
  };

  const next = () => {
    chosen = choices[(choices.indexOf(chosen) + 1) % choices.length];
    try {
      window.localStorage.setItem("trustjudge-theme", chosen);
    } catch {
      // As above.
    }
    apply();
  };

  apply();
  document.addEventListener("DOMContentLoaded", () => {
    const button = document.getElementById("theme");
    if (button) button.addEventListener("click", next);
    apply();
  });
  system.addEventListener("change", () => chosen === "auto" && apply());
})();
