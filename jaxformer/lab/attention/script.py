"""The markup, style and script of the page that shows attention maps."""

STYLE = """
.att { margin: 1.5rem 0; }
.att label { margin-right: 1.2rem; }
.att select { font: inherit; }
.att .grid { display: grid; gap: 3px; margin: 1rem 0; overflow-x: auto; width: max-content;
  max-width: 100%; align-items: center; justify-items: center; font-size: 0.8rem; }
.att .grid button { padding: 0; border: 2px solid transparent; background: none; cursor: pointer;
  line-height: 0; border-radius: 3px; }
.att .grid button[aria-pressed="true"] { border-color: #d55e00; }
.att .grid canvas { width: 44px; height: 44px; image-rendering: pixelated; background: #fff; }
.att .views { display: flex; flex-wrap: wrap; gap: 2rem; align-items: flex-start; }
.att .tokens { max-width: 46rem; line-height: 2.1; margin: 0.3rem 0 1rem; }
.att .tokens span { padding: 0.15rem 0.3rem; margin: 1px; border-radius: 3px; cursor: pointer;
  border: 1px solid var(--line); white-space: pre; display: inline-block; line-height: 1.3; }
.att .tokens span.chosen { outline: 2px solid #d55e00; }
.att .tokens span.dark { color: #fff; } .att .tokens span.light { color: #1f2328; }
.att h3 { margin: 0.8rem 0 0.2rem; font-size: 1rem; }
.att .status { min-height: 1.6em; font-variant-numeric: tabular-nums; }
.att .map { image-rendering: pixelated; border: 1px solid var(--line); cursor: crosshair;
  background: #fff; }
.att .picture { position: relative; width: max-content; }
.att .picture img { display: block; image-rendering: pixelated; }
.att .picture canvas { position: absolute; inset: 0; image-rendering: pixelated; cursor: crosshair;
  width: 100%; height: 100%; }
"""

MARKUP = """
<div class="att" id="attention">
<p><label>Attention <select id="att-kind"></select></label>
<label>Layer <select id="att-layer"></select></label>
<label>Head <select id="att-head"></select></label></p>
<div class="grid" id="att-grid"></div>
<p class="status" id="att-status" aria-live="polite"></p>
<div class="views">
<div id="att-lists">
<h3 id="att-query-title"></h3><div class="tokens" id="att-queries"></div>
<h3 id="att-key-title"></h3><div class="tokens" id="att-keys"></div>
</div>
<div id="att-picture" hidden><h3>Image</h3><div class="picture"><img alt="The image that the model
reads"><canvas></canvas></div></div>
<div><h3>Queries down, keys across</h3><canvas class="map" id="att-map"></canvas></div>
</div>
<noscript><p>This page needs JavaScript; the picture files do not.</p></noscript>
</div>
"""

SCRIPT = r"""
"use strict";
(() => {
const all = JSON.parse(document.getElementById("attention-data").textContent);
const at = (id) => document.getElementById("att-" + id);
const MEAN = -1;
// What is shown; "side" and "place" are the token that is pointed at, "held" stays after a click.
const view = { kind: 0, layer: 0, head: 0, side: "queries", place: 0, held: false };

for (const map of all.maps) {
  const bytes = Uint8Array.from(atob(map.weights), (letter) => letter.charCodeAt(0));
  const data = new DataView(bytes.buffer);
  const numbers = new Float32Array(bytes.length / 2);
  for (let i = 0; i < numbers.length; i++) numbers[i] = data.getUint16(2 * i, true) / all.levels;
  map.numbers = numbers;
}

const current = () => all.maps[view.kind];

// The weights [T, S] of a head, or the mean of the layer's heads.
function headWeights(map, layer, head) {
  const size = map.queries.length * map.keys.length, heads = map.heads.length;
  const start = layer * heads * size;
  if (head !== MEAN) return map.numbers.subarray(start + head * size, start + (head + 1) * size);
  const mean = new Float32Array(size);
  for (let h = 0; h < heads; h++)
    for (let i = 0; i < size; i++) mean[i] += map.numbers[start + h * size + i] / heads;
  return mean;
}

// White to blue; the root shows weights of a few per cent.
function colour(weight) {
  const depth = Math.sqrt(Math.min(Math.max(weight, 0), 1));
  const mix = (light, dark) => Math.round(light + (dark - light) * depth);
  return [mix(247, 8), mix(251, 48), mix(255, 107)];
}

function paint(canvas, weights, rows, columns) {
  canvas.width = columns;
  canvas.height = rows;
  const context = canvas.getContext("2d"), pixels = context.createImageData(columns, rows);
  for (let i = 0; i < rows * columns; i++) {
    pixels.data.set(colour(weights[i]), 4 * i);
    pixels.data[4 * i + 3] = 255;
  }
  context.putImageData(pixels, 0, 0);
}

function fill(select, names) {
  select.replaceChildren(...names.map(([value, name]) => new Option(name, value)));
}

function setUp() {
  const map = current();
  view.layer = Math.min(view.layer, map.layers.length - 1);
  view.head = Math.min(view.head, map.heads.length - 1);
  view.side = "queries";
  view.place = 0;
  view.held = false;
  fill(at("layer"), map.layers.map((number, index) => [index, number]));
  fill(at("head"), [[MEAN, "mean"], ...map.heads.map((number, index) => [index, number])]);
  const grid = at("grid"), rows = map.queries.length, columns = map.keys.length;
  grid.style.gridTemplateColumns = `repeat(${map.heads.length + 1}, auto)`;
  grid.replaceChildren(document.createElement("span"));
  for (const head of map.heads) label(grid, "head " + head);
  map.layers.forEach((layer, l) => {
    label(grid, "layer " + layer);
    map.heads.forEach((head, h) => {
      const button = document.createElement("button"), canvas = document.createElement("canvas");
      button.title = `layer ${layer}, head ${head}`;
      button.setAttribute("aria-label", button.title);
      paint(canvas, headWeights(map, l, h), rows, columns);
      button.append(canvas);
      button.addEventListener("click", () => { view.layer = l; view.head = h; draw(); });
      button.dataset.head = `${l},${h}`;
      grid.append(button);
    });
  });
  tokens("queries");
  tokens("keys");
  at("query-title").textContent = "Queries: tokens that attend";
  at("key-title").textContent = "Keys: tokens that are attended to";
  setUpImage();
  draw();
}

function label(parent, text) {
  const span = document.createElement("span");
  span.textContent = text;
  parent.append(span);
}

function tokens(side) {
  // The patches of an image are pointed at in the image.
  const map = current(), count = map.image ? map.image.prefix : map[side].length;
  at(side).replaceChildren(...map[side].slice(0, count).map((name, place) => {
    const span = document.createElement("span");
    span.textContent = name;
    span.tabIndex = 0;
    span.addEventListener("mouseenter", () => point(side, place));
    span.addEventListener("focus", () => point(side, place));
    span.addEventListener("click", () => hold(side, place));
    return span;
  }));
}

function point(side, place) {
  if (view.held) return;
  view.side = side;
  view.place = place;
  shade();
}

function hold(side, place) {
  const same = view.held && view.side === side && view.place === place;
  view.held = false;
  point(side, place);
  view.held = !same;
}

function draw() {
  const map = current(), rows = map.queries.length, columns = map.keys.length;
  at("layer").value = view.layer;
  at("head").value = view.head;
  for (const button of at("grid").querySelectorAll("button"))
    button.setAttribute("aria-pressed", button.dataset.head === `${view.layer},${view.head}`);
  const fit = Math.floor(460 / Math.max(rows, columns));
  const canvas = at("map"), size = Math.max(3, Math.min(22, fit));
  paint(canvas, headWeights(map, view.layer, view.head), rows, columns);
  canvas.style.width = columns * size + "px";
  canvas.style.height = rows * size + "px";
  shade();
}

// Shades the other side by the weights of the token that is pointed at.
function shade() {
  const map = current(), weights = headWeights(map, view.layer, view.head);
  const columns = map.keys.length, forward = view.side === "queries";
  const other = forward ? "keys" : "queries";
  const found = map[other].map((_, place) =>
    forward ? weights[view.place * columns + place] : weights[place * columns + view.place]);
  [...at(view.side).children].forEach((span, place) => {
    span.classList.toggle("chosen", place === view.place);
    clear(span);
  });
  [...at(other).children].forEach((span, place) => {
    span.classList.remove("chosen");
    span.style.background = `rgb(${colour(found[place]).join()})`;
    span.className = found[place] > 0.25 ? "dark" : "light";
    span.title = found[place].toFixed(4);
  });
  const order = found.map((weight, place) => [weight, place]).sort((a, b) => b[0] - a[0]);
  const words = ([weight, place]) => `${map[other][place]} ${weight.toFixed(3)}`;
  const most = order.slice(0, 5).map(words).join(", "), token = map[view.side][view.place];
  const verb = forward ? "attends to" : "is attended to by";
  at("status").textContent = `${token} (${view.place}) ${verb}: ${most}`;
  shadeImage(found, forward);
}

function clear(span) {
  span.style.background = "";
  span.title = "";
  span.classList.remove("dark", "light");
}

function setUpImage() {
  const image = current().image;
  at("picture").hidden = !image;
  if (!image) return;
  const picture = at("picture").querySelector("img");
  picture.src = image.source;
  const scale = Math.max(1, Math.round(420 / Math.max(image.width, image.height)));
  picture.style.width = image.width * scale + "px";
  picture.style.height = image.height * scale + "px";
}

// Patches that are attended to stay clear, others are veiled.
function shadeImage(found, forward) {
  const image = current().image;
  if (!image) return;
  const canvas = at("picture").querySelector("canvas"), rows = image.rows, columns = image.columns;
  canvas.width = columns * 8;
  canvas.height = rows * 8;
  const context = canvas.getContext("2d"), patches = found.slice(image.prefix);
  const largest = Math.max(...patches, 1e-9);
  patches.forEach((weight, patch) => {
    context.fillStyle = `rgba(255, 255, 255, ${0.9 * (1 - weight / largest)})`;
    context.fillRect((patch % columns) * 8, Math.floor(patch / columns) * 8, 8, 8);
  });
  const chosen = view.place - image.prefix;
  if (chosen >= 0) {
    context.strokeStyle = forward ? "#d55e00" : "#0072b2";
    context.lineWidth = 1.5;
    context.strokeRect((chosen % columns) * 8 + 1, Math.floor(chosen / columns) * 8 + 1, 6, 6);
  }
}

function placeIn(event, element, rows, columns) {
  const box = element.getBoundingClientRect();
  const clamp = (value, count) => Math.min(Math.max(Math.floor(value * count), 0), count - 1);
  return [clamp((event.clientY - box.top) / box.height, rows),
          clamp((event.clientX - box.left) / box.width, columns)];
}

at("map").addEventListener("mousemove", (event) => {
  const map = current();
  const [row, column] = placeIn(event, at("map"), map.queries.length, map.keys.length);
  point("queries", row);
  const weight = headWeights(map, view.layer, view.head)[row * map.keys.length + column];
  at("map").title = `${map.queries[row]} → ${map.keys[column]}: ${weight.toFixed(4)}`;
});
at("picture").querySelector("canvas").addEventListener("mousemove", (event) => {
  const image = current().image;
  const [row, column] = placeIn(event, event.target, image.rows, image.columns);
  point("queries", image.prefix + row * image.columns + column);
});
at("picture").querySelector("canvas").addEventListener("click", () => hold("queries", view.place));
at("kind").addEventListener("change", () => { view.kind = Number(at("kind").value); setUp(); });
at("layer").addEventListener("change", () => { view.layer = Number(at("layer").value); draw(); });
at("head").addEventListener("change", () => { view.head = Number(at("head").value); draw(); });
fill(at("kind"), all.maps.map((map, index) => [index, map.name]));
setUp();
})();
"""
