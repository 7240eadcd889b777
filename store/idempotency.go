package store

import (
	"bytes"
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

const (
	// keyLife is how long an Idempotency-Key is remembered: longer than any
	// client goes on trying.
	keyLife = 24 * time.Hour
	// maxKey is the longest Idempotency-Key, in bytes.
	maxKey = 255
	// forgetRows is how many keys a step forgets.
	forgetRows = 500
)

// Once is a call that has its effect once, however often it is sent: the same
// key with the same request is given the first answer, for a day. The zero
// value is a call without a key, which has its effect each time.
type Once struct {
	// Secret says that the answer has a secret: it is kept sealed.
	Secret bool

	key     []byte // a hash of scope and key
	request []byte // a hash of what is asked for
}

// NewOnce reads an Idempotency-Key. scope names the call and, where it is a
// customer's, the customer: keys of different scopes have nothing to do with
// each other. request is compared by its JSON form.
func NewOnce(scope, key string, request any) (Once, error) {
	if key == "" {
		return Once{}, Errorf(CodeInvalid, "Idempotency-Key: required")
	}
	if len(key) > maxKey {
		return Once{}, errKey
	}
	for _, c := range []byte(key) {
		if c < ' ' || c > '~' {
			return Once{}, errKey
		}
	}
	text, err := json.Marshal(request)
	if err != nil {
		return Once{}, fmt.Errorf("encoding the request: %w", err)
	}
	keySum, requestSum := sha256.Sum256([]byte(scope+"\x00"+key)), sha256.Sum256(text)
	return Once{key: keySum[:], request: requestSum[:]}, nil
}

var errKey = Errorf(CodeInvalid, "Idempotency-Key: want 1 to %d printable ASCII characters", maxKey)

// Key is what the call is remembered by: a hash, since callers choose their keys
// and may put there what should not lie in the file.
func (o Once) Key() []byte { return o.key }

// Request is a hash of what is asked for.
func (o Once) Request() []byte { return o.request }

// Check answers CodeConflict where the key was used before for another request,
// which had this hash.
func (o Once) Check(request []byte) error {
	if !bytes.Equal(request, o.request) {
		return Errorf(CodeConflict, "Idempotency-Key: used before, for another request")
	}
	return nil
}

// DoOnce runs fn and remembers its answer in the same transaction, or returns
// the answer of the first time. The same key for another request is a
// CodeConflict. An error of fn is not remembered: the key is free again.
func DoOnce[T any](tx *Tx, o Once, fn func() (T, error)) (answer T, err error) {
	if o.key == nil {
		return fn()
	}
	if known, err := o.recall(tx, tx.Keys(), tx.Now, &answer); err != nil || known {
		return answer, err
	}
	if answer, err = fn(); err != nil {
		return answer, err
	}
	return answer, o.remember(tx, answer)
}

// Recall returns the answer of the first time, where there was one: for calls
// that have something slow to do before their transaction.
func Recall[T any](ctx context.Context, db *DB, o Once) (answer T, known bool, err error) {
	if o.key == nil {
		return answer, false, nil
	}
	known, err = o.recall(db.Reader(ctx), db.Keys, time.Now(), &answer)
	return answer, known, err
}

func (o Once) recall(q Querier, keys *Keyring, now time.Time, answer any) (known bool, err error) {
	var request, text []byte
	var sealed bool
	err = q.QueryRow(`SELECT request, answer, sealed FROM idempotency_keys WHERE key_hash = $1 AND created_at_ms > $2`,
		o.key, now.Add(-keyLife).UnixMilli()).Scan(&request, &text, &sealed)
	if errors.Is(err, sql.ErrNoRows) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("looking for an Idempotency-Key: %w", err)
	}
	if err := o.Check(request); err != nil {
		return false, err
	}
	if sealed {
		if text, err = keys.Unseal(text, answerContext(o.key)); err != nil {
			return false, fmt.Errorf("the answer to an Idempotency-Key: %w", err)
		}
	}
	return true, json.Unmarshal(text, answer)
}

func (o Once) remember(tx *Tx, answer any) error {
	text, err := json.Marshal(answer)
	if err != nil {
		return fmt.Errorf("encoding the answer: %w", err)
	}
	if o.Secret {
		text = tx.Keys().Seal(text, answerContext(o.key))
	}
	// A key that is there already is over its time: it begins again, at the end.
	_, err = tx.Exec(`
		INSERT INTO idempotency_keys (key_hash, request, answer, sealed, created_at_ms) VALUES ($1, $2, $3, $4, $5)
		ON CONFLICT (key_hash) DO UPDATE SET key_seq = (SELECT MAX(key_seq) + 1 FROM idempotency_keys), request = excluded.request,
		  answer = excluded.answer, sealed = excluded.sealed, created_at_ms = excluded.created_at_ms`,
		o.key, o.request, text, Bit(o.Secret), tx.NowMS())
	if err != nil {
		return fmt.Errorf("remembering an Idempotency-Key: %w", err)
	}
	return nil
}

// answerContext binds a sealed answer to its key.
func answerContext(key []byte) string { return "answer " + hex.EncodeToString(key) }

// ForgetKeys deletes Idempotency-Keys that are over their time: one step, in
// the background. It reports whether there may be more.
func ForgetKeys(ctx context.Context, db *DB) (more bool, err error) {
	var oldest int64
	err = db.Reader(ctx).QueryRow(`SELECT created_at_ms FROM idempotency_keys ORDER BY key_seq LIMIT 1`).Scan(&oldest)
	if errors.Is(err, sql.ErrNoRows) || err == nil && oldest > time.Now().Add(-keyLife).UnixMilli() {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("looking for old Idempotency-Keys: %w", err)
	}
	var n int64
	err = db.WriteBackground(ctx, func(tx *Tx) (err error) {
		n, err = tx.Update(`
			DELETE FROM idempotency_keys
			WHERE key_seq IN (SELECT key_seq FROM idempotency_keys ORDER BY key_seq LIMIT $1) AND created_at_ms <= $2`,
			forgetRows, tx.Now.Add(-keyLife).UnixMilli())
		return err
	})
	if err != nil {
		return false, fmt.Errorf("forgetting Idempotency-Keys: %w", err)
	}
	return n == forgetRows, nil
}
