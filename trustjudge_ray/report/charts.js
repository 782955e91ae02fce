"use strict";
// Draws the page's charts again with Vega, in the colours of the theme and as wide as there is room, with the values
// under the pointer. A chart is drawn when it comes into view; where that fails its still picture stays.
(() => {
  const read = (id) => JSON.parse(document.getElementById(id).textContent);
  const specs = read("chart-specs");
  const look = JSON.stringify(read("chart-look"));
  const style = () => getComputedStyle(document.documentElement);
  const names = { "#24303b": "--ink", "#2b6cb0": "--accent", "#c3ccd4": "--bar", "#e6eaee": "--line" };
  const inTheme = (text) =>
    Object.entries(names).reduce((all, [colour, name]) => all.replaceAll(colour, style().getPropertyValue(name).trim()), text);

  const fitted = (spec, room) => {
    const facet = spec.encoding && spec.encoding.row;
    if (facet) {
      const longest = Math.max(...spec.data.values.map((row) => String(row[facet.field]).length));
      return { ...spec, width: Math.max(100, room - Math.min(150, 7 * longest) - 30) };
    }
    return { ...spec, width: "container", autosize: { type: "fit-x", contains: "padding" } };
  };

  const drawn = new Map();

  const draw = async (figure) => {
    const still = figure.querySelector(".still");
    const live = figure.querySelector(".live");
    const panels = specs[figure.dataset.chart];
    const views = [];
    live.replaceChildren();
    live.hidden = false;
    live.classList.toggle("one", panels.length === 1);
    try {
      const hosts = panels.map(() => document.createElement("div"));
      live.append(...hosts); // all of them first: how wide one is depends on the others
      for (const [i, spec] of panels.entries()) {
        const host = hosts[i];
        host.className = "panel";
        const shown = JSON.parse(inTheme(JSON.stringify(fitted(spec, host.clientWidth))));
        const options = { ast: true, actions: false, renderer: "svg", config: { ...JSON.parse(inTheme(look)), font: "system-ui, sans-serif" }, logLevel: 1 };
        views.push(await window.vegaEmbed(host, shown, options));
      }
      still.hidden = true;
    } catch (error) {
      live.hidden = true;
      still.hidden = false;
      console.error(`chart ${figure.dataset.chart}: ${error}`);
    }
    for (const view of drawn.get(figure) || []) view.finalize();
    drawn.set(figure, views);
  };

  const seen = new IntersectionObserver(
    (entries) => {
      for (const entry of entries) {
        if (!entry.isIntersecting || drawn.has(entry.target)) continue;
        drawn.set(entry.target, []);
        draw(entry.target);
      }
    },
    { rootMargin: "400px" },
  );
  for (const figure of document.querySelectorAll("figure.chart")) seen.observe(figure);

  const again = () => [...drawn.keys()].reduce((before, figure) => before.then(() => draw(figure)), Promise.resolve());
  document.addEventListener("themechange", again);
  let width = window.innerWidth;
  let waiting = 0;
  window.addEventListener("resize", () => {
    if (window.innerWidth === width) return;
    width = window.innerWidth;
    clearTimeout(waiting);
    waiting = setTimeout(again, 200);
  });
})();
