// Signs and verifies payment webhooks with Stripe's official library,
// unmodified, used as its own documentation tells.
//
// Input: one JSON object a line, {"payload_base64":"…","secret":"whsec_…"} to
// sign, with a "header" to verify. Output: one JSON object for each, in order,
//   {"header":"t=…,v1=…"}
//   {"event_id":"evt_…"}  or  {"error":"…"}, in the library's words

import { createInterface } from "node:readline";

import Stripe from "stripe";

function answer({ payload_base64, secret, header }) {
  const payload = Buffer.from(payload_base64, "base64");
  if (header === undefined) {
    return { header: Stripe.webhooks.generateTestHeaderString({ payload: payload.toString("utf8"), secret }) };
  }
  try {
    return { event_id: Stripe.webhooks.constructEvent(payload, header, secret).id };
  } catch (err) {
    return { error: err.message };
  }
}

for await (const line of createInterface({ input: process.stdin, crlfDelay: Infinity })) {
  if (line.trim() !== "") {
    process.stdout.write(JSON.stringify(answer(JSON.parse(line))) + "\n");
  }
}
