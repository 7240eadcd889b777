package metering

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strconv"
	"time"

	"jpintel/billing/ledger"
	"jpintel/billing/money"
	"jpintel/store"
	"jpintel/webhook"
)

// Record is a usage record: requests of one customer and day that are closed
// together.
//
//	open    requests come in, or their costs still change; its cost is provisional
//	closed  booked, told of, and never changed again
//
// Number 1 is the day's. What is told after that is closed is a record of its own
// with the next number: nothing that was booked is taken back.
type Record struct {
	CustomerID string
	Day        string
	No         int64
	Currency   money.Currency
	Cost       money.Amount
	Requests   int64
	Open       int64 // requests whose cost is not final
	Start, End time.Time
	Closed     bool
}

// ID names the record, the same whenever it is made.
func (r *Record) ID() string { return recordID(r.CustomerID, r.Day, r.No) }

func recordID(customer, day string, no int64) string {
	return "usage_" + customer + "_" + day + "_" + strconv.FormatInt(no, 10)
}

const recordColumns = `customer_id, day, record_no, currency, cost, requests, open, start_ms, end_ms, closed_at_ms IS NOT NULL`

func scanRecord(row interface{ Scan(...any) error }) (*Record, error) {
	var r Record
	var cost string
	var start, end int64
	if err := row.Scan(&r.CustomerID, &r.Day, &r.No, &r.Currency, &cost, &r.Requests, &r.Open, &start, &end, &r.Closed); err != nil {
		return nil, err
	}
	r.Start, r.End = store.FromMS(start), store.FromMS(end)
	var err error
	r.Cost, err = amount(cost)
	return &r, err
}

// record is one that the page changes, or is about to.
func (p *page) record(day string, no int64) (*Record, error) {
	id := recordID(p.customer, day, no)
	if r := p.records[id]; r != nil {
		return r, nil
	}
	r, err := scanRecord(p.tx.QueryRow(`SELECT `+recordColumns+` FROM usage_records WHERE customer_id = $1 AND day = $2 AND record_no = $3`, p.customer, day, no))
	if err != nil {
		return nil, fmt.Errorf("reading usage record %s: %w", id, err)
	}
	p.records[id] = r
	return r, nil
}

// recordOf is the open record of a day, or a new one.
func (p *page) recordOf(at time.Time) (*Record, error) {
	day, start, end := dayBounds(at, p.tx.Local().Location())
	var last int64
	var closed bool
	err := p.tx.QueryRow(`
		SELECT record_no, closed_at_ms IS NOT NULL FROM usage_records WHERE customer_id = $1 AND day = $2 ORDER BY record_no DESC LIMIT 1`,
		p.customer, day).Scan(&last, &closed)
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return nil, fmt.Errorf("reading a day's usage records: %w", err)
	}
	if last > 0 && !closed {
		return p.record(day, last)
	}
	r := &Record{CustomerID: p.customer, Day: day, No: last + 1, Currency: p.currency, Start: start, End: end}
	p.records[r.ID()] = r
	return r, nil
}

func (r *Record) insert(tx *store.Tx) error {
	_, err := tx.Exec(`
		INSERT INTO usage_records (customer_id, day, record_no, currency, cost, requests, open, start_ms, end_ms, changed_at_ms)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)`,
		r.CustomerID, r.Day, r.No, string(r.Currency), r.Cost.Text(r.Currency), r.Requests, r.Open, r.Start.UnixMilli(), r.End.UnixMilli(), tx.NowMS())
	if err != nil {
		return fmt.Errorf("beginning usage record %s: %w", r.ID(), err)
	}
	return nil
}

func (r *Record) update(tx *store.Tx) error {
	n, err := tx.Update(`
		UPDATE usage_records SET cost = $1, requests = $2, open = $3, changed_at_ms = $4
		WHERE customer_id = $5 AND day = $6 AND record_no = $7 AND closed_at_ms IS NULL`,
		r.Cost.Text(r.Currency), r.Requests, r.Open, tx.NowMS(), r.CustomerID, r.Day, r.No)
	if err == nil && n == 0 {
		err = errors.New("it is closed") // unreachable: what is closed has no open request
	}
	if err != nil {
		return fmt.Errorf("writing usage record %s: %w", r.ID(), err)
	}
	return nil
}

// closable is the condition on record r under which it can be closed: its day is
// over and read, all of it is final, and so for a while. $1 is how long in
// milliseconds, $2 is now.
const closable = `r.closed_at_ms IS NULL AND r.open = 0 AND r.changed_at_ms + $1 <= $2
	AND EXISTS (SELECT 1 FROM usage_passes p WHERE p.customer_id = r.customer_id AND p.pass = 'head' AND p.at_ms >= r.end_ms + $1)`

// closeRows is how many records a turn closes.
const closeRows = 50

// CloseDue closes records that are final: those whose day ended, and which last
// changed, so long ago. It reports whether there may be more.
func CloseDue(ctx context.Context, db *store.DB, outbox *webhook.Outbox, settle time.Duration) (more bool, err error) {
	rows, err := db.Reader(ctx).Query(`
		SELECT `+recordColumns+` FROM usage_records r WHERE r.end_ms <= $3 AND `+closable+` ORDER BY r.end_ms, r.customer_id, r.record_no LIMIT $4`,
		settle.Milliseconds(), time.Now().UnixMilli(), time.Now().Add(-settle).UnixMilli(), closeRows)
	if err != nil {
		return false, fmt.Errorf("looking for usage records to close: %w", err)
	}
	due, err := store.Collect(rows, func(rows *sql.Rows) (*Record, error) { return scanRecord(rows) })
	if err != nil {
		return false, fmt.Errorf("looking for usage records to close: %w", err)
	}
	for _, r := range due {
		if err := db.WriteBackground(ctx, func(tx *store.Tx) error { return r.close(ctx, tx, outbox, settle) }); err != nil {
			return false, err
		}
	}
	return len(due) == closeRows, nil
}

// close books what the record comes to, and tells of it. Where it is not due any
// more, nothing happens.
func (r *Record) close(ctx context.Context, tx *store.Tx, outbox *webhook.Outbox, settle time.Duration) error {
	closed, err := scanRecord(tx.QueryRow(`
		UPDATE usage_records AS r SET closed_at_ms = $2 WHERE r.customer_id = $3 AND r.day = $4 AND r.record_no = $5 AND `+closable+`
		RETURNING `+recordColumns, settle.Milliseconds(), tx.NowMS(), r.CustomerID, r.Day, r.No))
	if errors.Is(err, sql.ErrNoRows) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("closing usage record %s: %w", r.ID(), err)
	}
	if err := closed.book(tx); err != nil {
		return err
	}
	return closed.tell(ctx, tx, outbox)
}

// tell publishes that the record is closed.
func (r *Record) tell(ctx context.Context, tx *store.Tx, outbox *webhook.Outbox) error {
	zone := tx.Local().Location()
	_, err := outbox.PublishCaused(ctx, tx, webhook.UsageFinalized{
		CustomerID: r.CustomerID, UsageRecordID: r.ID(), PeriodStart: r.Start.In(zone).Format(time.RFC3339), PeriodEnd: r.End.In(zone).Format(time.RFC3339),
		Currency: string(r.Currency), FinalCost: r.Cost.Text(r.Currency),
	}, r.ID())
	return err
}

// book takes the cost from the customer's credit. What costs nothing moves
// nothing.
func (r *Record) book(tx *store.Tx) error {
	if r.Cost.Sign() == 0 {
		return nil
	}
	memo := "usage of " + r.Day
	if r.No > 1 {
		memo += ", told late: record " + strconv.FormatInt(r.No, 10)
	}
	posted, err := ledger.Post(tx, ledger.Entry{
		EntryID: r.ID(), Kind: ledger.Usage, CustomerID: r.CustomerID, SourceID: r.ID(), Currency: r.Currency, CorrelationID: r.ID(), OccurredAt: r.End, Memo: memo,
		Lines: []ledger.Line{{Account: ledger.Credit(r.CustomerID), Amount: r.Cost.Neg()}, {Account: ledger.UsageRevenue, Amount: r.Cost}},
	})
	if err == nil && !posted {
		err = fmt.Errorf("closing usage record %s: it is booked already", r.ID()) // unreachable: it was open
	}
	return err
}
