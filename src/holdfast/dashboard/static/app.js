// Holdfast's dashboard: every page works without this file; it adds live pages, charts, keys and a theme.
(() => {
  "use strict";
  const root = document.documentElement;
  const store = {
    get(name) { try { return localStorage.getItem(name); } catch { return null; } },
    set(name, value) { try { localStorage.setItem(name, value); } catch { /* private window: it lasts as long as the page */ } },
  };
  const all = (selector, within = document) => [...within.querySelectorAll(selector)];
  const one = (selector, within = document) => within.querySelector(selector);

  // Theme: as the system says, unless somebody has said otherwise. Before the body is there, so that nothing flashes.
  const theme = store.get("holdfast-theme");
  if (theme === "dark" || theme === "light") root.dataset.theme = theme;
  const isDark = () => (root.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
  function switchTheme() {
    root.dataset.theme = isDark() ? "light" : "dark";
    store.set("holdfast-theme", root.dataset.theme);
    charts.forEach((chart, plot) => { chart.destroy(); charts.delete(plot); });
    drawAll();
  }

  // Charts: the data stands in the page, and a table behind it.
  const charts = new Map();
  const HUES = { light: ["#0f766e", "#1b5fa8", "#b3261e", "#8a5a00", "#6b3fa0", "#55626f"], dark: ["#2dd4bf", "#8ec5ff", "#ff9b93", "#f5c563", "#cfaeff", "#9fadb8"] };
  function spoken(value, unit) {
    if (value === null || value === undefined) return "–";
    if (unit !== "s") return value >= 100 ? Math.round(value).toLocaleString("en") : String(+value.toPrecision(3));
    if (value < 0.001) return value > 0 ? "<1 ms" : "0";
    if (value < 1) return Math.round(value * 1000) + " ms";
    if (value < 60) return +value.toFixed(1) + " s";
    if (value < 3600) return +(value / 60).toFixed(1) + " m";
    return +(value / 3600).toFixed(1) + " h";
  }
  function clock(seconds, gap) {
    const two = (number) => String(number).padStart(2, "0"), time = new Date(seconds * 1000);
    if (gap >= 86400) return two(time.getMonth() + 1) + "-" + two(time.getDate());
    return two(time.getHours()) + ":" + two(time.getMinutes()) + (gap < 60 ? ":" + two(time.getSeconds()) : "");
  }
  function draw(plot) {
    if (!window.uPlot) return;
    const said = plot.dataset.chart, known = charts.get(plot);
    if (known && known.said === said) return;
    const { unit, labels, data } = JSON.parse(said);
    if (known && known.labels === labels.join()) { known.chart.setData(data); known.said = said; return; }
    if (known) known.chart.destroy();
    const css = getComputedStyle(root), hues = HUES[isDark() ? "dark" : "light"];
    const soft = css.getPropertyValue("--soft").trim(), line = css.getPropertyValue("--line").trim();
    const axis = { stroke: soft, grid: { stroke: line, width: 1 }, ticks: { stroke: line, width: 1 }, font: "11px system-ui" };
    const series = labels.map((label, place) => ({
      label, stroke: hues[place % hues.length], width: 2, spanGaps: false, points: { size: 5 },
      fill: labels.length === 1 ? hues[place] + "22" : undefined, value: (_, value) => spoken(value, unit),
    }));
    const chart = new uPlot({
      width: Math.max(plot.clientWidth, 200), height: 190, legend: { live: false }, cursor: { drag: { x: false, y: false } },
      scales: { y: { range: (_, low, high) => [0, Math.max(high || 0, unit === "s" ? 0.01 : 1) * 1.08] } },
      axes: [{ ...axis, values: (_, ticks, __, ___, gap) => ticks.map((tick) => clock(tick, gap)) }, { ...axis, size: 56, values: (_, ticks) => ticks.map((tick) => spoken(tick, unit)) }],
      series: [{ value: (_, time) => time === null ? "" : new Date(time * 1000).toLocaleTimeString() }, ...series],
    }, data, plot);
    charts.set(plot, { chart, said, labels: labels.join(), destroy: () => chart.destroy() });
  }
  function drawAll() {
    charts.forEach((known, plot) => { if (!plot.isConnected) { known.destroy(); charts.delete(plot); } });
    all("[data-chart]").forEach(draw);
  }

  // Live: looks again while the page is seen, and nothing is chosen, open or being typed.
  let paused = store.get("holdfast-paused") === "1", lost = false, last = 0;
  const main = () => one("#main");
  function isBusy() {
    if (document.hidden || one("dialog[open]") || one("#main input[name=id]:checked")) return true;
    const active = document.activeElement;
    return Boolean(active && active.closest("#main") && active.matches("input, select, textarea"));
  }
  function tick(force) {
    const live = main();
    if (!live || !("live" in live.dataset) || !window.htmx) return force ? location.reload() : undefined;
    if (!force && (paused || isBusy())) return undefined;
    last = Date.now();
    return live.dispatchEvent(new CustomEvent("holdfast:tick"));
  }
  function tellLive() {
    const told = one("#live");
    if (!told || !main() || !("live" in main().dataset)) return;
    told.hidden = false;
    told.classList.toggle("off", paused);
    told.classList.toggle("lost", lost);
    one(".live-text", told).textContent = lost ? "not reached" : paused ? "paused" : "live";
  }
  function pauseLive() { paused = !paused; store.set("holdfast-paused", paused ? "1" : "0"); tellLive(); if (!paused) tick(); }

  // Rows: a place that keys move, and what was chosen.
  let at = null;
  const rows = () => all("[data-row]");
  function place(row) {
    rows().forEach((each) => each.classList.toggle("at", each === row));
    at = row ? row.id || null : null;
    if (row) row.scrollIntoView({ block: "nearest" });
  }
  function step(by) {
    const list = rows(), here = list.findIndex((row) => row.classList.contains("at"));
    if (list.length) place(list[Math.min(Math.max(here + by, 0), list.length - 1)]);
  }
  function tellChosen() {
    const told = one("[data-chosen]"), count = all("input[name=id]:checked").length;
    if (told) told.textContent = count ? count + " chosen" : "Choose jobs";
    all("#chosen .bar button").forEach((button) => { button.disabled = !count; });
  }

  // Keys: single letters, never while somebody types.
  let go = 0;
  const KEYS = {
    "/": () => { const field = one("[type=search]"); if (field) { field.focus(); field.select(); } },
    "?": () => one("#help").showModal(),
    j: () => step(1), k: () => step(-1),
    o: () => { const open = one(".at [data-open]"); if (open) open.click(); },
    x: () => { const box = one(".at input[name=id]"); if (box) { box.checked = !box.checked; tellChosen(); } },
    r: () => tick(true), p: pauseLive, t: switchTheme, g: () => { go = Date.now(); },
  };
  function pressed(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
    // A dialog that was just closed may hold the focus until the page is drawn again.
    if (event.target.closest("input, select, textarea, dialog[open]")) { if (event.key === "Escape" && event.target.matches("[type=search]")) event.target.blur(); return; }
    if (Date.now() - go < 1500 && go) {
      go = 0;
      const link = one(`[data-go="${CSS.escape(event.key)}"]`);
      if (link) { event.preventDefault(); link.click(); }
      return;
    }
    const key = KEYS[event.key];
    if (key) { event.preventDefault(); key(); }
  }

  function enhance() {
    all("time[datetime]").forEach((time) => { time.title = new Date(time.dateTime).toLocaleString(); });
    if (at) { const row = document.getElementById(at); if (row) row.classList.add("at"); }
    all(".js[hidden]").forEach((each) => { each.hidden = false; });
    drawAll(); tellChosen(); tellLive();
  }

  document.addEventListener("DOMContentLoaded", () => {
    enhance();
    // On a phone the pages stand in a row that may be longer than the screen.
    const here = one("nav [aria-current=page]");
    if (here) { const list = here.closest("nav"); list.scrollLeft = here.offsetLeft - (list.clientWidth - here.offsetWidth) / 2; }
    one("#theme").addEventListener("click", switchTheme);
    one("#keys").addEventListener("click", () => one("#help").showModal());
    one("#live").addEventListener("click", pauseLive);
    document.addEventListener("keydown", pressed);
    document.addEventListener("change", (event) => {
      if (event.target.matches("[data-choose-all]")) all("input[name=id]").forEach((box) => { box.checked = event.target.checked; });
      tellChosen();
    });
    // What somebody has opened stays open when the page looks again.
    document.addEventListener("toggle", (event) => {
      if (event.target.matches("details")) event.target.toggleAttribute("hx-morph-skip", event.target.open);
    }, true);
    document.addEventListener("htmx:after:swap", () => { lost = false; enhance(); });
    document.addEventListener("htmx:error", () => { lost = true; tellLive(); });
    document.addEventListener("visibilitychange", () => { if (!document.hidden && Date.now() - last > every) tick(); });
    addEventListener("resize", () => charts.forEach((known, plot) => known.chart.setSize({ width: Math.max(plot.clientWidth, 200), height: 190 })));
    const next = one("[data-continue]");
    if (next) setTimeout(() => next.requestSubmit(), 250);
    const every = Math.max(Number(document.body.dataset.refresh) || 2000, 1000);
    setInterval(tick, every);
  });
})();
