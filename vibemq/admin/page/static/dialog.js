// SPDX-License-Identifier: Apache-2.0
// What asks before it does something: a form in a dialog of the browser's own, which keeps the focus and knows Escape.

import { Refused } from "./api.js"
import { h } from "./dom.js"

const NOTE_MS = 6000
let after = () => {}
let timer = 0

// What is to be done when something has changed.
export function setAfter(then) {
  after = then
}

// A line for everybody, read out by screen readers, that goes by itself.
export function say(text) {
  const status = document.querySelector("#status")
  status.textContent = text
  clearTimeout(timer)
  timer = setTimeout(() => (status.textContent = ""), NOTE_MS)
}

export function closeDialog() {
  document.querySelector("dialog")?.close()
}

// `fields`: nodes of the form; `act(form)` does it, and what it gives is said; a refusal stays in the dialog, to be read.
export function ask({ title, text, fields = [], button, isDangerous = false, act }) {
  async function submit(event) {
    event.preventDefault()
    const form = event.currentTarget
    const note = form.querySelector(".problem")
    const buttons = [...form.querySelectorAll("button")]
    for (const one of buttons) one.disabled = true
    note.hidden = true
    try {
      const said = await act(new FormData(form), form)
      dialog.close()
      if (said) say(said)
      after()
    } catch (refused) {
      if (!(refused instanceof Refused)) throw refused
      note.textContent = refused.message
      note.hidden = false
    } finally {
      for (const one of buttons) one.disabled = false
    }
  }

  const dialog = h(
    "dialog",
    { "aria-labelledby": "dialog-title" },
    h(
      "form",
      { onsubmit: submit },
      h("h2", { id: "dialog-title" }, title),
      text && h("p", {}, text),
      fields,
      h("p", { class: "problem", role: "alert", hidden: true }),
      h(
        "div",
        { class: "buttons" },
        // First, and so where the focus is: what cannot be undone takes a step.
        h("button", { type: "button", onclick: () => dialog.close(), autofocus: isDangerous }, "Cancel"),
        h("button", { class: isDangerous ? "danger" : "main" }, button),
      ),
    ),
  )
  const from = document.activeElement
  dialog.addEventListener("close", () => {
    dialog.remove()
    if (from?.isConnected) from.focus()
    else document.querySelector("#main")?.focus()
  })
  document.body.append(dialog)
  dialog.showModal()
}

export const field = (label, name, properties = {}, hint = "") =>
  h(
    "label",
    {},
    label,
    h("input", { name, autocomplete: "off", spellcheck: "false", ...properties }),
    hint && h("small", {}, hint),
  )

export const choice = (label, name, options, chosen = "") =>
  h(
    "label",
    {},
    label,
    h(
      "select",
      { name },
      options.map(([value, text]) => h("option", { value, selected: value === chosen }, text)),
    ),
  )

export const check = (label, name, isChecked = false) =>
  h("label", { class: "check" }, h("input", { type: "checkbox", name, checked: isChecked }), label)
