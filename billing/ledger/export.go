package ledger

import (
	"context"
	"encoding/csv"
	"encoding/json"
	"io"
	"strconv"
	"strings"
	"time"
)

// Columns of the two tables.
var (
	entryColumns = []string{"entry_id", "line", "kind", "customer_id", "payment_id", "source_id", "operation_id", "reverses_entry_id", "account", "amount", "amount_raw", "currency",
		"balance_after", "correlation_id", "occurred_at", "created_at", "memo"}
	movementColumns = []string{"entry_id", "kind", "amount", "currency", "balance_after", "source_id", "occurred_at", "created_at"}
)

// WriteCSV writes every line of every entry, the oldest first, as RFC 4180 has it.
// Amounts are as they are stored, all their digits.
func (j Journal) WriteCSV(ctx context.Context, w io.Writer, f Filter) error {
	table, err := newTable(w, entryColumns)
	if err != nil {
		return err
	}
	if err := j.each(ctx, f, oldestFirst, func(e Posted) error { return table.entry(e) }); err != nil {
		return err
	}
	return table.end()
}

// WriteJSON writes every entry, the oldest first, each on a line of its own.
func (j Journal) WriteJSON(ctx context.Context, w io.Writer, f Filter) error {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	return j.each(ctx, f, oldestFirst, func(e Posted) error { return enc.Encode(e) })
}

// WriteMovements writes all that has moved a customer's credit as WriteCSV does,
// the newest first.
func (j Journal) WriteMovements(ctx context.Context, w io.Writer, customer string) error {
	table, err := newTable(w, movementColumns)
	if err != nil {
		return err
	}
	if err := j.each(ctx, ofCredit(customer), newestFirst, func(e Posted) error {
		m, err := e.movement()
		if err != nil {
			return err
		}
		return table.Write([]string{safe(m.EntryID), safe(string(m.Kind)), m.Amount, safe(m.Currency), m.BalanceAfter, safe(orEmpty(m.SourceID)), moment(m.OccurredAt), moment(m.CreatedAt)})
	}); err != nil {
		return err
	}
	return table.end()
}

// table is CSV with line ends of two characters.
type table struct{ *csv.Writer }

func newTable(w io.Writer, columns []string) (table, error) {
	t := table{csv.NewWriter(w)}
	t.UseCRLF = true
	return t, t.Write(columns)
}

func (t table) entry(e Posted) error {
	for i, l := range e.Lines {
		err := t.Write([]string{safe(e.EntryID), strconv.Itoa(i + 1), safe(string(e.Kind)), safe(e.CustomerID), safe(orEmpty(e.PaymentID)), safe(orEmpty(e.SourceID)), safe(orEmpty(e.OperationID)), safe(orEmpty(e.Reverses)),
			safe(l.Account), l.Amount, l.Raw, safe(e.Currency), e.BalanceAfter, safe(e.CorrelationID), moment(e.OccurredAt), moment(e.CreatedAt), safe(e.Memo)})
		if err != nil {
			return err
		}
	}
	return nil
}

func (t table) end() error {
	t.Flush()
	return t.Error()
}

// formulas are what a spreadsheet takes for the beginning of a formula, in full
// width too.
const formulas = "=+-@\t\r\n＝＋－＠"

// safe is a text that no spreadsheet takes for a formula. Only texts need it: of
// amounts it would make something else.
func safe(text string) string {
	if text != "" && strings.ContainsRune(formulas, []rune(text)[0]) {
		return "'" + text
	}
	return text
}

func moment(at time.Time) string { return at.Format(time.RFC3339Nano) }

func orEmpty(text *string) string {
	if text == nil {
		return ""
	}
	return *text
}
