package billing

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"time"

	"jpintel/billing/metering"
	"jpintel/billing/modelgate"
	"jpintel/store"
)

// DefaultUsageSettle is how long a day and its usage have to be over before they
// are closed.
const DefaultUsageSettle = time.Hour

const (
	// usagePages is how many pages a turn reads of a customer's new requests, and as
	// many of old ones: others wait for theirs.
	usagePages = 5
	// usageLooks is how many requests that were not final it looks at again.
	usageLooks = 3
	// usageOverlap is how much of what was read is read again: the upstream's lists
	// may lag by a minute, and clocks differ.
	usageOverlap = 5 * time.Minute
	// sweepEvery and sweepBack say how often how much is read again from its
	// beginning, for what has come later than that.
	sweepEvery = 24 * time.Hour
	sweepBack  = metering.KeepRequests / 2
	// beforeAccount is how long before an account was opened, by our clock, reading
	// begins.
	beforeAccount = 24 * time.Hour
)

// poller asks the upstream what customers have used, and closes what is final. It
// is one goroutine's.
type poller struct {
	*Engine
	settle time.Duration
	after  string // the customer with which the last turn broke off; "": it did not
}

func newPoller(e *Engine, settle time.Duration) *poller {
	return &poller{Engine: e, settle: cmp.Or(settle, DefaultUsageSettle)}
}

// turn asks once for each customer, a bounded number of pages, and closes what is
// due. It reports whether somebody has used more than that. A failure that is not
// one customer's alone ends the asking; the next turn begins with the customer
// after.
func (p *poller) turn(ctx context.Context) (more bool, err error) {
	accounts, err := p.accounts(ctx)
	if err != nil {
		return false, err
	}
	p.after = ""
	for _, a := range accounts {
		unread, err := p.read(ctx, a)
		if err != nil && !p.goesOn(ctx, a, err) {
			more, p.after = false, a.CustomerID
			break
		}
		more = more || unread
	}
	return more, p.close(ctx)
}

// close closes the usage records that are due.
func (p *poller) close(ctx context.Context) (err error) {
	for more := true; more && err == nil && ctx.Err() == nil; {
		more, err = metering.CloseDue(ctx, p.DB, p.Rules.Outbox, p.settle)
	}
	return err
}

// goesOn notes what has become of a customer's reading, and reports whether
// that of others may go better.
func (p *poller) goesOn(ctx context.Context, a metered, err error) bool {
	if ctx.Err() != nil {
		return false
	}
	refused, ok := errors.AsType[*modelgate.ReadError](err)
	if !ok {
		p.Log.Error("usage_not_counted", "customer_id_hash", p.DB.Keys.HashID(a.CustomerID), "error", err)
		return true
	}
	p.Log.Warn("usage_not_read", "customer_id_hash", p.DB.Keys.HashID(a.CustomerID), "code", refused.Code, "status", refused.Status)
	return refused.Class == modelgate.Malformed || refused.Class == modelgate.Refused
}

// metered is an account as the poller needs it.
type metered struct {
	Account
	opened time.Time
}

// accounts are those with a group, from the one after which the last turn broke
// off.
func (p *poller) accounts(ctx context.Context) ([]metered, error) {
	rows, err := p.DB.Reader(ctx).Query(`SELECT customer_id, currency, group_id, created_at_ms FROM billing_accounts WHERE group_id IS NOT NULL ORDER BY customer_id`)
	if err != nil {
		return nil, fmt.Errorf("reading accounts: %w", err)
	}
	all, err := store.Collect(rows, func(rows *sql.Rows) (a metered, err error) {
		var opened int64
		err = rows.Scan(&a.CustomerID, &a.Currency, &a.GroupID, &opened)
		a.opened = store.FromMS(opened)
		return a, err
	})
	if err != nil {
		return nil, fmt.Errorf("reading accounts: %w", err)
	}
	first := slices.IndexFunc(all, func(a metered) bool { return a.CustomerID > p.after })
	return append(all[max(first, 0):len(all):len(all)], all[:max(first, 0)]...), nil
}

// read reads what a customer has used since, again what was not final, and, once
// a day, what may have come late. It reports whether there is more that is new.
func (p *poller) read(ctx context.Context, a metered) (more bool, err error) {
	if more, err = p.pass(ctx, a, metering.Head); err != nil {
		return false, err
	}
	looking := true
	for i := 0; i < usageLooks && looking; i++ {
		if looking, err = p.look(ctx, a); err != nil {
			return false, err
		}
	}
	if more {
		return true, nil // the old can wait
	}
	_, err = p.pass(ctx, a, metering.Sweep)
	return false, err
}

// begin is where a pass goes on, or begins anew; it is over where it has nothing
// to do yet.
func (p *poller) begin(ctx context.Context, a metered, name metering.PassName) (pass metering.Pass, err error) {
	last, err := metering.GetPass(p.DB.Reader(ctx), a.CustomerID, name)
	now := time.Now().Truncate(time.Millisecond)
	switch {
	case err != nil:
		return pass, err
	case last != nil && !last.Over():
		return *last, nil
	case name == metering.Sweep && last != nil && now.Before(last.Until.Add(sweepEvery)):
		return *last, nil
	case name == metering.Sweep:
		return metering.Pass{At: now.Add(-sweepBack), Until: now}, nil
	case last == nil:
		return metering.Pass{At: a.opened.Add(-beforeAccount), Until: now}, nil
	}
	return metering.Pass{At: last.At.Add(-usageOverlap), Until: now}, nil
}

// pass reads on in a pass, page by page, each counted in a transaction of its own
// with how far the pass has come, and reports whether it got on, and not to its end.
// Where all that it has read is of one millisecond it reads some more, or it would
// never get on.
func (p *poller) pass(ctx context.Context, a metered, name metering.PassName) (more bool, err error) {
	pass, err := p.begin(ctx, a, name)
	if err != nil || pass.Over() {
		return false, err
	}
	reader, start := p.Client.Usage(a.GroupID, pass.At, pass.Until), pass.At
	for pages := 0; pages < usagePages || pass.At.Equal(start) && pages < 10*usagePages; pages++ {
		page, err := reader.Next(ctx)
		if err != nil {
			return false, err
		}
		if n := len(page.Items); n > 0 {
			pass.At = page.Items[n-1].CreatedAt.Truncate(time.Millisecond)
		}
		if reader.Over() {
			pass = finished(pass, page.Date)
		}
		if err := p.count(ctx, a, page.Items, func(tx *store.Tx) error { return pass.Set(tx, a.CustomerID, name) }); err != nil || pass.Over() {
			return false, err
		}
	}
	return pass.At.After(start), nil
}

// finished is a pass that has come to its end, or to the upstream's present, if
// that is earlier: what comes after it has not happened there yet.
func finished(pass metering.Pass, date time.Time) metering.Pass {
	end := pass.Until
	if !date.IsZero() && date.Before(end) {
		end = date
	}
	if end.Before(pass.At) {
		end = pass.At
	}
	return metering.Pass{At: end, Until: end}
}

// look reads the page that the request has to be in which has waited longest to be
// final.
func (p *poller) look(ctx context.Context, a metered) (more bool, err error) {
	now := time.Now()
	l, err := metering.NextLook(p.DB.Reader(ctx), a.CustomerID, now)
	if err != nil || l == nil || !l.MadeAt.Before(now) {
		return false, err
	}
	page, err := p.Client.Usage(a.GroupID, l.MadeAt, now).Next(ctx)
	if err != nil {
		return false, err
	}
	return true, p.count(ctx, a, page.Items, l.Looked)
}

// count counts a page, with the thresholds that it crosses, and does what belongs
// to it.
func (p *poller) count(ctx context.Context, a metered, used []modelgate.Used, also func(*store.Tx) error) error {
	var taken metering.Taken
	err := p.DB.WriteBackground(ctx, func(tx *store.Tx) (err error) {
		if taken, err = metering.Take(tx, a.CustomerID, a.Currency, used); err != nil {
			return err
		}
		for _, c := range taken.Changes {
			if err := p.Rules.rules().spent(ctx, tx, a.CustomerID, c, p.settle); err != nil {
				return err
			}
		}
		return also(tx)
	})
	if err == nil && len(taken.Contradictions) > 0 {
		p.Log.Error("usage_contradicted", "customer_id_hash", p.DB.Keys.HashID(a.CustomerID), "requests", len(taken.Contradictions), "request_id", taken.Contradictions[0])
	}
	return err
}
