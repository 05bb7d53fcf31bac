// SPDX-License-Identifier: Apache-2.0
// The program of @aspnet/signalr-client 1.0.0-alpha2, a client of the early dialect: ../talk.js has what it does.  It
// was made for browsers, and finds here what it looks for in one.
"use strict"
const http = require("http")
const https = require("https")

// As much of XMLHttpRequest as the client uses.
class Request {
  responseType = ""
  headers = {}

  open(method, url) {
    Object.assign(this, { method, url })
  }

  setRequestHeader(name, value) {
    this.headers[name] = value
  }

  send(content) {
    const client = this.url.startsWith("https") ? https : http
    this.request = client.request(this.url, { method: this.method, headers: this.headers }, (answer) => {
      const parts = []
      answer.on("data", (part) => parts.push(part))
      answer.on("error", () => this.failed())
      answer.on("end", () => {
        const body = Buffer.concat(parts)
        this.status = answer.statusCode
        this.statusText = answer.statusMessage
        this.responseText = body.toString()
        this.response = this.responseType === "arraybuffer" ? Uint8Array.from(body).buffer : this.responseText
        if (this.responseType === "arraybuffer" && !body.length) this.response = null
        if (!this.aborted) this.onload?.()
      })
    })
    this.request.on("error", () => this.failed())
    if (content === undefined) this.request.end()
    else this.request.end(typeof content === "string" ? content : Buffer.from(content))
  }

  abort() {
    this.aborted = true
    this.request.destroy()
  }

  failed() {
    if (!this.aborted) this.onerror?.()
  }
}

Object.assign(global, { WebSocket: require("ws"), EventSource: require("eventsource"), XMLHttpRequest: Request })

const { HubConnection, MessagePackHubProtocol, TransportType } = require("@aspnet/signalr-client")
const { serve } = require("talk")

function open({ url, transport, encoding, token }) {
  const address = new URL(url)
  address.searchParams.set("dialect", "alpha2")
  if (token) address.searchParams.set("access_token", token)
  return new HubConnection(address.href, {
    transport: TransportType[transport],
    protocol: encoding === "messagepack" ? new MessagePackHubProtocol() : undefined,
    logging: null,
  })
}

serve(open)
