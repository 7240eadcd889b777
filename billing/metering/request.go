package metering

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"jpintel/billing/modelgate"
	"jpintel/billing/money"
	"jpintel/store"
)

const (
	// soonestLook and latestLook bound how soon a request whose cost is not final
	// is looked at again. In between it is a quarter of its age.
	soonestLook = time.Minute
	latestLook  = 6 * time.Hour
	// lookShare is that quarter.
	lookShare = 4
	// KeepRequests is how long requests are known by their ids after they were made.
	// Nobody may ask the upstream for older ones and have them counted.
	KeepRequests = 14 * 24 * time.Hour
	// forgetRows is how many a step forgets.
	forgetRows = 200
)

// ErrForeign is a request that is counted for another customer, or in another
// currency: none of its page is counted.
var ErrForeign = errors.New("a request is another customer's, or not in the account's currency")

// Taken is what has come of a page of requests.
type Taken struct {
	Changes []Change // of the months that it has changed
	// Contradictions are ids of requests whose cost was final, and is told
	// differently now. The first final cost counts.
	Contradictions []string
}

// Take counts a customer's requests, each once, however often they are told of.
// The cost of one that is not final counts as it is, and is corrected when it is
// told differently.
func Take(tx *store.Tx, customer string, c money.Currency, used []modelgate.Used) (taken Taken, err error) {
	p := page{tx: tx, customer: customer, currency: c, records: map[string]*Record{}, months: map[string]*Change{}}
	for _, u := range used {
		contradicts, err := p.take(u)
		if err != nil {
			return taken, err
		}
		if contradicts {
			taken.Contradictions = append(taken.Contradictions, u.ID)
		}
	}
	taken.Changes, err = p.write()
	return taken, err
}

// known is a request that has been counted.
type known struct {
	customer, day string
	record        int64
	cost          money.Amount
	madeAt        time.Time
	final         bool
}

func getKnown(q store.Querier, id string) (k *known, err error) {
	k = &known{}
	var cost string
	var made int64
	err = q.QueryRow(`SELECT customer_id, day, record_no, cost, made_at_ms, next_look_ms IS NULL FROM usage_requests WHERE request_id = $1`, id).
		Scan(&k.customer, &k.day, &k.record, &cost, &made, &k.final)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading a request: %w", err)
	}
	k.madeAt = store.FromMS(made)
	k.cost, err = amount(cost)
	return k, err
}

// page is what a page of requests comes to, until it is written.
type page struct {
	tx       *store.Tx
	customer string
	currency money.Currency
	records  map[string]*Record // by id: those that it changes, changed
	months   map[string]*Change // by month: After is by how much
	order    []*Change
}

// take counts one request. It contradicts where its cost was final, and another.
func (p *page) take(u modelgate.Used) (contradicts bool, err error) {
	k, err := getKnown(p.tx, u.ID)
	if err != nil {
		return false, err
	}
	if u.Currency != p.currency || k != nil && k.customer != p.customer {
		return false, fmt.Errorf("request %s: %w", u.ID, ErrForeign)
	}
	if k == nil {
		return false, p.count(u)
	}
	if k.final {
		return u.Finalized && !u.Cost.Equal(k.cost), nil
	}
	return false, p.correct(k, u)
}

// count counts a request for the first time.
func (p *page) count(u modelgate.Used) error {
	r, err := p.recordOf(u.CreatedAt)
	if err != nil {
		return err
	}
	if err := p.add(r, u.CreatedAt, u.Cost, 1, store.Bit(!u.Finalized)); err != nil {
		return err
	}
	if r.Requests == 1 { // what refers to it needs it
		if err := r.insert(p.tx); err != nil {
			return err
		}
	}
	_, err = p.tx.Exec(`
		INSERT INTO usage_requests (request_id, customer_id, day, record_no, cost, made_at_ms, next_look_ms) VALUES ($1, $2, $3, $4, $5, $6, $7)`,
		u.ID, p.customer, r.Day, r.No, u.Cost.String(), u.CreatedAt.UnixMilli(), nextLook(u, p.tx.Now))
	if err != nil {
		return fmt.Errorf("counting a request: %w", err)
	}
	return nil
}

// correct counts what a request costs now, in place of what it seemed to cost. It
// stays in its day, whatever is told of that.
func (p *page) correct(k *known, u modelgate.Used) error {
	_, err := p.tx.Exec(`UPDATE usage_requests SET cost = $1, next_look_ms = $2 WHERE request_id = $3 AND next_look_ms IS NOT NULL`,
		u.Cost.String(), nextLook(u, p.tx.Now), u.ID)
	if err != nil {
		return fmt.Errorf("counting a request: %w", err)
	}
	by, err := u.Cost.Sub(k.cost)
	if err != nil || by.Sign() == 0 && !u.Finalized {
		return err
	}
	r, err := p.record(k.day, k.record)
	if err != nil {
		return err
	}
	return p.add(r, k.madeAt, by, 0, -store.Bit(u.Finalized))
}

// add notes a change of a record, and of the month that a time is in.
func (p *page) add(r *Record, at time.Time, cost money.Amount, requests, open int) (err error) {
	if r.Cost, err = r.Cost.Add(cost); err != nil {
		return fmt.Errorf("usage record %s: %w", r.ID(), err)
	}
	r.Requests += int64(requests)
	r.Open += int64(open)
	month := r.Day[:len(monthLayout)]
	c := p.months[month]
	if c == nil {
		c = &Change{Period: month}
		p.months[month] = c
		p.order = append(p.order, c)
	}
	c.RecordID = r.ID()
	c.After, err = c.After.Add(cost)
	return err
}

// write writes what the page comes to.
func (p *page) write() (changes []Change, err error) {
	for _, r := range p.records {
		if err := r.update(p.tx); err != nil {
			return nil, err
		}
	}
	for _, by := range p.order {
		c, err := turn(p.tx, p.customer, Spend, by.Period, by.After)
		if err != nil {
			return nil, err
		}
		c.RecordID = by.RecordID
		changes = append(changes, c)
	}
	return changes, nil
}

// nextLook is when a request is to be looked at again, as it is stored.
func nextLook(u modelgate.Used, now time.Time) any {
	if u.Finalized {
		return nil
	}
	return lookAgain(u.CreatedAt, now)
}

func lookAgain(made, now time.Time) int64 {
	return now.Add(min(max(now.Sub(made)/lookShare, soonestLook), latestLook)).UnixMilli()
}

// Look is a request whose cost was not final when it was last told.
type Look struct {
	RequestID string
	MadeAt    time.Time
}

// NextLook is the request of a customer's that is to be looked at first; nil
// where none is due.
func NextLook(q store.Querier, customer string, now time.Time) (*Look, error) {
	var l Look
	var made int64
	err := q.QueryRow(`
		SELECT request_id, made_at_ms FROM usage_requests WHERE customer_id = $1 AND next_look_ms <= $2 ORDER BY next_look_ms LIMIT 1`,
		customer, now.UnixMilli()).Scan(&l.RequestID, &made)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("looking for what is not final: %w", err)
	}
	l.MadeAt = store.FromMS(made)
	return &l, nil
}

// Looked puts the next look off, whatever was seen: the upstream may have lost
// the request.
func (l *Look) Looked(tx *store.Tx) error {
	_, err := tx.Exec(`UPDATE usage_requests SET next_look_ms = $1 WHERE request_id = $2 AND next_look_ms <= $3`,
		lookAgain(l.MadeAt, tx.Now), l.RequestID, tx.NowMS())
	if err != nil {
		return fmt.Errorf("putting a look off: %w", err)
	}
	return nil
}

// Forget deletes requests that are final, in closed records, and older than
// anybody will be asked for: one step, in the background. It reports whether
// there may be more.
func Forget(ctx context.Context, db *store.DB) (more bool, err error) {
	const old = `
		SELECT u.request_id FROM usage_requests u JOIN usage_records r USING (customer_id, day, record_no)
		WHERE u.made_at_ms < $1 AND r.closed_at_ms IS NOT NULL
		  AND NOT EXISTS (SELECT 1 FROM usage_passes p WHERE p.customer_id = u.customer_id AND p.at_ms < u.made_at_ms + $2) LIMIT $3`
	args := func(now time.Time) []any {
		return []any{now.Add(-KeepRequests).UnixMilli(), KeepRequests.Milliseconds() / 2, forgetRows}
	}
	var found string
	if err = db.Reader(ctx).QueryRow(old, args(time.Now())...).Scan(&found); errors.Is(err, sql.ErrNoRows) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("looking for old requests: %w", err)
	}
	var n int64
	err = db.WriteBackground(ctx, func(tx *store.Tx) (err error) {
		n, err = tx.Update(`DELETE FROM usage_requests WHERE request_id IN (`+old+`)`, args(tx.Now)...)
		return err
	})
	if err != nil {
		return false, fmt.Errorf("forgetting old requests: %w", err)
	}
	return n == forgetRows, nil
}
