package webhook

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"jpintel/store"
)

const (
	// lookRows is how many rows a page looks at, at the most, for those that its
	// filters pass: a call takes milliseconds, whatever is in the file. A page
	// that ends there is short, and its cursor goes on from the last row that was
	// looked at.
	lookRows = 2000
	// fewRows is how many rows are read and sorted where no index has them in the
	// order of the list.
	fewRows = 500
	// clockStep is how far the clock may have been set back without a list of a
	// span of time missing a delivery: they are numbered as they are made, which
	// is the order of their times but for such steps.
	clockStep = time.Minute
)

// DeliveriesRequest asks for deliveries, newest first. The empty filters pass
// everything.
type DeliveriesRequest struct {
	CustomerID     string `bind:"customer" json:"-"` // "": any customer's, for the operator
	SubscriptionID string `path:"id" json:"-"`       // "": all of them, for the operator
	Status         Status `query:"status" json:"-"`
	EventType      Type   `query:"event_type" json:"-"`
	EventID        string `query:"event_id" json:"-"`
	Since          string `query:"since" json:"-"` // RFC 3339, inclusive, of the delivery's creation
	Until          string `query:"until" json:"-"` // exclusive
	store.PageRequest
}

// Deliveries lists deliveries, of one subscription or of all. With filters, a
// page may be short or empty and still have a next cursor.
func (s *Service) Deliveries(ctx context.Context, r DeliveriesRequest) (page store.Page[Delivery], err error) {
	l := deliveryList{DeliveriesRequest: r, source: everyDelivery}
	if err := l.parse(); err != nil {
		return page, err
	}
	err = s.DB.View(ctx, func(q store.Querier) error { // what a page has looked at is told of the same rows
		for _, step := range []func(store.Querier) error{l.findSubscription, l.findSpan, l.choose} {
			if err := step(q); err != nil {
				return err
			}
		}
		page, err = s.deliveryPage(q, &l)
		return err
	})
	return page, err
}

// deliveryList is a list on its way. Its source gives candidates: all that the
// list has, and as little else as an index can leave out. Each of them has to
// pass the filters. So a poor source costs time and nothing else.
type deliveryList struct {
	DeliveriesRequest
	rows          int
	since, until  int64 // ms
	after, before int64 // delivery_seq, both exclusive

	sub      int64  // 0: all
	customer string // the subscription's
	sweep    bool   // pending deliveries of an older generation may be left
	source   source
}

// source is a FROM with deliveries as d, and a condition on them.
type source struct{ from, where string }

// The sources. $1 is the subscription, $4 the event, $5 the type, $6 the
// subscription's customer.
var (
	everyDelivery = source{`webhook_deliveries d`, ``}
	pendingOnes   = source{`webhook_deliveries d INDEXED BY webhook_deliveries_due`, ` AND d.status = 'pending'`}
	deadOnes      = source{`webhook_deliveries d`, ` AND d.status = 'dead_letter'`}
	failedOnes    = source{`webhook_deliveries d`, ` AND d.status = 'failed'`}
	oneEvents     = source{`(SELECT seq FROM outbox_events WHERE event_id = $4) o CROSS JOIN webhook_deliveries d ON d.event_seq = o.seq`, ``}
	oneTypes      = source{`(` + eventsOfType + `) o CROSS JOIN webhook_deliveries d ON d.event_seq = o.seq`, ``}
	ownOneTypes   = source{`(` + ownEventsOfType + `) o CROSS JOIN webhook_deliveries d ON d.event_seq = o.seq`, ``}
)

const (
	eventsOfType    = `SELECT seq FROM outbox_events INDEXED BY outbox_types WHERE event_type = $5`
	ownEventsOfType = eventsOfType + ` AND customer_id IS NULL UNION ALL ` + eventsOfType + ` AND customer_id = $6`
)

// parse checks what does not need the file.
func (l *deliveryList) parse() (err error) {
	if l.before, l.rows, err = l.Position(); err != nil {
		return err
	}
	l.before = newest(l.before)
	if l.Status != "" && !slices.Contains(statuses, l.Status) {
		return store.Errorf(store.CodeInvalid, "status: want pending, success, failed or dead_letter")
	}
	if l.since, err = parseInstant("since", l.Since, math.MinInt64); err != nil {
		return err
	}
	l.until, err = parseInstant("until", l.Until, math.MaxInt64)
	return err
}

func parseInstant(name, text string, none int64) (ms int64, err error) {
	if text == "" {
		return none, nil
	}
	at, err := parseTime(name, text)
	return at.UnixMilli(), err
}

// findSubscription finds the subscription among those that the caller may see.
func (l *deliveryList) findSubscription(q store.Querier) (err error) {
	if l.SubscriptionID == "" {
		l.sweep, err = exists(q, `SELECT 1 FROM webhook_subscriptions WHERE sweep = 1 LIMIT 1`)
		return err
	}
	err = q.QueryRow(`
		SELECT sub_seq, customer_id, sweep FROM webhook_subscriptions
		WHERE subscription_id = $1 AND deleted_at_ms IS NULL AND `+ofCustomer("customer_id", l.CustomerID),
		l.SubscriptionID, l.CustomerID).Scan(&l.sub, &l.customer, &l.sweep)
	if errors.Is(err, sql.ErrNoRows) {
		return errNoSubscription(l.SubscriptionID)
	}
	if err != nil {
		return fmt.Errorf("reading subscription: %w", err)
	}
	return nil
}

// findSpan turns times into numbers of deliveries.
func (l *deliveryList) findSpan(q store.Querier) (err error) {
	if l.Since != "" {
		if l.after, err = olderThan(q, l.since-clockStep.Milliseconds()); err != nil {
			return err
		}
	}
	if l.Until != "" {
		last, err := olderThan(q, l.until+clockStep.Milliseconds())
		l.before = min(l.before, last+1)
		return err
	}
	return nil
}

// olderThanQuery finds the last delivery that is older than $1: it is one of the
// next n after low, of which each turn leaves half. Numbers that retention has
// emptied are as old as the next one that is there.
const olderThanQuery = `
	WITH RECURSIVE span (low, n) AS (
	  SELECT 0, COALESCE((SELECT MAX(delivery_seq) FROM webhook_deliveries), 0)
	  UNION ALL
	  SELECT low + CASE WHEN (
	    SELECT created_at_ms FROM webhook_deliveries WHERE delivery_seq >= low + (n + 1) / 2 ORDER BY delivery_seq LIMIT 1
	  ) < $1 THEN (n + 1) / 2 ELSE 0 END, n / 2
	  FROM span WHERE n > 0
	)
	SELECT low FROM span WHERE n = 0`

func olderThan(q store.Querier, ms int64) (last int64, err error) {
	if err := q.QueryRow(olderThanQuery, ms).Scan(&last); err != nil {
		return 0, fmt.Errorf("looking for a time: %w", err)
	}
	return last, nil
}

// choose takes the source that has the fewest candidates as far as one can tell
// by looking at fewRows of each.
func (l *deliveryList) choose(q store.Querier) error {
	if l.EventID != "" {
		l.source = oneEvents
		return nil
	}
	ended, isEnded := l.ended()
	if isEnded {
		l.source = ended
	}
	for _, narrow := range []struct {
		applies bool
		source  source
		rows    []string // few of each, and the source is taken
	}{
		{isEnded && l.EventType != "", ended, []string{l.candidates(ended)}},
		{l.Status == StatusPending, pendingOnes, []string{l.candidates(pendingOnes)}},
		{l.EventType != "" && l.sub != 0, ownOneTypes, []string{ownEventsOfType}},
		{l.EventType != "" && l.sub == 0, oneTypes, []string{eventsOfType, l.candidates(oneTypes)}},
	} {
		if !narrow.applies {
			continue
		}
		if few, err := l.few(q, narrow.rows); err != nil || few {
			l.source = narrow.source
			return err
		}
	}
	return nil
}

// ended is the source of the states that are rare, and have an index.
func (l *deliveryList) ended() (source, bool) {
	switch {
	case l.Status == StatusDeadLetter:
		return deadOnes, true
	case l.Status == StatusFailed && !l.sweep:
		return failedOnes, true
	}
	return source{}, false
}

func (l *deliveryList) few(q store.Querier, queries []string) (bool, error) {
	for _, query := range queries {
		var n int
		if err := q.QueryRow(fmt.Sprintf(`SELECT COUNT(*) FROM (%s LIMIT %d)`, query, fewRows+1), l.args()...).Scan(&n); err != nil {
			return false, fmt.Errorf("choosing an index: %w", err)
		}
		if n > fewRows {
			return false, nil
		}
	}
	return true, nil
}

// args are the arguments of every query of the list.
func (l *deliveryList) args() []any {
	return []any{l.sub, l.after, l.before, l.EventID, string(l.EventType), l.customer, string(l.Status), l.since, l.until}
}

// candidates reads a source. $2 and $3 are the numbers between which the list
// goes on.
func (l *deliveryList) candidates(from source) string {
	of := ``
	if l.sub != 0 {
		of = ` AND d.sub_seq = $1`
	}
	return `SELECT d.delivery_seq, d.sub_seq, d.event_seq, d.status, d.generation, d.created_at_ms FROM ` + from.from +
		` WHERE d.delivery_seq > $2 AND d.delivery_seq < $3` + of + from.where
}

// page is the query of a page's numbers: it walks the candidates until it has
// enough that pass, or has looked at as many as it may.
func (l *deliveryList) page() string {
	var joins, filters []string
	if l.Status != "" {
		joins = append(joins, ` CROSS JOIN webhook_subscriptions s ON s.sub_seq = d.sub_seq`)
		filters = append(filters, derivedStatus+` = $7`)
	}
	if l.EventType != "" {
		joins = append(joins, ` CROSS JOIN outbox_events e ON e.seq = d.event_seq`)
		filters = append(filters, `e.event_type = $5`)
	}
	if l.Since != "" || l.Until != "" {
		filters = append(filters, `d.created_at_ms >= $8 AND d.created_at_ms < $9`)
	}
	if len(filters) == 0 {
		filters = []string{`TRUE`}
	}
	return fmt.Sprintf(`SELECT d.delivery_seq FROM (%s ORDER BY d.delivery_seq DESC LIMIT %d) d%s WHERE %s ORDER BY d.delivery_seq DESC LIMIT %d`,
		l.candidates(l.source), lookRows, strings.Join(joins, ``), strings.Join(filters, ` AND `), l.rows)
}

// deliveryPage reads a page. Where it looked at as much as it may and found too
// little, the next one goes on from there.
func (s *Service) deliveryPage(q store.Querier, l *deliveryList) (page store.Page[Delivery], err error) {
	found, err := s.selectDeliveries(q, `WHERE d.delivery_seq IN (`+l.page()+`) ORDER BY d.delivery_seq DESC`, l.args())
	if err != nil || len(found) == l.rows {
		return store.NewPage(found, l.rows, func(d Delivery) int64 { return d.seq }), err
	}
	page.Data = found
	var last int64
	err = q.QueryRow(fmt.Sprintf(`SELECT delivery_seq FROM (%s) ORDER BY delivery_seq DESC LIMIT 1 OFFSET %d`, l.candidates(l.source), lookRows-1), l.args()...).Scan(&last)
	if errors.Is(err, sql.ErrNoRows) {
		return page, nil
	}
	if err != nil {
		return page, fmt.Errorf("reading deliveries: %w", err)
	}
	page.NextCursor = store.Cursor(last)
	return page, nil
}
