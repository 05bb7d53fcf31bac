// SPDX-License-Identifier: Apache-2.0
// One stream or queue with all there is to know of it, and what may be done with it.

import * as api from "./api.js"
import { chart, extend } from "./chart.js"
import { ask, check, field } from "./dialog.js"
import { h } from "./dom.js"
import { ago, brief, bytes, count, moment, NONE, plural, rate } from "./format.js"
import { messages } from "./messages.js"
import { BACKLOG, LOSSES, RATES, lostTile, tile } from "./overview.js"
import { table } from "./table.js"

const known = { address: "", history: null }

export const stream = {
  title: ({ parts }) => parts[2] ?? "",
  async load({ parts: [, vhost, name] }, signal) {
    const address = api.path(vhost, name)
    if (known.address !== address) Object.assign(known, { address, history: null })
    const found = await api.get(`/live/streams${address}${api.query({ after: known.history?.end })}`, signal)
    known.history = extend(known.history, found.history)
    return found
  },
  show(found, place) {
    const { row, counts } = found
    const isQueue = row.kind === "queue"
    return [
      h(
        "div",
        { class: "tools facts" },
        h("span", { class: `kind ${row.kind}` }, row.kind),
        h("span", {}, "virtual host ", h("b", {}, row.vhost)),
        h("span", {}, "durability ", h("b", {}, row.durability)),
        h("span", {}, "policy ", h("b", {}, found.policy?.name ?? "none")),
        h("span", {}, "made ", h("b", { title: moment(found.created_ms) }, ago(found.created_ms))),
        h(
          "span",
          { class: "push buttons" },
          h("button", { type: "button", class: "main", onclick: () => publish(row) }, "Publish"),
          isQueue && h("button", { type: "button", onclick: () => again(purge(row), place) }, "Purge"),
          h("button", { type: "button", class: "danger", onclick: () => again(remove(row), place) }, "Delete"),
        ),
      ),
      h(
        "dl",
        { class: "tiles" },
        tile("Published", rate(row.published), "/s"),
        isQueue && tile("Delivered", rate(row.delivered), "/s"),
        isQueue && tile("Acknowledged", rate(row.acked), "/s"),
        isQueue && lostTile(row.lost),
        tile(isQueue ? "Waiting" : "Messages", brief(row.ready)),
        isQueue && tile("In flight", brief(row.unacked)),
        tile("Consumers", count(isQueue ? (counts?.consumers ?? found.consumers.length) : found.consumers.length)),
        tile("Size", bytes(row.size_bytes), "", row.segments ? `in ${plural(row.segments, "segment")}` : ""),
        tile("Next offset", count(row.next_offset)),
        row.next_offset > row.confirmed_offset &&
          tile("Unconfirmed", count(row.next_offset - row.confirmed_offset), "", "given to no consumer yet"),
      ),
      h(
        "div",
        { class: "charts" },
        chart({
          title: "Messages a second",
          history: known.history,
          lines: isQueue ? RATES : RATES.slice(0, 1),
          format: rate,
        }),
        isQueue &&
          chart({ title: "Dropped or refused a second", history: known.history, lines: LOSSES, format: rate }),
        chart({
          title: isQueue ? "Messages kept" : "Messages",
          history: known.history,
          lines: isQueue ? BACKLOG : [{ ...BACKLOG[0], label: "kept" }],
          format: brief,
        }),
      ),
      messages(row, place),
      part("Consumers", consumers(found.consumers, isQueue)),
      part("Stored offsets", storedOffsets(found.stored_offsets)),
      part("Publishers", publishers(found)),
      isQueue && counts && part("What became of its messages", became(counts), failing(counts)),
      isQueue && part("Options", options(found)),
      part("Retention and segments", retention(found)),
    ]
  },
}

function part(title, ...content) {
  const id = `part-${title.toLowerCase().replaceAll(" ", "-")}`
  return h("section", { "aria-labelledby": id, key: id }, h("h2", { id }, title), content)
}

const connectionLink = (row) =>
  h("a", { href: `#/connections?name=${encodeURIComponent(row.connection)}` }, row.connection)

function consumers(rows, isQueue) {
  const columns = [
    { label: "Connection", cell: connectionLink },
    { label: "User", wide: true, cell: (row) => row.user || NONE },
    { label: "Door", wide: true, cell: (row) => row.protocol },
    ...(isQueue
      ? [
          { label: "In flight", is: "number", cell: (row) => count(row.in_flight) },
          { label: "Prefetch", is: "number", cell: (row) => count(row.prefetch) },
        ]
      : [
          { label: "Name", wide: true, cell: (row) => row.name || NONE },
          { label: "State", wide: true, cell: (row) => row.activity_status ?? NONE },
          { label: "Offset", is: "number", wide: true, cell: (row) => count(row.offset) },
          { label: "Consumed", is: "number", wide: true, cell: (row) => count(row.consumed) },
          { label: "Lag", is: "number", cell: (row) => lag(row.offset_lag) },
        ]),
  ]
  return table({
    label: "Consumers",
    columns,
    rows,
    key: (row) => `${row.connection} ${row.name} ${rows.indexOf(row)}`,
    empty: "Nobody reads it at this moment.",
  })
}

const lag = (value) =>
  h(
    "span",
    { class: value ? "lag" : null },
    value === null || value === undefined ? NONE : value ? `${count(value)} behind` : "none",
  )

const storedOffsets = (rows) =>
  table({
    label: "Stored offsets",
    rows,
    key: (row) => row.name,
    empty: "No consumer has stored one.",
    columns: [
      { label: "Consumer", cell: (row) => row.name },
      { label: "Offset", is: "number", cell: (row) => count(row.offset) },
      { label: "Lag", is: "number", cell: (row) => lag(row.lag) },
    ],
  })

const publishers = ({ publishers: rows, writers }) => [
  table({
    label: "Publishers",
    rows,
    key: (row) => `${row.connection} ${rows.indexOf(row)}`,
    empty: "Nobody publishes to it at this moment.",
    columns: [
      { label: "Connection", cell: connectionLink },
      { label: "User", wide: true, cell: (row) => row.user || NONE },
      { label: "Door", wide: true, cell: (row) => row.protocol },
      { label: "Reference", wide: true, cell: (row) => row.reference || NONE },
      { label: "Published", is: "number", cell: (row) => count(row.published) },
      { label: "Confirmed", is: "number", wide: true, cell: (row) => count(row.confirmed) },
      { label: "Refused", is: "number", wide: true, cell: (row) => count(row.errored) },
    ],
  }),
  writers.length > 0 &&
    h(
      "details",
      {},
      h("summary", {}, `${plural(writers.length, "publisher")} whose duplicates are dropped`),
      table({
        label: "Publishers whose duplicates are dropped",
        rows: writers,
        key: (row) => row.name,
        columns: [
          { label: "Reference", cell: (row) => row.name },
          { label: "Last number", is: "number", cell: (row) => count(row.number) },
        ],
      }),
    ),
]

const became = (counts) =>
  h(
    "dl",
    { class: "tiles small" },
    [
      ["delivered", "Delivered"],
      ["redelivered", "Delivered again"],
      ["acked", "Acknowledged"],
      ["dead_lettered", "Dead-lettered"],
      ["expired", "Expired"],
      ["dropped", "Dropped"],
      ["refused", "Refused"],
      ["purged", "Purged"],
      ["away", "Members away"],
    ].map(([name, label]) => tile(label, count(counts[name]))),
  )

// A queue without a limit never gives a message up: people have to know which one it is.
const failing = (counts) =>
  counts.failing > 0 &&
  h(
    "p",
    { class: "hint" },
    `${count(counts.failing_deliveries)} deliveries of message ${counts.failing_offset} failed, and the queue has no ` +
      `limit (attempts_max), so it is tried again. ${count(counts.failing)} such in all.`,
  )

const pairs = (values) =>
  h(
    "dl",
    { class: "pairs" },
    Object.entries(values).map(([name, value]) =>
      h("div", {}, h("dt", {}, name), h("dd", {}, value === "" || value === null ? NONE : String(value))),
    ),
  )

const options = (found) => [
  pairs(found.options),
  h("button", { type: "button", onclick: () => alter(found) }, "Change options"),
]

function retention({ arguments: given, policy, segments, row }) {
  const { "x-queue-type": _, ...said } = given
  return [
    Object.keys(said).length
      ? pairs(said)
      : h(
          "p",
          { class: "hint" },
          row.kind === "queue"
            ? "Segments go once all in them is settled."
            : "Nothing was said when it was made: it keeps everything, unless a policy says less.",
        ),
    policy && h("p", {}, `Policy ${policy.name}: `, h("code", {}, JSON.stringify(policy.definition))),
    h(
      "details",
      {},
      h("summary", {}, plural(segments.length, "segment")),
      table({
        label: "Segments",
        rows: segments,
        key: (one) => one.first_offset,
        columns: [
          { label: "From offset", is: "number", cell: (one) => count(one.first_offset) },
          { label: "Size", is: "number", cell: (one) => bytes(one.size_bytes) },
          { label: "Written", cell: (one) => ago(one.written_ms) },
          { label: "Lies on", cell: (one) => one.place },
        ],
      }),
    ),
  ]
}

// ---- what may be done ----

// What is refused before there is a dialog (it is gone, the login has ended) the next look says.
const again = (asked, place) =>
  asked.catch((refused) => (refused instanceof api.Refused ? place.again() : Promise.reject(refused)))

function publish({ vhost, name }) {
  ask({
    title: `Publish to ${name}`,
    fields: [
      h(
        "label",
        {},
        "Body",
        h("textarea", { name: "body", rows: 6, required: true, autofocus: true, spellcheck: "false" }),
      ),
      field("Content type", "content_type", { value: "application/json" }),
      h(
        "label",
        {},
        "Headers, a line each",
        h("textarea", { name: "headers", rows: 2, placeholder: "kind: invoice", spellcheck: "false" }),
      ),
    ],
    button: "Publish",
    async act(form) {
      const lines = form
        .get("headers")
        .split("\n")
        .filter((line) => line.includes(":"))
      const headers = Object.fromEntries(
        lines.map((line) => [line.slice(0, line.indexOf(":")).trim(), line.slice(line.indexOf(":") + 1).trim()]),
      )
      const found = await api.post(`/stream${api.path(vhost, name)}/messages`, {
        body: form.get("body"),
        headers,
        content_type: form.get("content_type"),
      })
      return found.offset === null
        ? "The queue is full: it is in the dead-letter queue"
        : `Kept at offset ${count(found.offset)}`
    },
  })
}

// Not as of the last look: somebody is about to decide by it.
const messagesNow = (vhost, name) => api.get(`/queues${api.path(vhost, name)}?columns=messages,messages_ready`)

async function purge({ vhost, name }) {
  const { messages_ready: ready } = await messagesNow(vhost, name)
  ask({
    title: `Purge ${name}?`,
    text: `All messages that wait, ${count(ready)} at this moment, leave the queue for good. Those in flight stay.`,
    button: "Purge",
    isDangerous: true,
    async act() {
      await api.remove(`/queues${api.path(vhost, name)}/contents`)
      return `${name} is purged`
    },
  })
}

async function remove({ vhost, name, kind }) {
  const { messages: kept } = await messagesNow(vhost, name)
  ask({
    title: `Delete ${kind} ${name}?`,
    text: `Its ${plural(kept, "message")} and all stored offsets are lost. Publishers and consumers are told.`,
    button: "Delete",
    isDangerous: true,
    async act() {
      await api.remove(`/queues${api.path(vhost, name)}`)
      location.hash = "#/streams"
      return `${kind} ${name} is deleted`
    },
  })
}

const NUMBERS = [
  ["max_messages", "Messages that may wait (0: no limit)"],
  ["message_ttl_ms", "Time to live, ms (0: none)"],
  ["attempts_max", "Deliveries that may fail (empty: as the configuration says)", true],
  ["ack_timeout_ms", "Time to acknowledge, ms"],
  ["prefetch", "Messages with one consumer"],
]

function alter({ row: { vhost, name }, options: now }) {
  ask({
    title: `Options of ${name}`,
    text: "They count at once, for all consumers and publishers. A smaller limit or time drops messages.",
    fields: [
      NUMBERS.map(([option, label, mayBeEmpty]) =>
        field(label, option, {
          value: now[option] ?? "",
          inputmode: "numeric",
          pattern: "[0-9]+",
          required: !mayBeEmpty,
        }),
      ),
      h(
        "label",
        {},
        "When it is full",
        h(
          "select",
          { name: "overflow" },
          ["drop_oldest", "drop_newest", "block_publisher", "redirect_to_dlq"].map((word) =>
            h("option", { value: word, selected: word === now.overflow }, word.replaceAll("_", " ")),
          ),
        ),
      ),
      check("With a dead-letter queue", "dead_letter", now.dead_letter),
    ],
    button: "Change",
    async act(form) {
      const read = (text) => (text === "" ? null : Number(text))
      const wanted = Object.fromEntries(NUMBERS.map(([option]) => [option, read(form.get(option))]))
      Object.assign(wanted, { overflow: form.get("overflow"), dead_letter: form.get("dead_letter") !== null })
      const changes = Object.fromEntries(Object.entries(wanted).filter(([option, value]) => value !== now[option]))
      if (Object.keys(changes).length) await api.put(`/queues${api.path(vhost, name)}/options`, changes)
      return `${name} has these options now`
    },
  })
}
