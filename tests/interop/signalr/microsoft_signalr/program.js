// SPDX-License-Identifier: Apache-2.0
// The program of @microsoft/signalr: ../talk.js has what it does.
"use strict"
const signalR = require("@microsoft/signalr")
const { MessagePackHubProtocol } = require("@microsoft/signalr-protocol-msgpack")
const { say, serve, textOf } = require("talk")

const RECONNECT_MS = Array(100).fill(200)

function open({ url, transport, encoding, token, user, password, reconnect, stateful }) {
  const headers = {}
  if (user) headers.Authorization = "Basic " + Buffer.from(`${user}:${password}`).toString("base64")
  const builder = new signalR.HubConnectionBuilder().configureLogging(signalR.LogLevel.Critical)
  builder.withUrl(url, {
    transport: signalR.HttpTransportType[transport],
    headers,
    accessTokenFactory: token ? () => token : undefined,
  })
  if (encoding === "messagepack") builder.withHubProtocol(new MessagePackHubProtocol())
  if (reconnect) builder.withAutomaticReconnect(RECONNECT_MS)
  if (stateful) builder.withStatefulReconnect()
  const connection = builder.build()
  connection.onreconnecting((problem) => say("reconnecting", { text: problem ? textOf(problem) : "" }))
  connection.onreconnected(() => say("reconnected"))
  return connection
}

serve(open, signalR.Subject)
