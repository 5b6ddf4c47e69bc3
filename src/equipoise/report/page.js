"use strict";
/* Copy buttons, training curves and heat maps. Text is set through textContent, never parsed as markup. */
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const byId = (id) => document.getElementById(id);
  const COLOURS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#b58900", "#56b4e9", "#8c564b", "#7f7f7f"];
  const DASHES = ["", "7 3", "2 3", "9 3 2 3"];
  const COLOUR_RAMP = [[68, 1, 84], [59, 82, 139], [33, 145, 140], [94, 201, 98], [253, 231, 37]];

  function element(name, attributes = {}, text = null, parent = null) {
    const isSvg = ["svg", "g", "path", "rect", "line", "text", "circle", "clipPath"].includes(name);
    const node = isSvg ? document.createElementNS("http://www.w3.org/2000/svg", name) : document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    if (text !== null) node.textContent = text;
    if (parent) parent.append(node);
    return node;
  }

  function setOptions(select, entries) {
    select.replaceChildren(...entries.map(([value, text]) => element("option", { value }, text)));
  }

  const formatNumber = (value) =>
    value === null ? "–" : value !== 0 && (Math.abs(value) < 0.001 || Math.abs(value) >= 1e5)
      ? value.toExponential(2) : String(Number(value.toPrecision(4)));

  const tooltip = byId("tooltip");
  function showTooltip(event, text) {
    tooltip.textContent = text;
    tooltip.hidden = false;
    const box = tooltip.getBoundingClientRect();
    tooltip.style.left = `${Math.max(4, Math.min(event.clientX + 14, innerWidth - box.width - 4))}px`;
    tooltip.style.top = `${Math.max(4, Math.min(event.clientY + 14, innerHeight - box.height - 4))}px`;
  }
  const hideTooltip = () => { tooltip.hidden = true; };

  /* Copy buttons */
  async function copy(text) {
    try {
      await navigator.clipboard.writeText(text);
    } catch { // old browsers, and those that deny clipboard access to local files
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

  /* A link to a claim opens its table of comparisons */
  function openTarget() {
    const details = document.getElementById(decodeURIComponent(location.hash.slice(1)))?.querySelector("details");
    if (details) details.open = true;
  }
  addEventListener("hashchange", openTarget);
  openTarget();

  /* Scales: map values to coordinates, with ticks */
  function linearScale(low, high, start, end) {
    const span = high - low || 1;
    const rough = span / 5, power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= rough);
    const ticks = [];
    for (let t = Math.ceil(low / step) * step; t <= high + 1e-9 * span; t += step) ticks.push(Number(t.toPrecision(6)));
    return { at: (v) => start + ((v - low) / span) * (end - start), invert: (p) => low + ((p - start) / (end - start)) * span, ticks };
  }
  function logScale(low, high, start, end) {
    const [a, b] = [Math.log10(low), Math.log10(high)];
    const inner = linearScale(a, b > a ? b : a + 1, start, end);
    const step = Math.max(1, Math.ceil((b - a) / 6));
    const ticks = [];
    for (let e = Math.ceil(a); e <= b; e += step) ticks.push(10 ** e);
    return { at: (v) => inner.at(Math.log10(v)), invert: (p) => 10 ** inner.invert(p), ticks: ticks.length ? ticks : [low, high] };
  }
  const isDrawable = (log) => (v) => v !== null && (!log || v > 0);

  /* Training curves */
  const selected = new Set();
  let zoom = null; // { epochs: [low, high], values: [low, high] }, or null for everything
  function lineStyle(run) {
    const order = [...selected].indexOf(run);
    return { stroke: COLOURS[order % COLOURS.length], dash: DASHES[Math.floor(order / COLOURS.length) % DASHES.length] };
  }

  function matches(i) { // the filter
    const words = byId("curve-filter").value.toLowerCase().split(/\s+/).filter(Boolean);
    return words.every((word) => data.runs[i].label.toLowerCase().includes(word));
  }

  function listRuns() {
    const runs = data.experiments[byId("curve-experiment").value].runs.filter(matches);
    byId("curve-runs").replaceChildren(...runs.map((i) => {
      const label = element("label", { title: `${data.runs[i].key}: ${data.runs[i].settings}` });
      const box = element("input", { type: "checkbox", value: i }, null, label);
      box.checked = selected.has(i);
      box.addEventListener("change", () => { selected[box.checked ? "add" : "delete"](i); listRuns(); drawCurves(); });
      const mark = element("i", {}, null, label);
      if (selected.has(i)) mark.style.borderTop = `3px ${lineStyle(i).dash ? "dashed" : "solid"} ${lineStyle(i).stroke}`;
      const run = data.runs[i];
      element("span", {}, `${run.label}: ${run.outcome}${run.accuracy === null ? "" : `, ${run.accuracy} % at epoch ${run.best}`}`, label);
      return label;
    }));
    if (!runs.length) element("span", { class: "muted" }, "no run matches all of these words", byId("curve-runs"));
  }

  const withoutSeed = (label) => label.replace(/ seed \d+/, "");

  function selectDefaults() { // one run per scheme and depth, at most six
    selected.clear();
    const seen = new Set();
    for (const i of data.experiments[byId("curve-experiment").value].runs) {
      const cell = withoutSeed(data.runs[i].label);
      if (!seen.has(cell) && seen.size < 6) { seen.add(cell); selected.add(i); }
    }
  }

  /* One line per selected run, or per cell with the mean of its seeds and the range of their values. */
  function lines(measure, drawable) {
    const runs = [...selected].filter((i) => matches(i) && data.runs[i].curves[measure]);
    if (!byId("curve-mean").checked) {
      return runs.map((i) => ({ run: i, label: data.runs[i].label, epochs: data.runs[i].epochs, values: data.runs[i].curves[measure] }));
    }
    const cells = new Map();
    for (const i of runs) { // a selected run stands for its cell
      const cell = withoutSeed(data.runs[i].label);
      if (!cells.has(cell)) cells.set(cell, data.runs.map((_, j) => j).filter((j) => withoutSeed(data.runs[j].label) === cell && data.runs[j].curves[measure]));
    }
    return [...cells].map(([cell, members]) => {
      const longest = members.reduce((a, b) => (data.runs[b].epochs.at(-1) > data.runs[a].epochs.at(-1) ? b : a));
      const epochs = data.runs[longest].epochs;
      const rows = epochs.map((epoch) => members.map((i) => valueAt(data.runs[i], measure, epoch)).filter(drawable));
      const reduce = (f) => rows.map((row) => (row.length ? f(row) : null));
      return {
        run: runs.find((i) => members.includes(i)), epochs,
        label: cell.replace(",", ` (${members.length} seed${members.length === 1 ? "" : "s"}),`),
        values: reduce((row) => row.reduce((a, b) => a + b) / row.length),
        low: reduce((row) => Math.min(...row)), high: reduce((row) => Math.max(...row)),
      };
    });
  }

  function valueAt(run, measure, epoch) { // interpolated; the last value of a run that has ended
    const k = run.epochs.findIndex((e) => e >= epoch), values = run.curves[measure];
    if (k === -1) return values.at(-1);
    if (k === 0 || run.epochs[k] === epoch || values[k - 1] === null || values[k] === null) return values[k];
    const share = (epoch - run.epochs[k - 1]) / (run.epochs[k] - run.epochs[k - 1]);
    return values[k - 1] + share * (values[k] - values[k - 1]);
  }

  function pathOf(epochs, values, drawable, x, y) {
    let pen = "M";
    return values.map((v, k) => {
      if (!drawable(v)) { pen = "M"; return ""; }
      const step = `${pen}${x.at(epochs[k]).toFixed(1)} ${y.at(v).toFixed(1)}`;
      pen = "L";
      return step;
    }).join("");
  }

  function drawCurves() {
    const container = byId("curve-chart"), log = byId("curve-log").checked, measure = byId("curve-measure").value;
    const drawable = isDrawable(log), curves = lines(measure, drawable);
    const values = curves.flatMap((curve) => [...curve.values, ...(curve.low ?? []), ...(curve.high ?? [])].filter(drawable));
    container.replaceChildren();
    byId("curve-unzoom").hidden = zoom === null;
    if (!values.length) {
      element("p", { class: "muted" }, selected.size ? "no selected run matches the filter" : "nothing to draw: select a run", container);
      return;
    }
    const width = Math.max(300, container.clientWidth || 700), height = Math.max(240, Math.min(380, width * 0.5));
    const left = 62, right = width - 22, top = 24, bottom = height - 36;
    const last = Math.max(2, ...curves.map((curve) => curve.epochs.at(-1)));
    const least = Math.min(...values), most = Math.max(...values);
    const low = log || (least > most / 2 && least < most) ? least : Math.min(0, least); // from 0 unless the curves differ by little
    const [firstEpoch, lastEpoch] = zoom?.epochs ?? [1, last], [lowest, highest] = zoom?.values ?? [low, most];
    const x = linearScale(firstEpoch, lastEpoch, left, right), y = (log ? logScale : linearScale)(lowest, highest, bottom, top);
    const svg = element("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": data.measures[measure] }, null, container);
    const clip = element("clipPath", { id: "curve-clip" }, null, svg);
    element("rect", { x: left - 1, y: top - 2, width: right - left + 2, height: bottom - top + 4 }, null, clip);
    for (const t of y.ticks) {
      element("line", { class: "axis", x1: left, x2: right, y1: y.at(t), y2: y.at(t) }, null, svg);
      element("text", { x: left - 6, y: y.at(t) + 4, "text-anchor": "end" }, formatNumber(t), svg);
    }
    for (const t of x.ticks) element("text", { x: x.at(t), y: bottom + 16, "text-anchor": "middle" }, formatNumber(t), svg);
    element("text", { x: (left + right) / 2, y: height - 4, "text-anchor": "middle" }, "epoch", svg);
    element("text", { class: "title", x: 4, y: 14 }, data.measures[measure], svg);
    const plot = element("g", { "clip-path": "url(#curve-clip)" }, null, svg);
    for (const curve of curves) {
      const style = lineStyle(curve.run);
      if (curve.low) {
        const both = curve.epochs.map((e, k) => [e, curve.low[k], curve.high[k]]).filter(([, a, b]) => drawable(a) && drawable(b));
        const points = [...both.map(([e, a]) => [e, a]), ...both.map(([e, , b]) => [e, b]).reverse()];
        element("path", { class: "band", d: `M${points.map(([e, v]) => `${x.at(e).toFixed(1)} ${y.at(v).toFixed(1)}`).join("L")}Z`, fill: style.stroke, "fill-opacity": 0.2 }, null, plot);
      }
      const d = pathOf(curve.epochs, curve.values, drawable, x, y);
      element("path", { class: "curve", d, fill: "none", stroke: style.stroke, "stroke-width": 1.8, "stroke-dasharray": style.dash, "data-run": curve.run }, null, plot);
    }
    const cursor = element("line", { class: "axis", y1: top, y2: bottom, visibility: "hidden" }, null, svg);
    const brush = element("rect", { class: "brush", visibility: "hidden" }, null, svg);
    let corner = null; // where a drag began
    const inside = (event) => { // position of the pointer in the plot
      const box = svg.getBoundingClientRect(), scale = width / box.width;
      const clamp = (value, a, b) => Math.max(a, Math.min(b, value));
      return [clamp((event.clientX - box.left) * scale, left, right), clamp((event.clientY - box.top) * scale, top, bottom)];
    };
    svg.addEventListener("pointerdown", (event) => { if (event.pointerType !== "touch") { corner = inside(event); event.preventDefault(); } });
    svg.addEventListener("pointermove", (event) => {
      const [at, level] = inside(event), epoch = x.invert(at);
      if (corner) {
        const [a, b] = corner;
        const box = { x: Math.min(a, at), y: Math.min(b, level), width: Math.abs(at - a), height: Math.abs(level - b), visibility: "visible" };
        for (const [name, value] of Object.entries(box)) brush.setAttribute(name, value);
      }
      const texts = curves.map((curve) => {
        const k = curve.epochs.reduce((near, e, n) => (Math.abs(e - epoch) < Math.abs(curve.epochs[near] - epoch) ? n : near), 0);
        return `${formatNumber(curve.values[k])}  ${curve.label.split(",")[0]} (epoch ${curve.epochs[k]})`;
      });
      cursor.setAttribute("visibility", "visible");
      for (const end of ["x1", "x2"]) cursor.setAttribute(end, at);
      showTooltip(event, texts.join("\n"));
    });
    svg.addEventListener("pointerup", (event) => {
      const [from, to] = [corner, inside(event)];
      corner = null;
      if (from && Math.abs(to[0] - from[0]) > 5 && Math.abs(to[1] - from[1]) > 5) {
        const ordered = (a, b) => [Math.min(a, b), Math.max(a, b)];
        zoom = { epochs: ordered(x.invert(from[0]), x.invert(to[0])), values: ordered(y.invert(from[1]), y.invert(to[1])) };
        drawCurves();
      } else brush.setAttribute("visibility", "hidden");
    });
    svg.addEventListener("dblclick", () => { zoom = null; drawCurves(); });
    svg.addEventListener("pointerleave", () => {
      corner = null;
      for (const node of [brush, cursor]) node.setAttribute("visibility", "hidden");
      hideTooltip();
    });
  }

  /* Heat maps */
  function rampColour(share) {
    const position = Math.max(0, Math.min(1, share)) * (COLOUR_RAMP.length - 1), i = Math.min(COLOUR_RAMP.length - 2, Math.floor(position));
    return `rgb(${COLOUR_RAMP[i].map((c, k) => Math.round(c + (COLOUR_RAMP[i + 1][k] - c) * (position - i))).join(" ")})`;
  }

  const selectedLayers = (name) => data.layers[byId(`layer-${name}`).value];

  function updateQuantities() {
    const select = byId("layer-quantity"), previous = select.value;
    const available = Object.keys(data.quantities).filter((q) => [selectedLayers("first"), selectedLayers("second")].some((one) => one && one.quantities[q]));
    setOptions(select, available.map((q) => [q, data.quantities[q].title]));
    if (available.includes(previous)) select.value = previous;
    else byId("layer-log").checked = data.quantities[select.value].log;
  }

  function drawLayers() {
    const quantity = byId("layer-quantity").value, log = byId("layer-log").checked, drawable = isDrawable(log);
    const grids = ["first", "second"].map((name) => selectedLayers(name)?.quantities[quantity]);
    const values = grids.flatMap((grid) => (grid ? grid.values.flat().filter(drawable) : []));
    const low = Math.min(...values), high = Math.max(...values);
    const scale = values.length ? (log ? logScale : linearScale)(low, high > low ? high : low + (log ? low : 1), 0, 1) : null;
    ["first", "second"].forEach((name, n) => {
      const container = byId(`layer-chart-${name}`);
      container.replaceChildren();
      if (!selectedLayers(name)) return;
      if (!grids[n] || !scale) { element("p", { class: "muted" }, "not recorded, or zero everywhere", container); return; }
      drawHeatMap(container, grids[n], data.runs[selectedLayers(name).run], scale, drawable);
    });
    drawColourScale(scale, low, high);
  }

  function drawHeatMap(container, grid, run, scale, drawable) {
    const width = Math.max(300, container.clientWidth || 460), left = 34, top = 24;
    const rowHeight = Math.max(8, Math.min(24, 300 / grid.layers.length)), columnWidth = (width - left - 4) / grid.epochs.length;
    const height = top + rowHeight * grid.layers.length + 40;
    const svg = element("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `${run.label}, layers by epochs` }, null, container);
    element("text", { class: "title", x: 0, y: 14 }, `${run.label.split(",")[0]}${run.accuracy === null ? "" : `: ${run.accuracy} %`}`, svg);
    const labelStep = Math.ceil(14 / rowHeight);
    grid.layers.forEach((layer, row) => {
      if (row % labelStep === 0) element("text", { x: left - 6, y: top + rowHeight * (row + 0.5) + 4, "text-anchor": "end" }, layer, svg);
      grid.epochs.forEach((_, column) => {
        const value = grid.values[row][column];
        element("rect", { x: left + columnWidth * column, y: top + rowHeight * row, width: columnWidth + 0.5, height: rowHeight + 0.5, "shape-rendering": "crispEdges",
          fill: value === null ? "none" : rampColour(drawable(value) ? scale.at(value) : 0), "data-row": row, "data-column": column }, null, svg);
      });
    });
    const bottom = top + rowHeight * grid.layers.length;
    [0, Math.floor((grid.epochs.length - 1) / 2), grid.epochs.length - 1].forEach((column, n) =>
      element("text", { x: left + columnWidth * (column + 0.5), y: bottom + 15, "text-anchor": ["start", "middle", "end"][n] }, grid.epochs[column], svg));
    element("text", { x: (left + width) / 2, y: bottom + 30, "text-anchor": "middle" }, "epoch", svg);
    svg.addEventListener("pointermove", (event) => {
      const { row, column } = event.target.dataset;
      if (row === undefined) hideTooltip();
      else showTooltip(event, `${formatNumber(grid.values[row][column])}\nlayer ${grid.layers[row]}, epoch ${grid.epochs[column]}`);
    });
    svg.addEventListener("pointerleave", hideTooltip);
  }

  function drawColourScale(scale, low, high) {
    const container = byId("layer-scale");
    container.replaceChildren();
    if (!scale) return;
    const svg = element("svg", { viewBox: "0 0 300 34", width: 300, height: 34 }, null, container);
    for (let i = 0; i < 60; i += 1) element("rect", { x: 5 * i, y: 0, width: 5.5, height: 12, fill: rampColour(i / 59) }, null, svg);
    element("text", { x: 0, y: 28 }, formatNumber(low), svg);
    element("text", { x: 300, y: 28, "text-anchor": "end" }, formatNumber(high), svg);
  }

  /* Wiring */
  const redrawOnResize = [];
  if (data.runs.length) {
    setOptions(byId("curve-experiment"), data.experiments.map((experiment, i) => [i, experiment.name]));
    setOptions(byId("curve-measure"), Object.entries(data.measures));
    const update = () => { listRuns(); drawCurves(); };
    const unzoom = () => { zoom = null; drawCurves(); };
    byId("curve-experiment").addEventListener("change", () => { zoom = null; selectDefaults(); update(); });
    byId("curve-filter").addEventListener("input", update);
    byId("curve-clear").addEventListener("click", () => { selected.clear(); update(); });
    byId("curve-unzoom").addEventListener("click", unzoom);
    for (const id of ["curve-measure", "curve-log", "curve-mean"]) byId(id).addEventListener("change", unzoom);
    selectDefaults();
    update();
    redrawOnResize.push(drawCurves);
  }
  if (data.layers.length) {
    const runs = data.layers.map((one, i) => [i, data.runs[one.run].label]);
    setOptions(byId("layer-first"), runs);
    setOptions(byId("layer-second"), [["", "none"], ...runs]);
    if (runs.length > 1) byId("layer-second").value = "1";
    const update = () => { updateQuantities(); drawLayers(); };
    for (const id of ["layer-first", "layer-second"]) byId(id).addEventListener("change", update);
    byId("layer-quantity").addEventListener("change", () => {
      byId("layer-log").checked = data.quantities[byId("layer-quantity").value].log;
      drawLayers();
    });
    byId("layer-log").addEventListener("change", drawLayers);
    update();
    redrawOnResize.push(drawLayers);
  }
  for (const form of document.querySelectorAll("form")) form.addEventListener("submit", (event) => event.preventDefault());
  let width = innerWidth;
  addEventListener("resize", () => {
    if (innerWidth !== width) { width = innerWidth; redrawOnResize.forEach((draw) => draw()); }
  });
})();
