// SPDX-License-Identifier: Apache-2.0
import * as api from "./api.js"
import { ask, choice, field } from "./dialog.js"
import { h } from "./dom.js"
import { action, table } from "./table.js"

export const policies = {
  title: () => "Policies",
  async load(_, signal) {
    const [found, vhosts] = await Promise.all([api.get("/policies", signal), api.get("/vhosts?columns=name", signal)])
    return { found, vhosts: vhosts.map(({ name }) => name) }
  },
  show({ found, vhosts }, { who }) {
    const mayChange = who.makes_policies
    return [
      mayChange &&
        h(
          "div",
          { class: "tools" },
          h("button", { type: "button", class: "main push", onclick: () => edit(null, vhosts) }, "New policy"),
        ),
      table({
        label: "Policies",
        rows: found,
        key: (row) => `${row.vhost}/${row.name}`,
        columns: [
          { label: "Name", cell: (row) => row.name },
          { label: "Virtual host", wide: true, cell: (row) => row.vhost },
          { label: "Pattern", cell: (row) => h("code", {}, row.pattern) },
          { label: "Applies to", wide: true, cell: (row) => row["apply-to"] },
          { label: "Priority", is: "number", wide: true, cell: (row) => row.priority },
          { label: "Definition", cell: (row) => h("code", {}, JSON.stringify(row.definition)) },
          ...(mayChange
            ? [
                {
                  label: "",
                  cell: (row) =>
                    h(
                      "span",
                      { class: "buttons" },
                      action("Change", `Change ${row.name}`, () => edit(row, vhosts)),
                      action("Delete", `Delete ${row.name}`, () => remove(row)),
                    ),
                },
              ]
            : []),
        ],
        empty: "There is none: streams and queues are as they were made.",
      }),
      h(
        "p",
        { class: "hint" },
        "Of those that match, the one with the highest priority holds, alone. It counts at once.",
      ),
    ]
  },
}

function edit(row, vhosts) {
  ask({
    title: row ? `Policy ${row.name}` : "New policy",
    fields: [
      !row && field("Name", "name", { required: true, autofocus: true }),
      !row &&
        vhosts.length > 1 &&
        choice(
          "Virtual host",
          "vhost",
          vhosts.map((name) => [name, name]),
          "/",
        ),
      field(
        "Pattern of names",
        "pattern",
        { required: true, value: row?.pattern ?? "" },
        "A regular expression, found anywhere in the name: ^orders",
      ),
      choice(
        "Applies to",
        "apply-to",
        [
          ["all", "all"],
          ["streams", "streams"],
          ["queues", "queues"],
        ],
        row?.["apply-to"] ?? "all",
      ),
      field("Priority", "priority", {
        required: true,
        value: row?.priority ?? 0,
        inputmode: "numeric",
        pattern: "-?[0-9]+",
      }),
      h(
        "label",
        {},
        "Definition, as JSON",
        h(
          "textarea",
          { name: "definition", rows: 3, required: true, spellcheck: "false" },
          row ? JSON.stringify(row.definition) : '{"max-age": "7D"}',
        ),
        h(
          "small",
          {},
          "Streams: max-age, max-length-bytes. Queues: max-length, message-ttl, delivery-limit, overflow, dead-letter-routing-key.",
        ),
      ),
    ],
    button: row ? "Change" : "Create",
    async act(form) {
      let definition
      try {
        definition = JSON.parse(form.get("definition"))
      } catch (problem) {
        throw new api.Refused(400, "not_json", `The definition is no JSON: ${problem.message}`)
      }
      const [vhost, name] = [row?.vhost ?? form.get("vhost") ?? "/", row?.name ?? form.get("name")]
      await api.put(`/policies${api.path(vhost, name)}`, {
        pattern: form.get("pattern"),
        "apply-to": form.get("apply-to"),
        priority: Number(form.get("priority")),
        definition,
      })
      return `policy ${name} holds`
    },
  })
}

function remove({ vhost, name }) {
  ask({
    title: `Delete policy ${name}?`,
    text: "Streams and queues have their own options again. What it has dropped does not come back.",
    button: "Delete",
    isDangerous: true,
    async act() {
      await api.remove(`/policies${api.path(vhost, name)}`)
      return `policy ${name} is deleted`
    },
  })
}
