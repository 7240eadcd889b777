package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"jpintel/webhook"
)

// bodySize is how many bytes a delivered body has, in envelope v1.
const bodySize = 1024

// The texts of envelope v1 around data, with ids of the length that they have.
const envelopeV1 = `{"version":"v1","event_id":"evt_01KBA7Q0Q0Q0Q0Q0Q0Q0Q0Q0Q0","event_type":"program.created",` +
	`"created_at":"2026-05-14T09:00:00+09:00","subscription_id":"sub_01KBA7Q0Q0Q0Q0Q0Q0Q0Q0Q0Q0","data":%s}`

// nameMember is what stands before the name, which begins with the time at
// which the event was sent, in nanoseconds.
var nameMember = []byte(`"primary_name":"`)

const nanoDigits = 19

// program is the nth program that a load puts: sent is in its name, which is
// as long as the delivered body wants it.
func program(n int, sent int64) webhook.ProgramCreated {
	p := webhook.ProgramCreated{UnifiedID: fmt.Sprintf("LT-%09d", n), SourceURL: "https://example.jp/programs/" + strconv.Itoa(1_000_000_000+n)}
	p.PrimaryName = fmt.Sprintf("%0*d ", nanoDigits, sent)
	p.PrimaryName += strings.Repeat("x", bodySize-len(envelope(p)))
	return p
}

// data is the event's data as the service stores it.
func data(p webhook.ProgramCreated) []byte {
	text, err := json.Marshal(p)
	if err != nil {
		panic(err) // unreachable: strings and nulls
	}
	return text
}

// envelope is the body as the service sends it, but for the ids and the time.
func envelope(p webhook.ProgramCreated) []byte { return fmt.Appendf(nil, envelopeV1, data(p)) }

// sentAt finds the time in a delivered body; 0: it has none.
func sentAt(body []byte) int64 {
	at := bytes.Index(body, nameMember)
	if at < 0 || len(body) < at+len(nameMember)+nanoDigits {
		return 0
	}
	digits := body[at+len(nameMember):][:nanoDigits]
	sent, err := strconv.ParseInt(string(digits), 10, 64)
	if err != nil {
		return 0
	}
	return sent
}

// prefecture is what the subscriptions of a group filter on.
func prefecture(group int) string { return fmt.Sprintf("group-%05d", group) }

// elsewhere is the prefecture of those that no event of the load goes to.
const elsewhere = "elsewhere"
