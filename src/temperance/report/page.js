"use strict";
// The search field of a long table. Without scripts the field stays hidden and the first rows can be read.

function cellOf(content, element) {
  const cell = document.createElement(element);
  if (typeof content === "string") {
    cell.textContent = content;
  } else {
    const bar = cell.appendChild(document.createElement("div"));
    const [over, under, words] = content;
    bar.className = "stacked";
    bar.title = words;
    bar.setAttribute("role", "img");
    bar.setAttribute("aria-label", words);
    for (const [side, share] of [["over", over], ["under", under]]) {
      const part = bar.appendChild(document.createElement("i"));
      part.className = side;
      part.style.width = share + "%";
    }
  }
  return cell;
}

for (const box of document.querySelectorAll(".searchable")) {
  const rows = JSON.parse(box.querySelector("script").textContent);
  const most = Number(box.dataset.most);
  const field = box.querySelector("input");
  const note = box.querySelector("output");
  const body = box.querySelector("tbody");
  field.hidden = false;
  field.addEventListener("input", () => {
    const wanted = field.value.trim().toLowerCase();
    const found = rows.filter((row) => row[0].toLowerCase().includes(wanted));
    body.replaceChildren(...found.slice(0, most).map((row) => {
      const line = document.createElement("tr");
      line.append(...row.map((content, i) => cellOf(content, i ? "td" : "th")));
      line.firstChild.scope = "row";
      return line;
    }));
    note.textContent = `${Math.min(found.length, most)} of ${found.length.toLocaleString("en")} shown`;
  });
}
