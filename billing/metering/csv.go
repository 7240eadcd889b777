package metering

import (
	"encoding/csv"
	"io"
	"strconv"
)

// csvHeadings are the columns. The rows of a sum have the month in place of the
// day.
var csvHeadings = []string{"item", "day", "quantity", "unit_price", "currency", "exact", "rounded", "status", "usage_record_id"}

// WriteCSV writes the statement as comma-separated values (RFC 4180, UTF-8): a row
// for each day, then one for the sum, of attempts and then of models.
func (s Statement) WriteCSV(w io.Writer) error {
	rows := [][]string{csvHeadings}
	for _, d := range s.Attempts.Days {
		rows = append(rows, []string{"webhook_attempts", d.Day, number(d.Attempts), d.UnitPrice, s.Attempts.Currency, d.Exact, "", "", ""})
	}
	a := s.Attempts
	rows = append(rows, []string{"webhook_attempts_total", s.Month, number(a.Attempts), "", a.Currency, a.Exact, a.Rounded, s.status(), ""})
	if m := s.Models; m != nil {
		for _, d := range m.Days {
			rows = append(rows, []string{"model_usage", d.Day, number(d.Requests), "", m.Currency, d.Exact, "", d.Status, d.RecordID})
		}
		rows = append(rows, []string{"model_usage_total", s.Month, number(m.Requests), "", m.Currency, m.Exact, "", s.status(), ""})
	}
	out := csv.NewWriter(w)
	out.UseCRLF = true
	return out.WriteAll(rows)
}

func (s Statement) status() string {
	if s.Provisional {
		return Provisional
	}
	return Final
}

func number(n int64) string { return strconv.FormatInt(n, 10) }
