for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[0].cells], body = table.tBodies[0];
  heads.forEach((head, column) => head.firstChild.addEventListener("click", () => {
    const down = head.getAttribute("aria-sort") === "ascending";
    heads.forEach(other => other.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    const key = row => row.cells[column].dataset.key, none = text => text === "" || text === "nan";
    const order = (a, b) => {
      if (none(key(a)) || none(key(b))) return none(key(a)) - none(key(b));
      const by = isNaN(key(a)) || isNaN(key(b)) ? key(a).localeCompare(key(b)) : key(a) - key(b);
      return down ? -by : by;
    };
    body.append(...[...body.rows].sort(order));
  }));
}
