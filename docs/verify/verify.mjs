// Verifies the signature of a webhook. It needs Node and nothing else.
//
// Copy the first part into your receiver and call verify() before you look at
// anything else. The last part is for tests: node verify.mjs cases.json

import { createHmac, timingSafeEqual } from "node:crypto";
import { readFileSync } from "node:fs";
import { pathToFileURL } from "node:url";

const SIGNATURE = "x-jpintel-signature"; // in lower case; another brand has another name
const TOLERANCE = 5 * 60; // seconds, in both directions

// verify reports whether a request comes from us, unchanged and just now.
//
//   headers: an object of names to values, such as request.headers
//   body:    a Buffer with the raw bytes as they came, before any parser has
//            touched them (Express: express.raw({ type: "application/json" }))
//   secret:  the signing secret as it was shown to you, "whsec_" included
//   now:     unix seconds; left out: this machine's clock
//
// A request carries two kinds of signatures, made with the same secret. Each
// kind that is there has to be right, and at least one has to be there.
export function verify(headers, body, secret, now = Date.now() / 1000) {
  const lower = {};
  for (const [name, value] of Object.entries(headers)) {
    lower[name.toLowerCase()] = String(value);
  }
  const verdicts = [];
  if (SIGNATURE in lower) {
    verdicts.push(verifyJpintel(lower, body, secret, now));
  }
  if ("webhook-signature" in lower) {
    verdicts.push(verifyStandard(lower, body, secret, now));
  }
  return verdicts.length > 0 && verdicts.every(Boolean);
}

// t=<seconds>,v1=<hex>[,v1=<hex>…], in any order; others are ignored.
function verifyJpintel(headers, body, secret, now) {
  let timestamp = "";
  const given = [];
  for (const element of headers[SIGNATURE].split(",")) {
    const [, name, value] = /^([^=]*)=?(.*)$/s.exec(element.trim());
    if (name === "t") {
      timestamp = value;
    } else if (name === "v1") {
      given.push(value);
    }
  }
  if (!isRecent(timestamp, now)) {
    return false;
  }
  return isAny(createHmac("sha256", secret).update(`${timestamp}.`).update(body).digest("hex"), given);
}

// Standard Webhooks: v1,<base64>[ v1,<base64>…]; others are ignored.
function verifyStandard(headers, body, secret, now) {
  const id = headers["webhook-id"] ?? "";
  const timestamp = headers["webhook-timestamp"] ?? "";
  const given = headers["webhook-signature"]
    .split(/\s+/)
    .filter((s) => s.startsWith("v1,"))
    .map((s) => s.slice(3));
  if (!isRecent(timestamp, now)) {
    return false;
  }
  const key = Buffer.from(secret.replace(/^whsec_/, ""), "base64");
  return isAny(createHmac("sha256", key).update(`${id}.${timestamp}.`).update(body).digest("base64"), given);
}

function isRecent(timestamp, now) {
  return /^[0-9]{1,12}$/.test(timestamp) && Math.abs(now - Number(timestamp)) <= TOLERANCE;
}

// Tries every signature: while a secret is replaced there are several.
function isAny(expected, given) {
  const want = Buffer.from(expected);
  return given.map((s) => Buffer.from(s)).some((s) => s.length === want.length && timingSafeEqual(s, want));
}

// --- for tests ---

// Reads a case, or a list of them, and prints a verdict for each.
function main() {
  const cases = JSON.parse(readFileSync(process.argv[2] ?? 0, "utf8"));
  for (const { name, headers, body, secret, now } of [cases].flat()) {
    console.log(verify(headers, Buffer.from(body), secret, now) ? "accepted" : "rejected", name);
  }
}

if (import.meta.url === pathToFileURL(process.argv[1] ?? "").href) {
  main();
}
