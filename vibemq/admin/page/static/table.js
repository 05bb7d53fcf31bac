// SPDX-License-Identifier: Apache-2.0
// Tables: those that the broker sorts and cuts, and small ones that are here as a whole.

import { h } from "./dom.js"
import { count } from "./format.js"

// A button in a row; `what` is said to those who do not see which row it is in.
export const action = (text, what, onclick) =>
  h("button", { type: "button", class: "small", "aria-label": what, onclick }, text)

// `columns`: [{name, label, cell(row), is: "number", wide: true where a phone has no room, sorts: false}]
export function table({ label, columns, rows, key, sort, isReverse, onSort, empty }) {
  const head = columns.map((column) => {
    const isSorted = sort === column.name
    return h(
      "th",
      { scope: "col", class: classes(column), "aria-sort": isSorted ? (isReverse ? "descending" : "ascending") : null },
      onSort && column.sorts !== false
        ? h(
            "button",
            {
              type: "button",
              class: "sort",
              onclick: () => onSort(column.name, isSorted ? !isReverse : column.is === "number"),
            },
            column.label,
            h("span", { class: "arrow", "aria-hidden": "true" }, isSorted ? (isReverse ? "↓" : "↑") : ""),
          )
        : column.label,
    )
  })
  const body = rows.map((row) =>
    h(
      "tr",
      { key: key(row) },
      columns.map((column, index) =>
        h(index ? "td" : "th", { scope: index ? null : "row", class: classes(column) }, column.cell(row)),
      ),
    ),
  )
  if (rows.length === 0) return h("p", { class: "empty", key: `none-${label}` }, empty ?? "There is nothing here.")
  return h(
    "div",
    { class: "scroll", key: label, tabindex: "0", role: "region", "aria-label": label },
    h("table", { "aria-label": label }, h("thead", {}, h("tr", {}, head)), h("tbody", {}, body)),
  )
}

const classes = (column) => [column.is, column.wide && "wide"].filter(Boolean).join(" ") || null

// Below a list that the broker cuts.
export function pager(found, place) {
  const to = (page) => () => place.go({ ...place.query, page })
  return h(
    "div",
    { class: "pager" },
    h(
      "span",
      { role: "status" },
      found.found === found.total ? `${count(found.total)} in all` : `${count(found.found)} of ${count(found.total)}`,
    ),
    found.pages > 1 &&
      h(
        "nav",
        { "aria-label": "Pages" },
        h("button", { type: "button", disabled: found.page <= 1, onclick: to(found.page - 1) }, "Previous"),
        h("span", {}, `page ${count(found.page)} of ${count(found.pages)}`),
        h("button", { type: "button", disabled: found.page >= found.pages, onclick: to(found.page + 1) }, "Next"),
      ),
  )
}

// What a list of the broker's is asked with.
export const sorting = (place, otherwise) => ({
  sort: place.query.sort ?? otherwise,
  isReverse: place.query.reverse === "true",
  onSort: (sort, reverse) => place.go({ ...place.query, sort, reverse, page: 1 }),
})

let waiting = 0

// A field that filters while one types.
export const filter = (label, place, placeholder = "") =>
  h(
    "label",
    { class: "filter" },
    h("span", {}, label),
    h("input", {
      type: "search",
      name: "name",
      value: place.query.name ?? "",
      placeholder,
      autocomplete: "off",
      spellcheck: "false",
      oninput: (event) => {
        const name = event.currentTarget.value
        clearTimeout(waiting)
        waiting = setTimeout(() => place.go({ ...place.query, name, page: 1 }), 200)
      },
    }),
  )

export const select = (label, name, place, options) =>
  h(
    "label",
    {},
    h("span", {}, label),
    h(
      "select",
      { name, onchange: (event) => place.go({ ...place.query, [name]: event.currentTarget.value, page: 1 }) },
      options.map(([value, text]) => h("option", { value, selected: (place.query[name] ?? "") === value }, text)),
    ),
  )
