// SPDX-License-Identifier: Apache-2.0
// Users, what they may do, and virtual hosts.

import * as api from "./api.js"
import { ask, choice, field } from "./dialog.js"
import { h } from "./dom.js"
import { NONE } from "./format.js"
import { action, table } from "./table.js"

const GUEST = "guest" // built in: it can only be taken away
const TAGS = "administrator, monitoring, policymaker, management; none: the page is not for this user"
const LIMITS = [
  ["max-connections", "Connections", 0],
  ["max-queues", "Queues and streams", 0],
  ["max-streams", "Streams that are no queue", 0],
  ["publish-rate", "Messages published a second", 1],
]

export const accounts = {
  title: () => "Users and virtual hosts",
  async load(_, signal) {
    const [users, permissions, vhosts] = await Promise.all(
      ["/users", "/permissions", "/vhosts"].map((way) => api.get(way, signal)),
    )
    return { users, permissions, vhosts }
  },
  show({ users, permissions, vhosts }) {
    const names = vhosts.map(({ name }) => name)
    return [
      part(
        "Users",
        h("button", { type: "button", class: "main", onclick: () => editUser(null) }, "New user"),
        table({
          label: "Users",
          rows: users,
          key: (row) => row.name,
          columns: [
            { label: "Name", cell: (row) => row.name },
            { label: "Tags", cell: (row) => row.tags.join(", ") || NONE },
            {
              label: "May use",
              wide: true,
              cell: (row) =>
                permissions
                  .filter(({ user }) => user === row.name)
                  .map(({ vhost }) => vhost)
                  .join(", ") || NONE,
            },
            { label: "Limits", wide: true, cell: limitsOf },
            {
              label: "",
              cell: (row) =>
                h(
                  "span",
                  { class: "buttons" },
                  action("Limits", `Limits of ${row.name}`, () => limit("user", row)),
                  row.name !== GUEST && [
                    action("Tags", `Tags of ${row.name}`, () => editUser(row)),
                    action("Password", `Password of ${row.name}`, () => password(row)),
                  ],
                  action("Delete", `Delete ${row.name}`, () => removeUser(row)),
                ),
            },
          ],
        }),
      ),
      part(
        "Permissions",
        h("button", { type: "button", class: "main", onclick: () => grant(null, users, names) }, "New permission"),
        table({
          label: "Permissions",
          rows: permissions,
          key: (row) => `${row.vhost} ${row.user}`,
          columns: [
            { label: "User", cell: (row) => row.user },
            { label: "Virtual host", cell: (row) => row.vhost },
            ...["configure", "write", "read"].map((right) => ({
              label: right,
              cell: (row) => h("code", {}, row[right] || "nothing"),
            })),
            {
              label: "",
              cell: (row) =>
                h(
                  "span",
                  { class: "buttons" },
                  action("Change", `Change ${row.user} in ${row.vhost}`, () => grant(row, users, names)),
                  action("Take", `Take from ${row.user} in ${row.vhost}`, () => revoke(row)),
                ),
            },
          ],
        }),
      ),
      part(
        "Virtual hosts",
        h("button", { type: "button", class: "main", onclick: createVhost }, "New virtual host"),
        table({
          label: "Virtual hosts",
          rows: vhosts,
          key: (row) => row.name,
          columns: [
            { label: "Name", cell: (row) => row.name },
            { label: "Description", wide: true, cell: (row) => row.description || NONE },
            { label: "Limits", wide: true, cell: limitsOf },
            {
              label: "",
              cell: (row) =>
                h(
                  "span",
                  { class: "buttons" },
                  action("Limits", `Limits of ${row.name}`, () => limit("vhost", row)),
                  row.name !== "/" && action("Delete", `Delete ${row.name}`, () => removeVhost(row)),
                ),
            },
          ],
        }),
      ),
    ]
  },
}

function part(title, button, content) {
  const id = title.toLowerCase().replace(" ", "-")
  return h(
    "section",
    { "aria-labelledby": id },
    h("div", { class: "tools" }, h("h2", { id }, title), h("span", { class: "push" }, button)),
    content,
  )
}

function editUser(row) {
  ask({
    title: row ? `Tags of ${row.name}` : "New user",
    fields: [
      !row && field("Name", "name", { required: true, autofocus: true }),
      !row &&
        field(
          "Password",
          "password",
          { type: "password", required: true, minlength: 8, autocomplete: "new-password" },
          "8 characters or more",
        ),
      field("Tags", "tags", { value: row?.tags.join(", ") ?? "" }, TAGS),
    ],
    button: row ? "Change" : "Create",
    async act(form) {
      const tags = form.get("tags")
      if (row) await api.put(`/users${api.path(row.name)}/tags`, { tags })
      else await api.post(`/users${api.path(form.get("name"))}`, { password: form.get("password"), tags })
      return row
        ? `${row.name} has these tags now`
        : `user ${form.get("name")} is there; it needs a permission to use a virtual host`
    },
  })
}

function password({ name }) {
  ask({
    title: `Password of ${name}`,
    fields: [
      field(
        "New password",
        "password",
        { type: "password", required: true, minlength: 8, autocomplete: "new-password", autofocus: true },
        "8 characters or more",
      ),
    ],
    button: "Change",
    async act(form) {
      await api.put(`/users${api.path(name)}/password`, { password: form.get("password") })
      return `${name} has another password; logins at this page with the old one are over`
    },
  })
}

const limitsOf = ({ limits }) =>
  Object.entries(limits)
    .map(([limit, value]) => `${limit} ${value}`)
    .join(", ") || NONE

function limit(kind, { name, limits }) {
  ask({
    title: `Limits of ${name}`,
    text: "What is left empty is not limited.",
    fields: LIMITS.map(([limit, label, min]) =>
      field(label, limit, { type: "number", min, value: limits[limit] ?? "" }),
    ),
    button: "Change",
    async act(form) {
      const given = LIMITS.map(([limit]) => [limit, form.get(limit) === "" ? -1 : Number(form.get(limit))])
      await api.put(`/${kind}-limits${api.path(name)}`, Object.fromEntries(given))
      return `${name} has these limits now`
    },
  })
}

function removeUser({ name }) {
  ask({
    title: `Delete user ${name}?`,
    text: "Its connections are closed, and its permissions go.",
    button: "Delete",
    isDangerous: true,
    async act() {
      await api.remove(`/users${api.path(name)}`)
      return `user ${name} is deleted`
    },
  })
}

function grant(row, users, vhosts) {
  ask({
    title: row ? `${row.user} in ${row.vhost}` : "New permission",
    text: "Regular expressions, found anywhere in a name: .* is everything, nothing at all is nothing.",
    fields: [
      !row &&
        choice(
          "User",
          "user",
          users.map(({ name }) => [name, name]),
        ),
      !row &&
        choice(
          "Virtual host",
          "vhost",
          vhosts.map((name) => [name, name]),
          "/",
        ),
      ["configure", "write", "read"].map((right) => field(right, right, { value: row?.[right] ?? ".*" })),
    ],
    button: row ? "Change" : "Give",
    async act(form) {
      const [user, vhost] = [row?.user ?? form.get("user"), row?.vhost ?? form.get("vhost")]
      await api.put(
        `/permissions${api.path(vhost, user)}`,
        Object.fromEntries(["configure", "write", "read"].map((right) => [right, form.get(right)])),
      )
      return `${user} may do this in ${vhost}`
    },
  })
}

function revoke({ user, vhost }) {
  ask({
    title: `Take everything in ${vhost} from ${user}?`,
    button: "Take",
    isDangerous: true,
    async act() {
      await api.remove(`/permissions${api.path(vhost, user)}`)
      return `${user} may do nothing in ${vhost}`
    },
  })
}

function createVhost() {
  ask({
    title: "New virtual host",
    fields: [field("Name", "name", { required: true, autofocus: true }), field("Description", "description")],
    button: "Create",
    async act(form) {
      await api.put(`/vhosts${api.path(form.get("name"))}`, { description: form.get("description") })
      return `virtual host ${form.get("name")} is there`
    },
  })
}

function removeVhost({ name }) {
  ask({
    title: `Delete virtual host ${name}?`,
    text: "All its streams go with their messages, and its connections are closed.",
    button: "Delete",
    isDangerous: true,
    async act() {
      await api.remove(`/vhosts${api.path(name)}`)
      return `virtual host ${name} is deleted`
    },
  })
}
