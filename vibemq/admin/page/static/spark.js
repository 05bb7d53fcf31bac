// SPDX-License-Identifier: Apache-2.0
import * as api from "./api.js"
import { h } from "./dom.js"
import { ago, bytes, count, NONE, rate } from "./format.js"
import { streamLink } from "./streams.js"
import { table } from "./table.js"

export const spark = {
  title: () => "Spark queries",
  load: (_, signal) => api.get("/live/spark", signal),
  show({ sources, found, sinks }) {
    return [
      h(
        "section",
        { "aria-labelledby": "sources" },
        h("h2", { id: "sources" }, "Reading"),
        table({
          label: "Queries that read",
          rows: sources,
          key: (row) => `${row.query} ${row.vhost}/${row.stream}`,
          columns: [
            { label: "Query", cell: (row) => row.query },
            { label: "Stream", cell: (row) => streamLink({ vhost: row.vhost, name: row.stream }) },
            { label: "Offset", is: "number", wide: true, cell: (row) => count(row.offset) },
            { label: "Published /s", is: "number", wide: true, cell: (row) => rate(row.published) },
            {
              label: "Lag",
              is: "number",
              cell: (row) =>
                h("span", { class: row.lag ? "lag" : null }, row.lag ? `${count(row.lag)} behind` : "none"),
            },
          ],
          empty:
            "No query has told how far it is: spark.streams.addListener(LagListener(...)) lets it, and vibemq ingest does it by itself.",
        }),
        found > sources.length &&
          h("p", { class: "hint" }, `Those ${count(sources.length)} of ${count(found)} that lag most.`),
      ),
      h(
        "section",
        { "aria-labelledby": "sinks" },
        h("h2", { id: "sinks" }, "Writing"),
        table({
          label: "Applications that write",
          rows: sinks,
          key: (row) => `${row.vhost} ${row.application}`,
          columns: [
            { label: "Application", cell: (row) => row.application },
            { label: "User", wide: true, cell: (row) => row.user || NONE },
            { label: "Batch", is: "number", cell: (row) => count(row.version) },
            { label: "Messages", is: "number", cell: (row) => count(row.messages) },
            { label: "Decided", wide: true, cell: (row) => ago(row.decided_at) },
            { label: "Heard of", wide: true, cell: (row) => ago(row.seen_at) },
            { label: "Staged", is: "number", wide: true, cell: (row) => bytes(row.staged_bytes) },
            {
              label: "State",
              cell: (row) => (row.is_waiting ? "being appended" : row.open_transactions ? "staging" : "at rest"),
            },
          ],
          empty: "No application has written by transactions yet.",
        }),
      ),
    ]
  },
}
