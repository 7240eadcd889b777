package webhook

import (
	"context"
	"database/sql"
	"fmt"

	"jpintel/store"
)

// rekeyRows is how many secrets one step seals again.
const rekeyRows = 200

// Rekey is store.Rekey for every signing secret.
func Rekey(ctx context.Context, db *store.DB) (resealed int, err error) {
	var after secretRow
	return store.Rekey(ctx, db, rekeyRows, func(tx *store.Tx) (read, changed int, err error) { return rekeyStep(tx, &after) })
}

// secretRow is one row of webhook_secrets.
type secretRow struct {
	sub, version   int64
	subscriptionID string
	sealed         []byte
}

func rekeyStep(tx *store.Tx, after *secretRow) (read, changed int, err error) {
	rows, err := tx.Query(`
		SELECT k.sub_seq, k.version, s.subscription_id, k.sealed
		FROM webhook_secrets k JOIN webhook_subscriptions s ON s.sub_seq = k.sub_seq
		WHERE (k.sub_seq, k.version) > ($1, $2) ORDER BY k.sub_seq, k.version LIMIT $3`, after.sub, after.version, rekeyRows)
	if err != nil {
		return 0, 0, fmt.Errorf("reading signing secrets: %w", err)
	}
	found, err := store.Collect(rows, func(rows *sql.Rows) (secretRow, error) {
		var r secretRow
		err := rows.Scan(&r.sub, &r.version, &r.subscriptionID, &r.sealed)
		return r, err
	})
	if err != nil {
		return 0, 0, fmt.Errorf("reading signing secrets: %w", err)
	}
	for _, r := range found {
		sealed, ok, err := tx.Keys().Reseal(r.sealed, secretContext(r.subscriptionID, r.version))
		if err != nil {
			return 0, 0, fmt.Errorf("signing secret of %s: %w", r.subscriptionID, err)
		}
		if ok {
			changed++
			if _, err := tx.Exec(`UPDATE webhook_secrets SET sealed = $1 WHERE sub_seq = $2 AND version = $3`, sealed, r.sub, r.version); err != nil {
				return 0, 0, fmt.Errorf("sealing again: %w", err)
			}
		}
		*after = r
	}
	return len(found), changed, nil
}
