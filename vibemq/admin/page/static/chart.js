// SPDX-License-Identifier: Apache-2.0
// Lines over the last hour, as inline SVG: a viewBox that is stretched, lines whose width is not, and words beside it.
//
// What a chart shows is said in words too: its legend has the newest figures, and its label the highest ones.

import { h, svg } from "./dom.js"
import { time } from "./format.js"

const WIDTH = 720
const HEIGHT = 160
const HOUR_S = 3600
// What is shown, with what stands below it, in minutes: the least that holds all there is.
const WINDOWS = [
  [5, 4, 3, 2, 1, 0],
  [15, 10, 5, 0],
  [30, 20, 10, 0],
  [60, 45, 30, 15, 0],
]
const GAP_S = 30 // between two points: nothing was measured there, and no line is drawn

// A round number that is not below `value`; of sizes it is one in KiB, MiB and so on.
function ceiling(value, isSize) {
  if (!(value > 0)) return 1
  const unit = isSize ? 1024 ** Math.floor(Math.log2(value) / 10) : 1
  const power = 10 ** Math.floor(Math.log10(value / unit)) * unit
  return [1, 2, 3, 4, 5, 6, 8, 10].map((step) => step * power).find((step) => step >= value * 1.02) ?? 20 * power
}

function line(points) {
  let path = ""
  let before = null
  for (const [x, y, at] of points) {
    path += before !== null && at - before < GAP_S ? `L${x} ${y}` : `M${x} ${y}`
    before = at
  }
  return path
}

// `history`: {times, series} as the API has them; `lines`: [{name, label, tone}]; `format` words a value.
export function chart({ title, history, lines, format, isSize = false }) {
  const times = history?.times ?? []
  const now = Math.max(Date.now() / 1000, times.at(-1) ?? 0) // whose clock it is, is all the same
  const ticks = WINDOWS.find(([most]) => !times.length || now - times[0] < most * 60) ?? WINDOWS.at(-1)
  const minutes = ticks[0]
  const window = minutes * 60
  const from = now - window
  const known = lines.map((one) => ({ ...one, values: history?.series?.[one.name] ?? [] }))
  const most = Math.max(0, ...known.flatMap(({ values }) => values.filter((value) => value !== null)))
  const top = ceiling(most, isSize)
  const x = (at) => Math.round(((at - from) / window) * WIDTH * 10) / 10
  const y = (value) => Math.round((HEIGHT - (value / top) * HEIGHT) * 10) / 10
  const paths = known.map(({ values, tone }) => {
    const points = values
      .map((value, index) => (value === null ? null : [x(times[index]), y(value), times[index]]))
      .filter((point) => point !== null && point[0] >= 0)
    const d = line(points)
    const area =
      tone === "one" && points.length > 1 && !d.slice(1).includes("M")
        ? `${d}L${points.at(-1)[0]} ${HEIGHT}L${points[0][0]} ${HEIGHT}Z`
        : ""
    return [area && svg("path", { class: `area ${tone}`, d: area }), svg("path", { class: `line ${tone}`, d })]
  })
  const last = (values) => values.findLast((value) => value !== null) ?? null
  const said = known.map(({ label, values }) => `${label} ${format(last(values))}`).join(", ")

  function point(event) {
    const plot = event.currentTarget
    const box = plot.getBoundingClientRect()
    const at = from + ((event.clientX - box.left) / box.width) * window
    let nearest = -1
    times.forEach((value, index) => {
      if (nearest < 0 || Math.abs(value - at) < Math.abs(times[nearest] - at)) nearest = index
    })
    const note = plot.querySelector(".note")
    const mark = plot.querySelector(".mark")
    if (nearest < 0 || Math.abs(times[nearest] - at) > GAP_S * 2) return leave(event)
    const place = (times[nearest] - from) / window
    const values = known.map((one) => `${one.label} ${format(one.values[nearest])}`)
    note.textContent = [time(times[nearest] * 1000), ...values].join("  ·  ")
    note.hidden = mark.hidden = false
    mark.style.left = `${place * 100}%`
    note.style.left = place < 0.5 ? `${place * 100}%` : "auto"
    note.style.right = place < 0.5 ? "auto" : `${(1 - place) * 100}%`
  }

  function leave(event) {
    for (const one of event.currentTarget.querySelectorAll(".note, .mark")) one.hidden = true
  }

  return h(
    "figure",
    { class: "chart", key: `chart-${title}` },
    h(
      "figcaption",
      {},
      h("span", { class: "title" }, title),
      h(
        "span",
        { class: "legend" },
        known.map(({ label, tone, values }) =>
          h("span", {}, h("i", { class: tone, "aria-hidden": "true" }), `${label} `, h("b", {}, format(last(values)))),
        ),
      ),
    ),
    h(
      "div",
      { class: "plot", onpointermove: point, onpointerleave: leave },
      svg(
        "svg",
        {
          viewBox: `0 0 ${WIDTH} ${HEIGHT}`,
          preserveAspectRatio: "none",
          role: "img",
          "aria-label": `${title}, the last ${minutes} minutes: now ${said}; at most ${format(most)}`,
        },
        [0, 0.25, 0.5, 0.75, 1].map((part) =>
          svg("path", { class: part === 1 ? "base" : "grid", d: `M0 ${HEIGHT * part}H${WIDTH}` }),
        ),
        paths,
      ),
      h("span", { class: "top" }, format(top)),
      h("span", { class: "mark", hidden: true, "data-own": true }),
      h("span", { class: "note", hidden: true, "data-own": true }),
    ),
    h(
      "div",
      { class: "axis", "aria-hidden": "true" },
      ticks.map((tick) => h("span", {}, tick === minutes ? `${tick} min ago` : tick || "now")),
    ),
  )
}

// What came since, behind what is known: an hour is kept.
export function extend(known, more) {
  if (!more) return null
  if (!known || known.began !== more.began || known.end < more.end - more.times.length) return more
  const fresh = more.end - known.end
  const keep = (old, add) => [...(old ?? []), ...add.slice(add.length - fresh)].slice(-HOUR_S / 5)
  if (fresh === 0) return known
  const series = {}
  for (const [name, values] of Object.entries(more.series)) series[name] = keep(known.series[name], values)
  return { began: more.began, end: more.end, times: keep(known.times, more.times), series }
}
