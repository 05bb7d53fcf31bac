// SPDX-License-Identifier: Apache-2.0
// Elements, and how a page changes while somebody uses it.
//
// A view says each time what the page should be like; morph() changes what is there into that, and touches nothing else.
// So focus, selection, what is being typed and what is folded open stay as they are. Text is always text: no view ever
// writes HTML, and the page's policy (require-trusted-types-for) would not let it.

const SVG = "http://www.w3.org/2000/svg"
const HANDLERS = [
  "onclick",
  "onchange",
  "oninput",
  "onsubmit",
  "onkeydown",
  "onpointermove",
  "onpointerleave",
  "ontoggle",
]
// What belongs to the person in front of it once it is there.
const KEPT = { DETAILS: ["open"], DIALOG: ["open"], INPUT: ["value", "checked"], OPTION: ["selected"] }

function make(element, properties, children) {
  for (const [name, value] of Object.entries(properties ?? {})) {
    if (value === undefined || value === null || value === false) continue
    if (name.startsWith("on")) element[name] = value
    else if (name === "key") element.key = String(value)
    else element.setAttribute(name, value === true ? "" : String(value))
  }
  for (const child of children.flat(Infinity)) {
    if (child === undefined || child === null || child === false) continue
    element.append(child instanceof Node ? child : String(child))
  }
  return element
}

export function h(tag, properties, ...children) {
  return make(document.createElement(tag), properties, children)
}

export function svg(tag, properties, ...children) {
  return make(document.createElementNS(SVG, tag), properties, children)
}

// Make what is in `place` the same as these nodes.
export function show(place, ...nodes) {
  const fresh = document.createDocumentFragment()
  for (const node of nodes.flat(Infinity)) if (node) fresh.append(node)
  morphChildren(place, fresh)
}

function isSame(a, b) {
  return a.nodeType === b.nodeType && a.nodeName === b.nodeName && a.key === b.key
}

function morphChildren(old, fresh) {
  const byKey = new Map()
  for (const child of old.childNodes) if (child.key !== undefined) byKey.set(child.key, child)
  let at = old.firstChild
  for (const wanted of [...fresh.childNodes]) {
    const keyed = wanted.key === undefined ? undefined : byKey.get(wanted.key)
    if (keyed && isSame(keyed, wanted)) {
      if (keyed !== at) old.insertBefore(keyed, at)
      else at = at.nextSibling
      morph(keyed, wanted)
    } else if (at && at.key === undefined && isSame(at, wanted)) {
      const next = at.nextSibling
      morph(at, wanted)
      at = next
    } else {
      old.insertBefore(wanted, at)
    }
  }
  while (at) {
    const next = at.nextSibling
    at.remove()
    at = next
  }
}

function morph(old, fresh) {
  if (old.nodeType === Node.TEXT_NODE) {
    if (old.data !== fresh.data) old.data = fresh.data
    return
  }
  if (old.dataset.own !== undefined) return // it changes by itself
  const kept = KEPT[old.nodeName] ?? []
  for (const { name } of [...old.attributes]) {
    if (!fresh.hasAttribute(name) && !kept.includes(name)) old.removeAttribute(name)
  }
  for (const { name, value } of fresh.attributes) {
    if (!kept.includes(name) && old.getAttribute(name) !== value) old.setAttribute(name, value)
  }
  for (const name of HANDLERS) if (old[name] !== fresh[name]) old[name] = fresh[name]
  if (old.nodeName === "TEXTAREA") return
  morphChildren(old, fresh)
}
