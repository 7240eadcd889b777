package stripe

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"time"

	"jpintel/billing/strictjson"
)

// Envelope is what an event says of itself, before anybody has looked at what it
// is about. Its Event has no fact yet.
type Envelope struct {
	Event
	Account string // the connected account whose event it is; "": our own
	// SemanticHash is SHA-256, in hex, of what the event tells: type, created and
	// data.object. The rest is the dressing of one delivery, and may differ from
	// that of another.
	SemanticHash string

	object members // data.object
}

// typeForm is what a type consists of.
var typeForm = regexp.MustCompile(`^[a-z0-9_.]{1,100}$`)

// latest is the latest second that a time can have: the end of the year 9999.
const latest = 253402300799

// ParseEnvelope reads the envelope of an event strictly, and refuses what is not
// an event with its object in it.
func ParseEnvelope(body []byte) (*Envelope, error) {
	o, err := strictjson.Parse(body, "metadata")
	if err != nil {
		return nil, err
	}
	m := members{object: o, err: &err}
	if m.text("object") == "v2.core.event" {
		return nil, errors.New("object: a thin event; the endpoint has to be set up for snapshot events")
	}
	m.is("object", "event")
	e := &Envelope{Account: m.ref("account"), object: m.into("data").into("object")}
	e.ID, e.Type, e.APIVersion, e.Livemode = m.id(), m.text("type"), m.optional("api_version"), m.truth("livemode")
	created := m.whole("created")
	if err == nil && !typeForm.MatchString(e.Type) {
		m.fail("type", "small letters, digits, _ and points")
	}
	if created > latest || created == 0 {
		m.fail("created", "seconds since 1970")
	}
	e.Created = time.Unix(created, 0).UTC()
	e.SemanticHash = semanticHash(e.Type, created, e.object.object)
	if err != nil {
		return nil, err
	}
	return e, nil
}

func semanticHash(kind string, created int64, object strictjson.Object) string {
	text, err := json.Marshal([]any{kind, created, object}) // names are sorted, numbers as they came
	if err != nil {
		panic(err) // unreachable: it was read from JSON
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}

// Parse reads an event with the fact that it tells. An error names the member
// that is not as it should be.
func Parse(body []byte) (*Event, error) {
	envelope, err := ParseEnvelope(body)
	if err != nil {
		return nil, err
	}
	return envelope.Fact()
}

// Fact reads what the event is about.
func (envelope *Envelope) Fact() (*Event, error) {
	e, m := envelope.Event, envelope.object
	var err error
	m.err = &err
	switch e.Type {
	case "checkout.session.completed", "checkout.session.async_payment_succeeded", "checkout.session.async_payment_failed", "checkout.session.expired":
		e.Payment = readSession(m, e.Type)
	case "payment_intent.succeeded", "payment_intent.payment_failed":
		e.Payment = readIntent(m)
	case "charge.refunded":
		e.Charge = readCharge(m)
	case "refund.created", "refund.updated", "refund.failed", "charge.refund.updated":
		e.Refund = readRefund(m)
	case "charge.dispute.created", "charge.dispute.updated", "charge.dispute.funds_withdrawn", "charge.dispute.funds_reinstated", "charge.dispute.closed":
		e.Dispute = readDispute(m, e.Type)
	}
	if err != nil {
		return nil, fmt.Errorf("event %s (%s): %w", e.ID, e.Type, err)
	}
	return &e, nil
}
