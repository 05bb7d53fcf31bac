// SPDX-License-Identifier: Apache-2.0
// A Chromium without a window that does with pages what a test tells it: ../talk.js has how it is told.
"use strict"
const { chromium } = require("playwright-core")
const { say, serveCommands } = require("talk")

const WAIT_MS = 20000
let browser
let page

serveCommands({
  async open({ as, url, executable }) {
    // Chromium's own sandbox does not work for root, as which tests in containers run.
    browser ??= await chromium.launch({ executablePath: executable, args: ["--no-sandbox", "--disable-gpu"] })
    page = await browser.newPage({ ignoreHTTPSErrors: true })
    page.setDefaultTimeout(WAIT_MS)
    page.on("pageerror", (problem) => say("script error", { text: String(problem) }))
    await page.goto(url)
    say("opened", { as })
  },
  async fill({ as, what, value }) {
    await page.locator(what).fill(value)
    say("done", { as })
  },
  async choose({ as, what, value }) {
    await page.locator(what).selectOption(value)
    say("done", { as })
  },
  async click({ as, what }) {
    await page.locator(what).click() // once it is there and can be clicked
    say("done", { as })
  },
  async see({ as, what, text }) {
    await page.locator(what, { hasText: text }).first().waitFor()
    say("seen", { as, value: await page.locator(what, { hasText: text }).first().innerText() })
  },
  async run({ as, script, given }) {
    say("result", { as, value: await page.evaluate(`(${script})(...${JSON.stringify(given ?? [])})`) })
  },
  async picture({ as, file }) {
    await page.screenshot({ path: file, fullPage: true })
    say("done", { as })
  },
})
