// SPDX-License-Identifier: Apache-2.0
import * as api from "./api.js"
import { chart, extend } from "./chart.js"
import { h } from "./dom.js"
import { brief, bytes, count, duration, plural, rate } from "./format.js"
import { lostCell, streamLink } from "./streams.js"
import { table } from "./table.js"

let history = null

// `more` stands behind the value: a unit; `below`: some words more.
export const tile = (label, value, more = "", below = "") =>
  h(
    "div",
    { class: "tile" },
    h("dt", {}, label),
    h("dd", {}, value, more && h("small", {}, more), below && h("small", { class: "below" }, below)),
  )

// Messages that a queue dropped, or that were refused because it was full.
export const lostTile = (lost) =>
  h(
    "div",
    { class: lost > 0 ? "tile bad" : "tile" },
    h("dt", {}, "Dropped or refused"),
    h("dd", {}, rate(lost), h("small", {}, "/s")),
  )

export const doors = (found, more) =>
  h(
    "section",
    { "aria-labelledby": "doors" },
    h("h2", { id: "doors" }, "Doors"),
    h(
      "ul",
      { class: "doors" },
      found.doors.map((door) => h("li", {}, h("b", {}, door.name), " ", h("code", {}, door.address))),
    ),
    h("p", { class: "hint" }, `VibeMQ ${found.version}, ${found.node}, ${more}`),
  )

export const RATES = [
  { name: "published", label: "published", tone: "one" },
  { name: "delivered", label: "delivered", tone: "two" },
  { name: "acked", label: "acked", tone: "three" },
]
const RETAINED = [{ name: "retained", label: "retained", tone: "one" }]
export const LOSSES = [{ name: "lost", label: "dropped or refused", tone: "three" }]
export const BACKLOG = [
  { name: "ready", label: "waiting", tone: "one" },
  { name: "unacked", label: "in flight", tone: "two" },
]

/** The last step of the wall clock. */
export function step({ step_ms: stepMs, ago_ms: agoMs }) {
  return `set ${stepMs > 0 ? "forward" : "back"} by ${duration(Math.abs(stepMs))}, ${duration(agoMs)} ago`
}

export function alarms({ alarms: names, is_drained: isDrained, workers, damaged, clock, stalled }) {
  const lines = names.map((name) => `${name} alarm: no messages are taken until there is room again.`)
  for (const { process, call, seconds } of stalled)
    lines.push(`The disk does not answer: ${call} has taken ${duration(seconds * 1000)} so far (${process}).`)
  if (isDrained) lines.push("In maintenance: nobody is let in. “vibemq ctl revive” ends that.")
  if (workers && workers.answering < workers.count)
    lines.push(`${workers.answering} of ${workers.count} workers answer; a new one is on its way.`)
  if (clock.step_ms && !clock.is_believed)
    lines.push(
      `The wall clock was ${step(clock)}. Nothing is removed for its age by this clock for now; see “Clocks” in docs/operating.md.`,
    )
  if (damaged) lines.push(`${plural(damaged, "stream")} cannot be read; the broker's log says why.`)
  return lines.map((text) => h("p", { class: "alarm", role: "alert", key: text }, text))
}

export const overview = {
  title: () => "Overview",
  async load(place, signal) {
    const found = await api.get(`/live/overview${api.query({ after: history?.end })}`, signal)
    history = extend(history, found.history)
    return found
  },
  show(found) {
    const { totals } = found
    return [
      alarms(found),
      h(
        "dl",
        { class: "tiles" },
        tile("Published", rate(totals.published), "/s"),
        tile("Delivered", rate(totals.delivered), "/s"),
        tile("Acknowledged", rate(totals.acked), "/s"),
        lostTile(totals.lost),
        tile("Waiting", brief(totals.ready), "", "in queues"),
        tile("In flight", brief(totals.unacked)),
        tile("Retained", brief(totals.retained), "", "in streams"),
        totals.connections !== undefined && tile("Connections", count(totals.connections)),
        tile("Streams", count(found.streams)),
        tile("Queues", count(found.queues)),
      ),
      history &&
        h(
          "div",
          { class: "charts" },
          chart({ title: "Messages a second", history, lines: RATES, format: rate }),
          chart({ title: "Dropped or refused a second", history, lines: LOSSES, format: rate }),
          chart({ title: "Messages in queues", history, lines: BACKLOG, format: brief }),
          chart({ title: "Messages in streams", history, lines: RETAINED, format: brief }),
          chart({
            title: "Connections",
            history,
            lines: [{ name: "connections", label: "open", tone: "one" }],
            format: count,
          }),
          chart({
            title: "Memory of all processes",
            history,
            lines: [{ name: "memory", label: "used", tone: "one" }],
            format: bytes,
            isSize: true,
          }),
        ),
      h(
        "section",
        { "aria-labelledby": "busiest" },
        h("h2", { id: "busiest" }, "Busiest and fullest"),
        table({
          label: "Busiest and fullest streams and queues",
          rows: found.busiest,
          key: (row) => `${row.vhost}/${row.name}`,
          columns: [
            { label: "Name", cell: streamLink },
            { label: "Published /s", is: "number", cell: (row) => rate(row.published) },
            {
              label: "Delivered /s",
              is: "number",
              wide: true,
              cell: (row) => (row.kind === "queue" ? rate(row.delivered) : ""),
            },
            { label: "Lost /s", is: "number", cell: lostCell },
            { label: "Messages", is: "number", cell: (row) => brief(row.ready) },
          ],
          empty:
            found.streams + found.queues
              ? "Nothing is published at this moment, and nothing is kept."
              : "There is no stream and no queue yet: vibemq publish hello '{\"number\": 1}' makes one, and it appears here.",
        }),
      ),
      doors(found, `up for ${duration(found.uptime_ms)}, ${plural(found.workers.count, "worker")}`),
    ]
  },
}
