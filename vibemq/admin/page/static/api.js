// SPDX-License-Identifier: Apache-2.0
// The management API, as whoever has logged in. A request that changes something bears this login's CSRF token.

export class Refused extends Error {
  constructor(status, error, reason) {
    super(reason)
    this.status = status
    this.isLogin = status === 401 && error === "not_authorized" // nobody has logged in, or not any more
  }
}

let csrf = ""

// The parts of a path, each of which may hold anything but what browsers take for a folder (FOLDER):
// path("queues", "/", "a b") is /queues/%2F/a%20b
export const path = (...parts) => parts.map((part) => `/${encodeURIComponent(part)}`).join("")

// Nothing new is called so; of what an earlier version has made, another address would be asked for.
const FOLDER = /\/(\.\.?)(?=[/?]|$)/
const noAddress = (name) =>
  `No browser can ask about what is called "${name}": something new needs another name. What is there from before is ` +
  `deleted by \`vibemq ctl delete_queue ${name}\`; a user by delete_user, a virtual host by delete_vhost, a policy by ` +
  "clear_policy, a super stream by delete_super_stream."

// A header holds ASCII only.
const escaped = (one) => `\\u${one.charCodeAt(0).toString(16).padStart(4, "0")}`

async function ask(method, address, body, signal, reason) {
  const folder = FOLDER.exec(address)
  if (folder) throw new Refused(400, "no_address", noAddress(folder[1]))
  const headers = { "X-CSRF-Token": csrf, Accept: "application/json" }
  if (body !== undefined) headers["Content-Type"] = "application/json"
  if (reason) headers["X-Reason"] = reason.replace(/[^ -~]/g, escaped)
  let response
  try {
    response = await fetch(address, {
      method,
      headers,
      signal,
      body: body === undefined ? undefined : JSON.stringify(body),
    })
  } catch (problem) {
    if (problem.name === "AbortError") throw problem
    throw new Refused(0, "away", "The broker does not answer.")
  }
  const text = await response.text()
  let found = null
  try {
    found = text ? JSON.parse(text) : null
  } catch {
    found = { reason: text }
  }
  if (!response.ok) throw new Refused(response.status, found?.error, found?.reason ?? `HTTP ${response.status}`)
  return found
}

export const get = (address, signal) => ask("GET", `api${address}`, undefined, signal)
export const put = (address, body = {}) => ask("PUT", `api${address}`, body)
export const post = (address, body = {}) => ask("POST", `api${address}`, body)
export const remove = (address, reason = "") => ask("DELETE", `api${address}`, undefined, undefined, reason)

export async function logIn(user, password) {
  const session = await ask("POST", "page/login", { user, password })
  csrf = session.csrf
  return session
}

// Whose login this browser has; null: nobody's.
export async function session() {
  try {
    const found = await ask("GET", "page/session")
    csrf = found.csrf
    return found
  } catch (problem) {
    if (problem.isLogin) return null
    throw problem
  }
}

export async function logOut() {
  await ask("POST", "page/logout")
  csrf = ""
}

// Of a query what is set.
export function query(values) {
  const set = Object.entries(values).filter(([, value]) => value !== undefined && value !== "" && value !== null)
  return set.length ? `?${new URLSearchParams(set)}` : ""
}
