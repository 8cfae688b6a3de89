"use strict";

// --- copy buttons: the diff as text, exactly as the document holds it
for (const button of document.querySelectorAll("button.copy")) {
  button.addEventListener("click", async () => {
    const text = document.getElementById(button.dataset.copy).content.querySelector("pre").textContent;
    const said = button.textContent;
    const done = (await copyText(text)) ? "Copied" : "Could not copy: select the text instead";
    button.textContent = done;
    setTimeout(() => { button.textContent = said; }, 2500);
  });
}

async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch (error) {
    // A page opened from a file is not always allowed to use the clipboard API; the old way still is.
    const area = document.createElement("textarea");
    area.value = text;
    area.style.position = "fixed";
    area.style.opacity = "0";
    document.body.append(area);
    area.focus();
    area.select();
    const copied = document.execCommand("copy");
    area.remove();
    return copied;
  }
}

// --- the picture of one step
const stored = document.getElementById("picture-data");
if (stored) drawPicture(JSON.parse(stored.textContent), document.querySelector("#step .picture"));

function drawPicture(picture, root) {
  const ROW = 17, GAP = 9, AXIS = 24, GUTTER = 118, LEAST = 40; // px; LEAST: ns across the width when zoomed fully in
  const frame = root.querySelector(".canvas"), canvas = root.querySelector("canvas"), tip = root.querySelector(".tip");
  const pen = canvas.getContext("2d");
  const colours = picture.families.map((name) => {
    const probe = document.createElement("i");
    probe.className = "f-" + name;
    root.append(probe);
    const colour = getComputedStyle(probe).backgroundColor;
    probe.remove();
    return colour;
  });
  let top = AXIS + 4;
  const lanes = picture.lanes.map((lane) => {
    const placed = { ...lane, top, height: lane.rows * ROW };
    top += placed.height + GAP;
    return placed;
  });
  const height = top;
  const whole = picture.duration_ns;
  let from = 0, to = whole, hovered = null, width = 0, waiting = false;

  const scale = () => (width - GUTTER) / (to - from);
  const x = (ns) => GUTTER + (ns - from) * scale();

  function look(begin, end) {
    const span = Math.min(whole, Math.max(LEAST, end - begin));
    from = Math.min(Math.max(0, begin + (end - begin - span) / 2), whole - span);
    to = from + span;
    later();
  }
  function zoom(factor, at) {
    const centre = at === undefined ? (from + to) / 2 : at;
    look(centre - (centre - from) * factor, centre + (to - centre) * factor);
  }
  function move(share) {
    const by = Math.min(Math.max((to - from) * share, -from), whole - to);
    look(from + by, to + by);
  }
  function later() {
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(() => { waiting = false; draw(); });
  }

  function draw() {
    const ratio = window.devicePixelRatio || 1;
    width = frame.clientWidth;
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    canvas.style.height = height + "px";
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    const style = getComputedStyle(document.documentElement);
    const ink = style.getPropertyValue("--ink"), dim = style.getPropertyValue("--dim");
    const line = style.getPropertyValue("--line"), card = style.getPropertyValue("--card");
    pen.fillStyle = card;
    pen.fillRect(0, 0, width, height);
    pen.font = "12px system-ui, sans-serif";
    pen.textBaseline = "middle";
    drawAxis(dim, line);
    for (const lane of lanes) {
      pen.fillStyle = line;
      pen.fillRect(0, lane.top - GAP / 2, width, 1);
      drawLane(lane, ink);
      pen.fillStyle = card;
      pen.fillRect(0, lane.top, GUTTER - 4, lane.height);
      pen.fillStyle = ink;
      pen.fillText(fitting(lane.name, GUTTER - 18), 10, lane.top + Math.min(lane.height, ROW) / 2);
    }
  }
  function drawAxis(dim, line) {
    const step = niceStep((to - from) / Math.max(2, (width - GUTTER) / 110));
    for (let at = Math.ceil(from / step) * step; at <= to; at += step) {
      const position = Math.round(x(at)) + 0.5;
      pen.fillStyle = line;
      pen.fillRect(position, AXIS - 6, 1, height - AXIS);
      pen.fillStyle = dim;
      const text = at === 0 ? "0" : duration(at, step);
      if (position + 6 + pen.measureText(text).width < width) pen.fillText(text, position + 4, AXIS / 2);
    }
  }
  function drawLane(lane, ink) {
    const per = scale();
    for (let i = 0; i < lane.start.length; i++) {
      const begin = lane.start[i], end = begin + lane.duration[i];
      if (end < from || begin > to) continue;
      const left = Math.max(GUTTER, x(begin)), right = Math.min(width, x(end));
      const wide = Math.max(1, right - left - (right - left > 4 ? 1 : 0));
      const y = lane.top + lane.row[i] * ROW;
      const same = hovered && hovered.lane.label[hovered.index] === lane.label[i];
      pen.globalAlpha = hovered && !same ? 0.55 : 1;
      pen.fillStyle = colours[lane.family[i]];
      pen.fillRect(left, y, wide, ROW - 2);
      if (lane.count[i] > 1 && wide > 3) {
        // Merged boxes carry a light edge: there is more in them than one event.
        pen.fillStyle = "#ffffff66";
        pen.fillRect(left, y + ROW - 5, wide, 2);
      }
      pen.globalAlpha = 1;
      if (hovered && hovered.lane === lane && hovered.index === i) {
        pen.strokeStyle = ink;
        pen.lineWidth = 1.5;
        pen.strokeRect(left, y, wide, ROW - 2);
      }
      if (wide > 34) {
        pen.fillStyle = "#fff";
        pen.font = "11.5px system-ui, sans-serif";
        const text = fitting(caption(lane, i), wide - 8);
        if (text) pen.fillText(text, left + 4, y + (ROW - 2) / 2 + 0.5);
        pen.font = "12px system-ui, sans-serif";
      }
    }
  }
  function caption(lane, i) {
    return short(picture.names[lane.label[i]]) + (lane.count[i] > 1 ? " +" + (lane.count[i] - 1) : "");
  }
  function short(name) {
    // The end of a C++ name without its arguments says more than its return type does.
    if (name.startsWith("enumerate(DataLoader)")) return name.replace(/^.*#_?/, "");
    const bare = name.replace(/^void /, "").replace(/\(.*$/, "");
    const outer = bare.replace(/<.*$/, "");
    return outer.length > 3 ? outer.split("::").slice(outer.startsWith("aten::") ? 0 : -1).join("::") || name : name;
  }
  function fitting(text, room) {
    if (pen.measureText(text).width <= room) return text;
    let low = 0, high = text.length;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (pen.measureText(text.slice(0, middle) + "…").width <= room) low = middle; else high = middle - 1;
    }
    return low >= 3 ? text.slice(0, low) + "…" : "";
  }
  function niceStep(least) {
    const power = 10 ** Math.floor(Math.log10(Math.max(least, 1)));
    return [1, 2, 5, 10].map((n) => n * power).find((n) => n >= least);
  }
  // In the unit that fits `ns`; with `precision` (ns), to as many digits as tell two marks apart.
  function duration(ns, precision) {
    const [unit, size] = [["s", 1e9], ["ms", 1e6], ["µs", 1e3], ["ns", 1]].find(([, n]) => (precision ? to : ns) >= n) || ["ns", 1];
    const digits = precision ? Math.max(0, -Math.floor(Math.log10(precision / size))) : ns / size >= 100 ? 0 : ns / size >= 10 ? 1 : 2;
    return (ns / size).toFixed(digits) + " " + unit;
  }

  function under(px, py) {
    let nearest = null;
    for (const lane of lanes) {
      if (py < lane.top || py >= lane.top + lane.height) continue;
      const row = Math.floor((py - lane.top) / ROW);
      for (let i = 0; i < lane.start.length; i++) {
        if (lane.row[i] !== row) continue;
        const left = x(lane.start[i]), right = Math.max(left + 1, x(lane.start[i] + lane.duration[i]));
        const away = px < left ? left - px : px > right ? px - right : 0;
        if (away <= 3 && px >= GUTTER && (!nearest || away < nearest.away)) nearest = { lane, index: i, away };
      }
    }
    return nearest;
  }
  function hover(event) {
    const box = frame.getBoundingClientRect();
    const px = event.clientX - box.left, py = event.clientY - box.top;
    const found = under(px, py);
    if (!found) {
      tip.hidden = true;
      if (hovered) { hovered = null; later(); }
      return;
    }
    if (!hovered || hovered.lane !== found.lane || hovered.index !== found.index) {
      hovered = found;
      later();
      const { lane, index: i } = found;
      const name = document.createElement("b");
      name.textContent = picture.names[lane.label[i]];
      const rest = lane.count[i] > 1 ? `and ${lane.count[i] - 1} more, ` : "";
      const share = (100 * lane.duration[i] / whole).toFixed(1);
      tip.replaceChildren(name, `${rest}${duration(lane.duration[i])} (${share}% of the step), from ${duration(lane.start[i])}`);
    }
    tip.hidden = false;
    tip.style.left = Math.max(4, Math.min(px + 14, frame.clientWidth - tip.offsetWidth - 6)) + "px";
    const below = py + 18;
    tip.style.top = (below + tip.offsetHeight < height ? below : Math.max(2, py - tip.offsetHeight - 12)) + "px";
  }

  let grabbed = null;
  frame.addEventListener("pointerdown", (event) => { grabbed = { at: event.clientX, from, to }; });
  window.addEventListener("pointerup", () => { grabbed = null; });
  frame.addEventListener("pointermove", (event) => {
    if (grabbed) {
      const by = (grabbed.at - event.clientX) / scale();
      const kept = Math.min(Math.max(by, -grabbed.from), whole - grabbed.to);
      look(grabbed.from + kept, grabbed.to + kept);
    }
    hover(event);
  });
  frame.addEventListener("pointerleave", () => { tip.hidden = true; hovered = null; later(); });
  frame.addEventListener("dblclick", (event) => {
    const box = frame.getBoundingClientRect();
    const found = under(event.clientX - box.left, event.clientY - box.top);
    if (!found) return look(0, whole);
    const begin = found.lane.start[found.index], long = Math.max(found.lane.duration[found.index], 1);
    look(begin - long * 0.1, begin + long * 1.1);
  });
  frame.addEventListener("wheel", (event) => {
    if (event.ctrlKey || event.metaKey) {
      event.preventDefault();
      const at = from + (event.clientX - frame.getBoundingClientRect().left - GUTTER) / scale();
      zoom(Math.exp(Math.max(-60, Math.min(60, event.deltaY)) * 0.008), at);
    } else if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
      event.preventDefault();
      move(event.deltaX / (width - GUTTER));
    }
  }, { passive: false });
  const actions = { in: () => zoom(0.5), out: () => zoom(2), left: () => move(-0.25), right: () => move(0.25), all: () => look(0, whole) };
  const keys = { "+": "in", "=": "in", w: "in", "-": "out", s: "out", ArrowLeft: "left", a: "left", ArrowRight: "right", d: "right", 0: "all" };
  frame.addEventListener("keydown", (event) => {
    const action = keys[event.key];
    if (!action || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    actions[action]();
  });
  for (const button of root.querySelectorAll("[data-do]")) button.addEventListener("click", () => actions[button.dataset.do]());
  new ResizeObserver(later).observe(frame);
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", later);
  // For whoever scripts the page, our own tests included: what is being looked at, in ns from the step's start.
  frame.stepPicture = { view: () => ({ from, to }), position: (lane, box) => ({ x: x(lanes[lane].start[box] + lanes[lane].duration[box] / 2), y: lanes[lane].top + lanes[lane].row[box] * ROW + ROW / 2 }) };
  draw();
}
