package billing

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"jpintel/store"
)

// rekeyRows is how many values one step seals again.
const rekeyRows = 200

// sealedRow is one sealed value, and what binds it to its place.
type sealedRow struct {
	id      string // of the operation
	seq     int64  // of a late answer; 0: a model key's secret
	context string
	sealed  []byte
}

// Rekey is store.Rekey for model keys' secrets and for late answers.
func Rekey(ctx context.Context, db *store.DB) (resealed int, err error) {
	secrets, err := rekey(ctx, db, `
		SELECT operation_id, 0, key_id, sealed FROM key_secrets WHERE operation_id > $1 AND $2 = 0 AND sealed IS NOT NULL ORDER BY operation_id LIMIT $3`,
		`UPDATE key_secrets SET sealed = $1 WHERE operation_id = $2 AND $3 = 0`, secretContext)
	late, lateErr := rekey(ctx, db, `
		SELECT operation_id, late_seq, lock_token, sealed_body FROM late_results WHERE $1 = $1 AND late_seq > $2 ORDER BY late_seq LIMIT $3`,
		`UPDATE late_results SET sealed_body = $1 WHERE operation_id = $2 AND late_seq = $3`, lateContext)
	return secrets + late, errors.Join(err, lateErr)
}

// rekey seals the values of one table again. query reads those after an
// operation and a number: operation, number, what the context is made of besides,
// value.
func rekey[T any](ctx context.Context, db *store.DB, query, update string, context func(id string, with T) string) (int, error) {
	var after sealedRow
	return store.Rekey(ctx, db, rekeyRows, func(tx *store.Tx) (read, changed int, err error) {
		rows, err := tx.Query(query, after.id, after.seq, rekeyRows)
		if err != nil {
			return 0, 0, fmt.Errorf("reading sealed values: %w", err)
		}
		found, err := store.Collect(rows, func(rows *sql.Rows) (r sealedRow, err error) {
			var with T
			err = rows.Scan(&r.id, &r.seq, &with, &r.sealed)
			r.context = context(r.id, with)
			return r, err
		})
		if err != nil {
			return 0, 0, fmt.Errorf("reading sealed values: %w", err)
		}
		for _, r := range found {
			sealed, other, err := tx.Keys().Reseal(r.sealed, r.context)
			if err != nil {
				return 0, 0, fmt.Errorf("a sealed value of operation %s: %w", r.id, err)
			}
			if other {
				changed++
				if _, err := tx.Exec(update, sealed, r.id, r.seq); err != nil {
					return 0, 0, fmt.Errorf("sealing again: %w", err)
				}
			}
			after = r
		}
		return len(found), changed, nil
	})
}
