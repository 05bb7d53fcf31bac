// SPDX-License-Identifier: Apache-2.0
// The login, with a user of the broker.

import * as api from "./api.js"
import { h, show } from "./dom.js"

export function login(place, why, then) {
  async function submit(event) {
    event.preventDefault()
    const form = event.currentTarget
    const button = form.querySelector("button")
    const note = form.querySelector(".problem")
    button.disabled = true
    note.hidden = true
    try {
      then(await api.logIn(form.elements.user.value, form.elements.password.value))
    } catch (refused) {
      if (!(refused instanceof api.Refused)) throw refused
      note.textContent = refused.message
      note.hidden = false
      form.elements.password.value = ""
      form.elements.password.focus()
    } finally {
      button.disabled = false
    }
  }

  show(
    place,
    h(
      "main",
      { id: "main", class: "login", tabindex: "-1", key: "login" },
      h("h1", {}, h("img", { src: "page/icon.svg", alt: "", width: 36, height: 36 }), "VibeMQ"),
      h(
        "form",
        { onsubmit: submit, "aria-label": "Log in" },
        h(
          "label",
          {},
          "User",
          h("input", {
            name: "user",
            autocomplete: "username",
            required: true,
            autocapitalize: "none",
            spellcheck: "false",
          }),
        ),
        h(
          "label",
          {},
          "Password",
          h("input", { name: "password", type: "password", autocomplete: "current-password", required: true }),
        ),
        h("p", { class: "problem", role: "alert", hidden: !why, "data-own": true }, why),
        h("button", { class: "main" }, "Log in"),
      ),
      h(
        "p",
        { class: "hint" },
        "Users of the broker with a tag, such as ",
        h("code", {}, "vibemq ctl set_user_tags NAME monitoring"),
        " gives. From this machine also guest, password guest, while that is allowed.",
      ),
    ),
  )
  document.querySelector("input[name=user]").focus()
}
