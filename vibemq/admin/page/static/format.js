// SPDX-License-Identifier: Apache-2.0
// Numbers, sizes and times for people.

const whole = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 })
const short = new Intl.NumberFormat("en-US", { notation: "compact", maximumSignificantDigits: 3 })

export const NONE = "–"

export const count = (value) => (value === null || value === undefined ? NONE : whole.format(value))

// With three digits: 1.23M
export const brief = (value) =>
  value === null || value === undefined ? NONE : value < 10_000 ? whole.format(value) : short.format(value)

export function rate(value) {
  if (value === null || value === undefined) return NONE
  if (value === 0) return "0"
  if (value < 10) return value.toFixed(1)
  return brief(value)
}

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"]

export function bytes(value) {
  if (value === null || value === undefined) return NONE
  let unit = 0
  while (value >= 1024 && unit < UNITS.length - 1) {
    value /= 1024
    unit += 1
  }
  return `${unit && value < 100 ? value.toFixed(1) : whole.format(value)}\u00a0${UNITS[unit]}` // never apart
}

export function duration(ms) {
  const seconds = Math.max(0, Math.round(ms / 1000))
  if (seconds < 60) return `${seconds} s`
  const minutes = Math.floor(seconds / 60)
  if (minutes < 60) return `${minutes} min`
  const hours = Math.floor(minutes / 60)
  return hours < 48 ? `${hours} h ${minutes % 60} min` : `${Math.floor(hours / 24)} d ${hours % 24} h`
}

export const ago = (ms) => (ms ? `${duration(Date.now() - ms)} ago` : NONE)

const clock = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" })

export const time = (ms) => clock.format(new Date(ms))

export const moment = (ms) => (ms ? new Date(ms).toISOString().replace("T", " ").replace("Z", "") : NONE)

export const plural = (number, one, many = `${one}s`) => `${count(number)} ${number === 1 ? one : many}`
