package webhook

import (
	"database/sql"
	"fmt"
	"slices"
	"time"

	"jpintel/store"
)

// work is one delivery that is due, with what its request needs.
type work struct {
	seq          int64
	subSeq       int64
	generation   int64
	deliveryID   string
	attempts     int // made so far
	scheduleBase int
	dueMS        int64
	envelope     Envelope
	event        storedEvent
	target       *target // where it goes; set when it is given out
	refused      string  // why it must not be sent; "": it may; set with target
	sent         bool    // its request is over; the queue's
	probing      bool    // it has one of probation's slots; the queue's
	day          string  // the day that its attempt counts for; the queue's
	capped       bool    // the day's attempts are used up: it must not be sent
}

// target is where a subscription's deliveries go, read when they are given out,
// or at most staleAfter before: an id in a queue row never authorizes a send.
type target struct {
	subSeq         int64
	subscriptionID string
	customerID     string
	customerHash   string // as it is logged
	url            string
	generation     int64
	events         []Type
	secrets        []string // newest first
	until          int64    // when the first of them ends, ms; noneDue: none does
	disabled       bool
	probation      bool
	beta           bool // its customer takes part in the beta
	waits          bool // nothing is sent until the rollout goes on
	refused        string
}

// claimed is what a claim found.
type claimed struct {
	due  []work
	next int64 // when the first delivery that was not read is due; noneDue
}

const claimQuery = `
	SELECT d.delivery_seq, d.delivery_id, d.attempt_count, d.schedule_base, d.next_attempt_at_ms, d.envelope, ` + storedColumns + `
	FROM webhook_deliveries d JOIN outbox_events e ON e.seq = d.event_seq
	WHERE d.sub_seq = $1 AND d.status = 'pending' AND d.generation = $2 ORDER BY d.next_attempt_at_ms LIMIT $3`

// claim reads up to limit deliveries of a target in the order of their
// due times, with at most maxBytes of bodies (one delivery is always read).
// Nothing is written: what is in flight is in this process's memory, and a
// crash leaves it pending. A disabled subscription has nothing to claim: the
// sweep fails what is left. One that waits for the rollout has nothing either.
func claim(q store.Querier, t *target, now time.Time, limit, maxBytes int) (claimed, error) {
	found := claimed{next: noneDue}
	if t.disabled || t.waits {
		return found, nil
	}
	rows, err := q.Query(claimQuery, t.subSeq, t.generation, limit+1)
	if err != nil {
		return found, fmt.Errorf("reading due deliveries: %w", err)
	}
	defer rows.Close()
	bytes := 0
	for rows.Next() {
		w := work{subSeq: t.subSeq, generation: t.generation}
		if err := rows.Scan(append([]any{&w.seq, &w.deliveryID, &w.attempts, &w.scheduleBase, &w.dueMS, &w.envelope}, w.event.columns()...)...); err != nil {
			return found, fmt.Errorf("reading due deliveries: %w", err)
		}
		if w.dueMS > now.UnixMilli() || len(found.due) == limit || len(found.due) > 0 && bytes+len(w.event.data) > maxBytes {
			found.next = w.dueMS
			return found, nil
		}
		bytes += len(w.event.data)
		found.due = append(found.due, w)
	}
	return found, rows.Err()
}

// address says where a delivery goes, and whether it may.
func (w *work) address(t *target) { w.target, w.refused = t, t.refuses(w) }

// refuses says why a delivery must not be sent to this target, or "".
func (t *target) refuses(w *work) string {
	switch {
	case t.refused != "":
		return t.refused
	case w.event.customer != "" && w.event.customer != t.customerID:
		return reasonForeign
	case !slices.Contains(t.events, w.event.typ):
		return reasonUnsubscribed
	}
	return ""
}

func readTarget(q store.Querier, keys *store.Keyring, subSeq int64, now time.Time) (*target, error) {
	t := target{subSeq: subSeq}
	var events string
	var optedOut sql.Null[int64]
	var tier store.Tier
	err := q.QueryRow(`
		SELECT s.subscription_id, s.customer_id, s.url, s.generation, s.events, s.disabled_at_ms IS NOT NULL, s.probation, c.tier, c.beta, c.opted_out_at_ms,
		  (SELECT COALESCE(MIN(expires_at_ms), $2) FROM webhook_secrets w WHERE w.sub_seq = s.sub_seq AND w.expires_at_ms > $3)
		FROM webhook_subscriptions s JOIN customers c ON c.customer_id = s.customer_id WHERE s.sub_seq = $1`, subSeq, noneDue, now.UnixMilli()).
		Scan(&t.subscriptionID, &t.customerID, &t.url, &t.generation, &events, &t.disabled, &t.probation, &tier, &t.beta, &optedOut, &t.until)
	if err != nil {
		return nil, fmt.Errorf("reading subscription: %w", err)
	}
	if t.events, err = decodeTypes(events); err != nil {
		return nil, fmt.Errorf("subscription %s: %w", t.subscriptionID, err)
	}
	t.customerHash = keys.HashID(t.customerID)
	switch {
	case tier != store.TierPaid:
		t.refused = reasonFree
	case optedOut.Valid:
		t.refused = reasonOptedOut
	}
	t.secrets, err = readSecrets(q, keys, subSeq, t.subscriptionID, now)
	return &t, err
}

// readSecrets opens the secrets that sign at this time, newest first.
func readSecrets(q store.Querier, keys *store.Keyring, subSeq int64, subscriptionID string, now time.Time) ([]string, error) {
	rows, err := q.Query(`
		SELECT version, sealed FROM webhook_secrets
		WHERE sub_seq = $1 AND (expires_at_ms IS NULL OR expires_at_ms > $2) ORDER BY version DESC`, subSeq, now.UnixMilli())
	if err != nil {
		return nil, fmt.Errorf("reading signing secrets: %w", err)
	}
	return store.Collect(rows, func(rows *sql.Rows) (string, error) {
		var version int64
		var sealed []byte
		if err := rows.Scan(&version, &sealed); err != nil {
			return "", fmt.Errorf("reading signing secrets: %w", err)
		}
		secret, err := keys.Unseal(sealed, secretContext(subscriptionID, version))
		if err != nil {
			return "", fmt.Errorf("signing secret of %s: %w", subscriptionID, err)
		}
		return string(secret), nil
	})
}

// request is what the sender needs for the next attempt.
func (w *work) request() Request {
	return Request{
		URL: w.target.url, Secrets: w.target.secrets, EventID: w.event.id, EventType: w.event.typ, DeliveryID: w.deliveryID,
		Attempt: w.attempts + 1, Body: w.event.render(w.envelope, w.target.subscriptionID),
	}
}
