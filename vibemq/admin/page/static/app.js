// SPDX-License-Identifier: Apache-2.0
// The page: who is here, which view is open, and looking again every second while somebody sees it.
//
// A view is {title, load(place, signal), show(data, place)}: what it needs of the broker, and what that looks like. A place
// is what the address says behind the #: its parts, and a query that holds what a view was told (filter, order, page), so
// that going back, a bookmark and a link to a colleague work.

import * as api from "./api.js"
import { h, show } from "./dom.js"
import { ago } from "./format.js"
import { closeDialog, setAfter } from "./dialog.js"
import { login } from "./login.js"
import { accounts } from "./accounts.js"
import { connections } from "./connections.js"
import { groups } from "./groups.js"
import { node } from "./node.js"
import { overview } from "./overview.js"
import { policies } from "./policies.js"
import { spark } from "./spark.js"
import { stream } from "./stream.js"
import { streams } from "./streams.js"

const REFRESH_MS = 1000
const MANAGEMENT = 1
const MONITORING = 2
const ADMINISTRATOR = 3

const VIEWS = [
  { name: "", label: "Overview", level: MANAGEMENT, view: overview },
  { name: "streams", label: "Streams, queues", level: MANAGEMENT, view: streams },
  { name: "connections", label: "Connections", level: MANAGEMENT, view: connections },
  { name: "groups", label: "Super streams", level: MANAGEMENT, view: groups },
  { name: "spark", label: "Spark", level: MANAGEMENT, view: spark },
  { name: "node", label: "Node", level: MONITORING, view: node },
  { name: "policies", label: "Policies", level: MANAGEMENT, view: policies },
  { name: "accounts", label: "Users", level: ADMINISTRATOR, view: accounts },
]
const HIDDEN = { stream: { view: stream, under: "streams" } }

const app = document.querySelector("#app")
let who = null
let running = null // of the load that is under way: its AbortController
let timer = 0
let opened = "" // the place whose heading has had the focus
let data = null // what a view was given last
let dataOf = "" // which one: the address may be another one by now, before anybody is told
let seenMs = 0
let problem = null

function place() {
  const [way, query] = location.hash.replace(/^#\/?/, "").split("?")
  return {
    parts: way.split("/").map(decodeURIComponent),
    query: Object.fromEntries(new URLSearchParams(query)),
    who,
    go,
    again,
  }
}

// Say in the address what a view was told; a change of the query is no new page in the history.
function go(query) {
  const here = location.hash.replace(/^#\/?/, "").split("?")[0]
  history.replaceState(null, "", `#/${here}${api.query(query)}`)
  again()
}

function viewOf({ parts }) {
  const found = VIEWS.find(({ name, level }) => name === parts[0] && who.level >= level)
  return found?.view ?? HIDDEN[parts[0]]?.view ?? VIEWS[0].view
}

async function again() {
  clearTimeout(timer)
  running?.abort()
  const mine = (running = new AbortController())
  const here = place()
  const view = viewOf(here)
  try {
    const found = await view.load(here, mine.signal)
    if (mine.signal.aborted) return
    data = found
    dataOf = here.parts.join("/")
    seenMs = Date.now()
    problem = null
  } catch (failed) {
    if (mine.signal.aborted || failed.name === "AbortError") return
    if (!(failed instanceof api.Refused)) throw failed
    if (failed.isLogin) return leave("Your login has ended: log in again.")
    problem = failed
    if (failed.status !== 0 && failed.status !== 503) data = null // what was shown may not be so any more
  }
  draw()
  timer = setTimeout(() => document.hidden || again(), REFRESH_MS)
}

function draw() {
  const here = place()
  const view = viewOf(here)
  const shown = dataOf === here.parts.join("/") ? data : null
  const title = view.title(here)
  document.title = `${title} · VibeMQ`
  const isAway = problem?.status === 0 || problem?.status === 503
  show(
    app,
    h(
      "header",
      { class: "bar" },
      h(
        "a",
        { class: "brand", href: "#/" },
        h("img", { src: "page/icon.svg", alt: "", width: 26, height: 26 }),
        "VibeMQ",
      ),
      h(
        "button",
        { class: "menu", type: "button", "aria-expanded": "false", "aria-controls": "nav", onclick: toggleMenu },
        "Menu",
      ),
      h(
        "span",
        { class: `live ${isAway ? "away" : ""}`, title: seenMs ? `looked at ${ago(seenMs)}` : "" },
        isAway ? "no answer" : "live",
      ),
      h("span", { class: "who" }, who.user, h("small", {}, who.tags.join(", "))),
      h("button", { type: "button", class: "quiet", onclick: logOut }, "Log out"),
    ),
    h(
      "nav",
      { id: "nav", "aria-label": "Views" },
      h(
        "ul",
        {},
        VIEWS.filter(({ level }) => who.level >= level).map((one) => link(one, here)),
      ),
    ),
    h(
      "main",
      { id: "main", tabindex: "-1" },
      h("h1", { tabindex: "-1", id: "title" }, title),
      problem &&
        h("p", { class: "problem", role: "alert" }, isAway ? `${problem.message} Trying again.` : problem.message),
      shown && h("div", { class: "view", key: here.parts.join("/") }, view.show(shown, here)),
      !shown && !problem && h("p", { class: "boot" }, "Loading"),
    ),
  )
}

function link({ name, label }, { parts }) {
  const isHere = parts[0] === name || HIDDEN[parts[0]]?.under === name
  return h("li", {}, h("a", { href: `#/${name}`, "aria-current": isHere ? "page" : null, onclick: closeMenu }, label))
}

function toggleMenu(event) {
  const isOpen = document.querySelector("#nav").classList.toggle("open")
  event.currentTarget.setAttribute("aria-expanded", String(isOpen))
}

function closeMenu() {
  document.querySelector("#nav").classList.remove("open")
  document.querySelector(".menu").setAttribute("aria-expanded", "false")
}

async function open() {
  if (!who) return
  closeDialog()
  const way = location.hash.split("?")[0]
  const isOther = way !== opened
  if (isOther) {
    data = problem = null
    draw()
  }
  await again()
  if (isOther && opened) document.querySelector("#title")?.focus() // a screen reader says where one has come to
  opened = way
}

async function logOut() {
  await api.logOut()
  leave("")
}

function leave(why) {
  clearTimeout(timer)
  running?.abort()
  who = data = problem = null
  opened = ""
  closeDialog()
  document.title = "Log in · VibeMQ"
  login(app, why, (found) => {
    who = found
    show(app)
    open()
  })
}

setAfter(() => again())
document.querySelector("#skip").addEventListener("click", (event) => {
  event.preventDefault() // the address is the view's
  document.querySelector("#main")?.focus()
})
window.addEventListener("hashchange", open)
document.addEventListener("visibilitychange", () => !document.hidden && who && again())
api.session().then(
  (found) => {
    if (!found) return leave("")
    who = found
    open()
  },
  (failed) => leave(failed.message),
)
