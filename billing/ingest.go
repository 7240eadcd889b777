package billing

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"log/slog"
	"time"

	"jpintel/billing/stripe"
	"jpintel/store"
)

// StripeOptions say whose webhooks are accepted.
type StripeOptions struct {
	// Secrets are the signing secrets of the endpoint at Stripe: two while one is
	// replaced. None: there is no such endpoint.
	Secrets []string
	// Livemode says which events count: those of real money, or those of tests.
	// The others are stored and ignored.
	Livemode bool
}

const (
	// providerStripe is the one payment provider.
	providerStripe = "stripe"
	// maxPaymentBody is how many bytes an event may have.
	maxPaymentBody = 1 << 20
	// maxAhead is how far a signature's time may be in the future before somebody
	// should look at this machine's clock.
	maxAhead = time.Minute
	// paymentNeedsAttention is the line of the log for a payment event that
	// somebody has to look at, with its code in the runbook.
	paymentNeedsAttention = "payment_needs_attention"
)

// PaymentWebhook is an event as Stripe delivers it.
type PaymentWebhook struct {
	Signature string `header:"Stripe-Signature" json:"-"`
	Body      []byte `body:"raw" json:"-"`
}

// MaxBody is how large an event may be.
func (PaymentWebhook) MaxBody() int64 { return maxPaymentBody }

// PaymentReceived says that an event is on disk.
type PaymentReceived struct {
	EventID string `json:"event_id"`
}

// ReceivePayment stores an event that Stripe has signed, and answers before
// anything comes of it: it is on disk, and worked on from there. Without a valid
// signature nothing is stored. Where it cannot be stored the error is internal or
// unavailable: Stripe sends it again.
func (s *Service) ReceivePayment(ctx context.Context, r PaymentWebhook) (received PaymentReceived, err error) {
	if len(s.Stripe.Secrets) == 0 {
		return received, store.Errorf(store.CodeNotFound, "no such call: payments are not set up here")
	}
	if r.Signature == "" {
		return received, store.Errorf(store.CodeInvalid, "Stripe-Signature: missing")
	}
	ahead, err := stripe.Verify(r.Signature, r.Body, s.Stripe.Secrets, time.Now())
	if err != nil {
		return received, store.Errorf(store.CodeInvalid, "Stripe-Signature: %v", err)
	}
	if ahead > maxAhead {
		s.log().Warn("payment_clock_skew", "ahead_seconds", int64(ahead/time.Second), "request_id", store.RequestID(ctx))
	}
	in, err := s.IngestPayment(ctx, r.Body)
	return PaymentReceived{in.EventID}, err
}

// Ingested is what has become of a body.
type Ingested struct {
	EventID string
	New     bool // it was not there before
}

// IngestPayment stores the body of an event that is known to be Stripe's. Of one
// that is there already the first body stays, and the delivery is counted. What
// comes of it happens later, in the worker.
func (s *Service) IngestPayment(ctx context.Context, body []byte) (in Ingested, err error) {
	e, err := stripe.ParseEnvelope(body)
	if err != nil {
		return in, store.Errorf(store.CodeInvalid, "the body is no event: %v", err)
	}
	var deliveries int
	var contradicts bool
	if err := s.DB.Write(ctx, func(tx *store.Tx) error {
		deliveries, contradicts, err = storePayment(tx, e, body)
		s.wake(tx)
		return err
	}); err != nil {
		return in, err
	}
	s.log().Info("payment_event_received", "event_id", e.ID, "type", e.Type, "deliveries", deliveries, "request_id", store.RequestID(ctx))
	if contradicts {
		s.log().Error(paymentNeedsAttention, "event_id", e.ID, "type", e.Type, "code", "payment_event_contradicted")
	}
	return Ingested{e.ID, deliveries == 1}, nil
}

// KnowsPayment reports whether an event has arrived before.
func (s *Service) KnowsPayment(ctx context.Context, eventID string) (known bool, err error) {
	err = s.DB.Reader(ctx).QueryRow(`SELECT EXISTS (SELECT 1 FROM payment_webhook_events WHERE provider = $1 AND event_id = $2)`, providerStripe, eventID).Scan(&known)
	if err != nil {
		return false, fmt.Errorf("looking for a payment event: %w", err)
	}
	return known, nil
}

// storePayment stores an event or counts its delivery. contradicts says that it
// told something else before. Events are rendered in the API version of who asks
// for them: two of different versions cannot be compared.
func storePayment(tx *store.Tx, e *stripe.Envelope, body []byte) (deliveries int, contradicts bool, err error) {
	sum := sha256.Sum256(body)
	err = tx.QueryRow(`
		INSERT INTO payment_webhook_events (provider, event_id, event_type, event_created_ms, livemode, api_version, received_at_ms, last_received_at_ms,
		  payload, payload_hash, semantic_hash, next_attempt_at_ms)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $7, $8, $9, $10, $7)
		ON CONFLICT (provider, event_id) DO UPDATE SET delivery_count = delivery_count + 1, last_received_at_ms = excluded.last_received_at_ms,
		  other_semantic_hash = CASE WHEN api_version IS excluded.api_version AND semantic_hash <> excluded.semantic_hash THEN excluded.semantic_hash ELSE other_semantic_hash END
		RETURNING delivery_count, api_version IS $6 AND semantic_hash <> $10`,
		providerStripe, e.ID, e.Type, e.Created.UnixMilli(), store.Bit(e.Livemode), store.Nullable(e.APIVersion), tx.NowMS(),
		body, hex.EncodeToString(sum[:]), e.SemanticHash).Scan(&deliveries, &contradicts)
	if err != nil {
		return 0, false, fmt.Errorf("storing a payment event: %w", err)
	}
	return deliveries, contradicts, nil
}

// foreign says why an event is none of ours; "": it is.
func (s *Service) foreign(e *stripe.Envelope) string {
	switch {
	case e.Livemode != s.Stripe.Livemode && e.Livemode:
		return "it is about real money, and this is set up for tests (JPINTEL_STRIPE_LIVEMODE)"
	case e.Livemode != s.Stripe.Livemode:
		return "it is about test money, and this is set up for real money (JPINTEL_STRIPE_LIVEMODE)"
	case e.Account != "":
		return "it is about another account's money: " + e.Account
	}
	return ""
}

// log is where what concerns payments is written.
func (s *Service) log() *slog.Logger {
	if s.Log == nil {
		return slog.New(slog.DiscardHandler)
	}
	return s.Log
}
