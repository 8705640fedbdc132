"use strict";
(() => {
  const page = JSON.parse(document.getElementById("data").textContent);
  const root = document.documentElement;
  const tip = document.getElementById("tip");
  const NS = "http://www.w3.org/2000/svg";
  const LABEL = 190, RIGHT = 8, LANE = 46, GAP = 22, COST = 50, AXIS = 22, MARKS = 14;

  const el = (name, attributes = {}, parent = null, text = null) => {
    const node = document.createElementNS(NS, name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    if (text !== null) node.textContent = text;
    if (parent) parent.append(node);
    return node;
  };
  const html = (name, className, parent, text) => {
    const node = document.createElement(name);
    if (className) node.className = className;
    if (text !== undefined) node.textContent = text;
    if (parent) parent.append(node);
    return node;
  };
  const clock = (s) => `${Math.floor(Math.round(s) / 60)}:${String(Math.round(s) % 60).padStart(2, "0")}`;
  // Where the axis is the wall clock: UTC, with the day where there are several.
  const stamp = (camera, t) => {
    if (camera.begin === null) return clock(t);
    const text = new Date(camera.begin + 1000 * t).toISOString();
    return camera.length > 86400 ? text.slice(5, 16).replace("T", " ") : text.slice(11, 19);
  };
  const color = (lane) => `var(--c${lane.color % 8})`;
  const wrap = (text, width) => {
    const lines = [""];
    for (const word of text.split(" ")) {
      const last = lines[lines.length - 1];
      if (last && (last + " " + word).length > width) lines.push(word); else lines[lines.length - 1] = last ? last + " " + word : word;
    }
    return lines.length > 2 ? [lines[0], lines[1] + " …"] : lines;
  };

  // Light or dark: the reader's system decides until the button does.
  const dark = matchMedia("(prefers-color-scheme: dark)");
  let chosen = null;
  const paint = () => { root.dataset.theme = chosen ?? (dark.matches ? "dark" : "light"); };
  dark.addEventListener("change", paint);
  document.getElementById("theme").addEventListener("click", () => {
    chosen = root.dataset.theme === "dark" ? "light" : "dark";
    paint();
  });
  paint();

  document.body.dataset.view = "filmed";
  for (const button of document.querySelectorAll("[data-view]")) {
    if (button === document.body) continue;
    button.addEventListener("click", () => {
      document.body.dataset.view = button.dataset.view;
      for (const each of document.querySelectorAll(".switch button")) each.classList.toggle("on", each === button);
    });
  }

  const ticks = (length, pixels, apart) => {
    const steps = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 1800, 3600, 7200, 14400, 43200, 86400];
    const step = steps.find((each) => (each / length) * pixels >= apart) ?? 604800;
    return Array.from({ length: Math.floor(length / step + 1e-9) + 1 }, (_, i) => i * step);
  };

  function draw(box, camera, focus) {
    box.querySelector("svg")?.remove();
    const narrow = box.clientWidth < 640;
    const left = narrow ? 0 : LABEL;
    const lane = narrow ? LANE + 16 : LANE;
    const width = Math.max(240, box.clientWidth), plot = width - left - RIGHT;
    const top = MARKS + 4;
    const costTop = top + camera.lanes.length * (lane + GAP);
    const height = costTop + (camera.costs.length ? COST + GAP : 0) + AXIS;
    const x = (t) => left + (camera.length ? (t / camera.length) * plot : 0);
    const svg = el("svg", { height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `p(yes) of every watch on ${camera.id}` });
    const defs = el("defs", {}, svg);
    const hatch = el("pattern", { id: `gap-${box.dataset.chart}`, width: 6, height: 6, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" }, defs);
    el("rect", { width: 3, height: 6, fill: "var(--line)" }, hatch);

    for (const t of ticks(camera.length, plot, camera.begin === null ? 64 : 104)) {
      el("line", { class: "grid", x1: x(t), x2: x(t), y1: top, y2: height - AXIS, opacity: 0.6 }, svg);
      el("text", { x: x(t), y: height - 5, "text-anchor": t === 0 ? "start" : "middle" }, svg, stamp(camera, t));
    }
    for (const t of camera.breaks) el("line", { class: "break", x1: x(t), x2: x(t), y1: top, y2: height - AXIS }, svg);

    camera.lanes.forEach((each, index) => {
      const base = top + index * (lane + GAP) + lane, full = lane - (narrow ? 20 : 4);
      const y = (p) => base - p * full;
      if (narrow) el("text", { class: "question", x: 0, y: base - full - 6 }, svg, each.question);
      else wrap(each.untrained ? `${each.question} (not trained for)` : each.question, 27).forEach((line, row, all) =>
        el("text", { class: "question", x: 0, y: base - full / 2 + 4 + (row - (all.length - 1) / 2) * 15 }, svg, line));
      for (const incident of each.incidents)
        el("rect", { class: incident.opinion === "wrong" ? "incident wrong" : "incident", x: x(incident.a), y: base + 3, width: Math.max(3, x(incident.b) - x(incident.a)), height: 5, rx: 2 }, svg);
      for (const [a, b] of each.truth) el("rect", { class: "truth", x: x(a), y: base + 10, width: Math.max(2, x(b) - x(a)), height: 3, rx: 1.5 }, svg);
      let line = "", area = "", open = false, last = 0;
      const shut = () => { if (open) area += `L${last} ${base}Z`; open = false; };
      for (const [a, b, p] of each.points) {
        if (p === null) { shut(); if (b > a) el("rect", { x: x(a), y: base - full, width: x(b) - x(a), height: full, fill: `url(#gap-${box.dataset.chart})` }, svg); continue; }
        const xa = x(a).toFixed(1), xb = x(b).toFixed(1), yp = y(p).toFixed(1);
        if (open && Math.abs(xa - last) < 1) { line += `L${xa} ${yp}L${xb} ${yp}`; area += `L${xa} ${yp}L${xb} ${yp}`; }
        else { shut(); line += `M${xa} ${yp}L${xb} ${yp}`; area += `M${xa} ${base}L${xa} ${yp}L${xb} ${yp}`; open = true; }
        last = +xb;
      }
      shut();
      el("path", { d: area, fill: color(each), opacity: 0.14 }, svg);
      el("path", { d: line, fill: "none", stroke: color(each), "stroke-width": 1.8, "stroke-linejoin": "round" }, svg);
      el("line", { class: "threshold", x1: left, x2: width - RIGHT, y1: y(each.threshold), y2: y(each.threshold) }, svg);
      el("line", { class: "base", x1: left, x2: width - RIGHT, y1: base, y2: base }, svg);
    });

    if (camera.costs.length) {
      const base = costTop + COST, most = Math.max(...camera.costs.map((bar) => bar[3]), 1);
      if (!narrow) {
        el("text", { class: "question", x: 0, y: base - COST / 2 }, svg, "tokens per window");
        el("text", { x: 0, y: base - COST / 2 + 15 }, svg, `of ${most} if computed whole`);
      }
      for (const [a, b, kept, total] of camera.costs) {
        const w = Math.max(1, x(b) - x(a) - 1);
        el("rect", { class: "never", x: x(a), y: base - (total / most) * COST, width: w, height: (total / most) * COST, rx: 1 }, svg);
        el("rect", { class: "kept", x: x(a), y: base - (kept / most) * COST, width: w, height: (kept / most) * COST, rx: 1 }, svg);
      }
    }

    camera.shots.forEach((shot, index) => {
      const mark = el("path", { class: "mark", d: `M${x(shot.t) - 5} 1h10l-5 9Z` }, svg);
      mark.addEventListener("click", () => focus(index));
    });

    const stretch = el("rect", { class: "window", y: top, height: height - AXIS - top, visibility: "hidden" }, svg);
    const cross = el("line", { class: "cross", y1: top, y2: height - AXIS, visibility: "hidden" }, svg);
    svg.addEventListener("pointermove", (event) => {
      const t = ((event.offsetX - left) / plot) * camera.length;
      if (t < 0 || t > camera.length) return hide();
      cross.setAttribute("x1", x(t)); cross.setAttribute("x2", x(t)); cross.setAttribute("visibility", "visible");
      tip.replaceChildren();
      const title = html("div", "", tip);
      html("b", "", title, stamp(camera, t));
      const decided = camera.lanes.flatMap((lane) => lane.points).find(([a, b, p]) => a <= t && t < b && p !== null);
      stretch.setAttribute("visibility", decided ? "visible" : "hidden");
      if (decided) {
        stretch.setAttribute("x", x(decided[5])); stretch.setAttribute("width", Math.max(1, x(decided[1]) - x(decided[5])));
        title.append(` · window ${stamp(camera, decided[5])}–${stamp(camera, decided[1])}`);
      }
      for (const each of camera.lanes) {
        const point = each.points.find(([a, b]) => a <= t && t < b);
        if (!point) continue;
        const row = html("div", "", tip);
        html("i", "", row).style.background = color(each);
        row.append(`${each.question} `);
        html("b", "", row, point[2] === null ? `${point[3]} ${point[4]}` : point[2].toFixed(2));
      }
      const bar = camera.costs.find(([a, b]) => a <= t && t < b);
      if (bar) html("div", "", tip, `${bar[2]} of ${bar[3]} tokens computed`);
      tip.style.left = `${Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8)}px`;
      tip.style.top = `${Math.max(8, Math.min(event.clientY + 14, innerHeight - tip.offsetHeight - 8))}px`;
      tip.style.opacity = 1;
    });
    const hide = () => { tip.style.opacity = 0; for (const mark of [cross, stretch]) mark.setAttribute("visibility", "hidden"); };
    svg.addEventListener("pointerleave", hide);
    svg.addEventListener("click", (event) => {
      const t = ((event.offsetX - left) / plot) * camera.length;
      if (event.target.classList.contains("mark") || !camera.shots.length) return;
      focus(nearest(camera.shots, t));
    });
    box.append(svg);
  }

  const nearest = (shots, t) => shots.reduce((best, shot, i) => (Math.abs(shot.t - t) < Math.abs(shots[best].t - t) ? i : best), 0);

  function figure(camera, shot) {
    const box = html("figure", "shot" + (shot.incident ? " hot" : ""));
    const frame = html("div", "frame", box);
    frame.style.aspectRatio = shot.aspect;
    for (const kind of ["filmed", "seen"]) {
      if (!shot[kind]) continue;
      const image = html("img", kind + (shot.filmed && shot.seen ? " spare" : ""), frame);
      image.src = shot[kind];
      image.loading = "lazy";
      image.alt = `frame at ${stamp(camera, shot.t)}, ${kind === "filmed" ? "as filmed" : "as the model sees it"}`;
    }
    const svg = el("svg", { viewBox: `0 0 ${shot.cols} ${shot.rows}`, preserveAspectRatio: "none" });
    for (let i = 0; i < shot.keep.length; i++) {
      const place = { x: i % shot.cols, y: Math.floor(i / shot.cols), width: 1, height: 1 };
      el("rect", { class: shot.keep[i] === "1" ? "in" : "out", ...place }, svg);
    }
    frame.append(svg);
    const caption = html("figcaption", "", box);
    html("b", "", caption, stamp(camera, shot.t));
    if (shot.keep) html("span", "", caption, shot.anchor ? "anchor: computed whole" : `${shot.kept} of ${shot.keep.length} parts computed`);
    if (shot.incident) html("span", "tag", box, "▲ " + shot.incident);
    return box;
  }

  const focuses = [];
  page.cameras.forEach((camera, index) => {
    const box = document.querySelector(`[data-chart="${index}"]`);
    if (!box) return;
    const strip = document.querySelector(`[data-strip="${index}"]`);
    const figures = camera.shots.map((shot) => figure(camera, shot));
    strip.append(...figures);
    const focus = (at) => {
      figures.forEach((each, i) => each.classList.toggle("on", i === at));
      const target = figures[at];
      if (target) strip.scrollTo({ left: target.offsetLeft - strip.offsetLeft - strip.clientWidth / 2 + target.offsetWidth / 2, behavior: "smooth" });
    };
    focuses[index] = focus;
    new ResizeObserver(() => draw(box, camera, focus)).observe(box);
    draw(box, camera, focus);
  });

  for (const link of document.querySelectorAll(".incidents a")) {
    const index = page.cameras.findIndex((camera) => camera.id === link.dataset.camera);
    const thumb = link.querySelector(".thumb"), shot = page.cameras[index]?.shots[thumb.dataset.shot];
    if (shot && thumb.dataset.shot !== "") thumb.style.backgroundImage = `url("${shot.filmed ?? shot.seen}")`;
    link.addEventListener("click", () => {
      const shots = page.cameras[index].shots;
      if (shots.length) focuses[index]?.(nearest(shots, +link.dataset.time));
    });
  }
})();
