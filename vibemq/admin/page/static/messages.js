// SPDX-License-Identifier: Apache-2.0
// Looking at messages: by offset or time, some at a time, decoded. Nothing is taken from a queue by it.

import * as api from "./api.js"
import { h } from "./dom.js"
import { bytes, count, moment } from "./format.js"

const AT_ONCE = 20
const seen = { key: "", found: null, problem: "", from: "last" }

export function messages(row, place) {
  const key = `${row.vhost}/${row.name}`
  if (seen.key !== key) Object.assign(seen, { key, found: null, problem: "", from: "last" })
  const { found } = seen

  async function look(query) {
    try {
      seen.found = await api.get(
        `/stream${api.path(row.vhost, row.name)}/messages${api.query({ count: AT_ONCE, ...query })}`,
      )
      seen.problem = ""
    } catch (refused) {
      if (!(refused instanceof api.Refused)) throw refused
      seen.problem = refused.message
    }
    place.again()
  }

  function submit(event) {
    event.preventDefault()
    const form = event.currentTarget
    const from = form.elements.from.value
    if (from === "time") {
      const at = new Date(form.elements.time.value).getTime()
      return look({ time: Number.isNaN(at) ? 0 : Math.max(1, at) })
    }
    look({ offset: from === "offset" ? form.elements.offset.value || 0 : from })
  }

  function choose(event) {
    seen.from = event.currentTarget.value
    place.again()
  }

  const first = found?.messages[0]?.offset
  return h(
    "section",
    { "aria-labelledby": "messages", key: "messages" },
    h("h2", { id: "messages" }, "Messages"),
    h(
      "form",
      { class: "tools", onsubmit: submit, "aria-label": "Look at messages" },
      h(
        "label",
        {},
        h("span", {}, "From"),
        h(
          "select",
          { name: "from", onchange: choose },
          [
            ["last", "the last ones"],
            ["first", "the first"],
            ["offset", "an offset"],
            ["time", "a time"],
          ].map(([value, text]) => h("option", { value }, text)),
        ),
      ),
      seen.from === "offset" &&
        h(
          "label",
          { key: "offset" },
          h("span", {}, "Offset"),
          h("input", { name: "offset", inputmode: "numeric", pattern: "[0-9]*", value: "0" }),
        ),
      seen.from === "time" &&
        h(
          "label",
          { key: "time" },
          h("span", {}, "Time, of this browser's zone"),
          h("input", { name: "time", type: "datetime-local", step: "1", required: true }),
        ),
      h("button", { class: "main" }, "Look"),
      found &&
        h(
          "span",
          { class: "buttons push" },
          h(
            "button",
            {
              type: "button",
              disabled: !(first > found.first_offset),
              onclick: () => look({ offset: Math.max(found.first_offset, first - AT_ONCE) }),
            },
            "Older",
          ),
          h(
            "button",
            { type: "button", disabled: found.next >= found.next_offset, onclick: () => look({ offset: found.next }) },
            "Newer",
          ),
        ),
    ),
    seen.problem && h("p", { class: "problem", role: "alert" }, seen.problem),
    found &&
      (found.messages.length
        ? h("ol", { class: "messages", "aria-label": "Messages" }, found.messages.map(message))
        : h(
            "p",
            { class: "empty" },
            found.next_offset === found.first_offset ? "It has none." : "There is none from there on.",
          )),
    !found &&
      h(
        "p",
        { class: "hint" },
        row.kind === "queue"
          ? "By offset, also those that are settled and still on the disk. Looking takes nothing from consumers."
          : "By offset or time; 20 at once.",
      ),
  )
}

function message(one) {
  if (one.problem)
    return h(
      "li",
      { key: one.offset },
      h("div", { class: "head" }, h("b", {}, `#${one.offset}`)),
      h("p", { class: "problem" }, one.problem),
    )
  const headers = Object.entries(one.headers)
  return h(
    "li",
    { key: one.offset },
    h(
      "div",
      { class: "head" },
      h("b", {}, `#${one.offset}`),
      h("time", {}, `${moment(one.timestamp)} UTC`),
      h("span", {}, bytes(one.size_bytes)),
      one.id !== null && h("span", {}, `id ${one.id}`),
      one.encoding === "base64" && h("span", { class: "kind" }, "base64"),
      headers.map(([name, value]) => h("span", { class: "header" }, `${name}: ${value}`)),
    ),
    h("pre", { tabindex: one.body.length > 300 ? "0" : null }, pretty(one)),
    one.encoding === "string" &&
      new Blob([one.body]).size < one.size_bytes &&
      h("p", { class: "hint" }, `The beginning of ${count(one.size_bytes)} bytes.`),
  )
}

// JSON is laid out; anything else is shown as it is.
function pretty({ body, encoding }) {
  if (encoding !== "string" || !/^\s*[[{]/.test(body)) return body
  try {
    const text = JSON.stringify(JSON.parse(body), null, 2)
    return text.length < 120 ? text.replace(/\n\s*/g, " ") : text
  } catch {
    return body
  }
}
