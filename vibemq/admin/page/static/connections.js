// SPDX-License-Identifier: Apache-2.0
import * as api from "./api.js"
import { ask, field } from "./dialog.js"
import { h } from "./dom.js"
import { ago, count, moment, NONE } from "./format.js"
import { action, filter, pager, sorting, table } from "./table.js"

const PAGE_ROWS = 50

export const connections = {
  title: () => "Connections",
  load: ({ query }, signal) =>
    api.get(
      `/live/connections${api.query({ name: query.name, sort: query.sort, sort_reverse: query.reverse, page: query.page, page_size: PAGE_ROWS })}`,
      signal,
    ),
  show(found, place) {
    const columns = [
      { name: "name", label: "Connection", cell: (row) => row.name },
      { name: "user", label: "User", cell: (row) => row.user || NONE },
      { name: "vhost", label: "Virtual host", wide: true, cell: (row) => row.vhost || NONE },
      {
        name: "protocol",
        label: "Door",
        wide: true,
        cell: (row) => (row.is_tls ? `${row.protocol}, TLS` : row.protocol),
      },
      { name: "client", label: "Client", wide: true, cell: (row) => row.client || NONE },
      { name: "publishers", label: "Publishers", is: "number", wide: true, cell: (row) => count(row.publishers) },
      { name: "consumers", label: "Consumers", is: "number", wide: true, cell: (row) => count(row.consumers) },
      { name: "worker", label: "Worker", is: "number", wide: true, cell: (row) => row.worker },
      { name: "state", label: "State", wide: true, cell: (row) => row.state },
      {
        name: "connected_ms",
        label: "Since",
        wide: true,
        cell: (row) => h("span", { title: moment(row.connected_ms) }, ago(row.connected_ms)),
      },
      {
        name: "close",
        label: "",
        sorts: false,
        cell: (row) => action("Close", `Close ${row.name}`, () => close(row)),
      },
    ]
    return [
      h("div", { class: "tools" }, filter("Filter", place, "address, user, client")),
      table({
        label: "Connections",
        columns,
        rows: found.rows,
        key: (row) => row.name,
        ...sorting(place, "name"),
        empty: found.total ? "None fits." : "Nobody is connected.",
      }),
      pager(found, place),
    ]
  },
}

function close({ name, user }) {
  ask({
    title: `Close ${name}?`,
    text: `The connection${user ? ` of ${user}` : ""} is dropped; most clients connect again by themselves.`,
    fields: [field("Reason, for the log", "reason")],
    button: "Close it",
    isDangerous: true,
    async act(form) {
      await api.remove(`/connections${api.path(name)}`, form.get("reason"))
      return `${name} is closed`
    },
  })
}
