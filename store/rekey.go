package store

import (
	"context"
	"database/sql"
	"fmt"
)

// Rekey seals values again under the first master key, in steps of so many
// rows, and returns how many were under another one. step goes on where the one
// before has ended; it tells how many rows it has read and how many of them it
// has changed. It can be interrupted and run again, beside a server that has
// both keys.
func Rekey(ctx context.Context, db *DB, rows int, step func(*Tx) (read, changed int, err error)) (resealed int, err error) {
	for {
		var read, changed int
		if err := db.Write(ctx, func(tx *Tx) (err error) {
			read, changed, err = step(tx)
			return err
		}); err != nil {
			return resealed, err
		}
		resealed += changed
		if read < rows {
			return resealed, nil
		}
	}
}

// rekeyRows is how many answers one step seals again.
const rekeyRows = 200

// RekeyAnswers is Rekey for the answers that are kept with Idempotency-Keys.
func RekeyAnswers(ctx context.Context, db *DB) (resealed int, err error) {
	var after int64
	return Rekey(ctx, db, rekeyRows, func(tx *Tx) (read, changed int, err error) { return rekeyAnswers(tx, &after) })
}

type sealedAnswer struct {
	seq         int64
	key, sealed []byte
}

func rekeyAnswers(tx *Tx, after *int64) (read, changed int, err error) {
	rows, err := tx.Query(`
		SELECT key_seq, key_hash, answer FROM idempotency_keys WHERE sealed = 1 AND key_seq > $1 ORDER BY key_seq LIMIT $2`, *after, rekeyRows)
	if err != nil {
		return 0, 0, fmt.Errorf("reading sealed answers: %w", err)
	}
	found, err := Collect(rows, func(rows *sql.Rows) (a sealedAnswer, err error) {
		return a, rows.Scan(&a.seq, &a.key, &a.sealed)
	})
	if err != nil {
		return 0, 0, fmt.Errorf("reading sealed answers: %w", err)
	}
	for _, a := range found {
		sealed, other, err := tx.Keys().Reseal(a.sealed, answerContext(a.key))
		if err != nil {
			return 0, 0, fmt.Errorf("the answer to an Idempotency-Key: %w", err)
		}
		if other {
			changed++
			if _, err := tx.Exec(`UPDATE idempotency_keys SET answer = $1 WHERE key_seq = $2`, sealed, a.seq); err != nil {
				return 0, 0, fmt.Errorf("sealing again: %w", err)
			}
		}
		*after = a.seq
	}
	return len(found), changed, nil
}
