package billing

import (
	"cmp"
	"database/sql"
	"errors"
	"fmt"

	"jpintel/billing/stripe"
	"jpintel/store"
)

// What takes a payment back.
const (
	kindRefund  = "refund"
	kindDispute = "dispute"
)

// reversal is a refund or a dispute, as the newest event tells of it.
type reversal struct {
	Ref          string // the provider's id
	Kind         string
	PaymentRef   string // "": not known yet
	ChargeRef    string // "": not told
	AmountMinor  int64
	Currency     string // "": not told
	Status       string // the provider's
	WithdrawnMS  int64  // a dispute: when the money was last said to be taken, and given back; 0: never
	ReinstatedMS int64
	lastCreated  int64
	lastRank     int
	lastEventID  string
}

// Statuses in the order in which they follow each other: of two events of the
// same second the one that is further counts.
var (
	refundRanks  = map[string]int{"pending": 1, "requires_action": 2, "succeeded": 3, "canceled": 4, "failed": 5}
	disputeRanks = map[string]int{"warning_needs_response": 1, "warning_under_review": 2, "warning_closed": 3, "needs_response": 4, "under_review": 5,
		"prevented": 6, "won": 7, "lost": 8}
)

func refundFact(e *stripe.Event) reversal {
	r := e.Refund
	return reversal{Ref: r.Ref, Kind: kindRefund, PaymentRef: r.PaymentRef, ChargeRef: r.ChargeRef, AmountMinor: r.AmountMinor, Currency: r.Currency, Status: r.Status,
		lastCreated: e.Created.UnixMilli(), lastRank: refundRanks[r.Status], lastEventID: e.ID}
}

func disputeFact(e *stripe.Event) reversal {
	d := e.Dispute
	r := reversal{Ref: d.Ref, Kind: kindDispute, PaymentRef: d.PaymentRef, ChargeRef: d.ChargeRef, AmountMinor: d.AmountMinor, Currency: d.Currency, Status: d.Status,
		lastCreated: e.Created.UnixMilli(), lastRank: disputeRanks[d.Status], lastEventID: e.ID}
	if d.Withdrawn {
		r.WithdrawnMS = r.lastCreated
	}
	if d.Reinstated {
		r.ReinstatedMS = r.lastCreated
	}
	return r
}

// effective reports whether the money is gone. A refund takes it when it is made,
// and it comes back if the refund fails. A dispute takes it when the provider says
// so, or when it is lost; an inquiry (warning_…) never does.
func (r *reversal) effective() bool {
	if r.Kind == kindRefund {
		return r.Status != "failed" && r.Status != "canceled"
	}
	switch r.Status {
	case "lost":
		return true
	case "needs_response", "under_review", "prevented":
		return r.WithdrawnMS > r.ReinstatedMS
	}
	return false
}

// freezes reports whether the customer's spending is to be stopped for it.
func (r *reversal) freezes() bool {
	return r.Kind == kindDispute && (r.Status == "needs_response" || r.Status == "under_review" || r.Status == "lost")
}

// learn takes over what a newer event tells. That money was taken, or given back,
// is told by some events only: of each the last time counts.
func (r *reversal) learn(f reversal) {
	was := *r
	if f.lastCreated > r.lastCreated || f.lastCreated == r.lastCreated && f.lastRank > r.lastRank {
		*r = f
	}
	r.PaymentRef, r.ChargeRef = cmp.Or(was.PaymentRef, f.PaymentRef), cmp.Or(was.ChargeRef, f.ChargeRef)
	r.WithdrawnMS, r.ReinstatedMS = max(was.WithdrawnMS, f.WithdrawnMS), max(was.ReinstatedMS, f.ReinstatedMS)
}

// reversalTold writes down what an event tells of a refund or a dispute.
func (s *Service) reversalTold(tx *store.Tx, f reversal) (applied, error) {
	if f.lastRank == 0 {
		return applied{}, store.Errorf(store.CodeInvalid, "%s %s: the status %q is not known to this version", f.Kind, f.Ref, f.Status)
	}
	ref, err := paymentOfCharge(tx, f.PaymentRef, f.ChargeRef)
	if err != nil {
		return applied{}, err
	}
	f.PaymentRef = ref
	known, err := getReversal(tx, f.Ref)
	if err != nil {
		return applied{}, err
	}
	now := known
	if now.learn(f); now != known {
		if err := now.save(tx); err != nil {
			return applied{}, err
		}
	}
	return s.settledRef(tx, now.PaymentRef)
}

// paymentOfCharge is the payment that an event is about, which may name only its
// charge; "": not known yet. What belongs together is remembered, and reversals
// that knew the charge alone now know their payment.
func paymentOfCharge(tx *store.Tx, paymentRef, chargeRef string) (string, error) {
	if chargeRef == "" {
		return paymentRef, nil
	}
	if paymentRef != "" {
		return paymentRef, linkCharge(tx, chargeRef, paymentRef)
	}
	err := tx.QueryRow(`SELECT payment_ref FROM payment_charges WHERE provider = $1 AND charge_ref = $2`, providerStripe, chargeRef).Scan(&paymentRef)
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return "", fmt.Errorf("reading a charge: %w", err)
	}
	return paymentRef, nil
}

func linkCharge(tx *store.Tx, chargeRef, paymentRef string) error {
	n, err := tx.Update(`INSERT INTO payment_charges (provider, charge_ref, payment_ref) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING`, providerStripe, chargeRef, paymentRef)
	if err == nil && n > 0 {
		_, err = tx.Exec(`UPDATE payment_reversals SET payment_ref = $1, updated_at_ms = $2 WHERE charge_ref = $3 AND payment_ref IS NULL`, paymentRef, tx.NowMS(), chargeRef)
	}
	if err != nil {
		return fmt.Errorf("linking a charge: %w", err)
	}
	return nil
}

const reversalColumns = `reversal_ref, kind, COALESCE(payment_ref, ''), COALESCE(charge_ref, ''), amount_minor, COALESCE(currency, ''), status,
	COALESCE(withdrawn_at_ms, 0), COALESCE(reinstated_at_ms, 0), last_event_created_ms, last_event_rank, last_event_id`

func scanReversal(row interface{ Scan(...any) error }) (r reversal, err error) {
	err = row.Scan(&r.Ref, &r.Kind, &r.PaymentRef, &r.ChargeRef, &r.AmountMinor, &r.Currency, &r.Status,
		&r.WithdrawnMS, &r.ReinstatedMS, &r.lastCreated, &r.lastRank, &r.lastEventID)
	return r, err
}

// getReversal reads a reversal; the zero one where there is none.
func getReversal(q store.Querier, ref string) (reversal, error) {
	r, err := scanReversal(q.QueryRow(`SELECT `+reversalColumns+` FROM payment_reversals WHERE provider = $1 AND reversal_ref = $2`, providerStripe, ref))
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return r, fmt.Errorf("reading a reversal: %w", err)
	}
	return r, nil
}

// reversalsOf reads what takes a payment back, the newest word first.
func reversalsOf(q store.Querier, paymentRef string) ([]reversal, error) {
	rows, err := q.Query(`SELECT `+reversalColumns+` FROM payment_reversals WHERE payment_ref = $1 ORDER BY last_event_created_ms DESC, reversal_ref`, paymentRef)
	if err != nil {
		return nil, fmt.Errorf("reading reversals: %w", err)
	}
	all, err := store.Collect(rows, func(rows *sql.Rows) (reversal, error) { return scanReversal(rows) })
	if err != nil {
		return nil, fmt.Errorf("reading reversals: %w", err)
	}
	return all, nil
}

// refundsOfCharge adds up the refunds of a charge that are known, in minor units.
// One that names no charge is taken for the payment's only one.
func refundsOfCharge(q store.Querier, chargeRef, paymentRef string) (sum int64, err error) {
	rows, err := q.Query(`
		SELECT `+reversalColumns+` FROM payment_reversals
		WHERE kind = 'refund' AND effective = 1 AND (payment_ref = $1 AND (charge_ref = $2 OR charge_ref IS NULL) OR payment_ref IS NULL AND charge_ref = $2)`,
		paymentRef, chargeRef)
	if err != nil {
		return 0, fmt.Errorf("reading refunds: %w", err)
	}
	all, err := store.Collect(rows, func(rows *sql.Rows) (reversal, error) { return scanReversal(rows) })
	if err != nil {
		return 0, fmt.Errorf("reading refunds: %w", err)
	}
	for _, r := range all {
		sum += r.AmountMinor
	}
	return sum, nil
}

// save writes a reversal down.
func (r *reversal) save(tx *store.Tx) error {
	_, err := tx.Exec(`
		INSERT INTO payment_reversals (provider, reversal_ref, kind, payment_ref, charge_ref, amount_minor, currency, status, effective, withdrawn_at_ms,
		  reinstated_at_ms, last_event_created_ms, last_event_rank, last_event_id, created_at_ms, updated_at_ms)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $15)
		ON CONFLICT (provider, reversal_ref) DO UPDATE SET payment_ref = excluded.payment_ref, charge_ref = excluded.charge_ref,
		  amount_minor = excluded.amount_minor, currency = excluded.currency, status = excluded.status, effective = excluded.effective,
		  withdrawn_at_ms = excluded.withdrawn_at_ms, reinstated_at_ms = excluded.reinstated_at_ms, last_event_created_ms = excluded.last_event_created_ms,
		  last_event_rank = excluded.last_event_rank, last_event_id = excluded.last_event_id, updated_at_ms = excluded.updated_at_ms`,
		providerStripe, r.Ref, r.Kind, store.Nullable(r.PaymentRef), store.Nullable(r.ChargeRef), r.AmountMinor, store.Nullable(r.Currency), r.Status,
		store.Bit(r.effective()), store.Nullable(r.WithdrawnMS), store.Nullable(r.ReinstatedMS), r.lastCreated, r.lastRank, r.lastEventID, tx.NowMS())
	if err != nil {
		return fmt.Errorf("writing a reversal: %w", err)
	}
	return nil
}
