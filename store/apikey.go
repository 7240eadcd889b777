package store

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"time"
)

// APIKey is a key of this service's API. The key's text exists only in the
// answer of its creation.
type APIKey struct {
	KeyID      string     `json:"key_id"`
	CustomerID string     `json:"customer_id"`
	CreatedAt  time.Time  `json:"created_at"`
	LastUsedAt *time.Time `json:"last_used_at"`
	RevokedAt  *time.Time `json:"revoked_at"`
}

// usedEvery bounds how often a key's last use is written down.
const usedEvery = time.Minute

// CreateAPIKey makes a key for a customer and returns its text, which cannot be
// had again.
func CreateAPIKey(tx *Tx, customer string) (APIKey, string, error) {
	if _, err := GetCustomer(tx, customer); err != nil {
		return APIKey{}, "", err
	}
	random := make([]byte, 32)
	rand.Read(random) // never fails
	text := "jpk_" + hex.EncodeToString(random)
	key := APIKey{KeyID: tx.NewID("apk"), CustomerID: customer, CreatedAt: tx.Now}
	if _, err := tx.Exec(`INSERT INTO api_keys (key_id, customer_id, key_hash, created_at_ms) VALUES ($1, $2, $3, $4)`,
		key.KeyID, customer, tx.Keys().Hash(text), tx.NowMS()); err != nil {
		return APIKey{}, "", fmt.Errorf("adding API key: %w", err)
	}
	return key, text, nil
}

// ListAPIKeys reads a customer's keys, oldest first, revoked ones too.
func ListAPIKeys(q Querier, customer string) ([]APIKey, error) {
	if _, err := GetCustomer(q, customer); err != nil {
		return nil, err
	}
	rows, err := q.Query(`
		SELECT key_id, customer_id, created_at_ms, last_used_at_ms, revoked_at_ms
		FROM api_keys WHERE customer_id = $1 ORDER BY key_id`, customer)
	if err != nil {
		return nil, fmt.Errorf("listing API keys: %w", err)
	}
	return Collect(rows, func(r *sql.Rows) (APIKey, error) {
		var k APIKey
		var created int64
		var used, revoked sql.NullInt64
		err := r.Scan(&k.KeyID, &k.CustomerID, &created, &used, &revoked)
		k.CreatedAt, k.LastUsedAt, k.RevokedAt = FromMS(created), fromNullMS(used), fromNullMS(revoked)
		return k, err
	})
}

// RevokeAPIKey ends a key at once. Revoking it again changes nothing.
func RevokeAPIKey(tx *Tx, keyID string) error {
	n, err := tx.Update(`UPDATE api_keys SET revoked_at_ms = COALESCE(revoked_at_ms, $1) WHERE key_id = $2`, tx.NowMS(), keyID)
	if err != nil {
		return fmt.Errorf("revoking API key: %w", err)
	}
	if n == 0 {
		return Errorf(CodeNotFound, "API key %s not found", keyID)
	}
	return nil
}

// Authenticate returns the customer whose key this is, or CodeUnauthorized:
// the same for no key, an unknown and a revoked one.
func (db *DB) Authenticate(ctx context.Context, text string) (Customer, error) {
	hash := db.Keys.Hash(text)
	var keyID, customer string
	var stored []byte
	var used sql.NullInt64
	err := db.Reader(ctx).QueryRow(`
		SELECT key_id, customer_id, key_hash, last_used_at_ms FROM api_keys WHERE key_hash = $1 AND revoked_at_ms IS NULL`, hash).
		Scan(&keyID, &customer, &stored, &used)
	if errors.Is(err, sql.ErrNoRows) || err == nil && !hmac.Equal(hash, stored) {
		return Customer{}, Errorf(CodeUnauthorized, "missing or unknown API key: send it as X-API-Key")
	}
	if err != nil {
		return Customer{}, fmt.Errorf("looking up API key: %w", err)
	}
	db.noteUse(keyID, used.Int64)
	return GetCustomer(db.Reader(ctx), customer)
}

// noteUse writes down that a key is used, unless that was done a moment ago.
// Nobody waits for it, and it fails nobody: whoever only reads must not hang on
// a file that is full or busy.
func (db *DB) noteUse(keyID string, usedMS int64) {
	now := time.Now().UnixMilli()
	noted, _ := db.noted.LoadOrStore(keyID, usedMS)
	if now-max(noted.(int64), usedMS) < usedEvery.Milliseconds() || !db.noted.CompareAndSwap(keyID, noted, now) {
		return
	}
	go func() {
		_ = db.WriteBackground(context.Background(), func(tx *Tx) error { // what is lost is a minute of a time for people
			_, err := tx.Exec(`UPDATE api_keys SET last_used_at_ms = $1 WHERE key_id = $2`, tx.NowMS(), keyID)
			return err
		})
	}()
}
