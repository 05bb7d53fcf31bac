// SPDX-License-Identifier: Apache-2.0
// The list of streams and queues: filtered, sorted and cut by the broker, so that ten thousand of them are no more than fifty.

import * as api from "./api.js"
import { ask, check, choice, field } from "./dialog.js"
import { h } from "./dom.js"
import { ago, bytes, count, rate } from "./format.js"
import { filter, pager, select, sorting, table } from "./table.js"

const PAGE_ROWS = 50
const DEFAULT_VHOST = "/"

export const streamAddress = (vhost, name) => `#/stream${api.path(vhost, name)}`

export const streamLink = (row) => [
  h("a", { href: streamAddress(row.vhost, row.name) }, row.name),
  row.vhost !== DEFAULT_VHOST && h("small", { class: "vhost" }, row.vhost),
]

export const lostCell = (row) =>
  row.kind === "queue" && row.lost > 0 ? h("b", { class: "bad" }, rate(row.lost)) : ""

const COLUMNS = [
  { name: "name", label: "Name", cell: streamLink },
  { name: "kind", label: "Kind", wide: true, cell: (row) => h("span", { class: `kind ${row.kind}` }, row.kind) },
  { name: "published", label: "In /s", is: "number", cell: (row) => rate(row.published) },
  {
    name: "delivered",
    label: "Out /s",
    is: "number",
    wide: true,
    cell: (row) => (row.kind === "queue" ? rate(row.delivered) : ""),
  },
  { name: "lost", label: "Lost /s", is: "number", cell: lostCell },
  { name: "ready", label: "Messages", is: "number", cell: (row) => count(row.ready) },
  {
    name: "unacked",
    label: "In flight",
    is: "number",
    wide: true,
    cell: (row) => (row.kind === "queue" ? count(row.unacked) : ""),
  },
  { name: "consumers", label: "Consumers", is: "number", wide: true, cell: (row) => count(row.consumers) },
  { name: "size_bytes", label: "Size", is: "number", wide: true, cell: (row) => bytes(row.size_bytes) },
  { name: "written_ms", label: "Written", is: "number", wide: true, cell: (row) => ago(row.written_ms) },
  { name: "durability", label: "Durability", wide: true, cell: (row) => row.durability },
]

export const streams = {
  title: () => "Streams and queues",
  async load({ query }, signal) {
    const asked = {
      name: query.name,
      kind: query.kind,
      vhost: query.vhost,
      sort: query.sort,
      sort_reverse: query.reverse,
      page: query.page,
      page_size: PAGE_ROWS,
    }
    const [list, vhosts] = await Promise.all([
      api.get(`/live/streams${api.query(asked)}`, signal),
      api.get("/vhosts?columns=name", signal),
    ])
    return { list, vhosts: vhosts.map(({ name }) => name) }
  },
  show({ list, vhosts }, place) {
    return [
      h(
        "div",
        { class: "tools" },
        filter("Filter by name", place, "part of a name"),
        select("Kind", "kind", place, [
          ["", "all"],
          ["stream", "streams"],
          ["queue", "queues"],
        ]),
        vhosts.length > 1 &&
          select("Virtual host", "vhost", place, [["", "all"], ...vhosts.map((name) => [name, name])]),
        h("button", { type: "button", class: "main push", onclick: () => create(vhosts) }, "New"),
      ),
      table({
        label: "Streams and queues",
        columns: COLUMNS,
        rows: list.rows,
        key: (row) => `${row.vhost}/${row.name}`,
        ...sorting(place, "name"),
        empty: list.total ? "None has such a name." : "There is none yet.",
      }),
      pager(list, place),
    ]
  },
}

const MODES = [
  ["0", "to one consumer, in turn"],
  ["3", "by priority, to one consumer"],
  ["1", "to every consumer, acknowledged"],
  ["2", "to every consumer, once"],
]
const OVERFLOWS = [
  ["0", "drop the oldest"],
  ["1", "refuse the newest"],
  ["2", "let publishers wait"],
  ["3", "to the dead-letter queue"],
]

function create(vhosts) {
  ask({
    title: "New stream or queue",
    fields: [
      field("Name", "name", { required: true, autofocus: true }),
      choice(
        "Kind",
        "kind",
        [
          ["stream", "Stream: read by offset, kept for a time"],
          ["queue", "Queue: each message until it is acknowledged"],
        ],
        "stream",
      ),
      vhosts.length > 1 &&
        choice(
          "Virtual host (queues: / only)",
          "vhost",
          vhosts.map((name) => [name, name]),
          DEFAULT_VHOST,
        ),
      choice("Durability", "durability", [
        ["", "as configured"],
        ["os", "os: survives every process"],
        ["disk", "disk: survives a power cut"],
        ["remote", "remote: survives the machine"],
      ]),
      h(
        "fieldset",
        { class: "of-stream" },
        h("legend", {}, "Of a stream"),
        field("Keep at most, in bytes", "max-length-bytes", { inputmode: "numeric", pattern: "[0-9]*" }),
        field("Keep for at most", "max-age", { placeholder: "7D, 12h, 30m" }),
      ),
      h(
        "fieldset",
        { class: "of-queue" },
        h("legend", {}, "Of a queue"),
        choice("Delivery", "mode", MODES, "0"),
        field("Messages that may wait", "max_messages", {
          inputmode: "numeric",
          pattern: "[0-9]*",
          placeholder: "no limit",
        }),
        choice("When it is full", "overflow", OVERFLOWS, "0"),
        check("With a dead-letter queue", "dead_letter"),
      ),
    ],
    button: "Create",
    async act(form) {
      const [name, vhost, kind] = [form.get("name"), form.get("vhost") ?? DEFAULT_VHOST, form.get("kind")]
      const durability = form.get("durability")
      if (kind === "stream") {
        const given = Object.fromEntries(
          ["max-length-bytes", "max-age"].filter((key) => form.get(key)).map((key) => [`x-${key}`, form.get(key)]),
        )
        if (durability) given["x-durability"] = durability
        await api.put(`/queues${api.path(vhost, name)}`, {
          durable: true,
          auto_delete: false,
          arguments: { "x-queue-type": "stream", ...given },
        })
      } else {
        const options = {
          mode: Number(form.get("mode")),
          overflow: Number(form.get("overflow")),
          dead_letter: form.get("dead_letter") !== null,
        }
        if (form.get("max_messages")) options.max_messages = Number(form.get("max_messages"))
        if (durability) options.durability = durability
        await api.put(`/queues${api.path(vhost, name)}/definition`, { queue_options: options })
      }
      location.hash = streamAddress(vhost, name)
      return `${kind} ${name} is there`
    },
  })
}
