"use strict";
/* Copy buttons, training curves, heat maps. Texts are set as text, never as markup. */
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const byId = (id) => document.getElementById(id);
  const COLOURS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#b58900", "#56b4e9", "#8c564b", "#7f7f7f"];
  const DASHES = ["", "7 3", "2 3", "9 3 2 3"];
  const RAMP = [[68, 1, 84], [59, 82, 139], [33, 145, 140], [94, 201, 98], [253, 231, 37]];

  function element(name, attributes = {}, text = null, parent = null) {
    const svg = ["svg", "g", "path", "rect", "line", "text", "circle"].includes(name);
    const made = svg ? document.createElementNS("http://www.w3.org/2000/svg", name) : document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    if (text !== null) made.textContent = text;
    if (parent) parent.append(made);
    return made;
  }

  function fill(select, entries) {
    select.replaceChildren(...entries.map(([value, text]) => element("option", { value }, text)));
  }

  const shown = (value) =>
    value === null ? "–" : value !== 0 && (Math.abs(value) < 0.001 || Math.abs(value) >= 1e5)
      ? value.toExponential(2) : String(Number(value.toPrecision(4)));

  const tip = byId("tip");
  function showTip(event, text) {
    tip.textContent = text;
    tip.hidden = false;
    const box = tip.getBoundingClientRect();
    tip.style.left = `${Math.max(4, Math.min(event.clientX + 14, innerWidth - box.width - 4))}px`;
    tip.style.top = `${Math.max(4, Math.min(event.clientY + 14, innerHeight - box.height - 4))}px`;
  }
  const hideTip = () => { tip.hidden = true; };

  /* Copy buttons */
  async function copy(text) {
    try {
      await navigator.clipboard.writeText(text);
    } catch { // an older browser, or one that does not let local files
      const area = element("textarea", {}, text, document.body);
      area.select();
      document.execCommand("copy");
      area.remove();
    }
  }
  for (const button of document.querySelectorAll(".copy")) {
    button.addEventListener("click", async () => {
      await copy(button.dataset.command);
      button.textContent = "copied";
      setTimeout(() => { button.textContent = "copy"; }, 1200);
    });
  }

  /* Scales: value → place, with ticks */
  function linear(low, high, start, end) {
    const span = high - low || 1;
    const rough = span / 5, power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= rough);
    const ticks = [];
    for (let t = Math.ceil(low / step) * step; t <= high + 1e-9 * span; t += step) ticks.push(Number(t.toPrecision(6)));
    return { at: (v) => start + ((v - low) / span) * (end - start), ticks };
  }
  function logarithmic(low, high, start, end) {
    const [a, b] = [Math.log10(low), Math.log10(high)];
    const inner = linear(a, b > a ? b : a + 1, start, end);
    const every = Math.max(1, Math.ceil((b - a) / 6));
    const ticks = [];
    for (let e = Math.ceil(a); e <= b; e += every) ticks.push(10 ** e);
    return { at: (v) => inner.at(Math.log10(v)), ticks: ticks.length ? ticks : [low, high] };
  }
  const usable = (log) => (v) => v !== null && (!log || v > 0);

  /* Training curves */
  const chosen = new Set();
  function look(run) {
    const order = [...chosen].indexOf(run);
    return { stroke: COLOURS[order % COLOURS.length], dash: DASHES[Math.floor(order / COLOURS.length) % DASHES.length] };
  }

  function listRuns() {
    const target = data.targets[byId("curve-target").value];
    const words = byId("curve-find").value.toLowerCase().split(/\s+/).filter(Boolean);
    const runs = target.runs.filter((i) => words.every((word) => data.runs[i].label.toLowerCase().includes(word)));
    byId("curve-runs").replaceChildren(...runs.map((i) => {
      const label = element("label", { title: `${data.runs[i].key}: ${data.runs[i].settings}` });
      const box = element("input", { type: "checkbox", value: i }, null, label);
      box.checked = chosen.has(i);
      box.addEventListener("change", () => { chosen[box.checked ? "add" : "delete"](i); listRuns(); drawCurves(); });
      const mark = element("i", {}, null, label);
      if (chosen.has(i)) mark.style.borderTop = `3px ${look(i).dash ? "dashed" : "solid"} ${look(i).stroke}`;
      const run = data.runs[i];
      element("span", {}, `${run.label}: ${run.outcome}${run.accuracy === null ? "" : `, ${run.accuracy} % at epoch ${run.best}`}`, label);
      return label;
    }));
    if (!runs.length) element("span", { class: "quiet" }, "no run has all of these words", byId("curve-runs"));
  }

  function chooseSome() { // one run for each start and depth, a few at most
    chosen.clear();
    const seen = new Set();
    for (const i of data.targets[byId("curve-target").value].runs) {
      const cell = data.runs[i].label.replace(/ seed \d+/, "");
      if (!seen.has(cell) && seen.size < 6) { seen.add(cell); chosen.add(i); }
    }
  }

  function drawCurves() {
    const place = byId("curve-chart"), log = byId("curve-log").checked, measure = byId("curve-measure").value;
    const fits = usable(log), runs = [...chosen].filter((i) => data.runs[i].curves[measure]);
    const values = runs.flatMap((i) => data.runs[i].curves[measure].filter(fits));
    place.replaceChildren();
    if (!values.length) { element("p", { class: "quiet" }, "nothing to draw: choose a run", place); return; }
    const width = Math.max(300, place.clientWidth || 700), height = Math.max(240, Math.min(380, width * 0.5));
    const left = 62, right = width - 22, top = 24, bottom = height - 36;
    const last = Math.max(...runs.map((i) => data.runs[i].epochs.at(-1)));
    const x = linear(1, Math.max(last, 2), left, right);
    const low = log ? Math.min(...values) : Math.min(0, ...values);
    const y = (log ? logarithmic : linear)(low, Math.max(...values), bottom, top);
    const svg = element("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": data.measures[measure] }, null, place);
    for (const t of y.ticks) {
      element("line", { class: "axis", x1: left, x2: right, y1: y.at(t), y2: y.at(t) }, null, svg);
      element("text", { x: left - 6, y: y.at(t) + 4, "text-anchor": "end" }, shown(t), svg);
    }
    for (const t of x.ticks) element("text", { x: x.at(t), y: bottom + 16, "text-anchor": "middle" }, shown(t), svg);
    element("text", { x: (left + right) / 2, y: height - 4, "text-anchor": "middle" }, "epoch", svg);
    element("text", { class: "title", x: 4, y: 14 }, data.measures[measure], svg);
    for (const i of runs) {
      const run = data.runs[i];
      let pen = "M";
      const path = run.curves[measure].map((v, k) => {
        if (!fits(v)) { pen = "M"; return ""; }
        const step = `${pen}${x.at(run.epochs[k]).toFixed(1)} ${y.at(v).toFixed(1)}`;
        pen = "L";
        return step;
      }).join("");
      element("path", { d: path, fill: "none", stroke: look(i).stroke, "stroke-width": 1.8, "stroke-dasharray": look(i).dash, "data-run": i }, null, svg);
    }
    const cursor = element("line", { class: "axis", y1: top, y2: bottom, visibility: "hidden" }, null, svg);
    svg.addEventListener("pointermove", (event) => {
      const box = svg.getBoundingClientRect(), at = ((event.clientX - box.left) * width) / box.width;
      const epoch = 1 + ((at - left) / (right - left)) * (Math.max(last, 2) - 1);
      const lines = runs.map((i) => {
        const run = data.runs[i];
        const k = run.epochs.reduce((near, e, n) => (Math.abs(e - epoch) < Math.abs(run.epochs[near] - epoch) ? n : near), 0);
        return [run.epochs[k], `${shown(run.curves[measure][k])}  ${run.label.split(",")[0]} (epoch ${run.epochs[k]})`];
      });
      cursor.setAttribute("visibility", "visible");
      for (const end of ["x1", "x2"]) cursor.setAttribute(end, Math.max(left, Math.min(right, at)));
      showTip(event, lines.map((line) => line[1]).join("\n"));
    });
    svg.addEventListener("pointerleave", () => { cursor.setAttribute("visibility", "hidden"); hideTip(); });
  }

  /* Heat maps */
  function colour(share) {
    const place = Math.max(0, Math.min(1, share)) * (RAMP.length - 1), i = Math.min(RAMP.length - 2, Math.floor(place));
    return `rgb(${RAMP[i].map((c, k) => Math.round(c + (RAMP[i + 1][k] - c) * (place - i))).join(" ")})`;
  }

  const side = (name) => data.layers[byId(`layer-${name}`).value];

  function offerQuantities() {
    const select = byId("layer-quantity"), before = select.value;
    const there = Object.keys(data.quantities).filter((q) => [side("first"), side("second")].some((one) => one && one.quantities[q]));
    fill(select, there.map((q) => [q, data.quantities[q].title]));
    if (there.includes(before)) select.value = before;
    else byId("layer-log").checked = data.quantities[select.value].log;
  }

  function drawLayers() {
    const quantity = byId("layer-quantity").value, log = byId("layer-log").checked, fits = usable(log);
    const grids = ["first", "second"].map((name) => side(name)?.quantities[quantity]);
    const values = grids.flatMap((grid) => (grid ? grid.values.flat().filter(fits) : []));
    const low = Math.min(...values), high = Math.max(...values);
    const scale = values.length ? (log ? logarithmic : linear)(low, high > low ? high : low + (log ? low : 1), 0, 1) : null;
    ["first", "second"].forEach((name, n) => {
      const place = byId(`layer-chart-${name}`);
      place.replaceChildren();
      if (!side(name)) return;
      if (!grids[n] || !scale) { element("p", { class: "quiet" }, "nothing of this was recorded, or all of it is zero", place); return; }
      heatMap(place, grids[n], data.runs[side(name).run], scale, fits);
    });
    drawScale(scale, low, high);
  }

  function heatMap(place, grid, run, scale, fits) {
    const width = Math.max(300, place.clientWidth || 460), left = 34, top = 24;
    const tall = Math.max(8, Math.min(24, 300 / grid.layers.length)), wide = (width - left - 4) / grid.epochs.length;
    const height = top + tall * grid.layers.length + 40;
    const svg = element("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `${run.label}, layers by epochs` }, null, place);
    element("text", { class: "title", x: 0, y: 14 }, `${run.label.split(",")[0]}${run.accuracy === null ? "" : `: ${run.accuracy} %`}`, svg);
    const often = Math.ceil(14 / tall);
    grid.layers.forEach((layer, row) => {
      if (row % often === 0) element("text", { x: left - 6, y: top + tall * (row + 0.5) + 4, "text-anchor": "end" }, layer, svg);
      grid.epochs.forEach((_, column) => {
        const value = grid.values[row][column];
        element("rect", { x: left + wide * column, y: top + tall * row, width: wide + 0.5, height: tall + 0.5, "shape-rendering": "crispEdges",
          fill: value === null ? "none" : colour(fits(value) ? scale.at(value) : 0), "data-row": row, "data-column": column }, null, svg);
      });
    });
    const bottom = top + tall * grid.layers.length;
    [0, Math.floor((grid.epochs.length - 1) / 2), grid.epochs.length - 1].forEach((column, n) =>
      element("text", { x: left + wide * (column + 0.5), y: bottom + 15, "text-anchor": ["start", "middle", "end"][n] }, grid.epochs[column], svg));
    element("text", { x: (left + width) / 2, y: bottom + 30, "text-anchor": "middle" }, "epoch", svg);
    svg.addEventListener("pointermove", (event) => {
      const { row, column } = event.target.dataset;
      if (row === undefined) hideTip();
      else showTip(event, `${shown(grid.values[row][column])}\nlayer ${grid.layers[row]}, epoch ${grid.epochs[column]}`);
    });
    svg.addEventListener("pointerleave", hideTip);
  }

  function drawScale(scale, low, high) {
    const place = byId("layer-scale");
    place.replaceChildren();
    if (!scale) return;
    const svg = element("svg", { viewBox: "0 0 300 34", width: 300, height: 34 }, null, place);
    for (let i = 0; i < 60; i += 1) element("rect", { x: 5 * i, y: 0, width: 5.5, height: 12, fill: colour(i / 59) }, null, svg);
    element("text", { x: 0, y: 28 }, shown(low), svg);
    element("text", { x: 300, y: 28, "text-anchor": "end" }, shown(high), svg);
  }

  /* Put together */
  const redraws = [];
  if (data.runs.length) {
    fill(byId("curve-target"), data.targets.map((target, i) => [i, target.name]));
    fill(byId("curve-measure"), Object.entries(data.measures));
    const all = () => { listRuns(); drawCurves(); };
    byId("curve-target").addEventListener("change", () => { chooseSome(); all(); });
    byId("curve-find").addEventListener("input", listRuns);
    byId("curve-none").addEventListener("click", () => { chosen.clear(); all(); });
    for (const id of ["curve-measure", "curve-log"]) byId(id).addEventListener("change", drawCurves);
    chooseSome();
    all();
    redraws.push(drawCurves);
  }
  if (data.layers.length) {
    const runs = data.layers.map((one, i) => [i, data.runs[one.run].label]);
    fill(byId("layer-first"), runs);
    fill(byId("layer-second"), [["", "nothing"], ...runs]);
    if (runs.length > 1) byId("layer-second").value = "1";
    const all = () => { offerQuantities(); drawLayers(); };
    for (const id of ["layer-first", "layer-second"]) byId(id).addEventListener("change", all);
    byId("layer-quantity").addEventListener("change", () => {
      byId("layer-log").checked = data.quantities[byId("layer-quantity").value].log;
      drawLayers();
    });
    byId("layer-log").addEventListener("change", drawLayers);
    all();
    redraws.push(drawLayers);
  }
  for (const form of document.querySelectorAll("form")) form.addEventListener("submit", (event) => event.preventDefault());
  let width = innerWidth;
  addEventListener("resize", () => {
    if (innerWidth !== width) { width = innerWidth; redraws.forEach((draw) => draw()); }
  });
})();
