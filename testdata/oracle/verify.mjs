// Judges webhook signatures with the official libraries, unmodified, used as
// their own documentation tells a receiver to use them.
//
// Input: one JSON object a line,
//   {"secret":"whsec_…","headers":{"webhook-id":"…",…},"body_base64":"…","tolerance_seconds":300}
// with header names in lower case. Output: one JSON object for each, in order,
//   {"stripe":true,"standardwebhooks":true,"svix":false,"errors":{"svix":"…"}}
// where errors has the library's words for each false, or {"input":"…"} with
// all three false when the line itself cannot be read.
//
// tolerance_seconds (default 300, at least 1) is Stripe's; the other two always
// allow 300 seconds. All three compare with this machine's clock, so the
// timestamps have to be fresh.
//
// Each line is answered as it comes, so a caller may keep one process open.
// The exit code says nothing about the verdicts.

import { createInterface } from "node:readline";

import { Webhook as StandardWebhook } from "standardwebhooks";
import Stripe from "stripe";
import { Webhook as SvixWebhook } from "svix";

const libraries = {
  stripe: ({ body, headers, secret, tolerance }) =>
    Stripe.webhooks.constructEvent(body, headers["x-jpintel-signature"], secret, tolerance),
  standardwebhooks: ({ body, headers, secret }) => new StandardWebhook(secret).verify(body, headers),
  svix: ({ body, headers, secret }) => new SvixWebhook(secret).verify(body, headers),
};

function parse(line) {
  const { secret, headers, body_base64, tolerance_seconds: tolerance = 300 } = JSON.parse(line);
  if (typeof secret !== "string" || typeof body_base64 !== "string" || !headers) {
    throw new Error("secret, headers and body_base64 are needed");
  }
  // Stripe takes 0 as "the default": better refused than misunderstood.
  if (!(tolerance >= 1)) {
    throw new Error("tolerance_seconds must be at least 1");
  }
  return { secret, headers, body: Buffer.from(body_base64, "base64"), tolerance };
}

function judge(line) {
  const verdict = { stripe: false, standardwebhooks: false, svix: false, errors: {} };
  let request;
  try {
    request = parse(line);
  } catch (err) {
    verdict.errors.input = err.message;
    return verdict;
  }
  for (const [name, verify] of Object.entries(libraries)) {
    try {
      verify(request);
      verdict[name] = true;
    } catch (err) {
      verdict.errors[name] = err.message;
    }
  }
  return verdict;
}

for await (const line of createInterface({ input: process.stdin, crlfDelay: Infinity })) {
  if (line.trim() !== "") {
    process.stdout.write(JSON.stringify(judge(line)) + "\n");
  }
}
