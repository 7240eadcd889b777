package billing

import (
	"database/sql"
	"errors"
	"fmt"

	"jpintel/store"
)

// call is one of the operator's calls that begin an operation. Its
// Idempotency-Key is remembered for ever, as the operation is.
type call struct{ store.Once }

func newCall(scope, key string, request any) (call, error) {
	once, err := store.NewOnce("billing "+scope, key, request)
	return call{once}, err
}

// once runs fn for a key that is new, and returns the operation of the first
// time for one that is not. The same key for another request is a conflict.
func (c call) once(tx *store.Tx, fn func() (*Operation, error)) (*Operation, error) {
	var request []byte
	var id string
	err := tx.QueryRow(`SELECT request, operation_id FROM billing_calls WHERE key_hash = $1`, c.Key()).Scan(&request, &id)
	if err == nil {
		if err := c.Check(request); err != nil {
			return nil, err
		}
		return GetOperation(tx, id)
	}
	if !errors.Is(err, sql.ErrNoRows) {
		return nil, fmt.Errorf("looking for an Idempotency-Key: %w", err)
	}
	o, err := fn()
	if err != nil {
		return nil, err
	}
	_, err = tx.Exec(`INSERT INTO billing_calls (key_hash, request, operation_id, created_at_ms) VALUES ($1, $2, $3, $4)`,
		c.Key(), c.Request(), o.OperationID, tx.NowMS())
	if err != nil {
		return nil, fmt.Errorf("remembering an Idempotency-Key: %w", err)
	}
	return o, nil
}
