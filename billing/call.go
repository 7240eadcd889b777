package billing

import (
	"crypto/sha256"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"

	"jpintel/store"
)

// call is one of the operator's calls that begin an operation. Its
// Idempotency-Key is remembered for ever, as the operation is.
type call struct {
	key, request [sha256.Size]byte
}

func newCall(scope, key string, request any) (c call, err error) {
	if key == "" {
		return c, store.Errorf(store.CodeInvalid, "Idempotency-Key: required")
	}
	if _, err := store.NewOnce(scope, key, nil); err != nil { // the form is the same everywhere
		return c, err
	}
	text, err := json.Marshal(request)
	if err != nil {
		return c, fmt.Errorf("encoding the request: %w", err)
	}
	return call{sha256.Sum256([]byte("billing " + scope + "\x00" + key)), sha256.Sum256(text)}, nil
}

// once runs fn for a key that is new, and returns the operation of the first
// time for one that is not. The same key for another request is a conflict.
func (c call) once(tx *store.Tx, fn func() (*Operation, error)) (*Operation, error) {
	var request []byte
	var id string
	err := tx.QueryRow(`SELECT request, operation_id FROM billing_calls WHERE key_hash = $1`, c.key[:]).Scan(&request, &id)
	if err == nil {
		if string(request) != string(c.request[:]) {
			return nil, store.Errorf(store.CodeConflict, "Idempotency-Key: used before, for another request")
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
		c.key[:], c.request[:], o.OperationID, tx.NowMS())
	if err != nil {
		return nil, fmt.Errorf("remembering an Idempotency-Key: %w", err)
	}
	return o, nil
}
