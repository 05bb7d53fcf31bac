// SPDX-License-Identifier: Apache-2.0
// How the programs of the JavaScript clients talk to the tests: a line of JSON in for each thing to do, a line of JSON
// out for each thing that happened (README.md).  Both clients have the same calls; how a connection is made differs.
"use strict"
const readline = require("readline")

const pack = (value) => {
  if (value instanceof Uint8Array) return { $base64: Buffer.from(value).toString("base64") }
  if (value instanceof Date) return { $date: value.toISOString() }
  if (Array.isArray(value)) return value.map(pack)
  if (value !== null && typeof value === "object")
    return Object.fromEntries(Object.entries(value).map(([name, member]) => [name, pack(member)]))
  return value
}

const unpack = (value) => {
  if (Array.isArray(value)) return value.map(unpack)
  if (value === null || typeof value !== "object") return value
  if (value.$base64 !== undefined) return Uint8Array.from(Buffer.from(value.$base64, "base64"))
  if (value.$date !== undefined) return new Date(value.$date)
  return Object.fromEntries(Object.entries(value).map(([name, member]) => [name, unpack(member)]))
}

const say = (event, fields = {}) => process.stdout.write(JSON.stringify({ event, ...fields }) + "\n")
const textOf = (problem) => String(problem?.message ?? problem)

function serveCommands(commands) {
  const lines = readline.createInterface({ input: process.stdin })
  lines.on("line", (line) => {
    const command = unpack(JSON.parse(line))
    commands[command.do](command).catch((problem) => say("refused", { as: command.as, text: textOf(problem) }))
  })
  lines.on("close", () => process.exit(0))
}

// open(command) makes a connection, not yet started; Subject is what an upload is passed as, where there are uploads.
function serve(open, Subject) {
  let connection
  const streams = new Map()

  const commands = {
    async connect(command) {
      connection = open(command)
      connection.onclose((problem) => say("closed", { text: problem ? textOf(problem) : "" }))
      await connection.start()
      say("connected", { as: command.as })
    },
    async invoke({ as, method, arguments: given }) {
      say("result", { as, value: pack(await connection.invoke(method, ...given)) })
    },
    // Many calls at once; says "answered" after every hundred that came back, and how they all came back at the end.
    async flood({ as, method, arguments: given, count }) {
      const found = { answered: 0, refused: 0 }
      const one = async () => {
        try {
          await connection.invoke(method, ...given)
          found.answered++
        } catch {
          found.refused++
        }
        if ((found.answered + found.refused) % 100 === 0) say("answered", { of: as, ...found })
      }
      await Promise.all(Array.from({ length: count }, one))
      say("result", { as, value: found })
    },
    async send({ as, method, arguments: given }) {
      await connection.send(method, ...given)
      say("sent", { as })
    },
    async stream({ as, method, arguments: given }) {
      const subscription = connection.stream(method, ...given).subscribe({
        next: (item) => say("item", { as, value: pack(item) }),
        complete: () => say("end", { as }),
        error: (problem) => say("refused", { as, text: textOf(problem) }),
      })
      streams.set(as, subscription)
    },
    async cancel({ of }) {
      streams.get(of).dispose()
    },
    async upload({ as, method, arguments: given, items }) {
      const subject = new Subject()
      const result = connection.invoke(method, subject, ...given)
      for (const item of items) subject.next(item)
      subject.complete()
      say("result", { as, value: pack(await result) })
    },
    async listen({ as, method, answer }) {
      connection.on(method, (...given) => {
        say("called", { method, arguments: pack(given) })
        return answer
      })
      say("listening", { as })
    },
    async stop({ as }) {
      await connection.stop()
      say("stopped", { as })
    },
  }

  serveCommands(commands)
}

module.exports = { say, serve, serveCommands, textOf }
