package billing

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"

	"jpintel/billing/ledger"
	"jpintel/billing/stripe"
	"jpintel/store"
)

// EventStatus is what has become of a payment event.
type EventStatus string

// The states of a payment event.
const (
	EventReceived  EventStatus = "received"  // stored; not looked at yet, or to be looked at again
	EventHeld      EventStatus = "held"      // waits: for a customer, a provisioning, or a person
	EventFulfilled EventStatus = "fulfilled" // what it says is in the facts, and credit converges on them
	EventIgnored   EventStatus = "ignored"   // nothing follows from it
	EventFailed    EventStatus = "failed"    // could not be worked on; rerun it when the cause is gone
)

// applied is what has come of a payment event.
type applied struct {
	status      EventStatus
	reason      string // why it is held or ignored, or has no effect yet, in words; "": nothing to say
	customerID  string
	paymentID   string
	operationID string // that it has begun
}

// applyPayment writes down the fact that a payment event tells, and has the
// customer's credit converge on what all facts of the payment add up to. It does
// the same however often and in whatever order events come.
func (s *Service) applyPayment(ctx context.Context, tx *store.Tx, e *stripe.Event) (applied, error) {
	switch {
	case e.Payment != nil:
		return s.paymentTold(tx, e)
	case e.Charge != nil:
		return s.chargeTold(tx, e.Charge)
	case e.Refund != nil:
		return s.reversalTold(tx, refundFact(e))
	case e.Dispute != nil:
		return s.reversalTold(tx, disputeFact(e))
	}
	return applied{status: EventIgnored, reason: "billing has no use for " + e.Type}, nil
}

// paymentTold: a payment intent or a checkout session.
func (s *Service) paymentTold(tx *store.Tx, e *stripe.Event) (applied, error) {
	if e.Payment.State == stripe.Free {
		return applied{status: EventIgnored, reason: "there is nothing to pay, and so nothing to credit", customerID: e.Payment.CustomerID}, nil
	}
	p, err := paymentFor(tx, e.Payment)
	if err != nil {
		return applied{}, err
	}
	p.learn(paymentFact{*e.Payment, e.Created.UnixMilli(), e.ID})
	if err := p.save(tx); err != nil {
		return applied{}, err
	}
	if p.Ref != "" && e.Payment.ChargeRef != "" {
		if err := linkCharge(tx, e.Payment.ChargeRef, p.Ref); err != nil {
			return applied{}, err
		}
	}
	return s.settled(tx, p)
}

// chargeTold: which payment a charge belongs to. What it says of refunds is
// compared with those that are known, and nothing follows from it: the refunds'
// own events may simply not be here yet.
func (s *Service) chargeTold(tx *store.Tx, c *stripe.Charge) (applied, error) {
	ref, err := paymentOfCharge(tx, c.PaymentRef, c.Ref)
	if err != nil {
		return applied{}, err
	}
	known, err := refundsOfCharge(tx, c.Ref, ref)
	if err != nil {
		return applied{}, err
	}
	if c.RefundedMinor > known {
		s.warn("payment_refunds_missing", "charge_ref", c.Ref, "payment_ref", ref, "refunded_minor", c.RefundedMinor, "known_minor", known)
	}
	return s.settledRef(tx, ref)
}

// settledRef is settled for a payment that may not be known yet.
func (s *Service) settledRef(tx *store.Tx, ref string) (applied, error) {
	p, err := findPayment(tx, byRef, ref)
	if err != nil {
		return applied{}, err
	}
	if p == nil {
		return applied{status: EventFulfilled, reason: "its payment is not known yet"}, nil // and finds this when it is told
	}
	return s.settled(tx, p)
}

// settled has a payment's credit converge, and says what has come of that.
func (s *Service) settled(tx *store.Tx, p *payment) (applied, error) {
	before := p.Hold
	began, err := converge(tx, p)
	if err != nil {
		return applied{}, err
	}
	a := applied{status: EventFulfilled, customerID: p.CustomerID, paymentID: p.PaymentID}
	if began != nil {
		a.operationID = began.OperationID
	}
	s.wake(tx) // a freeze may have begun too
	if p.Hold != "" {
		a.status, a.reason = EventHeld, holdWords(p.Hold)
	}
	if p.Hold != before && p.Hold != "" {
		s.warn("payment_held", "payment_id", p.PaymentID, "payment_ref", p.Ref, "customer_id_hash", s.DB.Keys.HashID(p.CustomerID), "reason", p.Hold)
	}
	return a, nil
}

// warn is a line of the log that somebody has to look at.
func (s *Service) warn(message string, args ...any) {
	if s.Log != nil {
		s.Log.Warn(message, args...)
	}
}

// The states of a payment that are not the provider's own: it is paid, and its
// credit waits, or events contradict each other.
const (
	paymentHeld     = stripe.PaymentState("held")
	paymentMismatch = stripe.PaymentState("mismatch")
)

// payment is what is known of a payment, by whatever event.
type payment struct {
	PaymentID    string
	Ref          string // the payment intent's id; "": only its session is known
	SessionRef   string
	ChargeRef    string
	CustomerID   string // whom it names; "": nobody yet
	Currency     string // "": not told
	AmountMinor  int64
	State        stripe.PaymentState
	Hold         string // why its credit waits; "": it does not
	PaidAtMS     int64  // 0: it is not paid
	FirstEventID string // that told that it is paid
	EntryID      string // of its top-up in the journal; "": Ref is not known
	version      int64
	lastCreated  int64
	lastRank     int
}

const paymentColumns = `payment_id, COALESCE(payment_ref, ''), COALESCE(session_ref, ''), COALESCE(charge_ref, ''), COALESCE(customer_id, ''), COALESCE(currency, ''),
	amount_minor, state, COALESCE(hold_reason, ''), COALESCE(paid_at_ms, 0), COALESCE(first_event_id, ''), COALESCE(ledger_entry_id, ''),
	version, last_event_created_ms, last_event_rank`

func scanPayment(row interface{ Scan(...any) error }) (*payment, error) {
	var p payment
	err := row.Scan(&p.PaymentID, &p.Ref, &p.SessionRef, &p.ChargeRef, &p.CustomerID, &p.Currency,
		&p.AmountMinor, &p.State, &p.Hold, &p.PaidAtMS, &p.FirstEventID, &p.EntryID, &p.version, &p.lastCreated, &p.lastRank)
	return &p, err
}

// byRef is the condition for the payment of an intent.
const byRef = `provider = '` + providerStripe + `' AND payment_ref = $1`

// findPayment reads the payment that a condition on $1 is for; nil: none.
func findPayment(q store.Querier, condition, value string) (*payment, error) {
	p, err := scanPayment(q.QueryRow(`SELECT `+paymentColumns+` FROM payments WHERE `+condition+` ORDER BY payment_seq LIMIT 1`, value))
	if errors.Is(err, sql.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading a payment: %w", err)
	}
	return p, nil
}

// paymentFor finds the payment that an event is about, or begins one. A session
// that was known without its intent is the intent's from here on: it has moved
// no money, and its row becomes the payment's or is taken over by it.
func paymentFor(tx *store.Tx, told *stripe.Payment) (p *payment, err error) {
	if told.Ref == "" && told.SessionRef == "" {
		return nil, store.Errorf(store.CodeInvalid, "the event names neither a payment intent nor a checkout session")
	}
	if told.Ref != "" {
		if p, err = findPayment(tx, byRef, told.Ref); err != nil {
			return nil, err
		}
	}
	session := (*payment)(nil)
	if told.SessionRef != "" {
		condition := `session_ref = $1`
		if told.Ref != "" {
			condition = `session_ref = $1 AND payment_ref IS NULL`
		}
		if session, err = findPayment(tx, condition, told.SessionRef); err != nil {
			return nil, err
		}
	}
	switch {
	case p == nil && session == nil:
		return &payment{PaymentID: tx.NewID("pay"), State: stripe.Awaiting}, nil
	case p == nil:
		return session, nil
	case session != nil:
		return p, p.takeOver(tx, session)
	}
	return p, nil
}

// takeOver is what a session's row knew, learned by the row of its intent.
func (p *payment) takeOver(tx *store.Tx, session *payment) error {
	if _, err := tx.Exec(`DELETE FROM payments WHERE payment_id = $1 AND payment_ref IS NULL`, session.PaymentID); err != nil {
		return fmt.Errorf("linking a session: %w", err)
	}
	f := paymentFact{stripe.Payment{SessionRef: session.SessionRef, CustomerID: session.CustomerID, State: session.State, AmountMinor: session.AmountMinor,
		Currency: session.Currency}, session.lastCreated, session.FirstEventID}
	if session.PaidAtMS != 0 {
		f.State, f.created = stripe.Paid, session.PaidAtMS
	}
	p.learn(f)
	if session.State == paymentMismatch {
		p.contradict(session.Hold)
	}
	return nil
}

// paymentFact is what one event tells of a payment.
type paymentFact struct {
	stripe.Payment
	created int64 // in ms, by the provider's clock
	eventID string
}

// paymentRanks order what two events of the same second say.
var paymentRanks = map[stripe.PaymentState]int{stripe.Awaiting: 0, stripe.Failed: 1, stripe.Paid: 2}

// learn takes over what an event tells. While a payment is not paid, the newest
// word counts. That it is paid is final, whenever it is told: what comes
// afterwards and says less is late, and what says something else contradicts.
func (p *payment) learn(f paymentFact) {
	p.Ref, p.SessionRef = cmp.Or(p.Ref, f.Ref), cmp.Or(p.SessionRef, f.SessionRef)
	p.ChargeRef = cmp.Or(f.ChargeRef, p.ChargeRef)
	if p.Ref != "" && p.EntryID == "" {
		p.EntryID = ledger.EntryID(providerStripe, p.Ref, "topup")
	}
	p.CustomerID = cmp.Or(p.CustomerID, f.CustomerID)
	p.learnState(f)
	if f.CustomerID != "" && f.CustomerID != p.CustomerID {
		p.contradict("customer_contradiction")
	}
}

func (p *payment) learnState(f paymentFact) {
	rank := paymentRanks[f.State]
	switch {
	case p.PaidAtMS == 0 && f.State == stripe.Paid:
		p.State, p.PaidAtMS, p.FirstEventID = stripe.Paid, f.created, f.eventID
		p.AmountMinor, p.Currency = f.AmountMinor, f.Currency
	case p.PaidAtMS == 0:
		if f.created < p.lastCreated || f.created == p.lastCreated && rank <= p.lastRank {
			return
		}
		p.State, p.AmountMinor, p.Currency = f.State, f.AmountMinor, f.Currency
	case f.State != stripe.Paid || f.Currency == "":
		return
	case p.Currency == "": // a session may not tell
		p.AmountMinor, p.Currency = f.AmountMinor, f.Currency
	case f.AmountMinor != p.AmountMinor || f.Currency != p.Currency:
		p.contradict("amount_contradiction")
		return
	default:
		return
	}
	p.lastCreated, p.lastRank = f.created, rank
}

// contradict stops a paid payment from being credited any more.
func (p *payment) contradict(reason string) {
	if p.PaidAtMS != 0 {
		p.State, p.Hold = paymentMismatch, reason
	}
}

// hold says what a paid payment's credit waits for; "": nothing.
func (p *payment) hold(reason string) {
	switch {
	case p.PaidAtMS == 0 || p.State == paymentMismatch:
	case reason == "":
		p.State, p.Hold = stripe.Paid, ""
	default:
		p.State, p.Hold = paymentHeld, reason
	}
}

// save writes a payment down, where anything of it has changed.
func (p *payment) save(tx *store.Tx) error {
	stored, err := findPayment(tx, `payment_id = $1`, p.PaymentID)
	if err != nil || stored != nil && *stored == *p {
		return err
	}
	p.version++
	_, err = tx.Exec(`
		INSERT INTO payments (payment_id, provider, payment_ref, session_ref, charge_ref, customer_id, currency, amount_minor, state, hold_reason, paid_at_ms,
		  first_event_id, ledger_entry_id, version, last_event_created_ms, last_event_rank, created_at_ms, updated_at_ms)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $17)
		ON CONFLICT (payment_id) DO UPDATE SET payment_ref = excluded.payment_ref, session_ref = excluded.session_ref, charge_ref = excluded.charge_ref,
		  customer_id = excluded.customer_id, currency = excluded.currency, amount_minor = excluded.amount_minor, state = excluded.state,
		  hold_reason = excluded.hold_reason, paid_at_ms = excluded.paid_at_ms, first_event_id = excluded.first_event_id,
		  ledger_entry_id = excluded.ledger_entry_id, version = excluded.version, last_event_created_ms = excluded.last_event_created_ms,
		  last_event_rank = excluded.last_event_rank, updated_at_ms = excluded.updated_at_ms`,
		p.PaymentID, providerStripe, store.Nullable(p.Ref), store.Nullable(p.SessionRef), store.Nullable(p.ChargeRef), store.Nullable(p.CustomerID),
		store.Nullable(p.Currency), p.AmountMinor, string(p.State), store.Nullable(p.Hold), store.Nullable(p.PaidAtMS), store.Nullable(p.FirstEventID),
		store.Nullable(p.EntryID), p.version, p.lastCreated, p.lastRank, tx.NowMS())
	if err != nil {
		return fmt.Errorf("writing a payment: %w", err)
	}
	return nil
}
