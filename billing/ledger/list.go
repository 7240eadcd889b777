package ledger

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"jpintel/billing/money"
	"jpintel/store"
)

// Posted is an entry as it stands in the journal.
type Posted struct {
	EntryID       string       `json:"entry_id"`
	Kind          Kind         `json:"kind"`
	CustomerID    string       `json:"customer_id"`
	PaymentID     *string      `json:"payment_id"`
	SourceID      *string      `json:"source_id"` // as the customer is told
	OperationID   *string      `json:"operation_id"`
	Reverses      *string      `json:"reverses_entry_id"`
	Currency      string       `json:"currency"`
	BalanceAfter  string       `json:"balance_after"`
	CorrelationID string       `json:"correlation_id"`
	OccurredAt    time.Time    `json:"occurred_at"`
	CreatedAt     time.Time    `json:"created_at"`
	Memo          string       `json:"memo"`
	Lines         []PostedLine `json:"lines"`

	seq int64
}

// PostedLine is a line as it stands in the journal.
type PostedLine struct {
	Account string `json:"account"`
	Amount  string `json:"amount"`
	Raw     string `json:"amount_raw"` // as it was received

	number int64
}

// Filter says which entries are meant. What is empty does not count.
type Filter struct {
	CustomerID string
	PaymentID  string
	Account    string // entries with a line on it
}

// where is the filter as SQL, by the numbers of read's arguments.
func (f Filter) where() (sql string) {
	for _, part := range []struct{ value, sql string }{
		{f.CustomerID, ` AND customer_id = $3`},
		{f.PaymentID, ` AND payment_id = $4`},
		{f.Account, ` AND EXISTS (SELECT 1 FROM journal_lines l WHERE l.entry_id = journal_entries.entry_id AND l.account = $5)`},
	} {
		if part.value != "" {
			sql += part.sql
		}
	}
	return sql
}

// direction is the order in which entries are read, from a number on.
type direction struct{ beyond, order string }

var (
	newestFirst = direction{`entry_seq < $1`, ` DESC`}
	oldestFirst = direction{`entry_seq > $1`, ``}
)

// read reads so many entries beyond a number at most, with their lines. It is one
// query: it sees one state of the file.
func read(q store.Querier, f Filter, d direction, from int64, entries int) ([]Posted, error) {
	rows, err := q.Query(`
		SELECT e.entry_seq, e.entry_id, e.kind, e.customer_id, e.payment_id, e.source_id, e.operation_id, e.reverses_entry_id, e.currency, e.balance_after,
		  e.correlation_id, e.occurred_at_ms, e.created_at_ms, e.memo, l.line_no, l.account, l.amount, l.amount_raw
		FROM (SELECT * FROM journal_entries WHERE `+d.beyond+f.where()+` ORDER BY entry_seq`+d.order+` LIMIT $2) e
		LEFT JOIN journal_lines l ON l.entry_id = e.entry_id ORDER BY e.entry_seq`+d.order+`, l.line_no`,
		from, entries, f.CustomerID, f.PaymentID, f.Account)
	if err != nil {
		return nil, fmt.Errorf("reading the journal: %w", err)
	}
	defer rows.Close()
	found := []Posted{}
	for rows.Next() {
		e, line, err := scan(rows)
		if err != nil {
			return nil, fmt.Errorf("reading the journal: %w", err)
		}
		if last := len(found) - 1; last < 0 || found[last].seq != e.seq {
			found = append(found, e)
		}
		if line.number > 0 { // else the entry has none
			last := &found[len(found)-1]
			last.Lines = append(last.Lines, line)
		}
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("reading the journal: %w", err)
	}
	return found, nil
}

func scan(r *sql.Rows) (e Posted, l PostedLine, err error) {
	var occurred, created int64
	var number sql.NullInt64
	var account, amount, raw sql.NullString
	err = r.Scan(&e.seq, &e.EntryID, &e.Kind, &e.CustomerID, &e.PaymentID, &e.SourceID, &e.OperationID, &e.Reverses, &e.Currency, &e.BalanceAfter,
		&e.CorrelationID, &occurred, &created, &e.Memo, &number, &account, &amount, &raw)
	e.OccurredAt, e.CreatedAt, e.Lines = store.FromMS(occurred), store.FromMS(created), []PostedLine{}
	return e, PostedLine{account.String, amount.String, raw.String, number.Int64}, err
}

// in shows an entry's times in a time zone.
func (e Posted) in(zone *time.Location) Posted {
	e.OccurredAt, e.CreatedAt = e.OccurredAt.In(zone), e.CreatedAt.In(zone)
	return e
}

// chunk is how many entries are read at once: a long journal is read in many
// short queries, which keep no other work waiting.
const chunk = 500

// each calls fn with every entry that there is when it begins.
func (j Journal) each(ctx context.Context, f Filter, d direction, fn func(Posted) error) error {
	q := j.DB.Reader(ctx)
	newest, err := newestEntry(q)
	if err != nil {
		return err
	}
	from := int64(0)
	if d == newestFirst {
		from = newest + 1
	}
	for {
		found, err := read(q, f, d, from, chunk)
		if err != nil {
			return err
		}
		for _, e := range found {
			if e.seq > newest {
				return nil
			}
			if err := fn(e.in(j.DB.Location)); err != nil {
				return err
			}
			from = e.seq
		}
		if len(found) < chunk {
			return nil
		}
	}
}

func newestEntry(q store.Querier) (seq int64, err error) {
	if err := q.QueryRow(`SELECT COALESCE(MAX(entry_seq), 0) FROM journal_entries`).Scan(&seq); err != nil {
		return 0, fmt.Errorf("reading the journal: %w", err)
	}
	return seq, nil
}

// EntriesRequest asks the operator's question: which entries there are.
type EntriesRequest struct {
	store.PageRequest
	CustomerID string `query:"customer" json:"-"`
	PaymentID  string `query:"payment" json:"-"`
	Account    string `query:"account" json:"-"`
}

// Entries lists entries with their lines, the newest first.
func (j Journal) Entries(ctx context.Context, r EntriesRequest) (page store.Page[Posted], err error) {
	return j.page(ctx, r.PageRequest, Filter{r.CustomerID, r.PaymentID, r.Account})
}

func (j Journal) page(ctx context.Context, r store.PageRequest, f Filter) (page store.Page[Posted], err error) {
	before, rows, err := r.Position()
	if err != nil {
		return page, err
	}
	q := j.DB.Reader(ctx)
	if before == 0 {
		if before, err = newestEntry(q); err != nil {
			return page, err
		}
		before++
	}
	found, err := read(q, f, newestFirst, before, rows)
	if err != nil {
		return page, err
	}
	for i := range found {
		found[i] = found[i].in(j.DB.Location)
	}
	return store.NewPage(found, rows, func(e Posted) int64 { return e.seq }), nil
}

// Movement is an entry as its customer sees it: what it did to the credit.
type Movement struct {
	EntryID      string    `json:"entry_id"`
	Kind         Kind      `json:"kind"`
	Amount       string    `json:"amount"` // negative: credit was taken
	Currency     string    `json:"currency"`
	BalanceAfter string    `json:"balance_after"`
	SourceID     *string   `json:"source_id"` // what it is about, as the event says; null: nothing
	OccurredAt   time.Time `json:"occurred_at"`
	CreatedAt    time.Time `json:"created_at"`
}

// MovementsRequest asks for the caller's own movements.
type MovementsRequest struct {
	store.PageRequest
	CustomerID string `bind:"customer" json:"-"`
	Format     string `query:"format" json:"-"` // json or csv; "": what Accept says
}

// Movements lists what has moved a customer's credit, the newest first.
func (j Journal) Movements(ctx context.Context, r MovementsRequest) (page store.Page[Movement], err error) {
	found, err := j.page(ctx, r.PageRequest, ofCredit(r.CustomerID))
	if err != nil {
		return page, err
	}
	page.Data, page.NextCursor = make([]Movement, len(found.Data)), found.NextCursor
	for i, e := range found.Data {
		if page.Data[i], err = e.movement(); err != nil {
			return page, err
		}
	}
	return page, nil
}

// ofCredit are the entries that move a customer's credit: what else is about the
// customer is the operator's own business.
func ofCredit(customer string) Filter {
	return Filter{CustomerID: customer, Account: Credit(customer)}
}

func (e Posted) movement() (Movement, error) {
	lines, err := e.amounts()
	if err != nil {
		return Movement{}, err
	}
	amount, err := on(Credit(e.CustomerID), lines)
	return Movement{e.EntryID, e.Kind, amount.Text(money.Currency(e.Currency)), e.Currency, e.BalanceAfter, e.SourceID, e.OccurredAt, e.CreatedAt}, err
}

// amounts are the entry's lines as they are added up.
func (e Posted) amounts() ([]Line, error) {
	lines := make([]Line, len(e.Lines))
	for i, l := range e.Lines {
		amount, err := money.ParseSigned(l.Amount)
		if err != nil {
			return nil, fmt.Errorf("entry %s, line %d: %q: %w", e.EntryID, i+1, l.Amount, err)
		}
		lines[i] = Line{l.Account, amount}
	}
	return lines, nil
}
