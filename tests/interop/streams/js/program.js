// SPDX-License-Identifier: Apache-2.0
// The interoperability program of rabbitmq-stream-js-client; ../README.md has the words of its command line and what
// it prints.
"use strict"
const fs = require("fs")
const { connect, Offset } = require("rabbitmq-stream-js-client")
const { CompressionType } = require("rabbitmq-stream-js-client/dist/compression") // which its index leaves out

const [command, ...words] = process.argv.slice(2)
const given = {}
for (let i = 0; i < words.length; i += 2) given[words[i].slice(2)] = words[i + 1]
const { stream, reference, filter } = given
const count = Number(given.count ?? 0)
const PACE_MS = 2
const PAUSE_MS = 200

const say = (event, fields = {}) => process.stdout.write(JSON.stringify({ event, ...fields }) + "\n")

const open = (listeners = {}) =>
  connect({
    hostname: given.host,
    port: Number(given.port),
    username: given.user ?? "guest",
    password: given.password ?? "guest",
    vhost: given.vhost ?? "/",
    ssl: given.tls ? { ca: fs.readFileSync(given.tls).toString() } : undefined,
    listeners,
  })

async function publish() {
  const first = Number(given.first ?? 0)
  const entries = given.compression ? 1 : count
  let answers = 0
  let allConfirmed
  const confirmed = new Promise((resolve) => (allConfirmed = resolve))
  const client = await open({
    publish_confirm: (confirm) => {
      answers += confirm.publishingIds.length
      if (answers >= entries) allConfirmed()
    },
    publish_error: (refused) => say("error", { text: "refused", code: refused.publishingError?.code }),
  })
  const publisher = given.super
    ? await client.declareSuperStreamPublisher({ superStream: stream, publisherRef: reference }, (content) => content)
    : await client.declarePublisher({ stream, publisherRef: reference }, filter ? () => filter : undefined)
  const messages = []
  for (let number = first; number < first + count; number++)
    messages.push({ content: Buffer.from(`js-${number}`), applicationProperties: { client: "js" } })
  if (given.compression) {
    const kind = given.compression === "gzip" ? CompressionType.Gzip : CompressionType.None
    await publisher.sendSubEntries(messages, kind)
  } else {
    for (const [index, { content, applicationProperties }] of messages.entries()) {
      const options = { applicationProperties }
      if (reference) await publisher.basicSend(BigInt(first + index + 1), content, options)
      else await publisher.send(content, options)
    }
    if (publisher.flush) await publisher.flush()
  }
  await confirmed
  say("confirmed", { count })
  await client.close()
}

async function startingPoint(client, last) {
  if (last !== undefined) return Offset.offset(last + 1n)
  const [name, value] = given.from.split(":")
  switch (name) {
    case "stored":
      try {
        return Offset.offset((await client.queryOffset({ reference, stream })) + 1n)
      } catch {
        return Offset.first()
      }
    case "offset":
      return Offset.offset(BigInt(value))
    case "timestamp":
      return Offset.timestamp(new Date(Number(value)))
    default:
      return Offset[name]()
  }
}

async function consume() {
  let received = 0
  let last
  for (;;) {
    let end
    let over = false
    const ended = new Promise((resolve) => {
      end = (reason) => {
        over = true
        resolve(reason)
      }
    })
    // A deleted stream closes its connection too, and the client tells of that first.
    const onClosed = () => setImmediate(end, "closed")
    const client = await open({ metadata_update: () => end("gone"), connection_closed: onClosed })
    let partitions
    const onMessage = async (message, partition) => {
      if (over) return
      const from = partition ?? partitions
      last = message.offset
      received++
      const fields = { body: message.content.toString(), client: message.applicationProperties?.client }
      say("message", { ...fields, offset: Number(last), stream: from?.streamName ?? stream })
      if (received === count) {
        if (given.store) await from.storeOffset(last)
        end("enough")
      }
    }
    const offset = await startingPoint(client, last)
    if (given.super) {
      const params = { superStream: stream, offset, consumerRef: reference ?? "interop" }
      partitions = await client.declareSuperStreamConsumer(params, onMessage)
    } else {
      // On a busy machine the first messages may be read together with the answer to Subscribe: they wait for it.
      let isDeclared
      const declared = new Promise((resolve) => (isDeclared = resolve))
      const consumer = await client.declareConsumer(
        {
          stream,
          offset,
          consumerRef: reference,
          connectionClosedListener: onClosed,
          singleActive: given.single ? true : undefined,
          consumerUpdateListener: given.single
            ? async () => {
                say("active", { active: true })
                return Offset.first()
              }
            : undefined,
          filter: filter ? { values: [filter], postFilterFunc: () => true, matchUnfiltered: false } : undefined,
        },
        (message) => declared.then(() => onMessage(message, consumer))
      )
      isDeclared()
    }
    say("subscribed")
    const reason = await ended
    if (reason === "enough") {
      await client.close()
      return
    }
    say(reason)
    if (reason === "gone") return
  }
}

const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms))

// The client does not connect again by itself: it says that a connection has ended, and another one is made.
async function through() {
  let number = 0
  let last
  for (;;) {
    let isOpen = true
    let lost
    const ended = new Promise((resolve) => (lost = resolve))
    const onClosed = () => {
      isOpen = false
      lost()
    }
    try {
      const onConfirm = (confirm) => {
        for (const id of confirm.publishingIds) say("confirmed", { number: Number(id) })
      }
      const client = await open({ connection_closed: onClosed, publish_confirm: onConfirm })
      const publisher = await client.declarePublisher({ stream, connectionClosedListener: onClosed })
      const offset = last === undefined ? Offset.first() : Offset.offset(last + 1n)
      await client.declareConsumer({ stream, offset, connectionClosedListener: onClosed }, (message) => {
        if (!isOpen) return
        last = message.offset
        say("message", { body: message.content.toString(), offset: Number(last) })
      })
      say("subscribed")
      while (isOpen) {
        const sent = publisher.basicSend(BigInt(number), Buffer.from(`js-${number}`)).then(() => publisher.flush())
        number++
        await Promise.race([sent, ended])
        await sleep(PACE_MS)
      }
    } catch (failed) {
      process.stderr.write(`${failed?.message ?? failed}\n`)
    }
    isOpen = false
    say("closed")
    await sleep(PAUSE_MS)
  }
}

async function manage() {
  const client = await open()
  if (command === "create") {
    if (given.partitions) await client.createSuperStream({ streamName: stream }, undefined, Number(given.partitions))
    else await client.createStream({ stream, arguments: {} })
  } else if (given.super) await client.deleteSuperStream({ streamName: stream })
  else await client.deleteStream({ stream })
  say(command + "d")
  await client.close()
}

const commands = { publish, consume, through, create: manage, delete: manage }
commands[command]()
  .then(() => process.exit(0))
  .catch((failed) => {
    say("error", { text: String(failed?.message ?? failed) })
    process.exit(1)
  })
