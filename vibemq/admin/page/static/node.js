// SPDX-License-Identifier: Apache-2.0
import * as api from "./api.js"
import { h } from "./dom.js"
import { bytes, count, duration, moment, NONE, plural } from "./format.js"
import { alarms, doors, step, tile } from "./overview.js"
import { table } from "./table.js"

export const node = {
  title: () => "Node",
  load: (_, signal) => api.get("/live/node", signal),
  show(found) {
    const { memory, disk, remote } = found
    return [
      alarms({ ...found, workers: { answering: found.workers.length, count: found.worker_count } }),
      h(
        "dl",
        { class: "tiles" },
        tile("Up for", duration(found.uptime_ms)),
        tile(
          "Memory",
          bytes(memory.used_bytes),
          "",
          memory.limit_bytes ? `alarm above ${bytes(memory.limit_bytes)}` : "no alarm",
        ),
        tile("Free disk", bytes(disk.free_bytes), "", `alarm below ${bytes(disk.limit_bytes)}`),
        tile("Clock", found.clock.step_ms ? step(found.clock) : "not set since the start"),
        tile("Alarms", found.alarms.length ? found.alarms.join(", ") : "none"),
      ),
      memory.limit_bytes > 0 &&
        h(
          "label",
          { class: "meter" },
          "Memory until the alarm",
          h(
            "meter",
            { min: 0, max: memory.limit_bytes, value: memory.used_bytes, high: memory.limit_bytes * 0.8 },
            `${Math.round((memory.used_bytes / memory.limit_bytes) * 100)} %`,
          ),
        ),
      h(
        "section",
        { "aria-labelledby": "workers" },
        h("h2", { id: "workers" }, `${found.workers.length} of ${plural(found.worker_count, "worker")} answer`),
        table({
          label: "Workers",
          rows: found.workers,
          key: (row) => row.worker,
          columns: [
            { label: "Worker", is: "number", cell: (row) => row.worker },
            { label: "Process", is: "number", cell: (row) => row.pid },
            { label: "Connections", is: "number", cell: (row) => count(row.connections) },
            { label: "Memory", is: "number", cell: (row) => bytes(row.memory_bytes) },
            { label: "Sent to readers of streams", is: "number", wide: true, cell: (row) => count(row.delivered) },
            {
              label: "Certificate until",
              wide: true,
              cell: (row) => (row.certificate_ends_s ? moment(row.certificate_ends_s * 1000) : NONE),
            },
          ],
        }),
      ),
      doors(found, `process ${found.pid}, data in ${found.data_dir}`),
      h(
        "section",
        { "aria-labelledby": "remote" },
        h("h2", { id: "remote" }, "Object store"),
        remote ? store(remote) : h("p", { class: "hint" }, "None is configured: remote.url is empty."),
      ),
    ]
  },
}

const store = (remote) => [
  h(
    "p",
    { class: remote.is_up && !remote.away_s ? "hint" : "alarm" },
    remote.url,
    remote.is_up
      ? remote.away_s
        ? `: has not answered for ${duration(remote.away_s * 1000)}`
        : ": answers"
      : `: ${remote.why}`,
  ),
  remote.is_up &&
    h(
      "dl",
      { class: "tiles small" },
      tile("Streams of durability remote", count(remote.streams)),
      tile("Messages on their way", count(remote.messages_waiting)),
      tile("Segments there", count(remote.segments), "", bytes(remote.segment_bytes)),
      tile("Write-ahead objects", count(remote.write_ahead_objects)),
      tile("Read back and kept here", bytes(remote.cache_bytes)),
      tile("Requests that failed", count(remote.errors)),
    ),
]
