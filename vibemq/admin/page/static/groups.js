// SPDX-License-Identifier: Apache-2.0
// Super streams, which are exchanges with a binding for each partition, and groups of which one consumer is active.

import * as api from "./api.js"
import { ask, field } from "./dialog.js"
import { h } from "./dom.js"
import { count, NONE } from "./format.js"
import { streamLink } from "./streams.js"
import { action, table } from "./table.js"

export const groups = {
  title: () => "Super streams and groups",
  async load(_, signal) {
    const [exchanges, bindings, found] = await Promise.all([
      api.get("/exchanges", signal),
      api.get("/bindings", signal),
      api.get("/stream/groups", signal),
    ])
    const superStreams = exchanges.map((exchange) => ({
      ...exchange,
      partitions: bindings.filter(({ vhost, source }) => vhost === exchange.vhost && source === exchange.name),
    }))
    return { superStreams, groups: found }
  },
  show({ superStreams, groups: found }) {
    return [
      h(
        "div",
        { class: "tools" },
        h("button", { type: "button", class: "main push", onclick: create }, "New super stream"),
      ),
      h(
        "section",
        { "aria-labelledby": "supers" },
        h("h2", { id: "supers" }, "Super streams"),
        table({
          label: "Super streams",
          rows: superStreams,
          key: (row) => `${row.vhost}/${row.name}`,
          columns: [
            { label: "Name", cell: (row) => row.name },
            { label: "Virtual host", wide: true, cell: (row) => row.vhost },
            { label: "Partitions", is: "number", cell: (row) => count(row.partitions.length) },
            {
              label: "Streams",
              wide: true,
              cell: (row) =>
                h(
                  "span",
                  { class: "many" },
                  row.partitions.slice(0, 24).map(({ vhost, destination: name }) => streamLink({ vhost, name })),
                ),
            },
            { label: "", cell: (row) => action("Delete", `Delete ${row.name}`, () => remove(row)) },
          ],
          empty: "There is none. It spreads one stream over several partitions.",
        }),
      ),
      h(
        "section",
        { "aria-labelledby": "groups" },
        h("h2", { id: "groups" }, "Single active consumers"),
        table({
          label: "Groups",
          rows: found,
          key: (row) => `${row.vhost}/${row.stream}/${row.reference}`,
          columns: [
            { label: "Group", cell: (row) => row.reference },
            { label: "Stream", cell: (row) => streamLink({ vhost: row.vhost, name: row.stream }) },
            {
              label: "Partition",
              is: "number",
              wide: true,
              cell: (row) => (row.partition_index < 0 ? NONE : row.partition_index),
            },
            { label: "Consumers", is: "number", cell: (row) => count(row.consumers) },
            {
              label: "Active",
              wide: true,
              cell: (row) =>
                row.members
                  .filter(({ state }) => /^active/i.test(state))
                  .map((one) => one.connection_name)
                  .join(", ") || NONE,
            },
          ],
          empty: "No consumer is in a group at this moment.",
        }),
      ),
    ]
  },
}

function create() {
  ask({
    title: "New super stream",
    fields: [
      field("Name", "name", { required: true, autofocus: true }),
      field("Partitions", "partitions", { required: true, value: "3", inputmode: "numeric", pattern: "[1-9][0-9]*" }),
      field("Keep for at most", "max-age", { placeholder: "7D, 12h, 30m" }),
    ],
    button: "Create",
    async act(form) {
      const given = form.get("max-age") ? { "x-max-age": form.get("max-age") } : {}
      await api.put(`/stream/super-streams${api.path("/", form.get("name"))}`, {
        partitions: Number(form.get("partitions")),
        arguments: given,
      })
      return `super stream ${form.get("name")} is there`
    },
  })
}

function remove({ vhost, name, partitions }) {
  ask({
    title: `Delete super stream ${name}?`,
    text: `Its ${partitions.length} partitions go with all their messages.`,
    button: "Delete",
    isDangerous: true,
    async act() {
      await api.remove(`/stream/super-streams${api.path(vhost, name)}`)
      return `super stream ${name} is deleted`
    },
  })
}
