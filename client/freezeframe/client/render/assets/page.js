"use strict";
// What needs no script is there without it; this adds sorting, the search and its keys.

for (const table of document.querySelectorAll("table.sortable")) {
  const body = table.tBodies[0];
  if (body.rows.length < 2) continue;
  table.tHead.querySelectorAll("th").forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => sort(table, head, column));
  });
}

function sort(table, head, column) {
  const order = head.getAttribute("aria-sort") === "ascending" ? "descending" : "ascending";
  for (const other of table.tHead.querySelectorAll("th")) other.removeAttribute("aria-sort");
  head.setAttribute("aria-sort", order);
  const sign = order === "ascending" ? 1 : -1;
  const rows = [...table.tBodies[0].rows].map((row) => [key(row.cells[column]), row]);
  // Cells that say nothing stay at the end.
  rows.sort(([one], [other]) => rank(one) - rank(other) || sign * compare(one, other));
  table.tBodies[0].append(...rows.map(([, row]) => row));
}

function key(cell) {
  if (cell.dataset.sort !== undefined) return Number(cell.dataset.sort);
  return /^\d+$/.test(cell.textContent) ? Number(cell.textContent) : cell.textContent;
}

function rank(value) {
  return value === "-" || value === "" ? 2 : typeof value === "number" ? 0 : 1;
}

const inWords = new Intl.Collator("en", { numeric: true });

function compare(one, other) {
  return typeof one === "number" && typeof other === "number" ? one - other : inWords.compare(one, other);
}

for (const group of document.querySelectorAll(".searchable")) {
  const stacks = [...group.querySelectorAll("details.stack")];
  if (!stacks.length) continue;
  const texts = new Map(stacks.map((stack) => [stack, stack.textContent.toLowerCase()]));
  const bar = document.createElement("div");
  bar.className = "search";
  const label = document.createElement("label");
  const input = document.createElement("input");
  input.type = "search";
  input.placeholder = "words, all of them";
  input.spellcheck = false;
  label.append("Search stacks ( / )", input);
  const open = button("Open all", () => stacks.forEach((stack) => { stack.open = !stack.hidden; }));
  const fold = button("Fold all", () => stacks.forEach((stack) => { stack.open = false; }));
  const said = document.createElement("output");
  said.setAttribute("aria-live", "polite");
  bar.append(label, open, fold, said);
  group.prepend(bar);
  input.addEventListener("input", () => {
    const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
    let found = 0;
    for (const stack of stacks) {
      const matches = words.every((word) => texts.get(stack).includes(word));
      stack.hidden = !matches;
      stack.open = matches && words.length > 0;
      found += matches;
    }
    said.textContent = words.length ? `${found} of ${stacks.length}` : "";
    mark(stacks.filter((stack) => !stack.hidden), words);
  });
  input.addEventListener("keydown", (event) => {
    if (event.key === "Escape") {
      input.value = "";
      input.dispatchEvent(new Event("input"));
    }
  });
}

function button(text, act) {
  const made = document.createElement("button");
  made.type = "button";
  made.textContent = text;
  made.addEventListener("click", act);
  return made;
}

// Marks what was found without a change to the page, where the browser can.
function mark(stacks, words) {
  if (!window.CSS || !CSS.highlights) return;
  const ranges = [];
  for (const stack of words.length ? stacks : []) {
    const walker = document.createTreeWalker(stack, NodeFilter.SHOW_TEXT);
    while (walker.nextNode() && ranges.length < 5000) {
      const text = walker.currentNode.data.toLowerCase();
      for (const word of words) {
        for (let at = text.indexOf(word); at >= 0; at = text.indexOf(word, at + word.length)) {
          const range = new Range();
          range.setStart(walker.currentNode, at);
          range.setEnd(walker.currentNode, Math.min(at + word.length, walker.currentNode.data.length));
          ranges.push(range);
        }
      }
    }
  }
  CSS.highlights.set("found", new Highlight(...ranges));
}

document.addEventListener("keydown", (event) => {
  if (event.key !== "/" || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target.closest("input, textarea, select")) return;
  const input = document.querySelector(".search input");
  if (input) {
    event.preventDefault();
    input.focus();
    input.select();
  }
});

// A link to a section that is folded opens it.
function unfold() {
  const target = document.getElementById(location.hash.slice(1));
  const folded = target && target.querySelector(":scope > details");
  if (folded) folded.open = true;
}
window.addEventListener("hashchange", unfold);
document.addEventListener("click", (event) => {
  const link = event.target.closest("a[href^='#']");
  if (link && link.hash === location.hash) unfold();
});
unfold();
