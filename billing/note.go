package billing

import (
	"database/sql"
	"fmt"
	"time"

	"jpintel/store"
)

// system is who of a note that no person has made.
const system = "system"

// Note is what somebody decided, or what the program did that somebody may have
// to account for.
type Note struct {
	At     time.Time `json:"at"`
	Who    string    `json:"who"`
	Action string    `json:"action"`
	Note   string    `json:"note"`
}

func note(tx *store.Tx, operationID, who, action, text string) error {
	_, err := tx.Exec(`INSERT INTO operator_notes (operation_id, at_ms, who, action, note) VALUES ($1, $2, $3, $4, $5)`,
		operationID, tx.NowMS(), who, action, text)
	if err != nil {
		return fmt.Errorf("making a note: %w", err)
	}
	return nil
}

func readNotes(q store.Querier, operationID string) ([]Note, error) {
	rows, err := q.Query(`SELECT at_ms, who, action, note FROM operator_notes WHERE operation_id = $1 ORDER BY note_seq`, operationID)
	if err != nil {
		return nil, fmt.Errorf("reading notes: %w", err)
	}
	return store.Collect(rows, func(r *sql.Rows) (n Note, err error) {
		var at int64
		err = r.Scan(&at, &n.Who, &n.Action, &n.Note)
		n.At = store.FromMS(at)
		return n, err
	})
}
